"""The report's page: what it shows of a summary, that it is well formed, and that it needs nothing from elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from bookwarden.findings import size_text
from bookwarden.ledgers.references import Doubt
from bookwarden.orphans.classes import Cause, LedgerClass
from bookwarden.orphans.summary import (
    Cell,
    ForeignOwner,
    GrowthPoint,
    InsideList,
    MissingLedger,
    ScanFindings,
    Summary,
    summarize,
)
from bookwarden.server.page.charts import Figure, line, lying_bars, standing_bars
from bookwarden.server.page.scan import _growth, render_page

NOW = 1_795_000_000_000
GIB = 2**30
VOID = {"meta", "rect", "line", "circle", "polyline"}


def orphans(namespace: str, ledgers: int, size: int, cause: Cause = Cause.TRIM, age: str = "<30d") -> Cell:
    return Cell(LedgerClass.ORPHAN.value, "MANAGED_LEDGER", namespace, cause.value, age, ledgers, size)


def referenced(ledgers: int, size: int) -> Cell:
    return Cell(LedgerClass.REFERENCED.value, "MANAGED_LEDGER", "t/n", "", "<7d", ledgers, size)


def summary_of(*cells: Cell, found: ScanFindings | None = None, earlier: tuple[GrowthPoint, ...] = ()) -> Summary:
    return summarize(
        cells,
        found or ScanFindings(),
        plan_id="plan-7",
        scan_id="scan-7",
        created_ms=NOW,
        cutoff_ms=NOW - 3 * 86_400_000,
        cluster="zk:zk-1:2181",
        earlier=earlier,
    )


class Page(HTMLParser):
    """Reads a page, and fails where its elements are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(" ".join(data.split()))

    def has(self, text: str) -> bool:
        return any(text in one for one in self.texts)


def test_the_page_says_how_many_orphans_there_are_and_what_they_hold() -> None:
    page = Page(render_page(summary_of(orphans("t/n", 1_200, 3 * GIB), referenced(98_800, 500 * GIB))))
    assert "1,200 ledgers are orphans and hold 3.0 GiB." in page.texts
    assert "orphans, 1.2 % of all ledgers" in page.texts
    assert page.has("Plan plan-7")
    assert page.has("bookwarden orphans apply --plan plan-7 --execute")


def test_what_was_left_behind_is_told_beside_the_orphans() -> None:
    left = Cell("left behind", "MANAGED_LEDGER", "t/n", Cause.OFFLOADED.value, "<30d", 3, 2048)
    summary = summary_of(orphans("t/n", 1, 1024), left)
    assert {(one.key, one.ledgers) for one in summary.by_cause} == {(Cause.TRIM.value, 1), (Cause.OFFLOADED.value, 3)}
    page = render_page(summary)
    assert "3 were left behind, with 2.0 KiB." in page
    assert Cause.OFFLOADED.value in page


def test_a_cluster_without_orphans_has_no_bars_and_no_alarm() -> None:
    page = Page(render_page(summary_of(referenced(10, GIB))))
    assert "No ledger is an orphan." in page.texts
    assert page.texts.count("None.") == 3
    assert not page.has("data is lost:")
    assert "Missing ledgers: data is lost" not in page.texts


def test_an_empty_cluster_has_a_page_too() -> None:
    assert "No ledger is an orphan." in Page(render_page(summary_of())).texts


def test_missing_ledgers_come_first_with_who_names_them() -> None:
    found = ScanFindings(missing=[MissingLedger(4711, ("a", "b", "c", "d", "e"))])
    page = Page(render_page(summary_of(referenced(1, 1), found=found)))
    assert page.texts.index("Missing ledgers: data is lost") < page.texts.index("Orphans by cause, logical bytes")
    assert "4711" in page.texts
    assert "a; b; c; and 2 more" in page.texts


def test_outdated_entries_of_shadow_topics_are_no_lost_data() -> None:
    page = Page(render_page(summary_of(referenced(1, 1), found=ScanFindings(outdated=[MissingLedger(4711, ("s",))]))))
    assert "Outdated entries of shadow topics: no data is lost" in page.texts
    assert {"4711", "s"} <= set(page.texts)
    assert "Missing ledgers: data is lost" not in page.texts


def test_what_lists_lost_is_told_with_bytes_and_topics() -> None:
    cell = Cell(LedgerClass.INSIDE_LIST.value, "MANAGED_LEDGER", "t/n", "", "<1y", 1_200, 3 * GIB)
    lost = InsideList(4711, 2048, "t/n/persistent/a", "its topic lists older ledgers, from 12 on")
    page = Page(render_page(summary_of(referenced(1, 1), cell, found=ScanFindings(inside_lists=[lost]))))
    assert "Inside the list: acknowledged messages are out of reach" in page.texts
    assert page.has("1,200 with 3.0 GiB")
    assert page.has("The first 1 are:")
    assert {"4711", "2.0 KiB", "t/n/persistent/a", "its topic lists older ledgers, from 12 on"} <= set(page.texts)
    assert not Page(render_page(summary_of(referenced(1, 1)))).has("Inside the list")


def test_text_of_the_cluster_is_never_markup() -> None:
    evil = '"><script>alert(1)</script>'
    found = ScanFindings(
        missing=[MissingLedger(1, (evil,))],
        foreign=[ForeignOwner(evil, 1, 1, (5,))],
        inside_lists=[InsideList(1, 1, evil, evil)],
        doubts=[Doubt(evil, evil, evil)],
    )
    text = render_page(summary_of(orphans(evil, 1, 1), found=found))
    assert "<script" not in text
    assert Page(text).has(evil)


def test_nothing_on_the_page_comes_from_elsewhere() -> None:
    text = render_page(summary_of(orphans("t/n", 1, 1)))
    assert not re.search(r"(?i)https?://|src=|@import|url\(", text)
    assert "script" not in {tag for tag, _ in Page(text).tags}


def test_namespaces_beyond_the_fifteen_with_most_bytes_stand_together() -> None:
    cells = [orphans(f"t/n{number:02d}", 1, (40 - number) * GIB) for number in range(20)]
    page = Page(render_page(summary_of(*cells)))
    assert "t/n14" in page.texts
    assert "t/n15" not in page.texts
    assert f"(others): 5 ledgers, {size_text(sum(40 - number for number in range(15, 20)) * GIB)}" in page.texts


def test_growth_is_drawn_once_there_is_an_earlier_scan() -> None:
    cell = orphans("t/n", 2, GIB)
    title = "Growth between scans, logical bytes in orphans"
    assert title not in Page(render_page(summary_of(cell))).texts
    before = GrowthPoint("plan-6", NOW - 7 * 86_400_000, 100, 10 * GIB, 5, 2 * GIB)
    page = Page(render_page(summary_of(cell, earlier=(before,))))
    assert title in page.texts
    assert page.has("5 orphans of 100 ledgers, 2.0 GiB of 10.0 GiB")
    assert [tag for tag, _ in page.tags].count("circle") == 2
    assert page.has("orphans.seen_apart_hours")


@pytest.mark.parametrize(("hours", "has_time"), [(7, True), (24 * 7, False)])
def test_the_axis_of_growth_has_times_within_few_days(hours: int, has_time: bool) -> None:
    before = replace(GrowthPoint("plan-6", NOW, 100, 10 * GIB, 5, 2 * GIB), created_ms=NOW - hours * 3_600_000)
    labels = [figure.label for _, figure in _growth([before, replace(before, created_ms=NOW)])]
    assert all((":" in label) is has_time for label in labels), labels
    assert len(set(labels)) == 2


def test_the_longest_bar_fills_the_width_and_the_smallest_can_be_seen() -> None:
    sizes = [1000.0, 500.0, 0.001, 0.0]
    widths = [bar.width for bar in lying_bars([Figure("x", size, "", "") for size in sizes]).bars]
    assert widths[0] == 2 * widths[1]
    assert 0 < widths[2] < widths[1]
    assert widths[3] == 0


def test_long_names_keep_both_ends() -> None:
    (bar,) = lying_bars([Figure("begin-" + "x" * 100 + "-end", 1, "", "")]).bars
    assert bar.label.startswith("begin-")
    assert bar.label.endswith("-end")
    assert len(bar.label) <= 32


def test_bars_of_a_histogram_stand_on_one_line() -> None:
    bars = standing_bars([Figure("a", 1, "", ""), Figure("b", 4, "", "")]).bars
    assert len({round(bar.y + bar.height, 6) for bar in bars}) == 1
    assert bars[1].height == 4 * bars[0].height


def test_a_line_begins_its_scale_at_zero_and_needs_no_two_times() -> None:
    chart = line([(5.0, Figure("", 10, "", "")), (5.0, Figure("", 5, "", ""))], [(0, "0"), (10, "10")])
    (zero, _), (ten, _) = chart.ticks
    assert zero == chart.base
    assert [point.y for point in chart.points] == [ten, (zero + ten) / 2]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (1536 * 2**40, "1.5 PiB"), (2**70, "1,024.0 EiB")],
)
def test_sizes_are_said_in_the_largest_fitting_unit(size: int, text: str) -> None:
    assert size_text(size) == text


def test_a_snapshot_that_is_not_of_one_moment_is_told_and_escaped() -> None:
    text = render_page(summary_of(referenced(1, 1), found=ScanFindings(fuzzy="/x/<snapshot.1>: no logs")))
    assert "Not the state of one moment" in text
    assert "/x/&lt;snapshot.1&gt;: no logs" in text
    Page(text)
    assert "Not the state" not in render_page(summary_of(referenced(1, 1)))
