"""A command that starts Spark says what is ours: on a good run, and when it is interrupted while Spark starts."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bookwarden.errors import FileError
from bookwarden.ledgers.kinds import LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.processes import command_line, descendants
from servers.deletion_site import DeletionSite
from servers.full_disk import small_disk
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow]

PROGRAM = [sys.executable, "-m", "bookwarden.cli"]
# A line of our own log, of progress, and of a failure.
OURS = re.compile(
    r"\d{4}-\d\d-\d\d [\d:,]+ (INFO|WARNING) bookwarden\.[\w.]+: .*"
    r"|starting Spark|marks: [\d,]+ of about [\d,]+.*|bookwarden: .*"
)


@pytest.fixture
def settings(site: DeletionSite, tmp_path: Path) -> list[str]:
    """A mark that is due: its ledger was never there; return the options for its settings."""
    holder = ManagedLedgerHolder(f"{site.namespace}/persistent/gone")
    site.mark(PendingDeletion(holder.name, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, 4_100_000_000))
    file = tmp_path / "settings.yaml"
    file.write_text(site.settings.model_dump_json(exclude_defaults=True))
    return ["--config", str(file), "--set", f"log.file={tmp_path / 'log'}"]


def assert_only_ours(text: str) -> None:
    assert [line for line in text.splitlines() if not OURS.fullmatch(line)] == []


def test_a_good_sweep_says_only_what_is_ours_and_its_log_file_has_the_rest(settings: list[str], tmp_path: Path) -> None:
    done = subprocess.run([*PROGRAM, *settings, "-o", "json", "sweep", "--once"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"] == {"already gone": 1}
    assert_only_ours(done.stderr)
    assert "bookwarden.pipelines.sweep.query: swept 1 pending deletions" in done.stderr
    log = (tmp_path / "log").read_text()
    assert "INFO bookwarden.pipelines.sweep.query: swept 1 pending deletions" in log
    assert "bookwarden.metastore.zookeeper.session: Zookeeper connection established" in log
    assert re.search(r"WARNING spark: \w+: ", log)


def test_a_sweep_that_fails_says_only_what_is_ours(settings: list[str], tmp_path: Path) -> None:
    with small_disk(tmp_path / "full", "16k") as folder:
        checkpoint = ["--set", f"sweep.checkpoint={folder / 'checkpoint'}"]
        done = subprocess.run([*PROGRAM, *settings, *checkpoint, "sweep", "--once"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (FileError.exit_code, "")
    assert_only_ours(done.stderr)
    assert "No space left on device; make room" in done.stderr.splitlines()[-1]
    # The stack trace of Spark is in the log file, on the line of its event.
    (trace,) = (line for line in (tmp_path / "log").read_text().splitlines() if "terminated with error" in line)
    assert " | " in trace


def test_an_interrupt_while_spark_starts_is_one_line(settings: list[str]) -> None:
    command = [*PROGRAM, *settings, "sweep", "--once"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            said = process.stderr.readline()
            assert said == "starting Spark\n"

            def starts() -> bool:
                return any("SparkSubmit" in command_line(pid) for pid in descendants(process.pid)[1:])

            eventually(starts, 60)
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            output, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, output, said) == (130, "", "bookwarden: interrupted\n")
    assert time.monotonic() - began < 30
