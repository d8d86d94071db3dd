"""The summary of a scan: ledgers and bytes of each class, by kind, namespace, cause and age.

Bytes are logical: a ledger's length by its metadata, counted once and not for each replica; an open ledger counts as 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from pydantic import ConfigDict

from bookwarden.ledgers.references import Doubt
from bookwarden.orphans.classes import PLANNED, LedgerClass
from bookwarden.orphans.documents import decode_document, encode_document

FORMAT = 2
_DOCUMENT = "summary of an orphan scan"
_INSTEAD = "make another one with `bookwarden orphans scan`"

BYTES_LABEL = "logical bytes"
"""What the figures are called wherever they are shown."""

_DAY_MS = 86_400_000
AGE_BUCKETS = ("<3d", "<7d", "<30d", "<90d", "<1y", "older")
AGE_BOUNDS_MS = (3 * _DAY_MS, 7 * _DAY_MS, 30 * _DAY_MS, 90 * _DAY_MS, 365 * _DAY_MS)
OTHER_KIND = "other"
NO_NAMESPACE = "(none)"
REST = "(others)"

SHOWN_NAMESPACES = 500
SHOWN_MISSING = 1_000
SHOWN_OWNERS = 100
SHOWN_IDS = 100
SHOWN_DOUBTS = 200


class Cell(NamedTuple):
    """Ledgers that have their class, kind, namespace, cause and age in common."""

    ledger_class: str  #: The value of a LedgerClass.
    kind: str  #: The name of a LedgerComponent, or OTHER_KIND.
    namespace: str  #: NO_NAMESPACE where the owner is unknown.
    cause: str  #: The value of a Cause; "" for what is not planned.
    age: str  #: One of AGE_BUCKETS.
    ledgers: int  #: Number of ledgers.
    logical_bytes: int  #: Of all of them.


@dataclass(frozen=True, slots=True)
class ClassCount:
    """Ledgers and logical bytes of one class under one heading, such as a namespace; ``key`` may be REST."""

    ledger_class: str
    key: str
    ledgers: int
    logical_bytes: int


@dataclass(frozen=True, slots=True)
class MissingLedger:
    """A ledger that places name and BookKeeper does not have: lost data. ``places`` are texts for people."""

    ledger_id: int
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InsideList:
    """A ledger with entries that its topic's list lost, and why no trim can have taken it; ``topic`` is its name."""

    ledger_id: int
    logical_bytes: int
    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class ForeignOwner:
    """An owner whose ledgers must not be touched: what shows it, its ledgers and bytes, the first of their ids."""

    owner: str
    ledgers: int
    logical_bytes: int
    ledger_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NotedDoubt:
    """A place that could not be read, for people."""

    path: str
    root: str
    reason: str


@dataclass(frozen=True, slots=True)
class GrowthPoint:
    """The totals of one plan, earlier or this one."""

    plan_id: str  #: As in the manifest.
    created_ms: int  #: In ms since the epoch.
    ledgers: int  #: All in BookKeeper.
    logical_bytes: int  #: Of all ledgers.
    orphans: int  #: Ledgers of the class ORPHAN.
    orphan_bytes: int  #: Logical bytes of the orphans.


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a scan, for people."""

    # For the values in it too.
    __pydantic_config__ = ConfigDict(extra="forbid")

    plan_id: str  #: As in the manifest.
    scan_id: str  #: As in the manifest.
    created_ms: int  #: When the plan was made, in ms since the epoch.
    cutoff_ms: int  #: Ledgers created later are too young, in ms since the epoch.
    cluster: str  #: BookKeeper's INSTANCEID.
    ledgers: int  #: All in BookKeeper.
    logical_bytes: int  #: Of all ledgers.
    by_class: tuple[ClassCount, ...]  #: The key is "".
    by_kind: tuple[ClassCount, ...]  #: Of all classes.
    #: Of all classes; beyond SHOWN_NAMESPACES, those with the fewest bytes of orphans are under REST.
    by_namespace: tuple[ClassCount, ...]
    by_cause: tuple[ClassCount, ...]  #: Of candidates only.
    by_age: tuple[ClassCount, ...]  #: Of all classes.
    missing: tuple[MissingLedger, ...] = ()  #: The first SHOWN_MISSING, by id.
    missing_total: int = 0  #: Number of all missing ledgers.
    inside_lists: tuple[InsideList, ...] = ()  #: The first SHOWN_MISSING, by id.
    foreign: tuple[ForeignOwner, ...] = ()  #: The SHOWN_OWNERS with the most ledgers.
    foreign_total: int = 0  #: Number of all foreign owners.
    doubts: tuple[NotedDoubt, ...] = ()  #: The first SHOWN_DOUBTS.
    doubts_total: int = 0  #: Number of all doubts.
    #: Objects and partial uploads in stores of offloaded copies: class, store, number and bytes.
    objects: tuple[ClassCount, ...] = ()
    growth: tuple[GrowthPoint, ...] = ()  #: By time; the last point is this plan.
    fuzzy: str | None = None  #: Why the snapshot that was read may not be the state of one moment; None if it is.
    #: Gone ledgers that only shadow topics name, whose sources have let go of them: the first SHOWN_MISSING, by id.
    outdated: tuple[MissingLedger, ...] = ()
    outdated_total: int = 0  #: Number of all outdated ledgers.

    def encode(self) -> bytes:
        """Render the summary as JSON."""
        return encode_document(self, _DOCUMENT, FORMAT)

    @classmethod
    def decode(cls, data: bytes) -> Summary:
        """Parse a summary; FormatError if it is damaged or of another version."""
        return decode_document(data, cls, _DOCUMENT, FORMAT, _INSTEAD)

    def total(self, ledger_class: LedgerClass) -> tuple[int, int]:
        """Return the ledgers and bytes of a class; missing ledgers have no bytes."""
        if ledger_class is LedgerClass.MISSING:
            return self.missing_total, 0
        found = [count for count in self.by_class if count.ledger_class == ledger_class.value]
        return sum(count.ledgers for count in found), sum(count.logical_bytes for count in found)

    def growth_point(self) -> GrowthPoint:
        """Return the totals that later summaries show as growth."""
        orphans, orphan_bytes = self.total(LedgerClass.ORPHAN)
        return GrowthPoint(self.plan_id, self.created_ms, self.ledgers, self.logical_bytes, orphans, orphan_bytes)


@dataclass(frozen=True, slots=True)
class ScanFindings:
    """The results of a scan besides the counts of ledgers, complete; the summary keeps the first of each."""

    missing: Collection[MissingLedger] = ()  #: Named, and not in BookKeeper.
    foreign: Collection[ForeignOwner] = ()  #: Ledgers of other clusters or applications, by owner.
    doubts: Collection[Doubt] = ()  #: Places that could not be read.
    objects: Collection[ClassCount] = ()  #: As in Summary.
    fuzzy: str | None = None  #: As in Summary.
    inside_lists: Collection[InsideList] = ()  #: Ledgers with entries that their topics' lists lost.
    outdated: Collection[MissingLedger] = ()  #: Gone, and named by shadow topics alone, whose sources let go of them.


def age_bucket(age_ms: int) -> str:
    """Return the bucket of an age in milliseconds; an unknown age, or a time in the future, counts as young."""
    return AGE_BUCKETS[bisect_right(AGE_BOUNDS_MS, age_ms)]


def summarize(
    cells: Iterable[Cell],
    findings: ScanFindings,
    *,
    plan_id: str,
    scan_id: str,
    created_ms: int,
    cutoff_ms: int,
    cluster: str,
    earlier: Iterable[GrowthPoint] = (),
) -> Summary:
    """Sum up a scan; the same cell may occur several times, once for each task that counted it."""
    counted = _Counting(cells)
    missing, outdated = (
        sorted(found, key=lambda ledger: ledger.ledger_id) for found in (findings.missing, findings.outdated)
    )
    foreign = sorted(findings.foreign, key=lambda owner: (-owner.ledgers, owner.owner))
    summary = Summary(
        plan_id=plan_id,
        scan_id=scan_id,
        created_ms=created_ms,
        cutoff_ms=cutoff_ms,
        cluster=cluster,
        ledgers=sum(tally[0] for tally in counted.classes.values()),
        logical_bytes=sum(tally[1] for tally in counted.classes.values()),
        by_class=_counts(counted.classes),
        by_kind=_counts(counted.kinds),
        by_namespace=_counts(_largest(counted.namespaces)),
        by_cause=_counts(counted.causes),
        by_age=_counts(counted.ages, AGE_BUCKETS),
        missing=tuple(missing[:SHOWN_MISSING]),
        missing_total=len(findings.missing),
        inside_lists=tuple(sorted(findings.inside_lists, key=lambda one: one.ledger_id)[:SHOWN_MISSING]),
        foreign=tuple(replace(one, ledger_ids=one.ledger_ids[:SHOWN_IDS]) for one in foreign[:SHOWN_OWNERS]),
        foreign_total=len(foreign),
        doubts=tuple(NotedDoubt(one.path, one.root, one.reason) for one in list(findings.doubts)[:SHOWN_DOUBTS]),
        doubts_total=len(findings.doubts),
        objects=tuple(sorted(findings.objects, key=lambda count: (count.ledger_class, count.key))),
        fuzzy=findings.fuzzy,
        outdated=tuple(outdated[:SHOWN_MISSING]),
        outdated_total=len(findings.outdated),
    )
    points = {point.plan_id: point for point in (*earlier, summary.growth_point())}
    return replace(summary, growth=tuple(sorted(points.values(), key=lambda point: (point.created_ms, point.plan_id))))


# (class, key) -> [ledgers, bytes]
_Tallies = dict[tuple[str, str], list[int]]


class _Counting:
    """The sums of all cells under each heading."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.classes = _tallies()
        self.kinds = _tallies()
        self.namespaces = _tallies()
        self.causes = _tallies()
        self.ages = _tallies()
        for cell in cells:
            self._add(self.classes, cell, "")
            self._add(self.kinds, cell, cell.kind)
            self._add(self.namespaces, cell, cell.namespace)
            self._add(self.ages, cell, cell.age)
            if cell.ledger_class in PLANNED:
                self._add(self.causes, cell, cell.cause)

    @staticmethod
    def _add(tallies: _Tallies, cell: Cell, key: str) -> None:
        tally = tallies[cell.ledger_class, key]
        tally[0] += cell.ledgers
        tally[1] += cell.logical_bytes


def _tallies() -> _Tallies:
    return defaultdict(lambda: [0, 0])


def _largest(namespaces: _Tallies) -> _Tallies:
    """Keep the namespaces with the most bytes of orphans, then of anything, and sum the others up."""
    weights: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for (ledger_class, namespace), (ledgers, size) in namespaces.items():
        orphan = ledger_class == LedgerClass.ORPHAN.value
        weight = weights[namespace]
        weight[0] += size if orphan else 0
        weight[1] += ledgers if orphan else 0
        weight[2] += size
    kept = set(sorted(weights, key=lambda name: ([-part for part in weights[name]], name))[:SHOWN_NAMESPACES])
    together = _tallies()
    for (ledger_class, namespace), (ledgers, size) in namespaces.items():
        tally = together[ledger_class, namespace if namespace in kept else REST]
        tally[0] += ledgers
        tally[1] += size
    return together


def _counts(tallies: Mapping[tuple[str, str], list[int]], order: Collection[str] = ()) -> tuple[ClassCount, ...]:
    """List the tallies by class, and then in the order given or by descending bytes."""
    places = {key: place for place, key in enumerate(order)}
    found = [ClassCount(name, key, ledgers, size) for (name, key), (ledgers, size) in tallies.items()]
    return tuple(
        sorted(
            found, key=lambda one: (one.ledger_class, places.get(one.key, 0), -one.logical_bytes, -one.ledgers, one.key)
        )
    )
