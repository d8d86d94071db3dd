"""A build: its counts, throughput and report, and the record of the one under way and of the newest that ended.

The record is a node that the process that builds renews.

It shows everywhere how far the build is. What is copied is not in it: each copy says by itself that it is whole.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field, PlainSerializer, PlainValidator

from bookwarden.bookie_clusters.moving.scope import Scope
from bookwarden.errors import FormatError
from bookwarden.exit_codes import MORE_LATER, SOME_FAILED
from bookwarden.leases import LeaseTimes
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.record_lease import FoundRecord, LeaseMessages, RecordLease, find_record
from bookwarden.records import RECORD, record_fields, record_of

#: The outcomes after which a ledger is whole on the target.
DONE: Final = (CopyOutcome.COPIED, CopyOutcome.COMPLETE)
#: Those that a later build may change by itself.
LATER: Final = (CopyOutcome.OPEN, CopyOutcome.DEFERRED)
#: Those after which a ledger stays where it is, and a person should know it; the worst comes first.
STAYING: Final = (CopyOutcome.FAILED, CopyOutcome.OPEN, CopyOutcome.DEFERRED)
_BYTES: Final = "bytes"


@dataclass(slots=True)
class CopyCounts:
    """Ledgers, and their bytes, by outcome and kind; the kinds are words for people."""

    ledgers: Counter[tuple[CopyOutcome, str]] = field(default_factory=Counter)
    sizes: Counter[tuple[CopyOutcome, str]] = field(default_factory=Counter)

    def add(self, outcome: CopyOutcome, kind: str, size: int) -> None:
        """Count one ledger of this size in bytes."""
        self.ledgers[outcome, kind] += 1
        self.sizes[outcome, kind] += size

    def plus(self, other: CopyCounts) -> CopyCounts:
        """Return the sum of both."""
        return CopyCounts(self.ledgers + other.ledgers, self.sizes + other.sizes)

    def of(self, *outcomes: CopyOutcome) -> int:
        """Return how many ledgers have one of these outcomes."""
        return sum(number for (outcome, _), number in self.ledgers.items() if outcome in outcomes)

    def size_of(self, *outcomes: CopyOutcome) -> int:
        """Likewise their bytes."""
        return sum(size for (outcome, _), size in self.sizes.items() if outcome in outcomes)

    def in_order(self) -> list[tuple[CopyOutcome, str]]:
        """Return what there are some of, in the order of the outcomes."""
        order = list(CopyOutcome)
        return sorted(self.ledgers, key=lambda key: (order.index(key[0]), key[1]))

    def notes(self, before: str = "") -> dict[str, int]:
        """Return them as figures by name, each with this text before it, as the seal of a file has them."""
        found: dict[str, int] = {}
        for (outcome, kind), number in self.ledgers.items():
            found[f"{before}{outcome.value}/{kind}"] = number
            found[f"{before}{outcome.value}/{kind}/{_BYTES}"] = self.sizes[outcome, kind]
        return found

    def add_notes(self, notes: Mapping[str, int], before: str = "") -> None:
        """Add what `notes` returned; figures of other names are passed over."""
        for name, number in notes.items():
            outcome, _, kind = name.removeprefix(before).partition("/")
            if name.startswith(before) and kind and outcome in _OUTCOMES:
                kind, _, unit = kind.partition("/")
                (self.sizes if unit == _BYTES else self.ledgers)[_OUTCOMES[outcome], kind] += number

    def rows(self) -> list[_CountRow]:
        """Return them as rows, in the order of the outcomes."""
        return [_CountRow(*key, self.ledgers[key], self.sizes[key]) for key in self.in_order()]

    @classmethod
    def of_rows(cls, rows: Iterable[_CountRow]) -> CopyCounts:
        """Return the counts that have these rows."""
        counts = cls()
        for row in rows:
            counts.ledgers[row.outcome, row.kind] += row.ledgers
            counts.sizes[row.outcome, row.kind] += row.size
        return counts


@dataclass(frozen=True, slots=True)
class _CountRow:
    outcome: CopyOutcome
    kind: str
    ledgers: int
    size: Annotated[int, Field(alias="bytes")]


def _rows_of(counts: CopyCounts) -> list[dict[str, Any]]:
    return [record_fields(row) for row in counts.rows()]


def _counts_of(rows: object) -> CopyCounts:
    return CopyCounts.of_rows(record_of(list[_CountRow], rows))


_Counts = Annotated[CopyCounts, PlainValidator(_counts_of), PlainSerializer(_rows_of)]
_OUTCOMES: Final = {outcome.value: outcome for outcome in CopyOutcome}


# Small ledgers cost requests, large ones bytes: one ledger takes as long as this number of bytes of a large one.
_LEDGER_IN_BYTES: Final = 64 << 10


class CopyPace(NamedTuple):
    """The pace of a build since its process began with it."""

    ledgers_per_s: float
    bytes_per_s: float

    def seconds_for(self, ledgers: int, size: int) -> float:
        """Return the seconds that this number of ledgers and bytes takes at this pace."""
        return work_of(ledgers, size) / work_of(self.ledgers_per_s, self.bytes_per_s)


class Pacer:
    """Computes the pace from how far a build is; the first figures are where this process began."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: tuple[float, int, int] | None = None

    def at(self, ledgers: int, size: int) -> CopyPace | None:
        """Return the throughput so far, by the ledgers and bytes done; None before the first."""
        now = self._clock()
        if self._begun is None:
            self._begun = now, ledgers, size
        begun_s, ledgers_before, size_before = self._begun
        elapsed, ledgers, size = now - begun_s, ledgers - ledgers_before, size - size_before
        if elapsed <= 0 or not work_of(ledgers, size):
            return None
        return CopyPace(ledgers / elapsed, size / elapsed)


def work_of(ledgers: float, size: float) -> float:
    """Return the cost of this number of ledgers and bytes, as bytes of one large ledger."""
    return ledgers * _LEDGER_IN_BYTES + size


BUILD_PATH: Final = "/bookwarden/bookie-clusters-build"
_WORDS: Final = LeaseMessages(
    "A build",
    "builds now",
    "the copies that were made stay; go on with `bookie-clusters build --resume`",
    "look at `bookie-clusters status`",
)


@dataclass(frozen=True, slots=True)
class Build:
    """A build, and how far it is."""

    __pydantic_config__ = RECORD

    source: str  #: Name of the bookie cluster that is copied from.
    target: str  #: Name of the one that is copied to.
    scope: Scope  #: What it copies.
    folder: str  #: Of its files, as the process that began it names it.
    started_ms: Annotated[int, Field(alias="started")]  #: By the clock of that process.
    #: Likewise; None until every ledger was looked at.
    ended_ms: Annotated[int | None, Field(alias="ended")] = None
    is_listed: bool = False  #: The following four are known.
    ledgers: int = 0  #: To look at for copying.
    size: Annotated[int, Field(alias="bytes")] = 0  #: Their bytes.
    #: How many of them were processed, whatever the outcome.
    looked_at: Annotated[int, Field(alias="ledgersLookedAt")] = 0
    size_looked_at: Annotated[int, Field(alias="bytesLookedAt")] = 0  #: Likewise in bytes.
    #: What came of them, and of what was whole before.
    counts: Annotated[_Counts, Field(alias="outcomes")] = field(default_factory=CopyCounts)
    #: Of the process that copies, or copied; None before it is known. In JSON these are two fields of the build.
    pace: Annotated[CopyPace | None, Field(exclude=True)] = None

    @property
    def is_through(self) -> bool:
        """Whether every ledger was looked at."""
        return self.ended_ms is not None

    @property
    def share_done(self) -> float:
        """The part of the work that is done, from 0 to 1."""
        whole = work_of(self.ledgers, self.size)
        return work_of(self.looked_at, self.size_looked_at) / whole if whole else 1.0

    @property
    def left_s(self) -> float | None:
        """Seconds until it is through, at its pace; None where that is not known."""
        if self.pace is None or not self.is_listed:
            return None
        return self.pace.seconds_for(self.ledgers - self.looked_at, self.size - self.size_looked_at)

    def as_json(self) -> dict[str, Any]:
        """Return it as values of JSON."""
        return {
            **record_fields(self),
            "ledgersPerSecond": None if self.pace is None else round(self.pace.ledgers_per_s, 3),
            "bytesPerSecond": None if self.pace is None else round(self.pace.bytes_per_s, 3),
        }

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Build:
        """Read what `as_json` returned; FormatError if it is no build."""
        return replace(record_of(cls, fields), pace=_pace_in(fields))


def _pace_in(fields: Mapping[str, Any]) -> CopyPace | None:
    # Records of earlier releases have none, and figures that were rounded to 0 are none.
    ledgers, size = (record_of(float, fields.get(name) or 0) for name in ("ledgersPerSecond", "bytesPerSecond"))
    return CopyPace(ledgers, size) if ledgers > 0 or size > 0 else None


@dataclass(frozen=True, slots=True)
class FoundBuild:
    """The record as it was read. ``is_free`` is as for FoundRecord."""

    newest: Build
    last_through: Build | None  #: The newest that is through.
    version: int
    holder: str
    is_free: bool

    @property
    def pace(self) -> CopyPace | None:
        """The pace of the newest build of which it is known."""
        last = None if self.last_through is None else self.last_through.pace
        return self.newest.pace or last

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped before it was through."""
        return self.is_free and not self.newest.is_through

    def as_json(self) -> dict[str, Any]:
        """Return it as values of JSON, for programs."""
        under_way = None if self.newest.is_through else self.newest.as_json()
        if under_way is not None:
            left_s = None if self.newest.left_s is None or self.is_free else round(self.newest.left_s)
            under_way = {**under_way, "isHeld": not self.is_free, "holder": self.holder, "secondsLeft": left_s}
        return {"underWay": under_way, "last": None if self.last_through is None else self.last_through.as_json()}


def find_build(store: MetadataStore) -> FoundBuild | None:
    """Read the record; None if nothing was built yet, FormatError if it is none."""
    found = find_record(store, BUILD_PATH, "a build")
    return None if found is None else _found(found)


def _found(record: FoundRecord) -> FoundBuild:
    try:
        last = record.fields["last"]
        newest = Build.of_json(record.fields["build"])
        through = None if last is None else Build.of_json(last)
    except (KeyError, TypeError, FormatError) as error:
        raise FormatError(f"{BUILD_PATH} is no record of a build: {error}; find out who wrote it") from error
    return FoundBuild(newest, through, record.version, record.holder, record.is_free)


class BuildLease(RecordLease):
    """Holds the record in a with statement, in which `take` comes first; thread-safe."""

    def __init__(self, store: MetadataStore, times: LeaseTimes | None = None) -> None:
        super().__init__(store, BUILD_PATH, _WORDS, times)
        self._last: Build | None = None

    def take(self, build: Build, say: Callable[[str], object] = lambda _: None) -> None:
        """Write this build over the found one; RefusedError if another process builds, or came first.

        A record that is held is watched first, until its holder has certainly given up.
        """
        found = find_build(self._store)
        if found is not None and not found.is_free:
            refusal = (
                f"a build from {found.newest.source} to {found.newest.target} is under way, by {found.holder}: wait "
                "for its end, see `bookie-clusters status`, or stop it"
            )
            found = self.wait_until_given_up(found, lambda: find_build(self._store), refusal, say)
        self._last = None if found is None else found.last_through
        self.hold(self._of(build), None if found is None else found.version)

    def tell(self, build: Build) -> None:
        """Have the next renewal say how far it is."""
        self.renew_with(self._of(build))

    def end(self, build: Build) -> None:
        """Keep the build that is through; raises as `require`."""
        self._last = build
        self.write(self._of(build))

    def __enter__(self) -> BuildLease:
        super().__enter__()
        return self

    def _of(self, build: Build) -> dict[str, Any]:
        return {"build": build.as_json(), "last": None if self._last is None else self._last.as_json()}


#: What to do with ledgers that stay.
ADVICE: Final = {
    CopyOutcome.FAILED: "they stay where they are: look at each with `bookwarden ledger show`, then build again",
    CopyOutcome.OPEN: ("`bookwarden bookie-clusters unload` unloads their topics, which closes them; then build again"),
    CopyOutcome.DEFERRED: "nothing is wrong with them: build again later",
}
#: What to do with copies that are not proven.
UNPROVEN_ADVICE: Final = (
    "cleanup keeps what the former cluster has of them: start bookies that do not answer, look at the others with "
    "`bookwarden ledger read`, and verify again"
)


class UncopiedLedger(NamedTuple):
    """A ledger that was not copied."""

    ledger_id: int
    outcome: CopyOutcome
    kind: str
    holder: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class BuildReport:
    """A build that is through, or what one would do."""

    build: Build
    staying: tuple[UncopiedLedger, ...]  #: The first of them, the worst first.
    seconds: float  #: That this process took.
    is_dry_run: bool = False  #: Nothing was copied: what would be has no outcome yet.
    is_verification: bool = False  #: Nothing was copied: what is complete was proven by its bookies.

    @property
    def exit_code(self) -> int:
        """The exit code, for schedulers."""
        if self.is_dry_run:
            return 0
        if self.build.counts.of(CopyOutcome.FAILED):
            return SOME_FAILED
        return MORE_LATER if self.build.counts.of(*LATER) else 0

    def as_json(self) -> dict[str, Any]:
        """Return it as values of JSON."""
        return {
            **self.build.as_json(),
            "dryRun": self.is_dry_run,
            "verify": self.is_verification,
            "seconds": round(self.seconds, 3),
            "staying": [
                {
                    "ledgerId": one.ledger_id,
                    "outcome": one.outcome.value,
                    "kind": one.kind,
                    "holder": one.holder,
                    "reason": one.reason,
                }
                for one in self.staying
            ],
        }
