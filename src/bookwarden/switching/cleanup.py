"""Cleanup of former bookie clusters: what they have of ledgers that brokers read from the active one is marked.

A mark is a pending deletion of one place. Phase two looks at everything again, and proves the copy that is kept, before
it deletes anything (deletion.phase_two.superseded).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar

from bookwarden.errors import RefusedError
from bookwarden.ledgers.custom_metadata import identify_holder, why_not_superseded
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.metadata import ActiveCluster, LedgerMetadata, LedgerReading, UnreadableLedger, place_in
from bookwarden.ledgers.pending_deletion import PendingDeletion, Waiver, mark_of_holder
from bookwarden.metastore.interface import MetadataStore
from bookwarden.switching.operation import State
from bookwarden.switching.order import Phase

_AT_ONCE = 500
_T = TypeVar("_T")


class ReadsLedgers(Protocol):
    """The catalog of ledgers over all registered bookie clusters."""

    def read_many(self, ledger_ids: Sequence[int]) -> list[LedgerReading]:
        """Read the metadata of each ledger, in the order asked; never older than this call."""


class FormerClusters(Protocol):
    """The registered bookie clusters."""

    def look_again(self) -> None:
        """Have the registry read anew by whoever asks next."""

    def active(self) -> ActiveCluster | None:
        """Return the active one; None where none is registered."""

    def roots_by_name(self) -> dict[str, tuple[MetadataStore, str]]:
        """Return store and ledgers root of each registered cluster."""


class Failed(Protocol):
    """A mark that was not confirmed."""

    @property
    def mark(self) -> PendingDeletion:
        """The mark."""

    @property
    def failure(self) -> str | None:
        """The reason."""


class Report(Protocol):
    """The result of marking."""

    @property
    def failed(self) -> Sequence[Failed]:
        """Those that were not confirmed."""


class SendsMarks(Protocol):
    """Phase one's way to the deletion topic."""

    enabled: bool  #: Whether anything may be marked.

    def mark(self, marks: Sequence[PendingDeletion]) -> Report:
        """Send all and wait until each is confirmed or has failed; PulsarError where nothing could be sent."""


class Target(NamedTuple):
    """A place of a ledger that may go."""

    cluster: str
    ledger_id: int
    holder: Holder
    size: int  #: In bytes, of one copy of each entry.

    def mark(self, active: str, waives: frozenset[Waiver]) -> PendingDeletion:
        """Make its pending deletion."""
        reason = f"brokers read it from bookie cluster {active}"
        return replace(mark_of_holder(self.ledger_id, self.holder, reason), bookie_cluster=self.cluster, waives=waives)


@dataclass(frozen=True, slots=True)
class Targets:
    """Counts of what may go, by cluster and kind, and of what stays, by cluster and reason."""

    active: str  #: Name of the active cluster.
    window_left_s: float  #: For so long the newest switch can still be rolled back; 0 once that is over.
    ledgers: Counter[tuple[str, str]]  #: What may go.
    sizes: Counter[tuple[str, str]]  #: Likewise, in bytes, of one copy of each entry.
    kept: Counter[tuple[str, str]]  #: What stays.

    @property
    def total(self) -> int:
        """How many may go."""
        return self.ledgers.total()


class CleanedUp(NamedTuple):
    """The marks that were sent, and why others were not."""

    sent: int
    failed: tuple[tuple[int, str], ...]  #: Each ledger with the reason.


@dataclass(frozen=True)
class Cleanup:
    """Finds and marks what former clusters still have."""

    clusters: FormerClusters  #: The registered ones.
    catalog: ReadsLedgers  #: Over all of them.
    #: Yields every ledger below a root, with None for metadata that cannot be understood.
    read_every: Callable[[MetadataStore, str], Iterable[tuple[int, LedgerMetadata | None]]]
    marker: SendsMarks  #: Sends to the deletion topic.
    state: Callable[[], State]  #: Says where the newest switch stands.
    window_s: float  #: For so long a switch may be rolled back.
    clock: Callable[[], float]  #: Tells seconds since the epoch, as the store does.

    def targets(self, source: str | None = None) -> Targets:
        """List everything that former clusters have, or this one alone; change nothing.

        Raises RefusedError where no former cluster is registered, or the named one is none.
        """
        active, left = self._active(source)
        found = Targets(active.name, left, Counter(), Counter(), Counter())
        for one in self._found(active, source):
            if isinstance(one, Target):
                key = one.cluster, one.holder.ledgers_label
                found.ledgers[key] += 1
                found.sizes[key] += one.size
            else:
                found.kept[one] += 1
        return found

    def require(self, source: str | None = None, *, force: bool = False) -> ActiveCluster:
        """Return the active cluster; RefusedError, as `mark`, where nothing may be marked now."""
        active, left = self._active(source)
        if not self.marker.enabled:
            raise _refused("deletion.topic_two_phase_deletion_enabled is false")
        phase = self.state().phase
        if phase is not Phase.DONE:
            raise _refused(
                f"the newest switch is in the phase {phase.value}, so that brokers may act by another registry: carry "
                "it on with `bookie-clusters switch --resume` first"
            )
        if left and not force:
            raise _refused(
                f"the switch to {active.name} can be rolled back for another {left / 3600:.1f} h "
                "(deletion.rollback_window_hours)"
            )
        return active

    def mark(
        self,
        source: str | None = None,
        *,
        at_most: int = 0,
        force: bool = False,
        progress: Callable[[int], object] = lambda _: None,
    ) -> CleanedUp:
        """Mark what may go; ``at_most`` so many, all for 0; ``progress`` is called with how many were sent.

        Raises RefusedError as `targets` does, while a switch is under way, and, unless ``force`` is given, within the
        rollback window. May be interrupted and repeated: a ledger that is marked twice goes once.
        """
        active = self.require(source, force=force)
        waives = frozenset({Waiver.SUPERSEDED, Waiver.ROLLBACK_WINDOW} if force else {Waiver.SUPERSEDED})
        wanted = (one for one in self._found(active, source) if isinstance(one, Target))
        sent, failed = 0, list[tuple[int, str]]()
        for part in _parts(itertools.islice(wanted, at_most or None)):
            report = self.marker.mark([one.mark(active.name, waives) for one in part])
            failed += [(one.mark.ledger_id, one.failure or "") for one in report.failed]
            sent += len(part) - len(report.failed)
            progress(sent)
        return CleanedUp(sent, tuple(failed))

    def _active(self, source: str | None) -> tuple[ActiveCluster, float]:
        """Return the active cluster, and for how many seconds the switch to it can be rolled back."""
        self.clusters.look_again()
        active = self.clusters.active()
        if active is None or len(active.registered) < 2:
            raise _refused("there is no other bookie cluster than the active one")
        if source is not None and source not in active.registered:
            raise _refused(f"no bookie cluster {source!r} is registered")
        if source == active.name:
            raise _refused(f"bookie cluster {source} is active: brokers read its ledgers there")
        left = active.window_left(self.window_s, self.clock() * 1000)
        if left is None:
            raise _refused("nothing was switched yet")
        return active, left

    def _found(self, active: ActiveCluster, source: str | None) -> Iterator[Target | tuple[str, str]]:
        """Yield what may go, and for all else its cluster with the reason that it stays."""
        for name, (store, root) in self.clusters.roots_by_name().items():
            if name == active.name or source not in (None, name):
                continue
            for ids in _parts(ledger_id for ledger_id, _ in self.read_every(store, root)):
                for reading in self.catalog.read_many(ids):
                    one = _looked_at(reading, name, active.name)
                    if one is not None:
                        yield one


def _looked_at(reading: LedgerReading, name: str, active: str) -> Target | tuple[str, str] | None:
    if isinstance(reading, UnreadableLedger):
        return name, "its metadata cannot be understood, or differs between clusters"
    former = place_in(reading, name)
    if former is None:
        # Deleted meanwhile, or, in a shared cluster, another Pulsar cluster's.
        return None
    reason = why_not_superseded(former, place_in(reading, active), active)
    if reason is not None:
        return name, reason
    holder = identify_holder(former.metadata.custom)
    if holder is None:
        return name, "its custom metadata names no holder"
    return Target(name, former.ledger_id, holder, former.metadata.length)


def _parts(items: Iterable[_T]) -> Iterator[list[_T]]:
    rest = iter(items)
    while part := list(itertools.islice(rest, _AT_ONCE)):
        yield part


def _refused(reason: str) -> RefusedError:
    return RefusedError(f"nothing is cleaned up: {reason}")
