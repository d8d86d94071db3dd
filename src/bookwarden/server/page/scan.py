"""The page of a scan, shown by `serve` and written to a file: classes, causes, guards, and the plan's commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from bookwarden.errors import NotFoundError
from bookwarden.findings import size_text
from bookwarden.orphans.classes import LedgerClass
from bookwarden.orphans.guards import check, check_copies
from bookwarden.orphans.summary import AGE_BUCKETS, BYTES_LABEL, REST, ClassCount, GrowthPoint, MissingLedger, Summary
from bookwarden.server.page.charts import Bar, TrendChart, strips, trend
from bookwarden.server.page.problems import scan_problems
from bookwarden.server.page.templates import (
    Card,
    encode_json,
    moment,
    page_file,
    plain,
    reading_fields,
    render,
    template,
)
from bookwarden.server.page.values import KIND_LABELS, Overview, ScanReport, Scans

_SHOWN_BARS: Final = 15
_SHOWN_PLACES: Final = 3
_SHOWN_POINTS: Final = 10
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
_LOST: Final = (LedgerClass.MISSING, LedgerClass.INSIDE_LIST)


class Listing(NamedTuple):
    """A section with a table; without rows it has its text alone."""

    title: str  #: "" without a heading of its own.
    text: str  #: Below the title; "" without.
    columns: tuple[tuple[str, bool], ...] = ()  #: Their headings, and whether they have numbers.
    rows: Sequence[tuple[str, ...]] = ()  #: As many texts each as there are columns.
    runbook: str = "orphan-plans#which-class-a-ledger-is-in"  #: PAGE#SECTION.
    serious: bool = False  #: Data is lost, or may be.


class Growth(NamedTuple):
    """The bytes in orphans by scan."""

    chart: TrendChart
    most: str  #: The most bytes.
    begins: str  #: When the first scan was.
    table: Listing  #: Of the newest scans.


def render_scan(shown: Overview, plan_id: str) -> str:
    """Render the page `/scan`; "" is the newest plan, if there is any. NotFoundError for one that it does not have."""
    report = _find(shown, plan_id)
    if report is None:
        return render("scan", shown, report=None)
    return render("scan", shown, **_values(report, shown.now_ms, f"/page/scan.json?plan={report.plan.plan_id}"))


def render_report(report: ScanReport, now_ms: int) -> str:
    """Render the page as one file, to be mailed and archived: it has no script, and nothing is fetched for it."""
    inside, _ = report.summary.total(LedgerClass.INSIDE_LIST)
    problems = list(scan_problems(Scans((report.plan,), inside_lists=inside)))
    return template("scan.html.j2").render(
        page="report",
        style=page_file("page.css").decode(),
        cluster=f"BookKeeper {report.summary.cluster}",
        at=moment(report.summary.created_ms),
        problems=problems,
        headline=_headline(report.summary),
        well=not problems,
        **_values(report, now_ms, ""),
    )


def scan_json(shown: Overview, plan_id: str) -> bytes:
    """Return what the page `/scan` shows."""
    report = _find(shown, plan_id)
    found = None if report is None else {**plain(report), "refusals": _refusals(report, shown.now_ms)}
    return encode_json({**reading_fields(shown.scans), "report": found})


def _find(shown: Overview, plan_id: str) -> ScanReport | None:
    reports = shown.scans.value.reports if shown.scans.value else ()
    found = next((one for one in reports if plan_id in ("", one.plan.plan_id)), None)
    if found is None and plan_id and shown.scans.value:
        raise NotFoundError(
            f"plan {plan_id!r} is none of the newest that are read for the page: "
            "`bookwarden orphans report` writes a page of any"
        )
    return found


def _values(report: ScanReport, now_ms: int, source: str) -> dict[str, Any]:
    """Return what the template lays out; ``source`` is the path of the JSON, "" for a page without."""
    summary, manifest = report.summary, report.manifest
    return {
        "report": report,
        "source": source,
        "created": moment(summary.created_ms),
        "cutoff": moment(summary.cutoff_ms),
        "found": _headline(summary),
        "bytes_label": BYTES_LABEL,
        "cards": _cards(summary, source),
        "findings": list(_findings(summary)),
        "is_empty": not manifest.counts.candidates and not manifest.copy_candidates,
        "applied": moment(report.plan.applied_ms) if report.plan.applied_ms else "",
        "until": moment(manifest.begun_ms + report.limits.max_plan_age_ms),
        "refusals": _refusals(report, now_ms),
        "emptied": Listing(
            "",
            "",
            (("would have no ledger left", False), ("orphans", True)),
            [(f"{one.scope} {one.name}", f"{one.candidates:,}") for one in manifest.emptied],
        ),
        "bars": [
            ("Orphans by cause", _bars(summary.by_cause)),
            ("Orphans by namespace", _bars(_with_rest(_orphans(summary.by_namespace)))),
            ("Orphans by kind", _bars(_in_words(_orphans(summary.by_kind)))),
            ("Orphans by age", _bars(_by_age(summary.by_age))),
        ],
        "growth": _growth(summary.growth) if len(summary.growth) > 1 else None,
        "listings": list(_listings(summary)),
    }


def _refusals(report: ScanReport, now_ms: int) -> list[str]:
    """List why the guards refuse the plan now; none are asked about what was applied."""
    if report.plan.is_applied and not report.manifest.copy_candidates:
        return []
    manifest, limits = report.manifest, report.limits
    return [str(one) for one in (*check(manifest, manifest.cluster, limits, now_ms), *check_copies(manifest, limits))]


def _headline(summary: Summary) -> str:
    orphans, size = summary.total(LedgerClass.ORPHAN)
    ledgers = "1 ledger is an orphan and holds" if orphans == 1 else f"{orphans:,} ledgers are orphans and hold"
    text = f"{ledgers} {size_text(size)}." if orphans else "No ledger is an orphan."
    left, size = summary.total(LedgerClass.LEFT_BEHIND)
    if left:
        text += f" {left:,} {'was' if left == 1 else 'were'} left behind, with {size_text(size)}."
    return text


def _cards(summary: Summary, source: str) -> list[Card]:
    orphans, orphan_bytes = summary.total(LedgerClass.ORPHAN)
    inside, inside_bytes = summary.total(LedgerClass.INSIDE_LIST)
    classes = "orphan-plans#which-class-a-ledger-is-in"
    return [
        Card("Orphans", f"{orphans:,}", f"{_percent(orphans, summary.ledgers)} of all ledgers", classes, source),
        Card("In orphans", size_text(orphan_bytes), BYTES_LABEL, classes, source),
        Card("In BookKeeper", f"{summary.ledgers:,}", f"ledgers, {size_text(summary.logical_bytes)}", classes, source),
        Card(
            "Missing",
            f"{summary.missing_total:,}",
            "named, and gone",
            "orphans#missing-ledgers",
            source,
            summary.missing_total > 0,
        ),
        Card(
            "Inside the list",
            f"{inside:,}",
            f"lost by topics' lists, {size_text(inside_bytes)}",
            "orphans#inside-the-list",
            source,
            inside > 0,
        ),
    ]


def _findings(summary: Summary) -> Iterator[Listing]:
    """Yield what an operator has to know before anything else."""
    ledger, named = ("ledger", True), ("named by", False)
    if summary.fuzzy is not None:
        yield Listing(
            "Not the state of one moment",
            f"The snapshot was read without the logs that it needs. {summary.fuzzy}. Do not believe a ledger that is "
            "called missing before a look at the live store: bookwarden ledger explain.",
            runbook="orphans#missing-ledgers",
            serious=True,
        )
    if summary.missing:
        yield Listing(
            "Missing ledgers: data is lost",
            "These are named in the metadata, and BookKeeper does not have them. Their topics fail where a reader "
            f"comes to them.{_first_of(summary.missing, summary.missing_total)}",
            (ledger, named),
            _places(summary.missing),
            "orphans#missing-ledgers",
            serious=True,
        )
    if summary.inside_lists:
        inside, size = summary.total(LedgerClass.INSIDE_LIST)
        yield Listing(
            "Inside the list: acknowledged messages are out of reach",
            "These ledgers have entries, and their topics do not name them, although brokers trim from the front of a "
            "list alone. Something wrote the topics' nodes without them. They are kept; docs/orphans.md says how to "
            f"read them out, and what to do. {inside:,} with {size_text(size)}."
            + _first_of(summary.inside_lists, inside),
            (ledger, (BYTES_LABEL, True), ("topic", False), ("why it is no trim's", False)),
            [(f"{one.ledger_id}", size_text(one.logical_bytes), one.topic, one.reason) for one in summary.inside_lists],
            "orphans#inside-the-list",
            serious=True,
        )
    if summary.outdated:
        yield Listing(
            "Outdated entries of shadow topics: no data is lost",
            "BookKeeper does not have these ledgers, and the sources of the shadow topics have let go of them. Unload "
            f"the shadow topic.{_first_of(summary.outdated, summary.outdated_total)}",
            (ledger, ("still named by", False)),
            _places(summary.outdated),
            "orphans#missing-ledgers",
        )


def _listings(summary: Summary) -> Iterator[Listing]:
    ledgers, size = ("ledgers", True), (BYTES_LABEL, True)
    yield Listing(
        "All ledgers",
        "",
        (("class", False), ledgers, size, ("what it means", False)),
        [_class_row(summary, one) for one in LedgerClass],
    )
    if summary.objects:
        yield Listing(
            "Offloaded copies",
            "",
            (("store", False), ("class", False), ("objects and uploads", True), ("bytes", True)),
            [(one.key, one.ledger_class, f"{one.ledgers:,}", size_text(one.logical_bytes)) for one in summary.objects],
            "orphans#offloaded-copies",
        )
    if summary.foreign:
        yield Listing(
            "Not this Pulsar's",
            "Kept, whatever refers to them. If an owner is a Pulsar cluster of yours, name its metadata root in "
            f"metadata_store.urls.{_first_of(summary.foreign, summary.foreign_total)}",
            (("owner", False), ledgers, size, ("ids", False)),
            [
                (one.owner, f"{one.ledgers:,}", size_text(one.logical_bytes), ", ".join(map(str, one.ledger_ids)))
                for one in summary.foreign
            ],
        )
    if summary.doubts:
        yield Listing(
            "Places that could not be read",
            f"What they could name is kept.{_first_of(summary.doubts, summary.doubts_total)}",
            (("node", False), ("why", False)),
            [(f"{one.root} {one.path}", one.reason) for one in summary.doubts],
        )


def _first_of(shown: Sequence[object], total: int) -> str:
    return f" The first {len(shown):,} of {total:,}:" if total > len(shown) else ""


def _places(ledgers: Iterable[MissingLedger]) -> list[tuple[str, ...]]:
    rows = list[tuple[str, ...]]()
    for ledger in ledgers:
        more = len(ledger.places) - _SHOWN_PLACES
        text = "; ".join(ledger.places[:_SHOWN_PLACES])
        rows.append((f"{ledger.ledger_id}", text if more <= 0 else f"{text}; and {more:,} more"))
    return rows


def _class_row(summary: Summary, one: LedgerClass) -> tuple[str, ...]:
    ledgers, size = summary.total(one)
    name = f"⚠ {one.value}" if one in _LOST and ledgers else one.value
    return name, f"{ledgers:,}", "" if one is LedgerClass.MISSING else size_text(size), _MEANING[one]


def _orphans(counts: Iterable[ClassCount]) -> list[ClassCount]:
    return [count for count in counts if count.ledger_class == LedgerClass.ORPHAN.value]


def _in_words(counts: Iterable[ClassCount]) -> list[ClassCount]:
    return [replace(count, key=KIND_LABELS.get(count.key, count.key)) for count in counts]


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


def _by_age(counts: Iterable[ClassCount]) -> list[ClassCount]:
    """List every age, also those without an orphan; none where there is no orphan at all."""
    found = {one.key: one for one in _orphans(counts)}
    return [found.get(age, ClassCount("", age, 0, 0)) for age in AGE_BUCKETS] if found else []


def _bars(counts: Iterable[ClassCount]) -> list[Bar]:
    return strips([(one.key, one.ledgers, one.logical_bytes) for one in counts])


def _growth(points: Sequence[GrowthPoint]) -> Growth:
    sizes = [(float(point.created_ms), float(point.orphan_bytes)) for point in points]
    rows = [
        (
            moment(point.created_ms),
            f"{point.orphans:,}",
            f"{point.ledgers:,}",
            size_text(point.orphan_bytes),
            size_text(point.logical_bytes),
        )
        for point in reversed(points[-_SHOWN_POINTS:])
    ]
    most = size_text(max(point.orphan_bytes for point in points))
    columns = (("scan", False), ("orphans", True), ("of ledgers", True), ("in orphans", True), ("of bytes", True))
    chart = trend(sizes, 0.0, None, 0.0, sizes[-1][0])
    return Growth(chart, most, moment(points[0].created_ms), Listing("", "", columns, rows))


def _percent(part: int, whole: int) -> str:
    if not whole or not part:
        return "0 %"
    share = 100 * part / whole
    return f"{share:.1f} %" if share >= 0.1 else "under 0.1 %"
