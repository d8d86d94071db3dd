"""The page of a scan: what it shows of a plan, and that the file made of it is well formed and needs nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from fastapi import FastAPI

from bookwarden.errors import NotFoundError
from bookwarden.findings import size_text
from bookwarden.ledgers.references import Doubt
from bookwarden.orphans.classes import Cause, LedgerClass
from bookwarden.orphans.guards import GuardLimits
from bookwarden.orphans.plan import EmptiedScope, FileDigest, PlanCounts, PlanManifest, ScannedCluster
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
from bookwarden.server.page.charts import Figure, standing_bars, strips
from bookwarden.server.page.scan import render_report
from bookwarden.server.page.values import Overview, Plan, Reading, ScanReport, Scans
from servers.asgi import Answer, request
from servers.page_sample import sample_app

NOW = 1_795_000_000_000
GIB = 2**30
VOID = {"meta", "link"}


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


def report_of(summary: Summary, **fields: Any) -> ScanReport:
    """Return the report of a plan that was just made of a scan, and not applied."""
    orphans, size = summary.total(LedgerClass.ORPHAN)
    counts = PlanCounts(summary.ledgers, summary.logical_bytes, 5, orphans, size, summary.missing_total)
    manifest = PlanManifest(
        plan_id=summary.plan_id,
        scan_id=summary.scan_id,
        tool_version="1",
        begun_ms=NOW,
        created_ms=NOW,
        cutoff_ms=summary.cutoff_ms,
        cluster=ScannedCluster("i", "zk:zk-1:2181", "/ledgers", ("zk:zk-1:2181",)),
        counts=counts,
        candidates=(FileDigest("candidates-00000.parquet", "", orphans),),
        **fields,
    )
    plan = Plan(summary.plan_id, NOW, summary.ledgers, orphans, size, summary.missing_total, 0, 0, orphans == 0)
    return ScanReport(plan, manifest, summary, GuardLimits())


def written(summary: Summary, **fields: Any) -> str:
    """Return the file that is made of a scan."""
    return render_report(report_of(summary, **fields), NOW)


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
    page = Page(written(summary_of(orphans("t/n", 1_200, 3 * GIB), referenced(98_800, 500 * GIB))))
    assert page.has("1,200 ledgers are orphans and hold 3.0 GiB.")
    assert "1.2 % of all ledgers" in page.texts
    assert "plan-7" in page.texts
    assert page.has("bookwarden orphans apply --plan plan-7 --execute")
    assert page.has("orphans.seen_apart_hours")
    assert page.has("until 2026-11-19 11:06 UTC")


def test_what_was_left_behind_is_told_beside_the_orphans() -> None:
    left = Cell("left behind", "MANAGED_LEDGER", "t/n", Cause.OFFLOADED.value, "<30d", 3, 2048)
    summary = summary_of(orphans("t/n", 1, 1024), left)
    assert {(one.key, one.ledgers) for one in summary.by_cause} == {(Cause.TRIM.value, 1), (Cause.OFFLOADED.value, 3)}
    page = written(summary)
    assert "3 were left behind, with 2.0 KiB." in page
    assert Cause.OFFLOADED.value in page


def test_a_cluster_without_orphans_has_no_bars_and_no_alarm() -> None:
    page = Page(written(summary_of(referenced(10, GIB))))
    assert "No ledger is an orphan." in page.texts
    assert "There is nothing to apply." in page.texts
    assert page.texts.count("None.") == 4
    assert "Missing ledgers: data is lost" not in page.texts


def test_an_empty_cluster_has_a_page_too() -> None:
    assert "No ledger is an orphan." in Page(written(summary_of())).texts


def test_missing_ledgers_come_first_with_who_names_them() -> None:
    found = ScanFindings(missing=[MissingLedger(4711, ("a", "b", "c", "d", "e"))])
    page = Page(written(summary_of(referenced(1, 1), found=found)))
    assert page.texts.index("Missing ledgers: data is lost") < page.texts.index("Orphans by cause")
    assert "4711" in page.texts
    assert "a; b; c; and 2 more" in page.texts


def test_outdated_entries_of_shadow_topics_are_no_lost_data() -> None:
    page = Page(written(summary_of(referenced(1, 1), found=ScanFindings(outdated=[MissingLedger(4711, ("s",))]))))
    assert "Outdated entries of shadow topics: no data is lost" in page.texts
    assert {"4711", "s"} <= set(page.texts)
    assert "Missing ledgers: data is lost" not in page.texts


def test_what_lists_lost_is_told_with_bytes_and_topics() -> None:
    cell = Cell(LedgerClass.INSIDE_LIST.value, "MANAGED_LEDGER", "t/n", "", "<1y", 1_200, 3 * GIB)
    lost = InsideList(4711, 2048, "t/n/persistent/a", "its topic lists older ledgers, from 12 on")
    page = Page(written(summary_of(referenced(1, 1), cell, found=ScanFindings(inside_lists=[lost]))))
    assert "Inside the list: acknowledged messages are out of reach" in page.texts
    assert page.has("1,200 with 3.0 GiB")
    assert page.has("The first 1 of 1,200:")
    assert {"4711", "2.0 KiB", "t/n/persistent/a", "its topic lists older ledgers, from 12 on"} <= set(page.texts)
    assert not Page(written(summary_of(referenced(1, 1)))).has("Inside the list:")


def test_text_of_the_cluster_is_never_markup() -> None:
    evil = '"><script>alert(1)</script>'
    found = ScanFindings(
        missing=[MissingLedger(1, (evil,))],
        foreign=[ForeignOwner(evil, 1, 1, (5,))],
        inside_lists=[InsideList(1, 1, evil, evil)],
        doubts=[Doubt(evil, evil, evil)],
    )
    report = report_of(summary_of(orphans(evil, 1, 1), found=found), emptied=(EmptiedScope(evil, evil, 1),))
    text = render_report(report, NOW)
    assert "<script" not in text
    assert Page(text).texts.count(evil) >= 5
    page = get(serving(report), "/scan").text
    assert page.count("<script") == 1, "only that of the page's own file"
    assert Page(page).texts.count(evil) >= 5


def test_nothing_on_the_page_comes_from_elsewhere() -> None:
    text = written(summary_of(orphans("t/n", 1, 1)))
    assert not re.search(r"(?i)https?://|src=|@import|url\(", text)
    assert "default-src 'none'" in text
    assert "script" not in {tag for tag, _ in Page(text).tags}
    links = [attributes["href"] for _, attributes in Page(text).tags if "href" in attributes]
    assert links == ["data:,", "#main"]


def test_namespaces_beyond_the_fifteen_with_most_bytes_stand_together() -> None:
    cells = [orphans(f"t/n{number:02d}", 1, (40 - number) * GIB) for number in range(20)]
    page = Page(written(summary_of(*cells)))
    assert "t/n14" in page.texts
    assert "t/n15" not in page.texts
    others = page.texts.index("(others)")
    assert page.texts[others + 1] == f"{size_text(sum(40 - number for number in range(15, 20)) * GIB)} in 5"


def test_growth_is_drawn_once_there_is_an_earlier_scan() -> None:
    cell = orphans("t/n", 2, GIB)
    title = "Growth between scans"
    assert title not in Page(written(summary_of(cell))).texts
    before = GrowthPoint("plan-6", NOW - 7 * 86_400_000, 100, 10 * GIB, 5, 2 * GIB)
    page = Page(written(summary_of(cell, earlier=(before,))))
    assert title in page.texts
    row = page.texts.index("2026-11-11 11:06 UTC", page.texts.index("of bytes"))
    assert page.texts[row + 1 : row + 5] == ["5", "100", "2.0 GiB", "10.0 GiB"]
    (line,) = (attributes["points"] for tag, attributes in page.tags if tag == "polyline")
    assert line is not None
    assert len(line.split()) == 2


def test_what_guards_refuse_and_what_is_held_back_is_told() -> None:
    summary = summary_of(orphans("t/n", 3, GIB), referenced(3, GIB))
    assert "Guards refuse the plan" not in written(summary_of(orphans("t/n", 3, GIB), referenced(97, GIB)))
    page = Page(written(summary, emptied=(EmptiedScope("topic", "t/n/persistent/a", 2),)))
    assert page.has("the plan has 3 of 6 ledgers, 50.0%; 20.0% are allowed (orphans.max_share)")
    assert page.texts[page.texts.index("topic t/n/persistent/a") + 1] == "2"
    assert page.has("--allow-emptied NAME")
    report = report_of(summary)
    old = Page(render_report(report, NOW + 2 * 86_400_000))
    assert old.has("what the plan was made from is 48.0 h old; 24.0 h are allowed (orphans.max_plan_age_hours)")
    applied = replace(report, plan=report.plan._replace(applied_ms=NOW, marked=3, is_applied=True))
    page = Page(render_report(applied, NOW + 2 * 86_400_000))
    assert "Applied at 2026-11-18 11:06 UTC: 3 marked." in page.texts
    assert "Guards refuse the plan" not in page.texts


def serving(*reports: ScanReport) -> FastAPI:
    scans = Scans(tuple(one.plan for one in reports), reports=reports)
    return sample_app(Overview("c", NOW, scans=Reading(scans, NOW)))


def get(app: FastAPI, path: str) -> Answer:
    return request(app, "GET", path)


def test_the_page_shows_the_newest_plan_or_one_of_the_newest_by_its_id() -> None:
    newest = report_of(replace(summary_of(orphans("t/n", 2, GIB), referenced(98, GIB)), plan_id="plan-8"))
    app = serving(newest, report_of(summary_of(orphans("t/n", 1, GIB))))
    assert "2 ledgers are orphans" in get(app, "/scan").text
    assert "2 ledgers are orphans" in get(app, "/scan?plan=plan-8").text
    assert "1 ledger is an orphan" in get(app, "/scan?plan=plan-7").text
    assert "/page/scan.json?plan=plan-7" in get(app, "/scan?plan=plan-7").text
    found = json.loads(get(app, "/page/scan.json?plan=plan-7").text)["report"]
    assert (found["plan"]["plan_id"], found["summary"]["by_cause"][0]["ledgers"]) == ("plan-7", 1)
    (refusal,) = found["refusals"]
    assert refusal.startswith("the plan has 1 of 1 ledgers, 100.0%; 20.0% are allowed (orphans.max_share): make sure")
    with pytest.raises(NotFoundError, match="'<script>' is none of the newest"):
        get(app, "/scan?plan=<script>")


def test_without_a_plan_the_page_names_the_command_that_makes_one() -> None:
    for app in (serving(), sample_app(Overview("c", NOW))):
        assert "bookwarden orphans scan" in get(app, "/scan").text
        assert json.loads(get(app, "/page/scan.json").text)["report"] is None
    assert "not read yet" in get(sample_app(Overview("c", NOW)), "/scan?plan=plan-7").text


def test_the_longest_bar_fills_the_width_and_the_smallest_can_be_seen() -> None:
    widths = [bar.width for bar in strips([("x", 1, size) for size in (10**9, 5 * 10**8, 1, 0)])]
    assert widths[:2] == [100, 50]
    assert 0 < widths[2] < widths[1]
    assert widths[3] == 0


def test_bars_of_a_histogram_stand_on_one_line() -> None:
    bars = standing_bars([Figure("a", 1, "", ""), Figure("b", 4, "", "")]).bars
    assert len({round(bar.y + bar.height, 6) for bar in bars}) == 1
    assert bars[1].height == 4 * bars[0].height


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (1536 * 2**40, "1.5 PiB"), (2**70, "1,024.0 EiB")],
)
def test_sizes_are_said_in_the_largest_fitting_unit(size: int, text: str) -> None:
    assert size_text(size) == text


def test_a_snapshot_that_is_not_of_one_moment_is_told_and_escaped() -> None:
    text = written(summary_of(referenced(1, 1), found=ScanFindings(fuzzy="/x/<snapshot.1>: no logs")))
    assert "Not the state of one moment" in text
    assert "/x/&lt;snapshot.1&gt;: no logs" in text
    Page(text)
    assert "Not the state" not in written(summary_of(referenced(1, 1)))
