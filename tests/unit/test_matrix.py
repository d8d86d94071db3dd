"""The matrix of versions: its cells differ from the base in one axis, each gap has a reason, a run is resumed."""

from __future__ import annotations

import configparser
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bookwarden_dev.devcluster.releases.versions import PULSAR, number_of
from servers.matrix.cells import (
    BASE_PULSAR,
    CELLS,
    EXTRAS,
    LIBRARIES,
    NOT_SERVED,
    OXIAS,
    PLAYED,
    PULSARS,
    PYTHONS,
    REFUSED,
    Cell,
    Environment,
    Machine,
    absence_of,
    oldest_pins,
    parts_of,
)
from servers.matrix.table import CellResult, due, read_results, render, write_result

CHECKOUT = Path(__file__).parents[2]
EVERYTHING = Machine(PYTHONS, OXIAS)
BASE = Cell("base")


def result(cell: str = "base", commit: str = "abc", **parts: str) -> CellResult:
    versions = {"python": "3.11.7", **dict.fromkeys(LIBRARIES, "1.0")}
    return CellResult(cell, commit, "2026-11-29", 4.25, versions, parts or {"leaks": "yes"})


def test_cells_but_two_differ_from_the_base_in_one_axis() -> None:
    assert CELLS[0] == BASE
    names = [cell.name for cell in CELLS]
    assert len(set(names)) == len(names)
    several = {
        cell.name
        for cell in CELLS
        if (cell.pulsar != BASE_PULSAR) + (cell.oxia is not None) + (cell.environment != Environment()) > 1
    }
    # Who runs Oxia runs a newer Pulsar.
    assert several == {"oxia-0.14.0-pulsar-4.2.4", "oldest-of-everything", "newest-of-everything"}


def test_every_version_that_is_had_is_in_a_cell() -> None:
    assert {cell.pulsar for cell in CELLS} == set(PULSARS)
    assert set(PULSAR) <= set(PULSARS)
    assert sorted(PULSARS, key=number_of) == list(PULSARS)
    assert {cell.oxia for cell in CELLS} == {None, *OXIAS}
    assert {cell.environment.python for cell in CELLS} == set(PYTHONS)


def test_what_this_program_promises_to_run_on_is_in_the_cells() -> None:
    settings = configparser.ConfigParser()
    settings.read(CHECKOUT / "setup.cfg")
    named = re.findall(r"Python :: (3\.\d+)", settings["metadata"]["classifiers"])
    assert set(named) - {"3.10"} <= set(PYTHONS)


@pytest.mark.parametrize(
    ("cell", "machine", "reason"),
    [
        (BASE, Machine(["3.11"]), None),
        (Cell("x", environment=Environment("3.14")), Machine(["3.11"]), "Python 3.14 is not on this machine"),
        (Cell("x", oxia="0.14.0"), Machine(["3.11"]), None),
        (
            Cell("x", oxia="0.17.1"),
            Machine(["3.11"]),
            "the server of Oxia 0.17.1 is no released Go module: give its pr",
        ),
        (Cell("x", "3.9.9"), EVERYTHING, "the servers of Pulsar 3.9.9 are not pinned in the table of releases yet"),
    ],
)
def test_a_cell_is_absent_for_a_reason(cell: Cell, machine: Machine, reason: str | None) -> None:
    found = absence_of(cell, machine)
    assert found is None if reason is None else found is not None and found.startswith(reason)


def test_every_part_is_played_or_seen_refused_or_has_a_reason() -> None:
    assert parts_of(BASE) == {
        "leaks": PLAYED,
        "deletion": PLAYED,
        "broker marks": "with deletion",
        "switch": PLAYED,
    }
    assert parts_of(Cell("x", oxia="0.14.0"))["switch"] == "ZooKeeper alone"
    assert parts_of(Cell("x", "4.0.1")) == {**parts_of(BASE), "broker marks": REFUSED}
    assert parts_of(Cell("x", "3.0.7")) == {
        **parts_of(BASE),
        "broker marks": REFUSED,
        "switch": "the jar is for 4.0 and newer",
    }


def test_the_oldest_of_everything_is_the_lower_end_of_each_range() -> None:
    setup = (CHECKOUT / "setup.cfg").read_text(encoding="utf-8")
    pins = dict(pin.split("==") for pin in oldest_pins(setup, EXTRAS))
    assert {"click", "pydantic-settings", "moto", "grpcio", "fastapi", *LIBRARIES} <= set(pins)
    assert "google-cloud-storage" not in pins
    assert (pins["pyspark"], pins["pulsar-client"]) == ("4.2", "3.9")


def test_environments_that_differ_have_different_names() -> None:
    environments = {cell.environment for cell in CELLS}
    assert len({environment.name for environment in environments}) == len(environments)
    assert Environment("3.12", ("pyspark==4.2.0",)).name == "3.12-pyspark-4-2-0"


def test_a_result_is_kept_in_a_file_and_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    assert read_results(folder) == {}
    write_result(folder, result())
    write_result(folder, result("other", leaks="**fails**: é"))
    assert read_results(folder) == {"base": result(), "other": result("other", leaks="**fails**: é")}


def test_what_passed_on_this_commit_is_not_run_again() -> None:
    cells = [BASE, Cell("failed"), Cell("older"), Cell("new"), Cell("absent", environment=Environment("3.14"))]
    results = {
        "base": result(),
        "failed": result("failed", leaks="yes", switch="**fails**: x"),
        "older": result("older", commit="before"),
    }
    assert [cell.name for cell in due(cells, results, Machine(["3.11"]), "abc")] == ["failed", "older", "new"]
    # One that was cut short has no parts.
    assert not replace(result(), parts={}).passed


def test_the_document_has_a_row_for_each_cell_and_a_reason_for_each_that_was_not_run() -> None:
    cells = [BASE, Cell("oxia", oxia="0.14.0"), Cell("absent", environment=Environment("3.14")), Cell("later")]
    parts = {"leaks": "yes", "deletion": "**fails**: a | b\nc", "switch": "yes"}
    results = {"base": result(**parts), "oxia": result("oxia")}
    rows = [
        line.split(" | ") for line in render(cells, results, Machine(["3.11"])).splitlines() if line.startswith("|")
    ]
    heads, _, base, oxia, _, _, absent, later, *not_served = rows
    assert len({len(row) for row in (heads, base, oxia)}) == 1
    assert base[:4] == ["| base", "4.0.8", "ZooKeeper", "3.11.7"]
    assert base[-7:] == ["yes", "**fails**: a \\| b c", "- (with deletion)", "yes", "4.2", "2026-11-29", "abc |"]
    assert oxia[-5:-3] == ["- (ZooKeeper alone)", "- (ZooKeeper alone)"]
    assert oxia[-6] == "*not run*"
    assert absent == ["| absent", "Python 3.14 is not on this machine |"]
    assert later == ["| later", "not run yet |"]
    assert len(not_served) == len(NOT_SERVED)
