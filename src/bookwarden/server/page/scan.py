"""The report's page: the texts and charts of a summary, which scan.html.j2 lays out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from bookwarden.findings import size_text
from bookwarden.ledgers.kinds import KINDS
from bookwarden.orphans.classes import LedgerClass
from bookwarden.orphans.summary import AGE_BUCKETS, BYTES_LABEL, REST, ClassCount, GrowthPoint, Summary
from bookwarden.server.page.charts import Figure, line, lying_bars, standing_bars

if TYPE_CHECKING:
    from jinja2 import Template

_SHOWN_BARS: Final = 15
_SHOWN_PLACES: Final = 3
_FEW_DAYS_MS: Final = 3 * 86_400_000
_KINDS: Final = {kind.component.name: kind.ledgers_label for kind in KINDS}
_MEANING: Final = {
    LedgerClass.REFERENCED: "something in the metadata names it",
    LedgerClass.ORPHAN: "nothing names it: a candidate of the plan",
    LedgerClass.LEFT_BEHIND: "by the metadata its broker deleted it, and it is still there: a candidate of the plan",
    LedgerClass.TOO_YOUNG: "nothing names it yet, and it may be one that is just being made",
    LedgerClass.IN_TRASH: "brokers keep it for a time, and the sweep deletes it then",
    LedgerClass.UNKNOWN_REFERENCES: "what could name it could not be read, or lost other ledgers of its topic: kept",
    LedgerClass.UNKNOWN_OWNER: "its custom metadata names no application or component that is known: kept",
    LedgerClass.UNPARSABLE: "its metadata cannot be understood: kept",
    LedgerClass.INSIDE_LIST: "its topic's list lost it, with acknowledged messages: kept",
    LedgerClass.MISSING: "named, and gone from BookKeeper: data is lost",
    LedgerClass.FOREIGN: "another Pulsar cluster's, or another application's: kept",
}


@dataclass(frozen=True, slots=True)
class ClassLine:
    """A row of the table of classes."""

    name: str
    meaning: str
    ledgers: str
    size: str
    alarm: bool


def render_page(summary: Summary) -> str:
    """Render a scan's report as one HTML page; every text of the cluster is escaped."""
    orphans, orphan_bytes = summary.total(LedgerClass.ORPHAN)
    inside, inside_bytes = summary.total(LedgerClass.INSIDE_LIST)
    return _template().render(
        summary=summary,
        bytes_label=BYTES_LABEL,
        created=_moment(summary.created_ms),
        cutoff=_moment(summary.cutoff_ms),
        headline=_headline(summary),
        orphans=f"{orphans:,}",
        orphan_bytes=size_text(orphan_bytes),
        share=_percent(orphans, summary.ledgers),
        total_bytes=size_text(summary.logical_bytes),
        classes=[_class_line(summary, one) for one in LedgerClass],
        causes=lying_bars(_figures(summary.by_cause)),
        kinds=lying_bars(_figures(_in_words(_orphans(summary.by_kind)))),
        namespaces=lying_bars(_figures(_with_rest(_orphans(summary.by_namespace)))),
        ages=standing_bars(_ages(summary.by_age)),
        growth=line(_growth(summary.growth), _ticks(summary.growth)) if len(summary.growth) > 1 else None,
        inside_total=f"{inside:,} with {size_text(inside_bytes)}",
        inside_more=inside > len(summary.inside_lists),
        inside_lists=[
            (f"{one.ledger_id}", size_text(one.logical_bytes), one.topic, one.reason) for one in summary.inside_lists
        ],
        missing=[(f"{one.ledger_id}", _places(one.places)) for one in summary.missing],
        outdated=[(f"{one.ledger_id}", _places(one.places)) for one in summary.outdated],
        foreign=[
            (one.owner, f"{one.ledgers:,}", size_text(one.logical_bytes), ", ".join(map(str, one.ledger_ids)))
            for one in summary.foreign
        ],
        objects=[
            (one.key, one.ledger_class, f"{one.ledgers:,}", size_text(one.logical_bytes)) for one in summary.objects
        ],
    )


def _template() -> Template:
    # Its extra is not in every environment, and others than this page do without.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("bookwarden.server.page", ".")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("scan.html.j2")


def _headline(summary: Summary) -> str:
    orphans, size = summary.total(LedgerClass.ORPHAN)
    ledgers = "1 ledger is an orphan and holds" if orphans == 1 else f"{orphans:,} ledgers are orphans and hold"
    text = f"{ledgers} {size_text(size)}." if orphans else "No ledger is an orphan."
    left, size = summary.total(LedgerClass.LEFT_BEHIND)
    if left:
        text += f" {left:,} {'was' if left == 1 else 'were'} left behind, with {size_text(size)}."
    return text


def _class_line(summary: Summary, one: LedgerClass) -> ClassLine:
    ledgers, size = summary.total(one)
    lost = one in (LedgerClass.MISSING, LedgerClass.INSIDE_LIST) and ledgers > 0
    shown = "" if one is LedgerClass.MISSING else size_text(size)
    return ClassLine(one.value, _MEANING[one], f"{ledgers:,}", shown, lost)


def _orphans(counts: Iterable[ClassCount]) -> list[ClassCount]:
    return [count for count in counts if count.ledger_class == LedgerClass.ORPHAN.value]


def _in_words(counts: Iterable[ClassCount]) -> list[ClassCount]:
    return [replace(count, key=_KINDS.get(count.key, count.key)) for count in counts]


def _with_rest(counts: Sequence[ClassCount]) -> list[ClassCount]:
    """Keep the first, and add the others to those that the summary has added up."""
    named = [count for count in counts if count.key != REST]
    rest = [*named[_SHOWN_BARS:], *(count for count in counts if count.key == REST)]
    if not rest:
        return named
    together = ClassCount(
        LedgerClass.ORPHAN.value, REST, sum(one.ledgers for one in rest), sum(one.logical_bytes for one in rest)
    )
    return [*named[:_SHOWN_BARS], together]


def _figures(counts: Iterable[ClassCount]) -> list[Figure]:
    return [
        Figure(one.key, one.logical_bytes, size_text(one.logical_bytes), _tip(one.key, one.ledgers, one.logical_bytes))
        for one in counts
    ]


def _ages(counts: Iterable[ClassCount]) -> list[Figure]:
    """List a bar for every age, also for ages without an orphan."""
    found = {one.key: one for one in _orphans(counts)}
    empty = ClassCount(LedgerClass.ORPHAN.value, "", 0, 0)
    return [
        Figure(age, one.logical_bytes, size_text(one.logical_bytes), _tip(age, one.ledgers, one.logical_bytes))
        for age, one in ((age, found.get(age, empty)) for age in AGE_BUCKETS)
    ]


def _growth(points: Sequence[GrowthPoint]) -> list[tuple[float, Figure]]:
    within_days = points[-1].created_ms - points[0].created_ms < _FEW_DAYS_MS if points else False
    return [
        (
            float(point.created_ms),
            Figure(
                _tick_of(point.created_ms, within_days=within_days),
                point.orphan_bytes,
                size_text(point.orphan_bytes),
                f"{_moment(point.created_ms)}: {point.orphans:,} orphans of {point.ledgers:,} ledgers, "
                f"{size_text(point.orphan_bytes)} of {size_text(point.logical_bytes)}",
            ),
        )
        for point in points
    ]


def _ticks(points: Iterable[GrowthPoint]) -> list[tuple[float, str]]:
    largest = max((point.orphan_bytes for point in points), default=0)
    return [(size, size_text(int(size))) for size in (0, largest / 2, largest)] if largest else [(0, size_text(0))]


def _tip(name: str, ledgers: int, size: int) -> str:
    return f"{name}: {ledgers:,} {'ledger' if ledgers == 1 else 'ledgers'}, {size_text(size)}"


def _places(places: Sequence[str]) -> str:
    shown = "; ".join(places[:_SHOWN_PLACES])
    return shown if len(places) <= _SHOWN_PLACES else f"{shown}; and {len(places) - _SHOWN_PLACES:,} more"


def _percent(part: int, whole: int) -> str:
    if not whole or not part:
        return "0 %"
    share = 100 * part / whole
    return f"{share:.1f} %" if share >= 0.1 else "under 0.1 %"


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _tick_of(milliseconds: int, *, within_days: bool) -> str:
    """Return the day, or day and time where all points are of few days."""
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).strftime("%m-%d %H:%M" if within_days else "%m-%d")
