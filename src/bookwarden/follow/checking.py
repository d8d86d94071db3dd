"""The look at what was dropped, after its time of grace: gone, as nearly always, or still there, and then marked.

A mark is only asked for where nothing speaks against it. The sweep verifies it again, as every mark; what is withheld
here is reported, and left to the orphan scan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Final

from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.phase_two.copy_deletion import copy_of
from bookwarden.deletion.ports import LedgerCatalog
from bookwarden.errors import FormatError, NotFoundError
from bookwarden.follow.drops import Drop, Key
from bookwarden.follow.table import FollowedNodes
from bookwarden.ledgers.custom_metadata import identify_holder
from bookwarden.ledgers.kinds import Holder, LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.list_gaps import ListStatus, has_entries, list_status_of
from bookwarden.ledgers.live_references import LiveReferences, References
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading, StoredLedger, UnreadableLedger
from bookwarden.ledgers.offloaded_copies import AbsentCopy, CopyReading, UnreadableCopy
from bookwarden.ledgers.outcomes import DropOutcome
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion, Request, mark_of_holder

logger = logging.getLogger(__name__)

_WITH_MARK: Final = frozenset((DropOutcome.MARKED, DropOutcome.HANDED_OVER))


@dataclass(frozen=True, slots=True)
class CheckedDrop:
    """A drop, looked at."""

    drop: Drop  #: As its timer had it.
    outcome: DropOutcome  #: What becomes of it.
    reason: str = ""  #: For people; empty where the outcome says it all.
    holder: Holder | None = None  #: By its metadata; None where that was not read, or names none.
    ledger: StoredLedger | None = None  #: None where it is not there, and for a copy.
    is_double: bool = False  #: It is marked, and a broker had marked it already.

    def ending_as(self, outcome: DropOutcome, reason: str = "") -> CheckedDrop:
        """Return it with another outcome, and reason where there is another one."""
        return replace(self, outcome=outcome, reason=reason or self.reason)


@dataclass(frozen=True)
class LaterMarks:
    """The way of a mark to the retry topic."""

    after: Callable[[float], Marker]  #: Makes what sends marks that the sweep reads after this delay, in seconds.
    why_not_kept: Callable[[], str | None]  #: Returns why the retry topic would not keep them; None where it does.


@dataclass(frozen=True)
class DropCheck:
    """Looks at dropped ledgers in batches: BookKeeper's metadata of all, then whatever else speaks about the rest."""

    nodes: FollowedNodes  #: All that is named, over all roots.
    catalog: LedgerCatalog  #: BookKeeper's ledgers.
    references: MetadataReferences  #: Reads single holders.
    copies: OffloadStores  #: Stores of offloaded copies.
    marks: Marker | None  #: None in a dry run.
    #: Returns, before marks are sent, why the deletion topic would not keep them; None where it does.
    why_not_kept: Callable[[], str | None] = lambda: None
    later: LaterMarks | None = None  #: None in a dry run.
    #: Returns what of these brokers marked already, so that it is marked twice.
    doubles: Callable[[Sequence[PendingDeletion]], Collection[Request]] = lambda _: ()
    #: Returns the ledgers that brokers keep in the trash.
    in_trash: Callable[[], Collection[int]] = frozenset

    def look(self, drops: Sequence[Drop], given_up: Collection[Key] = ()) -> list[CheckedDrop]:
        """Look at each and mark what is to be marked; the order is kept.

        Of those ``given_up`` a doubt is waited for no longer; a mark that is not confirmed is, however long.
        Raises StoreError, PulsarError, and NotFoundError where marks would not be kept. Where it raises nothing was
        marked, or marks were sent that may be sent again.
        """
        batch = _Batch(self._read_ledgers(drops), self._read_copies(drops))
        there = [drop for drop in drops if batch.is_there(drop)]
        if there:
            batch.holders = {drop.key: batch.holder_of(drop) for drop in there}
            # Mostly nothing is there, and then all nodes need not be gone through.
            batch.named = self.nodes.named_among([drop.key for drop in there])
            batch.references = dict(
                self.references.read([holder for holder in batch.holders.values() if holder is not None])
            )
        looked = self._without_trash(
            one.ending_as(DropOutcome.LEFT) if one.outcome is DropOutcome.WAITING and one.drop.key in given_up else one
            for one in (batch.judge(drop) for drop in drops)
        )
        if self.marks is None or not any(one.outcome is DropOutcome.MARKED for one in looked):
            return _sent(looked, None)
        if (why := self.why_not_kept()) is not None:
            raise NotFoundError(why)
        doubles = self.doubles([_mark_of(one) for one in looked if one.outcome is DropOutcome.MARKED])
        return [
            replace(one, is_double=one.outcome is DropOutcome.MARKED and _mark_of(one).request in doubles)
            for one in _sent(looked, self.marks)
        ]

    def hand_over(self, drops: Sequence[Drop], delay_s: float) -> list[CheckedDrop]:
        """Mark each for the sweep to verify after the delay, without more than a look at BookKeeper's metadata.

        The order is kept. Raises as `look`.
        """
        batch = _Batch(self._read_ledgers(drops), {})
        batch.holders = {drop.key: batch.holder_of(drop) for drop in drops}
        looked = self._without_trash(batch.judge_early(drop) for drop in drops)
        if self.later is None or not any(one.outcome is DropOutcome.HANDED_OVER for one in looked):
            return _sent(looked, None)
        if (why := self.later.why_not_kept()) is not None:
            raise NotFoundError(why)
        return _sent(looked, self.later.after(delay_s))

    def _without_trash(self, looked: Iterable[CheckedDrop]) -> list[CheckedDrop]:
        """Mark none of what brokers keep in the trash."""
        found = list(looked)
        if not any(one.outcome in _WITH_MARK and one.drop.copy is None for one in found):
            return found
        kept = self.in_trash()
        return [
            one.ending_as(DropOutcome.IN_TRASH, "it is in the trash, and is marked when its time there is over")
            if one.outcome in _WITH_MARK and one.drop.copy is None and one.drop.ledger_id in kept
            else one
            for one in found
        ]

    def _read_ledgers(self, drops: Sequence[Drop]) -> dict[Key, LedgerReading]:
        ids = [drop.ledger_id for drop in drops if drop.copy is None]
        return dict(zip(ids, self.catalog.read_many(ids), strict=True)) if ids else {}

    def _read_copies(self, drops: Sequence[Drop]) -> dict[Key, CopyReading]:
        asked = [drop for drop in drops if drop.copy is not None]
        if not asked:
            return {}
        readings = self.copies.read_many([copy_of(mark_of_copy(drop)) for drop in asked])
        return {drop.key: reading for drop, reading in zip(asked, readings, strict=True)}


def _sent(looked: Sequence[CheckedDrop], marks: Marker | None) -> list[CheckedDrop]:
    """Send the marks of those that are to be marked; None is for a dry run, and where there are none."""
    if marks is None:
        return [one.ending_as(DropOutcome.WOULD_MARK) if one.outcome in _WITH_MARK else one for one in looked]
    report = marks.mark([_mark_of(one) for one in looked if one.outcome in _WITH_MARK])
    failures = {_key_of(marked.mark): marked.failure for marked in report.ledgers if marked.failure is not None}
    return [
        one.ending_as(DropOutcome.WAITING, f"its mark was not confirmed: {why}")
        if one.outcome in _WITH_MARK and (why := failures.get(one.drop.key)) is not None
        else one
        for one in looked
    ]


@dataclass
class _Batch:
    """Readings of a batch of drops."""

    ledgers: dict[Key, LedgerReading]
    copies: dict[Key, CopyReading]
    holders: dict[Key, Holder | None] = field(default_factory=dict)
    named: dict[Key, str] = field(default_factory=dict)
    references: dict[Holder, References] = field(default_factory=dict)

    def is_there(self, drop: Drop) -> bool:
        if drop.copy is not None:
            return not isinstance(self.copies[drop.key], AbsentCopy)
        return not isinstance(self.ledgers[drop.key], AbsentLedger)

    def holder_of(self, drop: Drop) -> Holder | None:
        if drop.copy is not None:
            return ManagedLedgerHolder(_name_in(drop.path))
        reading = self.ledgers[drop.key]
        return identify_holder(reading.metadata.custom) if isinstance(reading, StoredLedger) else None

    def judge(self, drop: Drop) -> CheckedDrop:
        if not self.is_there(drop):
            return CheckedDrop(drop, DropOutcome.GONE)
        if drop.key in self.named:
            return CheckedDrop(drop, DropOutcome.NAMED, f"{self.named[drop.key]} names it")
        return self._judge_copy(drop, drop.key) if drop.copy is not None else self._judge_ledger(drop)

    def judge_early(self, drop: Drop) -> CheckedDrop:
        """Judge by BookKeeper's metadata alone."""
        if drop.copy is not None:
            return CheckedDrop(drop, DropOutcome.HANDED_OVER, _reason(drop), self.holders[drop.key])
        if not self.is_there(drop):
            return CheckedDrop(drop, DropOutcome.GONE)
        found = self._markable(drop)
        if isinstance(found, CheckedDrop):
            return found
        reading, holder = found
        return CheckedDrop(drop, DropOutcome.HANDED_OVER, _reason(drop), holder, reading)

    def _judge_copy(self, drop: Drop, key: Key) -> CheckedDrop:
        holder, reading = self.holders[key], self.copies[key]
        references = self.references.get(holder) if holder is not None else None
        if not isinstance(references, LiveReferences):
            return CheckedDrop(drop, DropOutcome.WAITING, _why_unknown(references), holder)
        if key in references.offloaded:
            return CheckedDrop(drop, DropOutcome.NAMED, f"{holder} names it", holder)
        if isinstance(reading, UnreadableCopy):
            # Without a store another look finds no more than this one.
            outcome = DropOutcome.WAITING if reading.has_store else DropOutcome.LEFT
            return CheckedDrop(drop, outcome, f"{reading.reason}; {_described(drop)}", holder)
        return CheckedDrop(drop, DropOutcome.MARKED, _reason(drop), holder)

    def _markable(self, drop: Drop) -> tuple[StoredLedger, Holder] | CheckedDrop:
        """Return a ledger and its holder, or how it ends because it has none that can be marked."""
        reading, holder = self.ledgers[drop.key], self.holders[drop.key]
        if isinstance(reading, UnreadableLedger) or not isinstance(reading, StoredLedger):
            return CheckedDrop(drop, DropOutcome.LEFT, reading.reason if isinstance(reading, UnreadableLedger) else "")
        if holder is None or not holder.is_markable():
            return CheckedDrop(drop, DropOutcome.LEFT, "its custom metadata names no markable holder", None, reading)
        return reading, holder

    def _judge_ledger(self, drop: Drop) -> CheckedDrop:
        found = self._markable(drop)
        if isinstance(found, CheckedDrop):
            return found
        reading, holder = found
        references = self.references.get(holder)
        if not isinstance(references, LiveReferences):
            return CheckedDrop(drop, DropOutcome.WAITING, _why_unknown(references), holder, reading)
        if drop.ledger_id in references.left_behind:
            return CheckedDrop(drop, DropOutcome.MARKED, _reason(drop), holder, reading)
        if references.names(drop.ledger_id):
            return CheckedDrop(drop, DropOutcome.NAMED, f"{holder} names it", holder, reading)
        if isinstance(holder, ManagedLedgerHolder):
            status = list_status_of(drop.ledger_id, references.first_listed, has_entries(reading.metadata))
            if status is not ListStatus.LET_GO:
                text = f"{holder} does not list it, which no trim can do: {status.value}"
                return CheckedDrop(drop, DropOutcome.INSIDE_LIST, text, holder, reading)
        return CheckedDrop(drop, DropOutcome.MARKED, _reason(drop), holder, reading)


def mark_of_copy(drop: Drop) -> PendingDeletion:
    """Make the mark of an offloaded copy that a topic dropped."""
    return PendingDeletion(
        _name_in(drop.path),
        LedgerComponent.MANAGED_LEDGER,
        LedgerType.OFFLOAD_LEDGER,
        drop.ledger_id,
        offload_context=drop.copy,
        reason=_reason(drop),
    )


def _mark_of(looked: CheckedDrop) -> PendingDeletion:
    if looked.drop.copy is not None:
        return mark_of_copy(looked.drop)
    if looked.holder is None:
        raise FormatError(f"ledger {looked.drop.ledger_id} has no holder to be marked for")
    return mark_of_holder(looked.drop.ledger_id, looked.holder, looked.reason)


def _key_of(mark: PendingDeletion) -> Key:
    return mark.ledger_id if mark.offload_context is None else mark.offload_context.uuid


def _reason(drop: Drop) -> str:
    at = datetime.fromtimestamp(drop.at_ms / 1000, timezone.utc)
    return f"dropped by the broker at {at:%Y-%m-%dT%H:%M:%SZ} ({drop.cause.value})"


def _described(drop: Drop) -> str:
    """Return all that is known of a copy, which only its former node had."""
    context = drop.copy
    return "" if context is None else f"copy {context.uuid} by {context.driver_name}, {dict(context.metadata)}"


def _why_unknown(references: References | None) -> str:
    return "its holder was not read" if references is None else getattr(references, "reason", "")


def _name_in(path: str) -> str:
    """Return the name of the managed ledger whose node this is."""
    return path.split("/", 2)[2]
