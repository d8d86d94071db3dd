"""What `bookwarden disk` writes."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from bookwarden.cli.disk.commands import describe_disk_use
from bookwarden.cli.shell.output import JsonWriter, TextWriter
from bookwarden.ledgers.bookie_report import BookieReport
from bookwarden.ledgers.disk_growth import Forecast, Growth
from bookwarden.ledgers.disk_use import BookieUse, DiskUse, Use

GIB = 2**30
TOTAL = Use("total", 1_200, 20, 3, 40 * GIB, 100 * GIB, 5 * GIB, 10 * GIB, 7 * GIB, 1_600_000_000_000)
FOUND = DiskUse(
    1_700_000_000_000,
    TOTAL,
    (Use("MANAGED_LEDGER", 1_000, disk_bytes=75 * GIB, oldest_ms=1_600_000_000_000), Use("other", 7, disk_bytes=GIB)),
    2,
    (
        BookieUse("b1:3181", 900, 60 * GIB, GIB, 2 * GIB, 3 * GIB, 200 * GIB, 50 * GIB),
        BookieUse("b2:3181", 800, GIB, 0, 0, 0, error="bookie b2:3181 does not answer"),
        BookieUse("b3:3181", 1, 3 * GIB, 0, 0, 0, 4 * GIB, 2 * GIB),
    ),
)


def text_of(found: DiskUse, by: str, *, from_snapshot: bool = False) -> str:
    output = io.StringIO()
    TextWriter(output, io.StringIO(), width=200).write(describe_disk_use(found, by, from_snapshot=from_snapshot))
    return output.getvalue()


def test_rows_are_told_with_their_part_and_what_is_left_out() -> None:
    text = text_of(FOUND, "kind")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "ledgers 1,200, 20 of them open" in lines
    assert "data 1,000 0 75.0 GiB 75.0 % 0 B 0 B 0 B 2020-09-13 12:26:40Z" in lines
    assert "not Pulsar's 7 0 1.0 GiB 1.0 % 0 B 0 B 0 B -" in lines
    assert "2 rows more are not shown: --top." in lines
    assert "3 open ledgers count without bytes: no bookie told their length." in lines
    assert "`bookwarden orphans scan`" in text
    assert "a snapshot does not have their length" in text_of(FOUND, "kind", from_snapshot=True)


def test_what_bookies_told_of_their_collections_has_columns_of_its_own() -> None:
    report = BookieReport(
        "http://b1:8000",
        compacted_ms=1_600_000_000_000,
        entry_logs=30,
        live_bytes=20 * GIB,
        log_size_limit=GIB,
        is_minor_suspended=True,
        is_major_suspended=True,
    )
    off = BookieReport("", error="its HTTP server is off: turn it on")
    first, second, third = FOUND.bookies
    bookies = (
        first._replace(is_read_only=True, deleted_bytes=4 * GIB, report=report),
        second._replace(is_read_only=False, report=off),
        third._replace(report=off),
    )
    found = replace(FOUND, bookies=bookies, journal_error="the journal is away")
    text = text_of(found, "bookie")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "deleted dead, at most compacted" in " ".join(text.split())
    kept = "60.0 GiB 1.0 GiB 2.0 GiB 3.0 GiB"
    assert f"b1:3181 900 {kept} 80.0 GiB 50.0 GiB 200.0 GiB read-only 4.0 GiB 10.0 GiB 2020-09-13 12:26:40Z" in lines
    assert "b2:3181 800 1.0 GiB 0 B 0 B 0 B - - - writable - - -" in lines
    assert "b3:3181 1 3.0 GiB 0 B 0 B 0 B -1.0 GiB 2.0 GiB 4.0 GiB - - - -" in lines
    assert "b1:3181: compaction is suspended: only entry logs without a live ledger are freed now." in lines
    assert "2 bookies told nothing of garbage collection: its HTTP server is off: turn it on." in lines
    assert "What was deleted since the last compaction is not known: the journal is away." in lines
    assert "Unexplained includes journals and indexes: no bookie tells their size." in lines
    output = io.StringIO()
    JsonWriter(output, io.StringIO()).write(describe_disk_use(found, "bookie", from_snapshot=False))
    data = json.loads(output.getvalue())
    assert [one["dead_bytes"] for one in data["bookies"]] == [10 * GIB, None, None]
    assert data["bookies"][0]["report"]["url"] == "http://b1:8000"
    assert data["journal_error"] == "the journal is away"


def test_a_bookie_on_nearly_full_disks_is_told_of() -> None:
    full = FOUND.bookies[0]._replace(free=9 * GIB)
    lines = text_of(replace(FOUND, bookies=(full,)), "bookie").splitlines()
    (told,) = [line for line in lines if "more than 95%" in line]
    assert told.startswith("b1:3181: ")


def test_bookies_are_told_with_what_nothing_explains() -> None:
    lines = [" ".join(line.split()) for line in text_of(FOUND, "bookie").splitlines()]
    assert "b1:3181 900 60.0 GiB 1.0 GiB 2.0 GiB 3.0 GiB 84.0 GiB 50.0 GiB 200.0 GiB" in lines
    assert "b2:3181 800 1.0 GiB 0 B 0 B 0 B - - -" in lines
    assert "b3:3181 1 3.0 GiB 0 B 0 B 0 B -1.0 GiB 2.0 GiB 4.0 GiB" in lines
    assert "b2:3181 tells nothing of its disks: bookie b2:3181 does not answer." in lines
    assert not [line for line in lines if "--top" in line]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"growth": Growth("2023-11-13", 3 * GIB)}, "growth 3.0 GiB more than on 2023-11-13"),
        ({"growth": Growth("2023-11-13", -GIB)}, "growth 1.0 GiB less than on 2023-11-13"),
        ({"forecast": Forecast(-5, 1, None, None, None)}, "disks full not in sight: they do not fill"),
        (
            {"forecast": Forecast(GIB, GIB // 2, "2024-01-03", "2023-12-18", "2024-02-22")},
            "disks full on 2024-01-03 (2023-12-18 at the earliest, 2024-02-22 at the latest): "
            "1.0 GiB a day, give or take 512.0 MiB",
        ),
        (
            {"forecast": Forecast(GIB, 2 * GIB, "2024-01-03", "2023-12-01", None)},
            "disks full on 2024-01-03 (2023-12-01 at the earliest, or never: the growth is not certain): "
            "1.0 GiB a day, give or take 2.0 GiB",
        ),
    ],
)
def test_growth_and_forecast_are_lines_of_their_own(fields: dict[str, Any], expected: str | None) -> None:
    found = DiskUse(1_700_000_000_000, TOTAL, (), 0, (), **fields)
    lines = [" ".join(line.split()) for line in text_of(found, "tenant").splitlines()]
    told = [line for line in lines if line.startswith(("growth", "disks full"))]
    assert told == ([] if expected is None else [expected])


def test_programs_get_all_of_it() -> None:
    output = io.StringIO()
    JsonWriter(output, io.StringIO()).write(describe_disk_use(FOUND, "kind", from_snapshot=False))
    data = json.loads(output.getvalue())
    assert data["total"]["unnamed_bytes"] == 10 * GIB
    assert [use["name"] for use in data["uses"]] == ["MANAGED_LEDGER", "other"]
    assert [one["unexplained_bytes"] for one in data["bookies"]] == [84 * GIB, None, -GIB]
    assert (data["left_out"], data["growth"], data["forecast"]) == (2, None, None)
