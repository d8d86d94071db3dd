"""What the comparison of two metadata stores needs of them: reads, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


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
