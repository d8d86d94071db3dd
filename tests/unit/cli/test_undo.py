"""The command undo over the in-memory store: what it lists, asks, tells and ends with."""

from __future__ import annotations

import json
import secrets
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.bookie_cluster import RunningBookies
from bookwarden.deletion.journal.entries import JournalEntry
from bookwarden.deletion.journal.writing import FileJournal
from bookwarden.deletion.undo.operation import Undo
from bookwarden.deletion.undo.rows import UndoRow
from bookwarden.errors import StoreMigratingError, StoreUnavailableError
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.following.store import Migrations
from bookwarden.metastore.memory import shared_memory_store
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden.wire.pb import managed_ledger_pb2
from servers.population import register_bookie

# Nobody listens on this port.
BOOKIE = "127.0.0.1:1"
CLOSED = LedgerMetadata(3, LedgerState.CLOSED, 1, 1, 1, (Segment(0, (BOOKIE,)),), 1000, 9, ctime_ms=5)
EMPTY = LedgerMetadata(3, LedgerState.CLOSED, 1, 1, 1, (Segment(0, (BOOKIE,)),), 0, -1, ctime_ms=5)


class Line:
    """Command lines over a store and a journal of a test's own.

    A command closes the store of that name and loses what is in it, so this one keeps it open.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        name = secrets.token_hex(4)
        self.store = shared_memory_store(name)
        monkeypatch.setattr(self.store, "close", lambda: None)
        self.store.create("/ledgers/INSTANCEID", b"i-1", make_parents=True)
        register_bookie(self.store)
        self.folder = folder
        self.options = ["--set", f"metadata_store.urls=['memory:{name}']", "--set", f"sweep.journal={folder}"]

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, [*self.options, *arguments])

    def delete(
        self, ledger_id: int, metadata: LedgerMetadata, run: str = "q/1", at: int = 1_000, instance: str = "i-1"
    ) -> None:
        raw = encode_ledger_metadata(metadata)
        journal = FileJournal(self.folder)
        path = f"/ledgers/00/0000/L{ledger_id:04d}"
        journal.append([JournalEntry(ledger_id, "t/n/persistent/a", path, 0, 1, raw, run, at, "", instance)])
        journal.close()

    def exists(self, ledger_id: int) -> bool:
        return self.store.get(f"/ledgers/00/0000/L{ledger_id:04d}") is not None


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    return Line(tmp_path / "journal", monkeypatch)


def test_runs_are_listed_the_latest_first_and_damage_is_told(line: Line) -> None:
    line.delete(1, CLOSED, "q/1", 1_000)
    line.delete(2, CLOSED, "q/2", 90_000_000)
    line.delete(3, CLOSED, "q/2", 90_001_000)
    last = sorted(line.folder.iterdir())[-1]
    last.write_bytes(last.read_bytes() + b'{"ledger_id":')
    found = json.loads(line("-o", "json", "undo", "--list", "--limit", "1").stdout)
    assert (found["runs"][0]["run"], found["runs"][0]["ledgers"], found["runs_in_all"]) == ("q/2", 2, 2)
    assert found["damaged"] == [{"file": last.name, "line": 3, "cut_off": True}]
    shown = line("undo", "--list", "--limit", "1").stdout
    assert "1970-01-02 01:00:00Z" in shown
    assert "1 earlier run not shown" in shown
    assert f"{last.name} is cut off in record 3" in shown


def test_nothing_is_put_back_without_a_yes(line: Line) -> None:
    line.delete(1, EMPTY)
    refused = line("undo", "--run", "q")
    assert (refused.exit_code, line.exists(1)) == (5, False)
    assert "1 ledger? Nobody is there" in refused.stderr
    assert line("undo", "--run", "q", "--dry-run").exit_code == 0
    assert not line.exists(1)


def test_what_was_restored_is_told_with_what_to_do_next(line: Line) -> None:
    line.delete(1, EMPTY)
    done = line("undo", "--run", "q", "--yes")
    assert (done.exit_code, line.exists(1)) == (0, True)
    assert "Undone: 1 restored." in done.stdout
    assert "docs/undo.md" in done.stdout


def test_a_bookie_that_is_down_leaves_it_unverified_and_the_command_fails(line: Line) -> None:
    line.delete(1, EMPTY)
    line.delete(2, CLOSED)
    done = line("-o", "json", "undo", "--ledger", "1", "--ledger", "2", "--yes")
    assert done.exit_code == 1
    assert json.loads(done.stderr)["error"] == "1 ledger of 2 cannot be called restored"
    found = json.loads(done.stdout)
    assert found["counts"] == {"restored": 1, "unverified": 1}
    assert BOOKIE in found["ledgers"][1]["reason"]
    assert line.exists(2)


def test_a_time_is_utc_and_what_is_not_in_the_journal_is_not_found(line: Line) -> None:
    line.delete(1, EMPTY, at=1_785_585_600_000)
    assert line("undo", "--since", "2026-08-01T12:00:00Z", "--dry-run").exit_code == 0
    missing = line("undo", "--since", "2026-08-01 12:00:01", "--dry-run")
    assert (missing.exit_code, "undo --list" in missing.stderr) == (4, True)
    assert line("undo", "--ledger", "7", "--yes").exit_code == 4


def test_an_undo_publishes_what_came_of_each_ledger_and_a_dry_run_nothing(line: Line, tmp_path: Path) -> None:
    line.delete(1, EMPTY)
    line.delete(2, CLOSED)
    line.options += ["--set", f"metrics.textfile_folder={tmp_path}"]
    assert line("undo", "--run", "q", "--dry-run").exit_code == 0
    assert list(tmp_path.glob("*.prom")) == []
    assert line("undo", "--run", "q", "--yes").exit_code == 1
    assert '{command="undo"} 1.0\n' in (tmp_path / "bookwarden_run_undo.prom").read_text()
    found = (tmp_path / "bookwarden_undo.prom").read_text()
    for outcome, number in (("restored", 1), ("unverified", 1), ("lost", 0)):
        assert f'bookwarden_undo_ledgers{{outcome="{outcome}"}} {number}.0\n' in found


def test_whole_ledgers_beyond_a_screenful_are_only_counted(line: Line) -> None:
    for ledger_id in range(120):
        line.delete(ledger_id, EMPTY if ledger_id else CLOSED)
    shown = line("undo", "--run", "q", "--yes").stdout
    assert "119 restored, 1 unverified" in shown
    assert len(shown.splitlines()) < 20
    assert len(json.loads(line("-o", "json", "undo", "--run", "q", "--yes").stdout)["ledgers"]) == 120


def test_a_failure_tells_nothing_but_why(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.delete(1, EMPTY)

    def moving(_: Migrations) -> None:
        raise StoreMigratingError("the metadata is being moved, phase COPYING")

    monkeypatch.setattr(Migrations, "await_writes", moving)
    refused = line("undo", "--run", "q", "--yes")
    assert (refused.exit_code, line.exists(1)) == (7, False)
    assert "COPYING" in refused.stderr
    assert "Undone" not in refused.stdout


def test_a_journal_that_is_cut_off_is_read_to_the_last_good_record_and_the_undo_says_so(line: Line) -> None:
    line.delete(1, EMPTY)
    (file,) = line.folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole + whole.splitlines(keepends=True)[-1].replace(b"L0001", b"L0002")[:-20])
    done = line("undo", "--run", "q", "--yes")
    assert (done.exit_code, line.exists(1), line.exists(2)) == (0, True, False)
    assert f"{file.name} is cut off in record 3: read up to the one before it" in done.stdout


def test_where_each_machine_has_a_journal_of_its_own_it_is_told_what_was_not_seen(line: Line) -> None:
    line.delete(1, EMPTY)
    alone = ("--set", "sweep.journal_per_machine=true")
    told = f"this is the journal of {socket.gethostname()} alone"
    assert told not in line("undo", "--run", "q", "--dry-run").stdout
    for arguments in (("undo", "--list"), ("undo", "--run", "q", "--dry-run"), ("undo", "--run", "q", "--yes")):
        assert told in " ".join(line(*alone, *arguments).stdout.split())
    found = json.loads(line(*alone, "-o", "json", "undo", "--list").stdout)
    assert told in found["unseen"][0]
    assert found["hosts"] == [socket.gethostname()]
    missing = line(*alone, "undo", "--ledger", "7", "--yes")
    assert (missing.exit_code, told in missing.stderr) == (4, True)


def test_what_is_not_found_is_told_with_the_folder_and_whose_files_are_in_it(line: Line) -> None:
    line.delete(1, EMPTY)
    missing = line("undo", "--ledger", "7", "--yes")
    assert f"the journal {line.folder} on {socket.gethostname()} has no such deletion" in missing.stderr
    assert f"its files were written on {socket.gethostname()}" in missing.stderr


def test_what_another_bookkeeper_lost_is_refused_with_both_ids(line: Line) -> None:
    line.delete(1, EMPTY)
    line.delete(2, EMPTY, instance="i-2")
    for arguments in (("--dry-run",), ("--yes",), ("--yes", "--accept", "unknown-bookkeeper")):
        refused = line("undo", "--run", "q", *arguments)
        assert (refused.exit_code, line.exists(1), line.exists(2)) == (5, False, False)
        assert "INSTANCEID i-2, and the one that the settings name has i-1" in refused.stderr


def with_a_topic(line: Line) -> None:
    """Have a topic list a closed ledger."""
    info = managed_ledger_pb2.ManagedLedgerInfo()
    info.ledgerInfo.add(ledgerId=5, entries=1, size=1, timestamp=1)
    line.store.create("/managed-ledgers/t/n/persistent/a", info.SerializeToString(), make_parents=True)


def test_what_0_1_0_deleted_is_not_put_back_without_a_word(line: Line) -> None:
    line.delete(1, EMPTY)
    line.delete(2, EMPTY, instance="")
    with_a_topic(line)
    line.store.create("/ledgers/00/0000/L0009", encode_ledger_metadata(EMPTY), make_parents=True)
    refused = line("undo", "--run", "q", "--yes")
    assert (refused.exit_code, line.exists(1), line.exists(2)) == (5, False, False)
    assert "1 of 2 ledgers were journaled without the INSTANCEID of their BookKeeper" in refused.stderr
    assert "add --accept unknown-bookkeeper" in refused.stderr
    assert "1 of 2 ledgers were journaled without" in " ".join(line("undo", "--run", "q", "--dry-run").stdout.split())
    done = line("undo", "--run", "q", "--yes", "--accept", "unknown-bookkeeper")
    assert (done.exit_code, line.exists(1), line.exists(2)) == (0, True, True)


def test_a_bookkeeper_without_a_ledger_is_certainly_not_that_of_what_0_1_0_deleted(line: Line) -> None:
    line.delete(2, EMPTY, instance="")
    with_a_topic(line)
    refused = line("undo", "--run", "q", "--yes", "--accept", "unknown-bookkeeper")
    assert (refused.exit_code, line.exists(2)) == (3, False)
    assert "has no ledger at all" in refused.stderr


def test_where_no_bookie_is_registered_it_must_be_accepted(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bookies that were stopped so that they collect no garbage look like a copy of their metadata."""
    monkeypatch.setattr(RunningBookies, "require_soon", RunningBookies.require)
    line.delete(1, EMPTY)
    line.store.delete_many([("/ledgers/available/127.0.0.1:3181", 0)])
    refused = line("undo", "--run", "q", "--yes")
    assert (refused.exit_code, line.exists(1)) == (5, False)
    assert "no bookie is registered in /ledgers/available" in refused.stderr
    assert "add --accept no-bookies" in refused.stderr
    assert "no bookie is registered" in " ".join(line("undo", "--run", "q", "--dry-run").stdout.split())
    done = line("undo", "--run", "q", "--yes", "--accept", "no-bookies")
    assert (done.exit_code, line.exists(1)) == (0, True)


def test_answers_are_written_as_they_come(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were settled before an error are shown, and no more than a batch is kept of them."""
    for ledger_id in range(1200):
        line.delete(ledger_id, EMPTY)
    conclude, batches = Undo._conclude, iter([None, None, StoreUnavailableError("away")])

    def failing(*arguments: Any) -> list[UndoRow]:
        error = next(batches)
        if error is not None:
            raise error
        return conclude(*arguments)

    monkeypatch.setattr(Undo, "_conclude", failing)
    done = line("-o", "json", "undo", "--run", "q", "--yes")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["counts"], len(found["ledgers"])) == (7, {"restored": 1000}, 1000)
    assert json.loads(done.stderr)["error"] == "away"


def test_of_many_those_that_are_not_done_are_shown_with_every_batch(line: Line) -> None:
    for ledger_id in range(1100):
        line.delete(ledger_id, EMPTY if ledger_id % 100 else CLOSED)
    shown = line("undo", "--run", "q", "--yes").stdout
    assert shown.count("unverified") == 11 + 1
    assert "1,089 restored, 11 unverified" in shown
