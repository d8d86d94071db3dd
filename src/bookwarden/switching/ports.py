"""Ports of the registry's operations, provided by `clusters` and `wiring`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol, TypeVar

from bookwarden.ledgers.metadata import ClusterSeen, LedgerReading


class Place(NamedTuple):
    """The URL of the store that a bookie cluster's metadata is in, and the ledgers root there."""

    url: str
    ledgers_root: str


class ClusterMetadata(Protocol):
    """A bookie cluster's metadata, read only; every call raises StoreError where its store does not answer."""

    url: str
    ledgers_root: str

    def look(self) -> ClusterSeen:
        """Read which cluster it is, never older than this call."""

    def root_seen_from(self, url: str) -> str | None:
        """Return the path of the ledgers root in the store of that URL, if its ensemble is the same by any name.

        None where it would not be below that store's chroot.
        """

    def first_free_id(self) -> int:
        """Return an id above every ledger that has metadata there, and above every id that was given there."""

    def custom_metadata(self) -> Iterator[tuple[int, Mapping[str, bytes] | None]]:
        """Yield every ledger with its custom metadata; None where its metadata cannot be understood."""

    def read_many(self, ledger_ids: list[int]) -> list[LedgerReading]:
        """Read the metadata of each ledger, in the order asked."""


class IdGenerator(Protocol):
    """The generator of ledger ids below a root of Pulsar's own store."""

    def next_id(self) -> int:
        """Return the id that the next ledger gets; 0 if none was given yet."""

    def needs_leap(self, ledger_id: int) -> bool:
        """Return whether `raise_to` would begin a new upper half, which BookKeeper's own client does not notice."""

    def raise_to(self, ledger_id: int, progress: Callable[[int], object] = ...) -> None:
        """Raise the next id to this one or a larger; ``progress`` is called with ids on the way."""


OpensCluster = Callable[[Place], ClusterMetadata]

PlanT = TypeVar("PlanT")
#: Entered before a plan is carried out; raises RefusedError if it may not be, else gives what is called with progress.
Confirm = Callable[[PlanT], AbstractContextManager[Callable[[int], object]]]


@contextmanager
def unasked(_: object) -> Iterator[Callable[[int], object]]:
    """Ask nothing before a plan is carried out, and show nothing of its progress."""
    yield lambda _: None
