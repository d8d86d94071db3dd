"""Copies closed ledgers that are referenced from one bookie cluster to another, under the same ids.

What is killed at any moment leaves at most an unfinished copy, which no broker reads and the next copier begins again.
One whose source is gone may hold the only bytes: it stays, and phase two decides about it (deletion.phase_two.decide).

A copy is made with a mark that no end can equal, and gets the mark of its end when it is closed, after every entry was
compared. So a client that closes it otherwise, as an auditor does, makes nothing that brokers would read.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from bookwarden.clusters.bookkeeper.bookies.protocol import NO_LEDGER, REFUSED, ReadEntry
from bookwarden.clusters.bookkeeper.bookies.requests import Answer, Bookies
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.copying.entries import EntryCopier, LedgerCopyTask
from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits
from bookwarden.clusters.bookkeeper.copying.placement import CopyPlacement
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.errors import (
    BookieAccessError,
    BookieError,
    DigestMismatchError,
    EntryAbsentError,
    FormatError,
)
from bookwarden.ledgers.custom_metadata import (
    COPY_KEY,
    OWNER_KEY,
    identify_holder,
    is_unfinished,
    names_no_holder,
    why_not_the_same,
)
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.live_references import LiveReferences, References
from bookwarden.ledgers.metadata import (
    AbsentLedger,
    DeleteResult,
    LedgerMetadata,
    LedgerReading,
    LedgerState,
    Segment,
    StoredLedger,
    UnreadableLedger,
)
from bookwarden.ledgers.outcomes import CopyOutcome, CopyResult
from bookwarden.metastore.interface import MetadataStore, Write
from bookwarden.wire.ledger_metadata import encode_ledger_metadata

_UNPROVEN: Final = b"unproven"


def opened_copy(source: LedgerMetadata, ensemble: tuple[str, ...], owner: str | None) -> LedgerMetadata:
    """Make the metadata of a copy before its entries are there, on these bookies."""
    owned = {} if owner is None else {OWNER_KEY: owner.encode()}
    return source._replace(
        format_version=3,
        state=LedgerState.OPEN,
        ensemble_size=len(ensemble),
        segments=(Segment(0, ensemble),),
        length=0,
        last_entry_id=None,
        custom={**source.custom, **owned, COPY_KEY: _UNPROVEN},
    )


def closed_copy(opened: LedgerMetadata, source: LedgerMetadata) -> LedgerMetadata:
    """Make the metadata of a copy whose entries are proven."""
    end = f"{source.last_entry_id}:{source.length}".encode()
    return opened._replace(
        state=LedgerState.CLOSED,
        length=source.length,
        last_entry_id=source.last_entry_id,
        custom={**opened.custom, COPY_KEY: end},
    )


def why_not_replaced(source: StoredLedger, found: StoredLedger) -> str | None:
    """Return why what the target has at this id must not be touched; None for an unfinished copy of the source."""
    if not is_unfinished(found.metadata):
        return f"the target has another ledger of this id: {why_not_the_same((source, found)) or 'its end differs'}"
    return why_not_the_same((source, found))


def is_complete(source: StoredLedger, found: StoredLedger) -> bool:
    """Return whether the target has the whole ledger: the original, or a copy that its copier proved."""
    return (
        not is_unfinished(found.metadata)
        and why_not_the_same((source, found)) is None
        and (found.metadata.last_entry_id, found.metadata.length)
        == (source.metadata.last_entry_id, source.metadata.length)
    )


_LEDGERS_AT_ONCE: Final = 500
# A large ledger goes alone, so that its result does not wait for others.
_BYTES_AT_ONCE: Final = 64 * 1024 * 1024
# What the limits let through in this time is closed together: it is lost if the copier is killed before that.
_LIMITED_S: Final = 5.0
_TRIES: Final = 3


NO_LIMITS: Final = CopyLimits()


#: Returns with which outcome, and why, a ledger of the source is not copied; None if it is ours.
WhyNotOurs = Callable[[int, Mapping[str, bytes]], "tuple[CopyOutcome, str] | None"]


#: Reads what each holder names, just now.
ReadReferences = Callable[[Sequence[Holder]], Mapping[Holder, References]]


class _Candidate(NamedTuple):
    """A ledger that may be copied, with the unfinished copy of an earlier attempt."""

    source: StoredLedger
    holder: Holder
    existing: StoredLedger | None

    def not_copied(self, reason: str, outcome: CopyOutcome = CopyOutcome.DEFERRED) -> _NotCopied:
        """Return why it was not copied this time."""
        return _NotCopied(CopyResult(self.source.ledger_id, outcome, self.holder, reason=reason))

    def result(self, outcome: CopyOutcome, reason: str = "") -> CopyResult:
        """Return what became of it."""
        is_there = outcome in (CopyOutcome.COPIED, CopyOutcome.COMPLETE)
        metadata = self.source.metadata
        entries, size = ((metadata.last_entry_id or 0) + 1, metadata.length) if is_there else (0, 0)
        return CopyResult(self.source.ledger_id, outcome, self.holder, entries, size, reason)


class _OpenCopy(NamedTuple):
    """A copy whose metadata is written, and whose entries are to come."""

    candidate: _Candidate
    ledger: LedgerCopyTask
    raw: bytes  #: The value of its node.


class _NotCopied(NamedTuple):
    """A ledger that was not copied; another try may do it, and this is the result if none does."""

    result: CopyResult


class LedgerCopier:
    """Copies ledgers, many at once; for one thread.

    ``source`` and ``target`` are store and ledgers root of each cluster, ``bookies`` those of both; ``placement``
    chooses among the target's. ``owner`` is the owner mark of this Pulsar cluster, None where no bookie clusters are
    registered. ``why_not_ours`` returns, of a ledger of the source that is not ours, its outcome and the reason;
    ``wanted`` whether a holder's ledgers are copied; ``holder_of`` the holder of a ledger whose metadata names none.
    """

    def __init__(
        self,
        source: tuple[MetadataStore, str],
        target: tuple[MetadataStore, str],
        bookies: Bookies,
        read_references: ReadReferences,
        placement: CopyPlacement,
        *,
        limits: CopyLimits = NO_LIMITS,
        owner: str | None = None,
        why_not_ours: WhyNotOurs = lambda _, __: None,
        wanted: Callable[[Holder], bool] = lambda _: True,
        holder_of: Callable[[int], Holder | None] = lambda _: None,
    ) -> None:
        self._sources = BookKeeperCatalog(*source)
        self._targets = BookKeeperCatalog(*target)
        self._store, self._root = target
        self._bookies = bookies
        self._read_references = read_references
        self._placement = placement
        self._owner = owner
        self._why_not_ours = why_not_ours
        self._wanted = wanted
        self._holder_of = holder_of
        self._entries = EntryCopier(bookies, limits)
        self._most_bytes = min(_BYTES_AT_ONCE, _LIMITED_S * (limits.bytes_per_second or math.inf))
        self._most_ledgers = max(1.0, _LIMITED_S * (limits.ledgers_per_second or math.inf))
        #: By ledger: the bookies that it cannot go to now, and why.
        self._avoided: defaultdict[int, dict[str, str]] = defaultdict(dict)

    def copy(self, ledger_ids: Iterable[int]) -> Iterator[CopyResult]:
        """Copy these ledgers, each given once; yield a result for each, in any order.

        Raises StoreError where the metadata of either cluster, or what refers to ledgers, cannot be read.
        """
        rest = iter(ledger_ids)
        while part := list(itertools.islice(rest, _LEDGERS_AT_ONCE)):
            self._avoided.clear()
            for left in reversed(range(_TRIES)):
                again: list[int] = []
                for each in self._try(part):
                    if not isinstance(each, _NotCopied):
                        yield each
                    elif left:
                        again.append(each.result.ledger_id)
                    else:
                        yield each.result
                part = again

    def _try(self, ledger_ids: Sequence[int]) -> Iterator[CopyResult | _NotCopied]:
        """Try to copy these ledgers, as everything is now."""
        candidates: list[_Candidate] = []
        left: list[StoredLedger] = []
        for source, found in zip(self._sources.read_many(ledger_ids), self._targets.read_many(ledger_ids), strict=True):
            judged = self._judge(source, found)
            if isinstance(judged, _Candidate):
                candidates.append(judged)
            elif isinstance(judged, StoredLedger):
                left.append(judged)
            else:
                yield judged
        yield from self._without_source(left)
        for run in self._runs(candidates):
            named: list[_Candidate] = []
            for each in self._as_now(run):
                if isinstance(each, _Candidate):
                    named.append(each)
                else:
                    yield each
            yield from self._copy(named)

    def _as_now(self, candidates: Sequence[_Candidate]) -> Iterator[_Candidate | CopyResult | _NotCopied]:
        """Read again what is about to be copied, and what refers to it: earlier runs may have taken hours."""
        same: list[_Candidate] = []
        sources = self._sources.read_many([each.source.ledger_id for each in candidates])
        for each, source in zip(candidates, sources, strict=True):
            if isinstance(source, StoredLedger) and _is_same(source, each.source):
                same.append(each._replace(source=source))
            else:
                yield each.not_copied("its metadata on the source was changed meanwhile, or is gone")
        for each, why in self._why_not_named(same):
            yield each if why is None else self._unnamed(each, each.existing, why)

    def _without_source(self, copies: Sequence[StoredLedger]) -> Iterator[CopyResult]:
        """Return the results of unfinished copies without a source: they may have the only bytes of the ledger."""
        holders = {each.ledger_id: self._holder_in(each) for each in copies}
        found = self._read_references(list(dict.fromkeys(filter(None, holders.values())))) if copies else {}
        for each in copies:
            ledger_id, holder = each.ledger_id, holders[each.ledger_id]
            if holder is None or not self._wanted(holder):
                yield CopyResult(ledger_id, CopyOutcome.LEFT_OUT, holder, reason="its owner is unknown")
                continue
            references = found[holder]
            if not isinstance(references, LiveReferences):
                yield CopyResult(ledger_id, CopyOutcome.DEFERRED, holder, reason=references.reason)
            elif references.needs(ledger_id, each.metadata):
                why = "named and gone: the source does not have it any more, and its unfinished copy here stays"
                yield CopyResult(ledger_id, CopyOutcome.FAILED, holder, reason=why)
            else:
                why = (
                    "the source does not have it any more; its unfinished copy goes by `bookie-clusters cleanup "
                    "--src-cluster`, with the name of the cluster that it is in"
                )
                yield CopyResult(ledger_id, CopyOutcome.GONE, holder, reason=why)

    def _holder_in(self, ledger: StoredLedger) -> Holder | None:
        # Of references that may be older than this; they are read again before anything is done.
        custom = ledger.metadata.custom
        return self._holder_of(ledger.ledger_id) if names_no_holder(custom) else identify_holder(custom)

    def _judge(self, source: LedgerReading, found: LedgerReading) -> CopyResult | _Candidate | StoredLedger:
        """Return what is to be copied, or the unfinished copy of what the source does not have."""
        ledger_id = source.ledger_id
        if isinstance(source, UnreadableLedger):
            return CopyResult(ledger_id, CopyOutcome.FAILED, None, reason=source.reason)
        if isinstance(source, AbsentLedger):
            if isinstance(found, StoredLedger) and is_unfinished(found.metadata):
                return found
            return CopyResult(ledger_id, CopyOutcome.GONE, None, reason="the source does not have it any more")
        custom, holder = source.metadata.custom, self._holder_in(source)
        if holder is None:
            return CopyResult(ledger_id, CopyOutcome.LEFT_OUT, None, reason="its owner is unknown")
        if not self._wanted(holder):
            return CopyResult(ledger_id, CopyOutcome.LEFT_OUT, holder)
        strange = self._why_not_ours(ledger_id, custom)
        if strange is not None:
            return CopyResult(ledger_id, strange[0], holder, reason=strange[1])
        if is_unfinished(source.metadata):
            return CopyResult(ledger_id, CopyOutcome.LEFT_OUT, holder, reason="it is an unfinished copy itself")
        if source.metadata.state is not LedgerState.CLOSED:
            return CopyResult(ledger_id, CopyOutcome.OPEN, holder)
        candidate = _Candidate(source, holder, found if isinstance(found, StoredLedger) else None)
        if isinstance(found, UnreadableLedger):
            return candidate.result(CopyOutcome.FAILED, f"on the target: {found.reason}")
        if isinstance(found, StoredLedger):
            if is_complete(source, found):
                return candidate.result(CopyOutcome.COMPLETE)
            why = why_not_replaced(source, found)
            if why is not None:
                return candidate.result(CopyOutcome.FAILED, why)
        return candidate

    def _why_not_named(self, candidates: Sequence[_Candidate]) -> Iterator[tuple[_Candidate, _Doubt | None]]:
        """Read what refers to each now, and yield with it why it must not be copied; None where something names it."""
        holders = list(dict.fromkeys(each.holder for each in candidates))
        found = self._read_references(holders) if holders else {}
        for each in candidates:
            references = found[each.holder]
            if not isinstance(references, LiveReferences):
                yield each, _Doubt(references.reason, is_certain=False)
            elif references.names(each.source.ledger_id):
                yield each, None
            else:
                yield each, _Doubt("nothing names it", is_certain=True)

    def _unnamed(self, each: _Candidate, ours: StoredLedger | None, doubt: _Doubt) -> CopyResult:
        """Remove what there is of a copy that no broker will read, unless that is in doubt."""
        if not doubt.is_certain:
            return each.result(CopyOutcome.DEFERRED, doubt.reason)
        if ours is not None:
            (result,) = self._targets.delete_many([ours])
            if result not in (DeleteResult.DELETED, DeleteResult.ABSENT):
                return each.result(
                    CopyOutcome.DEFERRED, f"{doubt.reason}, and its unfinished copy was not removed ({result.value})"
                )
        return each.result(CopyOutcome.GONE, doubt.reason)

    def _runs(self, candidates: Iterable[_Candidate]) -> Iterator[list[_Candidate]]:
        """Cut into parts of limited size; one that is larger goes alone."""
        run: list[_Candidate] = []
        size = 0
        for each in candidates:
            size += each.source.metadata.length
            if run and (size > self._most_bytes or len(run) >= self._most_ledgers):
                yield run
                run, size = [], each.source.metadata.length
            run.append(each)
        if run:
            yield run

    def _copy(self, candidates: Sequence[_Candidate]) -> Iterator[CopyResult | _NotCopied]:
        """Copy these; of each the source is closed, and something names it, as was read just now."""
        begun: list[_OpenCopy] = []
        for each in self._begin(candidates):
            if isinstance(each, _OpenCopy):
                begun.append(each)
            else:
                yield each
        self._entries.run([each.ledger for each in begun])
        whole: list[_OpenCopy] = []
        for one in begun:
            error = one.ledger.error
            if error is None:
                whole.append(one)
            elif isinstance(error, DigestMismatchError) and not one.ledger.suspects:
                yield one.candidate.result(CopyOutcome.FAILED, str(error))
            else:
                self._avoided[one.ledger.source.ledger_id].update(dict.fromkeys(one.ledger.suspects, str(error)))
                yield one.candidate.not_copied(str(error), _outcome_of(error))
        yield from self._close(whole)

    def _begin(self, candidates: Sequence[_Candidate]) -> Iterator[_OpenCopy | CopyResult | _NotCopied]:
        """Choose the bookies of each copy, and write its metadata."""
        chosen: dict[int, tuple[_Candidate, tuple[str, ...]]] = {}
        for each in candidates:
            ledger_id = each.source.ledger_id
            try:
                ensemble = self._bookies_for(each)
            except (BookieError, FormatError) as error:
                reasons = dict.fromkeys((str(error), *self._avoided[ledger_id].values()))
                yield each.not_copied("; ".join(reasons))
            else:
                chosen[ledger_id] = each, ensemble
        problems = self._remnants(chosen)
        begun: list[_OpenCopy] = []
        writes: list[Write] = []
        for ledger_id, (each, ensemble) in chosen.items():
            if ledger_id in problems:
                yield each.not_copied(problems[ledger_id])
                continue
            opened = opened_copy(each.source.metadata, ensemble, self._owner)
            try:
                ledger = LedgerCopyTask(each.source, opened, is_retry=each.existing is not None)
            except FormatError as error:
                yield each.result(CopyOutcome.FAILED, str(error))
                continue
            raw = encode_ledger_metadata(opened, password=ledger.password)
            begun.append(_OpenCopy(each, ledger, raw))
            writes.append(self._write_of(ledger_id, raw, each.existing))
        for one, failed in zip(begun, self._store.write_many(writes), strict=True):
            yield one if failed is None else one.candidate.not_copied(str(failed))

    def _bookies_for(self, each: _Candidate) -> tuple[str, ...]:
        """Choose the bookies of a copy: those of an unfinished one as long as none of them failed."""
        avoided = frozenset(self._avoided[each.source.ledger_id])
        if each.existing is not None:
            segments = each.existing.metadata.segments
            if len(segments) == 1 and avoided.isdisjoint(segments[0].ensemble):
                return segments[0].ensemble
        return self._placement.choose(each.source, each.holder, avoided)

    def _remnants(self, chosen: Mapping[int, tuple[_Candidate, tuple[str, ...]]]) -> dict[int, str]:
        """Return which ledgers cannot go to the bookies chosen for them, and why; those are avoided from here on.

        A bookie that has something of an earlier life of the ledger may be about to collect it, with what is written
        to it now. What is there of an unfinished copy is safe: its metadata was never gone.
        """
        problems: dict[int, str] = {}
        with self._bookies.exchange():
            for ledger_id, (each, ensemble) in chosen.items():
                segments = () if each.existing is None else each.existing.metadata.segments
                known = {bookie_id for segment in segments for bookie_id in segment.ensemble}
                for bookie_id in ensemble:
                    if bookie_id not in known:
                        self._bookies.ask(bookie_id, ReadEntry(ledger_id, 0))
            while answers := self._bookies.answers():
                for answer in answers:
                    assert isinstance(answer.request, ReadEntry)
                    problem = _why_not_empty(answer)
                    if problem is not None:
                        self._avoided[answer.request.ledger_id][answer.bookie_id] = problem
                        problems[answer.request.ledger_id] = problem
        return problems

    def _write_of(self, ledger_id: int, raw: bytes, replaced: StoredLedger | None) -> Write:
        if replaced is None:
            return Write(ledger_path(self._root, ledger_id), raw, None)
        return Write(replaced.path, raw, replaced.version)

    def _close(self, begun: Sequence[_OpenCopy]) -> Iterator[CopyResult | _NotCopied]:
        """Close copies whose entries are proven, if everything else is still as it was."""
        ledger_ids = [each.ledger.source.ledger_id for each in begun]
        sources, found = self._sources.read_many(ledger_ids), self._targets.read_many(ledger_ids)
        # What refers to it is read last: a ledger is taken off its list before it is deleted anywhere, and a
        # process that deletes it after this finds the copy, whose metadata has been there all the while.
        named = [why for _, why in self._why_not_named([each.candidate for each in begun])]
        closing: list[_Candidate] = []
        writes: list[Write] = []
        for each, source, ours, why in zip(begun, sources, found, named, strict=True):
            candidate = each.candidate
            if not isinstance(ours, StoredLedger) or ours.raw != each.raw:
                yield candidate.not_copied("its copy was changed by another client meanwhile")
            elif why is not None:
                # Without its source it goes by phase two alone, which writes it to the journal.
                yield self._unnamed(candidate, None if isinstance(source, AbsentLedger) else ours, why)
            elif not _is_same(source, candidate.source):
                yield candidate.not_copied("its metadata on the source was changed meanwhile, or is gone")
            else:
                closed = closed_copy(each.ledger.target, candidate.source.metadata)
                raw = encode_ledger_metadata(closed, password=each.ledger.password)
                closing.append(candidate)
                writes.append(self._write_of(source.ledger_id, raw, ours))
        for candidate, failed in zip(closing, self._store.write_many(writes), strict=True):
            yield candidate.result(CopyOutcome.COPIED) if failed is None else candidate.not_copied(str(failed))


class _Doubt(NamedTuple):
    """The reason why a ledger must not be copied; only what is certain has consequences."""

    reason: str
    is_certain: bool


def _is_same(now: LedgerReading, before: StoredLedger) -> bool:
    """Return whether a closed ledger is still there; its bookies may have changed."""
    return (
        isinstance(now, StoredLedger)
        and now.metadata.state is LedgerState.CLOSED
        and (now.metadata.last_entry_id, now.metadata.length, now.metadata.custom)
        == (before.metadata.last_entry_id, before.metadata.length, before.metadata.custom)
    )


def _outcome_of(error: BookieError) -> CopyOutcome:
    """Return what becomes of a ledger if the last try ends with this error."""
    bad = isinstance(error, DigestMismatchError | EntryAbsentError | BookieAccessError)
    return CopyOutcome.FAILED if bad else CopyOutcome.DEFERRED


def _why_not_empty(answer: Answer) -> str | None:
    """Return why a bookie may have entries of the ledger whose first it was asked for; None if it knows no such one."""
    if answer.response is None:
        return answer.failure
    if answer.response.status == NO_LEDGER:
        return None
    if answer.response.status == REFUSED:
        return f"bookie {answer.bookie_id} wants authentication"
    return (
        f"bookie {answer.bookie_id} has entries of an earlier ledger of this id, which its next garbage collection "
        "removes"
    )
