"""What a rehearsal, and the comparison of two metadata stores, need of them; the latter reads, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookwarden.ledgers.creation import CreateResult, NewNode
from bookwarden.ledgers.metadata import DeleteResult


class Node(Protocol):
    """A node as it was read; see `Versioned` of the metadata stores."""

    @property
    def value(self) -> bytes:
        """Its bytes."""

    @property
    def version(self) -> int:
        """What a conditional write compares."""

    @property
    def created_ms(self) -> int:
        """When it was created, by the store's clock."""

    @property
    def modified_ms(self) -> int:
        """When it was written last, by the store's clock."""

    @property
    def children(self) -> int | None:
        """How many nodes are below it; None where a read does not tell."""

    @property
    def ephemeral(self) -> bool:
        """Whether it ends with a session."""

    @property
    def session(self) -> int | None:
        """Which session it ends with; None where it does not, or the store tells none."""

    @property
    def modifications(self) -> int | None:
        """How often its value was replaced; None where that is the version."""


class Tree(Protocol):
    """A metadata store that is only read; the errors are those of `MetadataStore`. Safe for threads."""

    @property
    def answers_at_once(self) -> bool:
        """Whether no call waits for a server, so that there is no use in several at the same time."""

    def get_many(self, paths: Sequence[str]) -> Sequence[Node | None]:
        """Read each path, in the order asked; None where there is no node."""

    def list_many(self, paths: Sequence[str]) -> Sequence[Sequence[str]]:
        """Name the direct children of each path, sorted; none where there is no such node."""

    def parents_among(self, paths: Sequence[str]) -> set[str]:
        """Name those of the paths that have nodes below them."""

    def sync(self) -> None:
        """Let later reads see everything that was committed before this call."""


class ScratchStore(Tree, Protocol):
    """A metadata store that a copy is made in, and removed from; the errors are those of `MetadataStore`."""

    def create_many(self, nodes: Sequence[NewNode]) -> Sequence[CreateResult]:
        """Create nodes at once, never replacing one; a result for each, in the order asked."""

    def create(self, path: str, value: bytes) -> None:
        """Create a node; LostRaceError if it exists."""

    def put(self, path: str, value: bytes, version: int) -> int:
        """Replace the value if the node has this version; return the new version."""

    def delete_many(self, expected: Sequence[tuple[str, int]]) -> Sequence[DeleteResult]:
        """Delete each (path, expected version) that has nothing below it; the results are in the order asked."""
