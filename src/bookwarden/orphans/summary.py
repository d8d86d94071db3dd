"""The summary of a scan: how many ledgers and bytes in each class, by kind, namespace, cause and age.

Bytes are logical: a ledger's length as its metadata has it, counted once. On disk they are there as many times as the
write quorum says, and an open ledger counts as 0.
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
_STRICT = ConfigDict(extra="forbid")

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
    """How many ledgers, with how many bytes, have all of these in common; ``cause`` is "" for what is not planned.

    ``ledger_class`` and ``cause`` are values of LedgerClass and Cause, ``kind`` the name of a LedgerComponent or
    OTHER_KIND, ``namespace`` may be NO_NAMESPACE, ``age`` is one of AGE_BUCKETS.
    """

    ledger_class: str
    kind: str
    namespace: str
    cause: str
    age: str
    ledgers: int
    logical_bytes: int


@dataclass(frozen=True, slots=True)
class Count:
    """Ledgers and logical bytes of one class under one heading, such as a namespace; ``key`` may be REST."""

    __pydantic_config__ = _STRICT

    ledger_class: str
    key: str
    ledgers: int
    logical_bytes: int


@dataclass(frozen=True, slots=True)
class MissingLedger:
    """A ledger that is named and that BookKeeper does not have: lost data. ``places`` name it, for people."""

    __pydantic_config__ = _STRICT

    ledger_id: int
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InsideList:
    """A ledger with entries that its topic's list lost, and why no trim can have taken it; ``topic`` is its name."""

    __pydantic_config__ = _STRICT

    ledger_id: int
    logical_bytes: int
    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class ForeignOwner:
    """Whose ledgers are not to be touched: what tells of it, how many they are, and the first of their ids."""

    __pydantic_config__ = _STRICT

    owner: str
    ledgers: int
    logical_bytes: int
    ledger_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NotedDoubt:
    """A place that could not be read, for people."""

    __pydantic_config__ = _STRICT

    path: str
    root: str
    reason: str


@dataclass(frozen=True, slots=True)
class GrowthPoint:
    """What an earlier plan, or this one, found; ``created_ms`` in milliseconds since the epoch."""

    __pydantic_config__ = _STRICT

    plan_id: str
    created_ms: int
    ledgers: int
    logical_bytes: int
    orphans: int
    orphan_bytes: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What a scan found.

    ``by_class`` has an empty key. ``by_kind``, ``by_namespace`` and ``by_age`` have all classes, ``by_cause`` those of
    candidates only. Namespaces beyond SHOWN_NAMESPACES, those with the fewest bytes of orphans, are under REST. Of
    missing ledgers, those inside their topics' lists, foreign owners and doubts the first are named, and all are
    counted. ``objects`` counts objects and partial uploads in stores of offloaded copies: class, store, number and
    bytes. ``growth`` is by time and ends with this plan. ``fuzzy`` says why the snapshot that was read may not be the
    state of one moment, None if it is.
    """

    __pydantic_config__ = _STRICT

    plan_id: str
    scan_id: str
    created_ms: int
    cutoff_ms: int
    cluster: str
    ledgers: int
    logical_bytes: int
    by_class: tuple[Count, ...]
    by_kind: tuple[Count, ...]
    by_namespace: tuple[Count, ...]
    by_cause: tuple[Count, ...]
    by_age: tuple[Count, ...]
    missing: tuple[MissingLedger, ...] = ()
    missing_total: int = 0
    inside_lists: tuple[InsideList, ...] = ()
    foreign: tuple[ForeignOwner, ...] = ()
    foreign_total: int = 0
    doubts: tuple[NotedDoubt, ...] = ()
    doubts_total: int = 0
    objects: tuple[Count, ...] = ()
    growth: tuple[GrowthPoint, ...] = ()
    fuzzy: str | None = None

    def encode(self) -> bytes:
        """Render the summary as JSON."""
        return encode_document(self, _DOCUMENT, FORMAT)

    @classmethod
    def decode(cls, data: bytes) -> Summary:
        """Read a summary back; FormatError for one that is damaged or of another version."""
        return decode_document(data, cls, _DOCUMENT, FORMAT, _INSTEAD)

    def total(self, ledger_class: LedgerClass) -> tuple[int, int]:
        """Return the ledgers and bytes of a class; missing ledgers have no bytes."""
        if ledger_class is LedgerClass.MISSING:
            return self.missing_total, 0
        found = [count for count in self.by_class if count.ledger_class == ledger_class.value]
        return sum(count.ledgers for count in found), sum(count.logical_bytes for count in found)

    def growth_point(self) -> GrowthPoint:
        """Return what later summaries compare themselves with."""
        orphans, orphan_bytes = self.total(LedgerClass.ORPHAN)
        return GrowthPoint(self.plan_id, self.created_ms, self.ledgers, self.logical_bytes, orphans, orphan_bytes)


@dataclass(frozen=True, slots=True)
class Findings:
    """What a scan found beside the classes of ledgers; all of it, the summary keeps the first."""

    missing: Collection[MissingLedger] = ()
    foreign: Collection[ForeignOwner] = ()
    doubts: Collection[Doubt] = ()
    objects: Collection[Count] = ()
    fuzzy: str | None = None
    inside_lists: Collection[InsideList] = ()


def age_bucket(age_ms: int) -> str:
    """Put an age in milliseconds into its bucket; what is not known or lies ahead is young."""
    return AGE_BUCKETS[bisect_right(AGE_BOUNDS_MS, age_ms)]


def summarize(
    cells: Iterable[Cell],
    findings: Findings,
    *,
    plan_id: str,
    scan_id: str,
    created_ms: int,
    cutoff_ms: int,
    cluster: str,
    earlier: Iterable[GrowthPoint] = (),
) -> Summary:
    """Sum up a scan; cells with the same headings may occur several times, as several tasks count them."""
    counted = _Counting(cells)
    missing = sorted(findings.missing, key=lambda ledger: ledger.ledger_id)
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
    """Keep the namespaces with the most bytes of orphans, then of anything; put the others together."""
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


def _counts(tallies: Mapping[tuple[str, str], list[int]], order: Collection[str] = ()) -> tuple[Count, ...]:
    """List the tallies by class, and then in the order given or by falling bytes."""
    places = {key: place for place, key in enumerate(order)}
    found = [Count(name, key, ledgers, size) for (name, key), (ledgers, size) in tallies.items()]
    return tuple(
        sorted(
            found, key=lambda one: (one.ledger_class, places.get(one.key, 0), -one.logical_bytes, -one.ledgers, one.key)
        )
    )
