"""Doubts about a holder's node that parses and is perhaps not what brokers wrote.

A node in which some bytes changed, or that has another node's value, may parse. Then it names a ledger that BookKeeper
does not have, or one of another holder, or one of another size; or it lacks what it must have. The rules look for that
before a ledger is deleted that the node does not name. A healthy node may name a ledger that is gone too, deleted by
hand, so such an entry is a doubt only about those ledgers that it may have been before it was damaged.

How brokers write the nodes: ManagedLedgerImpl, ManagedCursorImpl and BookkeeperSchemaStorage of Pulsar 4.0.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple

from bookwarden.ledgers.custom_metadata import custom_metadata_mismatch, names_no_holder
from bookwarden.ledgers.kinds import CompactedHolder, Holder
from bookwarden.ledgers.kinds.bucket import BUCKET_KEY
from bookwarden.ledgers.kinds.holder import CursorsHolder
from bookwarden.ledgers.managed_ledger import (
    SHADOW_SOURCE_PROPERTY,
    CursorInfo,
    CursorPosition,
    LedgerInfo,
    ManagedLedgerInfo,
    Position,
    SchemaEntryIndex,
    SchemaLocator,
    bucket_range,
)
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading, StoredLedger, UnreadableLedger

#: Ledgers of one node that are looked up at most.
MOST_LOOKED_UP: Final = 20


class UnnamedLedger(NamedTuple):
    """A ledger that its holder's nodes do not name, as BookKeeper has it."""

    ledger_id: int
    entries: int | None  #: None where that is not known: it is not closed, or is gone and only its offloaded copy left.
    size: int  #: In bytes; 0 where that is not known.

    @classmethod
    def of(cls, reading: LedgerReading) -> UnnamedLedger:
        """Return what its metadata says of it."""
        metadata = reading.metadata if isinstance(reading, StoredLedger) else None
        if metadata is None or metadata.last_entry_id is None:
            return cls(reading.ledger_id, None, 0)
        return cls(reading.ledger_id, metadata.last_entry_id + 1, metadata.length)


def suspicious_entries(info: ManagedLedgerInfo) -> tuple[LedgerInfo, ...]:
    """Return the entries of a list that a damaged id can hide behind, at most MOST_LOOKED_UP.

    They are the first and the last one, those without recorded entries, and those that were closed before one with a
    smaller id: an id that changed its place in the order leaves its time behind.
    """
    if not info.ledgers:
        return ()
    found = {entry.ledger_id: entry for entry in (info.ledgers[0], info.ledgers[-1])}
    latest_ms = 0
    for entry in info.ledgers:
        if entry.entries <= 0 or 0 < entry.timestamp_ms < latest_ms:
            found[entry.ledger_id] = entry
        latest_ms = max(latest_ms, entry.timestamp_ms)
    return tuple(found.values())[:MOST_LOOKED_UP]


class ListFindings(NamedTuple):
    """The findings about a topic's list, whichever ledger they are asked for."""

    whole: str | None  #: Why it may have named any ledger of the topic; None if there is no reason.
    unsound: tuple[tuple[LedgerInfo, str], ...]  #: Entries that are not as BookKeeper has their ledgers, and why.
    copies: tuple[LedgerInfo, ...]  #: Suspicious entries with a finished offloaded copy.
    last: LedgerInfo | None  #: None where it lists no ledger.
    terminated: bool  #: The topic takes no more messages.

    @property
    def sound_up_to(self) -> int:
        """The id below which there is no doubt about any ledger; -1 where there may be one about each."""
        return self.last.ledger_id if self.last and not (self.whole or self.unsound or self.copies) else -1

    def doubt_about(self, ledger: UnnamedLedger) -> str | None:
        """Return why the list may have named the ledger."""
        if self.whole is not None or self.last is None:
            return self.whole
        for entry, problem in self.unsound:
            if may_be(entry, ledger):
                return f"it lists ledger {entry.ledger_id} with {_size_of(entry)}, {problem}"
        above = ledger.ledger_id > self.last.ledger_id and not ledger.entries
        if above and self.last.entries > 0 and not self.terminated:
            return (
                f"its last ledger {self.last.ledger_id} is recorded as closed, so it may have lost the one that "
                "followed, which may be this one"
            )
        return None


def check_list(
    holder: Holder,
    info: ManagedLedgerInfo,
    suspicious: Iterable[LedgerInfo],
    looked_up: Mapping[int, LedgerReading],
) -> ListFindings:
    """Check a topic's list by those of its `suspicious_entries` that were looked up, the last one at least.

    The others need not be, where they cannot be any ledger that is asked for (`may_be`).
    """
    whole, unsound, last = None, [], info.ledgers[-1] if info.ledgers else None
    if SHADOW_SOURCE_PROPERTY in info.properties:
        whole = "it says that the topic is a shadow topic, which has no ledgers of its own"
    twice = next((a.ledger_id for a, b in pairwise(info.ledgers) if a.ledger_id == b.ledger_id), None)
    if twice is not None:
        whole = f"it lists ledger {twice} twice"
    for entry in suspicious:
        reading = looked_up.get(entry.ledger_id)
        if reading is None:
            continue
        foreign = _why_foreign(holder, reading)
        if foreign is not None and entry is last:
            whole = whole or f"its last ledger is {entry.ledger_id}, which is another holder's: {foreign}"
        problem = f"which is another holder's: {foreign}" if foreign else _why_not_as_listed(entry, reading)
        if problem is not None and not is_offloaded(entry):
            unsound.append((entry, problem))
    copies = tuple([entry for entry in suspicious if is_offloaded(entry)])
    return ListFindings(whole, tuple(unsound), copies, last, info.terminated is not None)


def may_be(entry: LedgerInfo, ledger: UnnamedLedger) -> bool:
    """Return whether an entry of a list, but for its id, may be of this ledger."""
    if entry.entries <= 0 or ledger.entries is None:
        return True
    return (entry.entries, entry.size) == (ledger.entries, ledger.size)


def is_offloaded(entry: LedgerInfo) -> bool:
    """Return whether an entry of a list names a finished offloaded copy."""
    return entry.offload is not None and entry.offload.complete and entry.offload.uuid.int != 0


def ledgers_of_cursor(holder: CursorsHolder, info: CursorInfo, listed: Container[int]) -> frozenset[int]:
    """Return the ledgers in a cursor's node that a doubt about ledgers of this holder depends on.

    Without a ledger of the cursor's own the one of its position shows whose node it is, unless the topic has it
    ``listed``, as a shadow topic has those of its source.
    """
    at = -1 if info.mark_delete is None or info.mark_delete.ledger_id in listed else info.mark_delete.ledger_id
    own = at if info.cursors_ledger_id is None else info.cursors_ledger_id
    named = {own} if own >= 0 else set()
    return frozenset(sorted(named | _of_holder(holder, info))[-MOST_LOOKED_UP:])


def _of_holder(holder: CursorsHolder, info: CursorInfo) -> frozenset[int]:
    # While the cursor has a ledger the compacted one in the node is of earlier, and mostly gone.
    outdated = isinstance(holder, CompactedHolder) and info.cursors_ledger_id is not None
    return frozenset() if outdated else holder.ledgers_in(info)


def doubt_about_cursor(holder: CursorsHolder, info: CursorInfo, looked_up: Mapping[int, LedgerReading]) -> str | None:
    """Return why a cursor's node may have named other ledgers of the holder; `ledgers_of_cursor` were looked up."""
    cursor, topic = holder.named_by()
    if info.cursors_ledger_id is not None:
        doubt = _why_not_named(cursor, looked_up[info.cursors_ledger_id])
        if doubt is not None:
            return doubt
    elif info.mark_delete is not None and info.mark_delete.ledger_id in looked_up:
        # It may be gone, trimmed since.
        foreign = _why_foreign(topic, looked_up[info.mark_delete.ledger_id])
        if foreign is not None:
            return f"its position is in ledger {info.mark_delete.ledger_id}, which is another topic's: {foreign}"
    if holder == cursor:
        return None
    # A compacted ledger that is gone holds nothing back: the next compaction names another.
    may_be_gone = isinstance(holder, CompactedHolder)
    doubts = (_why_not_named(holder, looked_up[one], may_be_gone) for one in sorted(_of_holder(holder, info)))
    return next((doubt for doubt in doubts if doubt is not None), None)


def _why_not_named(holder: Holder, reading: LedgerReading, may_be_gone: bool = False) -> str | None:
    foreign = _why_foreign(holder, reading)
    if foreign is not None:
        return f"it names ledger {reading.ledger_id}, which is another holder's: {foreign}"
    if isinstance(reading, StoredLedger) or may_be_gone:
        return None
    return f"it names ledger {reading.ledger_id}, {_not_read(reading)}"


def is_newer_than_named(info: CursorInfo, ledger_id: int) -> bool:
    """Return whether a cursor's ledger was made after the one that its node names, or the node names none."""
    return info.cursors_ledger_id is None or ledger_id > info.cursors_ledger_id


def doubt_about_position(recorded: Iterable[CursorPosition], last: CursorPosition | None) -> str | None:
    """Return why a cursor's node may be an earlier one, by the last entry of a ledger that it does not name.

    ``recorded`` are the positions in the node and in the ledger that it names.
    """
    if last is None:
        return None
    furthest = max(recorded, key=attrgetter("mark_delete"), default=None)
    if furthest is not None and last.mark_delete < furthest.mark_delete:
        return None
    if furthest is not None and last.mark_delete == furthest.mark_delete:
        if set(last.acknowledged) <= set(furthest.acknowledged):
            return None
        what = "acknowledges messages behind"
    else:
        what = "is at"
    where = _position(None if furthest is None else furthest.mark_delete)
    return (
        f"the last entry of the ledger {what} {_position(last.mark_delete)}, and it and the ledger that it names have "
        f"{where}: it may be an earlier value of itself"
    )


def doubt_about_compacted(
    ledger: UnnamedLedger, reaches_to: Position | None, recorded: Iterable[CursorPosition]
) -> str | None:
    """Return why a cursor's node may have named a compacted ledger; ``recorded`` are as for a position.

    A compaction closes its ledger, and then moves the cursor to where the ledger ``reaches_to``. So one that is open,
    or that the cursor has reached, and that is not named was never in use, or was replaced or dropped since.
    """
    furthest = _furthest(recorded)
    if not ledger.entries or reaches_to is None or (furthest is not None and reaches_to <= furthest):
        return None
    return (
        f"the compacted ledger {ledger.ledger_id} is complete and reaches to {_position(reaches_to)}, and the cursor "
        f"is at {_position(furthest)}: the node may be an earlier value of itself. The ledger goes once a later "
        "compaction has ended"
    )


def doubt_about_bucket(info: CursorInfo, custom: Mapping[str, bytes], recorded: Iterable[CursorPosition]) -> str | None:
    """Return why a cursor's node may have named a bucket; None also where the bucket has no key.

    One whose ledgers the named buckets index has been replaced, and one behind the cursor's position is not needed. A
    broker lets go of no other one. ``recorded`` are as for a position.
    """
    indexed = bucket_range(custom.get(BUCKET_KEY, b"").decode(errors="replace"))
    if indexed is None:
        return None
    reached = indexed.first
    for one in sorted(info.delayed_bucket_ranges):
        if one.first <= reached <= one.last:
            reached = one.last + 1
    furthest = _furthest(recorded)
    if reached > indexed.last or (furthest is not None and furthest.ledger_id > indexed.last):
        return None
    return (
        f"the bucket indexes the ledgers {indexed.first} to {indexed.last}, no bucket that it names does, and the "
        f"cursor is not past them, but at {_position(furthest)}"
    )


def doubt_about_locator(locator: SchemaLocator) -> str | None:
    """Return why a schema's node cannot be what a broker wrote: its index has each version once, up to the newest."""
    newest, index = locator.entries[0], locator.entries[1:]
    versions = [entry.version for entry in index]
    if not versions or versions[-1] != newest.version or any(b - a != 1 for a, b in pairwise(versions)):
        return f"its newest version is {newest.version}, and its index has {_listed(versions)}"
    named = [entry.position.ledger_id for entry in index]
    twice = next((one for one in named if one >= 0 and named.count(one) > 1), None)
    return None if twice is None else f"two of its versions are in ledger {twice}"


def rival_of(locator: SchemaLocator, entry: SchemaEntryIndex) -> int:
    """Return the ledger that the locator names for the version of a schema's entry, or for its newest one.

    The writer of that ledger won the race against the writer of the entry, if the locator is right.
    """
    of_version = {one.version: one.position.ledger_id for one in locator.entries}
    return of_version.get(entry.version, locator.entries[0].position.ledger_id)


def doubt_about_version(
    holder: Holder, locator: SchemaLocator, entry: SchemaEntryIndex, rival: LedgerReading
) -> str | None:
    """Return why a schema's node may have named the ledger of this entry; ``rival`` is `rival_of` it as it was read."""
    doubt = _why_not_named(holder, rival)
    if doubt is not None:
        return doubt
    newest = locator.entries[0].version
    of_version = {one.version: one.position for one in locator.entries}
    # One of an earlier schema of the same name has other ledgers for the same versions.
    if entry.version > newest and all(of_version.get(v, position) == position for v, position in entry.earlier):
        return f"the ledger has version {entry.version}, which is newer than its newest one, {newest}"
    return None


def _why_foreign(holder: Holder, reading: LedgerReading) -> str | None:
    if not isinstance(reading, StoredLedger) or names_no_holder(reading.metadata.custom):
        return None
    return custom_metadata_mismatch(holder, reading.metadata.custom)


def _why_not_as_listed(entry: LedgerInfo, reading: LedgerReading) -> str | None:
    if not isinstance(reading, StoredLedger):
        return _not_read(reading)
    found = UnnamedLedger.of(reading)
    if entry.entries <= 0 or found.entries is None or (entry.entries, entry.size) == (found.entries, found.size):
        return None
    return f"which BookKeeper has with {found.entries:,} entries and {found.size:,} bytes"


def _not_read(reading: AbsentLedger | UnreadableLedger) -> str:
    if isinstance(reading, AbsentLedger):
        return "which BookKeeper does not have"
    return f"whose metadata cannot be read: {reading.reason}"


def _furthest(recorded: Iterable[CursorPosition]) -> Position | None:
    return max((one.mark_delete for one in recorded), default=None)


def _position(position: Position | None) -> str:
    return "no position" if position is None else str(position)


def _size_of(entry: LedgerInfo) -> str:
    return f"{entry.entries:,} entries" if entry.entries > 0 else "no entries recorded"


def _listed(versions: list[int]) -> str:
    return ", ".join(map(str, versions[:20])) or "none"
