"""Trim consumed ledgers of a topic in the metadata store: mark them, then remove them from its list (store mode).

This is for topics that no broker owns, and asks neither retention nor brokers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import takewhile

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.metadata.ownership import BundleOwnership
from bookwarden.deletion.node_check import NodeCheck
from bookwarden.deletion.phase_one.mark import Marker, marks_of_ledgers
from bookwarden.deletion.phase_one.operation import MarkPlan, Mode, Operation, OperationResult, refuse_shadow
from bookwarden.deletion.ports import LedgerCatalog
from bookwarden.errors import (
    LostRaceError,
    NotFoundError,
    OutcomeUnknownError,
    RefusedError,
    StoreAccessError,
    StoreUnavailableError,
)
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.live_references import HolderNode
from bookwarden.ledgers.managed_ledger import (
    LedgerInfo,
    ManagedLedgerInfo,
    Position,
    VersionedCursor,
    VersionedManagedLedger,
)
from bookwarden.ledgers.metadata import LedgerState, StoredLedger, UnreadableLedger
from bookwarden.ledgers.names import TopicName, decode_local_name

# The reason in marks of trimmed ledgers.
TRIMMED = "trimmed"


class StoreTrim:
    """Plans trims in the metadata store, each one versioned update of a topic, while no broker owns it.

    An owner's node ends with its session, and its broker may go on serving without one. So the last ledger has to be
    closed too: a broker that has the topic loaded has it open, and closes it when it unloads the topic.
    """

    def __init__(
        self,
        marker: Marker,
        store: ManagedLedgers,
        ownership: BundleOwnership,
        catalog: LedgerCatalog,
        nodes: NodeCheck | None = None,
    ) -> None:
        self._marker = marker
        self._store = store
        self._ownership = ownership
        self._catalog = catalog
        self._nodes = nodes or NodeCheck(catalog)

    def plan(
        self,
        topic: str,
        ledger_ids: Collection[int] | None = None,
        *,
        before_ms: int | None = None,
        force: bool = False,
    ) -> MarkPlan:
        """Plan to trim given ledgers, or those closed before a moment (ms since 1970), or else all that are consumed.

        As by a broker, they are removed from the front of the list: the sweep keeps ledgers inside it. Raises
        RefusedError while a broker owns the topic or may have it loaded, for a list that may be damaged, for the last
        ledger, for one without entries or a time of closing, for given ones with older ones left before them, and,
        unless ``force``, for one that a subscription still needs or may need; without given ledgers, it stops before
        these. NotFoundError for an absent topic or ledger. A partitioned topic is trimmed partition by partition. The
        result of the plan reports a failure after its marks were sent.
        """
        name = TopicName.parse(topic)
        if not self._marker.enabled:
            raise RefusedError(
                f"{name} is not trimmed: with topic_two_phase_deletion_enabled=false its ledgers would leak"
            )
        self._refuse_owned(name)
        read = self._store.read(name.managed_ledger)
        if read is None:
            raise NotFoundError(f"{name} has no managed ledger; of a partitioned topic name one -partition-N")
        refuse_shadow(name, read.info)
        self._refuse_damaged(name, read)
        self._refuse_open(name, read.info)
        cursors = self._store.cursors(name.managed_ledger)
        chosen = _choose(name, read.info, cursors, ledger_ids, before_ms, force=force)
        chosen = _front(read.info, {ledger.ledger_id for ledger in chosen})
        marks = tuple(marks_of_ledgers(name, chosen, TRIMMED))
        return MarkPlan(Operation.TRIM, Mode.STORE, str(name), marks, lambda plan: self._carry_out(plan, name, read))

    def _carry_out(self, plan: MarkPlan, name: TopicName, read: VersionedManagedLedger) -> OperationResult:
        if not plan.marks:
            return OperationResult(plan, done=True)
        report = self._marker.mark(plan.marks)
        removed = [ledger.ledger_id for ledger in _front(read.info, report.confirmed_ids())]
        problem = self._remove(name, read, removed) if removed else "no mark was confirmed"
        taken = () if problem else tuple(removed)
        if not problem and report.failed:
            first = report.failed[0]
            problem = f"{len(report.failed)} marks failed and their ledgers stay; "
            problem += f"the first, ledger {first.mark.ledger_id}: {first.failure}"
        return OperationResult(plan, report, done=not problem, problem=problem, removed=taken)

    def _refuse_owned(self, name: TopicName) -> None:
        owner = self._ownership.owner(str(name))
        if owner is not None:
            raise RefusedError(
                f"{name} is, or may be, loaded by {owner}, which an update from outside would fence: "
                "trim through the broker, or stop it first"
            )

    def _refuse_damaged(self, name: TopicName, read: VersionedManagedLedger) -> None:
        """Refuse to write a list that may be damaged: ledgers lost by that would look like trimmed ones."""
        holder = ManagedLedgerHolder(name.managed_ledger)
        doubt = self._nodes.doubt_about(holder, HolderNode(read.path, read.info))
        if doubt is not None:
            raise RefusedError(
                f"{name} is not trimmed: {doubt}. Compare it with a backup; if it is right, let a broker load the "
                "topic and trim it"
            )

    def _refuse_open(self, name: TopicName, info: ManagedLedgerInfo) -> None:
        if not info.ledgers:
            return
        (reading,) = self._catalog.read_many([info.ledgers[-1].ledger_id])
        if isinstance(reading, UnreadableLedger) or (
            isinstance(reading, StoredLedger) and reading.metadata.state is not LedgerState.CLOSED
        ):
            raise RefusedError(
                f"{name} may be loaded although it has no owner: its last ledger {reading.ledger_id} is not closed, "
                "and an update from outside would fence it; let a broker load and unload the topic, then try again"
            )

    def _remove(self, name: TopicName, read: VersionedManagedLedger, ids: Collection[int]) -> str:
        """Update the node; return why the ledgers are still listed, "" if they are not."""
        try:
            # A broker may have loaded the topic during the sends; one that loads it later finds a new version.
            self._refuse_owned(name)
            self._refuse_open(name, read.info)
            try:
                self._store.remove_ledgers(read, ids)
            except LostRaceError:
                self._remove_as_moved(name, read, ids)
        except RefusedError as error:
            return f"marked, but not removed: {error}"
        except LostRaceError:
            return f"marked, but not removed: {name} changed meanwhile; its ledgers stay readable, try again"
        except (StoreUnavailableError, StoreAccessError) as error:
            return f"marked, but not removed; the ledgers stay readable: {error}"
        except OutcomeUnknownError as error:
            return self._read_back(name, ids, error)
        return ""

    def _remove_as_moved(self, name: TopicName, read: VersionedManagedLedger, ids: Collection[int]) -> None:
        """Update the node again if only its version changed: the first update waited until the metadata was moved."""
        again = self._store.read(name.managed_ledger)
        if again is None or again.info != read.info:
            raise LostRaceError(f"{name} changed since it was read")
        self._refuse_owned(name)
        self._store.remove_ledgers(again, ids)

    def _read_back(self, name: TopicName, ids: Collection[int], error: OutcomeUnknownError) -> str:
        try:
            read = self._store.read(name.managed_ledger)
        except (StoreUnavailableError, OutcomeUnknownError):
            return f"marked, and perhaps removed, perhaps not: {error}"
        listed = read.info.ledger_ids if read is not None else frozenset()
        return "marked, but not removed: the connection broke; try again" if listed & set(ids) else ""


def consumed_ledgers(ledgers: Iterable[LedgerInfo], mark_deletes: Iterable[Position]) -> list[LedgerInfo]:
    """Return the ledgers that every subscription has acknowledged; never the last one, which is or may be open.

    Without a subscription all but the last are consumed, as for ManagedLedgerImpl.internalTrimLedgers.
    """
    slowest = min(mark_deletes, default=None)
    return [ledger for ledger in tuple(ledgers)[:-1] if slowest is None or _is_consumed(ledger, slowest)]


def _is_consumed(ledger: LedgerInfo, slowest: Position) -> bool:
    if ledger.ledger_id == slowest.ledger_id:
        return slowest.entry_id >= ledger.entries - 1
    return ledger.ledger_id < slowest.ledger_id


def _choose(
    name: TopicName,
    info: ManagedLedgerInfo,
    cursors: Mapping[str, VersionedCursor],
    ledger_ids: Collection[int] | None,
    before_ms: int | None,
    *,
    force: bool,
) -> list[LedgerInfo]:
    asked = _asked(name, info, ledger_ids)
    # A ledger that is being written looks so in the list; once ids return it need not have the highest id.
    unfinished = [ledger.ledger_id for ledger in asked if ledger.entries <= 0 or ledger.timestamp_ms <= 0]
    if unfinished and ledger_ids is not None:
        raise RefusedError(
            f"ledger {unfinished[0]} of {name} has no entries or no time of closing on the list: it may be the one "
            "that is written to; leave it to the broker"
        )
    asked = [ledger for ledger in asked if ledger.ledger_id not in unfinished]
    if before_ms is not None:
        asked = [ledger for ledger in asked if 0 < ledger.timestamp_ms < before_ms]
    if force:
        return asked
    consumed = {ledger.ledger_id for ledger in consumed_ledgers(info.ledgers, _settled_positions(name, cursors))}
    needed = [ledger.ledger_id for ledger in asked if ledger.ledger_id not in consumed]
    if needed and ledger_ids is not None:
        raise RefusedError(
            f"ledger {needed[0]} of {name} holds messages that a subscription has not acknowledged; "
            "only force removes it"
        )
    return [ledger for ledger in asked if ledger.ledger_id in consumed]


def _asked(name: TopicName, info: ManagedLedgerInfo, ledger_ids: Collection[int] | None) -> list[LedgerInfo]:
    if ledger_ids is None:
        return understood(info, info.ledgers[:-1])
    absent = set(ledger_ids) - info.ledger_ids
    if absent:
        raise NotFoundError(f"ledger {min(absent)} is not on the list of {name}")
    if ledger_ids and info.ledgers[-1].ledger_id in ledger_ids:
        raise RefusedError(f"ledger {info.ledgers[-1].ledger_id} is the last of {name} and is never removed")
    puzzling = info.puzzling.intersection(ledger_ids)
    if puzzling:
        raise RefusedError(
            f"{name} says something of ledger {min(puzzling)} that this version of bookwarden does not know: "
            "it stays until the broker removes it"
        )
    front = _front(info, ledger_ids)
    if len(front) < len(set(ledger_ids)):
        left = info.ledgers[len(front)].ledger_id
        raise RefusedError(
            f"ledger {left} of {name} is older than some of those, and stays: ledgers leave a list from its front, "
            "so name it too"
        )
    return front


def _front(info: ManagedLedgerInfo, ledger_ids: Collection[int]) -> list[LedgerInfo]:
    """Return the ledgers up to the first one that is not among these."""
    return list(takewhile(lambda ledger: ledger.ledger_id in ledger_ids, info.ledgers))


def understood(info: ManagedLedgerInfo, ledgers: Iterable[LedgerInfo]) -> list[LedgerInfo]:
    """Omit ledgers with unknown fields in the list: others may need them, or they have more copies."""
    return [ledger for ledger in ledgers if ledger.ledger_id not in info.puzzling]


def _settled_positions(name: TopicName, cursors: Mapping[str, VersionedCursor]) -> list[Position]:
    """Return the positions of all cursors; RefusedError where the node may be outdated or says nothing.

    A cursor with a ledger has its position in that ledger's last entry, and a seek may have moved it back.
    """
    positions = []
    for cursor, read in cursors.items():
        info = read.info
        if info.mark_delete is None or (info.cursors_ledger_id is not None and info.cursors_ledger_id >= 0):
            raise RefusedError(
                f"subscription {decode_local_name(cursor)!r} of {name} was not closed cleanly, so its position is "
                "unknown: let a broker load and unload the topic, or use force"
            )
        positions.append(info.mark_delete)
    return positions
