"""The journal's folder: shown to be the driver's, its files not lost by clocks or by whoever moves them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bookwarden.config import load_settings
from bookwarden.deletion.journal.entries import JournalEntry, JournalRecord
from bookwarden.deletion.journal.reading import JournalFolder, JournalReader
from bookwarden.deletion.journal.writing import DriverFile, FileJournal
from bookwarden.errors import ConfigError, RefusedError
from bookwarden.processes import described_here
from bookwarden.wiring.journal import driver_file_of, journal_of

ENTRY = JournalEntry(7, "t/ns/persistent/a", "/ledgers/00/0000/L0007", 3, 1_000, b"raw", "query/4", 2_000)


def read(folder: Path) -> list[JournalRecord]:
    return list(JournalReader(JournalFolder(folder)))


def deleted(ledger_id: int) -> JournalEntry:
    return replace(ENTRY, ledger_id=ledger_id)


def test_a_clock_of_the_machine_that_jumps_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The days are those of the clock that it is given, the metadata store's."""
    now = time.time()
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_bytes(ENTRY.encode())
    monkeypatch.setattr(time, "time", lambda: now + 366 * 86_400)
    sweep = load_settings(overrides={"sweep.journal": str(tmp_path), "sweep.journal_retention_days": "30"}).sweep
    for clock in (lambda: now, None):
        journal = journal_of(sweep, store_clock=clock)
        journal.append([ENTRY])
        journal.close()
    assert {f"{number}.jsonl" for number in range(3)} <= {path.name for path in tmp_path.iterdir()}


def test_a_machine_whose_clock_is_behind_loses_no_file_to_another(tmp_path: Path) -> None:
    """The time of its files is a year ago, while it writes them."""
    now = 100 * 86_400.0
    journals = [FileJournal(tmp_path, keep_days=30, clock=lambda: now) for _ in range(3)]
    for journal in journals:
        journal.append([ENTRY])
        for file in tmp_path.glob("*.jsonl"):
            os.utime(file, (0, 0))
    assert len(list(tmp_path.glob("*.jsonl"))) == 3
    # They are kept for their days and one more, in which they may have been written to.
    late = FileJournal(tmp_path, keep_days=30, clock=lambda: now + 31 * 86_400 + 1)
    late.append([ENTRY])
    for journal in [*journals, late]:
        journal.close()
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


def test_days_are_whole_ones_since_a_younger_file_may_be_written_to() -> None:
    with pytest.raises(ConfigError, match="journal_retention_days"):
        load_settings(overrides={"sweep.journal_retention_days": "0.01"})


@pytest.mark.parametrize("what", ["removed", "moved", "replaced"])
def test_a_file_that_was_taken_away_is_written_to_no_more(tmp_path: Path, what: str) -> None:
    journal = FileJournal(tmp_path)
    journal.append([deleted(1)])
    (first,) = tmp_path.iterdir()
    if what == "removed":
        first.unlink()
    else:
        first.rename(tmp_path / "elsewhere")
    if what == "replaced":
        first.write_bytes(b"")
    journal.append([deleted(2)])
    journal.close()
    assert deleted(2) in read(tmp_path)


def test_a_worker_writes_where_it_sees_the_drivers_file_and_nowhere_else(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    driver = DriverFile(shared)
    name = driver.write()
    worker = FileJournal(shared, driver_file=name)
    worker.append([deleted(1)])
    with pytest.raises(RefusedError, match=rf"journal {own} on .* is not the folder that the driver has by this name"):
        FileJournal(own, driver_file=name).append([deleted(2)])
    assert not own.exists()
    driver.remove()
    # Once proven it goes on until its next file.
    worker.append([deleted(3)])
    worker.close()
    with pytest.raises(RefusedError):
        worker.append([deleted(4)])
    assert [record.ledger_id for record in read(shared)] == [1, 3]


def test_the_drivers_file_is_made_once_and_that_of_a_driver_that_was_killed_here_goes(tmp_path: Path) -> None:
    pid = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    ended = {**described_here(), "pid": int(pid.stdout), "started": "long ago"}
    (tmp_path / "here.driver").write_text(json.dumps(ended))
    (tmp_path / "there.driver").write_text(json.dumps({**ended, "ids": "another machine's"}))
    (tmp_path / "damaged.driver").write_text("{")
    (tmp_path / "1.jsonl").write_bytes(ENTRY.encode())
    driver = DriverFile(tmp_path)
    name = driver.write()
    assert driver.write() == name
    assert {path.name for path in tmp_path.iterdir()} == {"there.driver", "damaged.driver", "1.jsonl", name}
    assert read(tmp_path) == [ENTRY]
    driver.remove()
    driver.remove()
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("overrides", "needed"),
    [
        ({}, True),
        ({"sweep.journal_per_machine": "true"}, False),
        ({"sweep.dry_run": "true"}, False),
        ({"sweep.journal": "s3://bucket/journal"}, False),
    ],
)
def test_the_driver_shows_its_folder_unless_there_is_nothing_to_prove(overrides: dict[str, str], needed: bool) -> None:
    assert (driver_file_of(load_settings(overrides=overrides).sweep) is not None) is needed


def test_a_journal_tells_which_machines_wrote_it(tmp_path: Path) -> None:
    for name in ("20261125T190113.608111-pod-1.a.b-17-c363a3c60df4", "20261125T190113.608111-host-1-aa", "odd"):
        (tmp_path / f"{name}.jsonl").write_bytes(ENTRY.encode())
    journal = FileJournal(tmp_path)
    journal.append([ENTRY])
    journal.close()
    assert JournalReader(JournalFolder(tmp_path)).hosts() == sorted({"pod-1.a.b", "host", socket.gethostname()})
