"""What a new user tries in the first hour: mistakes, full disks and closed pipes end with one line and a code."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from bookwarden.cli import inflight, sweep
from bookwarden.cli.ledger import _Past, _past_of
from bookwarden.cli.main import COMMANDS, cli
from bookwarden.cli.mark import _rows_of_named
from bookwarden.cli.shell.invocation import Invocation
from bookwarden.cli.shell.late import LateCommand, does_something
from bookwarden.cli.shell.output import moment
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.undone import UndoneLedger, UndoneLedgers
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.clusters.pulsar.rest.admin import _without_page_or_trace
from bookwarden.clusters.pulsar.rest.backlog import PartitionBacklog
from bookwarden.clusters.pulsar.rest.topic_positions import EntriesBehind
from bookwarden.config import DeletionSettings, load_settings
from bookwarden.deletion.inflight import InFlight
from bookwarden.deletion.journal.entries import JournalEntry
from bookwarden.deletion.journal.writing import FileJournal
from bookwarden.deletion.phase_one.named_ledgers import marks_of_ids
from bookwarden.errors import ConfigError, FileError, NotFoundError, PulsarError, StoreError
from bookwarden.exit_codes import CLOSED_OUTPUT, USAGE
from bookwarden.ledgers.kinds import CursorHolder, ManagedLedgerHolder
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading
from bookwarden.ledgers.received import DELAY_TIME, ReceivedMark
from bookwarden.metastore.memory import MemoryStore
from servers.population import ROOT, Population

PROGRAM = [sys.executable, "-m", "bookwarden.cli"]


def leaves(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
    if isinstance(command, LateCommand):
        command = command.load()
    if isinstance(command, click.Group):
        below = [leaf for word, one in command.commands.items() for leaf in leaves(one, f"{name} {word}")]
        return [(name, command), *below] if does_something(command) else below
    return [(name, command)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.name)
def test_each_command_takes_the_form_of_its_output_behind_its_name(command: click.Command) -> None:
    for name, leaf in leaves(command, command.name):
        options = [option for one in leaf.params for option in one.opts]
        assert options.count("-o") == options.count("--output") == 1, name


def test_a_full_output_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        for form in ("text", "json"):
            ended = subprocess.run(
                [*PROGRAM, "-o", form, "orphans", "list"], stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path
            )
            assert ended.returncode == FileError.exit_code
            assert ended.stderr.count("\n") == 1, ended.stderr
            assert "the output cannot be written: No space left on device" in ended.stderr


def test_an_output_that_its_reader_has_closed_ends_as_other_programs_do(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run([*PROGRAM, "orphans", "list"], stdout=write, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (CLOSED_OUTPUT, "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["ledger", "read", "82", "--first", "5", "--last", "3"], "--first 5 is behind --last 3"),
        (["ledger", "show", "abc"], "'abc' is not a ledger id"),
        (["ledger", "show", "9223372036854775808"], "is not a ledger id"),
        (["mark", "topic", "http://foo/bar", "--dry-run"], "unknown domain 'http'"),
        (["mark", "topic", "", "--dry-run"], "has an empty part"),
        (["mark", "trim", "non-persistent://a/b/c", "--dry-run"], "have no ledgers"),
        (["orphans", "plan", "show", "../../etc"], "cannot be the id of a plan"),
        (["orphans", "scan", "--resume", "../x"], "cannot be the id of a plan"),
    ],
)
def test_wrong_arguments_are_wrong_usage(arguments: list[str], text: str) -> None:
    ended = CliRunner().invoke(cli, ["-o", "json", *arguments])
    assert ended.exit_code == USAGE
    assert text in json.loads(ended.stderr)["error"]


@pytest.mark.parametrize(
    ("arguments", "text"), [(["nonsense"], "No such command"), (["--set", "x", "init"], "NAME=VALUE")]
)
def test_wrong_usage_of_the_program_itself_is_json_too(arguments: list[str], text: str) -> None:
    ended = CliRunner().invoke(cli, ["-o", "json", *arguments])
    assert (ended.exit_code, text in json.loads(ended.stderr)["error"]) == (USAGE, True)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ("pulsar: {service_urll: x}", "there is no setting 'pulsar.service_urll'; did you mean pulsar.service_url?"),
        ("nothing: {alike: 1}", "there is no setting 'nothing'"),
        ("metadata_store: {urls: 'zk:host:1'}", "metadata_store.urls must be a list"),
        ("metadata_store: {urls: []}", "metadata_store.urls must not be empty"),
    ],
)
def test_a_mistake_in_the_settings_is_named_in_plain_words(tmp_path: Path, settings: str, text: str) -> None:
    file = tmp_path / "bookwarden.yaml"
    file.write_text(settings)
    ended = CliRunner().invoke(cli, ["--config", str(file), "orphans", "list"])
    assert (ended.exit_code, text in ended.stderr) == (ConfigError.exit_code, True), ended.stderr


def test_without_a_journal_nothing_was_deleted(tmp_path: Path) -> None:
    arguments = ["--set", f"sweep.journal={tmp_path / 'none'}", "undo", "--list"]
    ended = CliRunner().invoke(cli, arguments)
    assert ended.exit_code == 0
    assert "Nothing was deleted." in ended.stdout
    assert f"there is no journal in {tmp_path / 'none'}" in ended.stdout.replace("\n", " ")
    assert json.loads(CliRunner().invoke(cli, ["-o", "json", *arguments]).stdout)["runs"] == []


def past_of(reading: LedgerReading, journal: Path, store: MemoryStore) -> _Past:
    settings = load_settings(None, {"sweep.journal": str(journal)})
    cluster = SimpleNamespace(settings=settings, bookkeeper=SimpleNamespace(undone=UndoneLedgers(store)))
    return _past_of(reading, cluster)  # type: ignore[arg-type]  # of it


def test_of_a_ledger_that_is_gone_the_journal_says_which_run_deleted_it_and_how_it_comes_back(tmp_path: Path) -> None:
    gone = AbsentLedger(7)
    entry = JournalEntry(7, "tenant/ns/persistent/a", "/ledgers/00/0000/L0007", 0, 1, b"raw", "query/3", 1_000)
    with closing(FileJournal(tmp_path / "journal")) as journal:
        journal.append([entry])
    store = MemoryStore()
    found = past_of(gone, tmp_path / "journal", store)
    assert found.deletions == [{"run": "query/3", "at": 1_000, "holder": "tenant/ns/persistent/a"}]
    assert found.facts[0][1].startswith("by run query/3 at 1970-01-01 00:00:01Z")
    assert found.facts[1][1] == "bookwarden undo --ledger 7"
    assert past_of(AbsentLedger(8), tmp_path / "journal", store).facts == (
        ("deleted", "by no sweep that this journal knows"),
    )
    (unknown,) = past_of(gone, tmp_path / "none", store).facts
    assert unknown[1].startswith("not known: there is no journal in")


def test_of_a_ledger_that_was_put_back_it_is_said_so(tmp_path: Path) -> None:
    store = MemoryStore()
    population = Population(store)
    population.ledger(7, ManagedLedgerHolder("tenant/ns/persistent/a"))
    (there,) = BookKeeperCatalog(store, ROOT).read_many([7])
    assert past_of(there, tmp_path, store).facts == ()
    UndoneLedgers(store).note_many([UndoneLedger(7, "undo-1", 1_000, None)])
    found = past_of(there, tmp_path, store)
    assert found.undone == {"undo": "undo-1", "at": 1_000}
    assert "the sweep keeps it until `mark ledger 7`" in found.facts[0][1]


def test_a_dry_run_of_a_mark_by_id_says_what_the_sweep_would_keep() -> None:
    store = MemoryStore()
    population = Population(store)
    topic, cursor = ManagedLedgerHolder("tenant/ns/persistent/a"), CursorHolder("tenant/ns/persistent/a", "sub")
    population.ledger(7, topic)
    population.names(topic, [7])
    population.ledger(8, cursor)
    marks = marks_of_ids(BookKeeperCatalog(store, ROOT), [7, 8])
    rows = _rows_of_named(marks, MetadataReferences([store]))
    assert [(row.ledger_id, row.kind, row.state, row.reason) for row in rows] == [
        (7, "data", "would mark", "its holder names it: the sweep would keep it"),
        (8, "cursor", "would mark", ""),
    ]


@pytest.mark.parametrize(
    ("answered", "line"),
    [
        ("Topic is already fenced\n\tat org.apache.A.b(A.java:1)\n\tat org.c", "Topic is already fenced"),
        ("<html><head><title>Error 414 URI Too Long</title></head><body>...</body></html>", "Error 414 URI Too Long"),
        ("<h1>Bad Message 414</h1><pre>reason: URI Too Long</pre>", "Bad Message 414 reason: URI Too Long"),
        ("two\n lines", "two lines"),
    ],
)
def test_pages_and_stack_traces_of_a_broker_are_left_out(answered: str, line: str) -> None:
    assert _without_page_or_trace(answered) == line


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        (["sweep", "--once"], "sweep.checkpoint"),
        (["sweep", "--once"], "sweep.journal"),
        (["follow", "--once"], "follow.checkpoint"),
        (["orphans", "scan"], "orphans.folder"),
    ],
)
def test_a_folder_that_cannot_be_made_ends_a_run_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], setting: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    wrong = tmp_path / "file" / "below"
    ended = CliRunner().invoke(cli, ["--set", f"{setting}={wrong}", *arguments])
    assert ended.exit_code == ConfigError.exit_code
    assert f"{setting} {wrong} cannot be written: Not a directory" in ended.stderr


def test_a_scan_that_is_not_there_is_named_before_spark_starts(tmp_path: Path) -> None:
    ended = CliRunner().invoke(cli, ["--set", f"orphans.folder={tmp_path}", "orphans", "scan", "--resume", "nope"])
    assert (ended.exit_code, f"there is no scan nope in {tmp_path}" in ended.stderr) == (NotFoundError.exit_code, True)


def test_a_scan_of_a_store_that_is_away_ends_before_spark_starts(tmp_path: Path) -> None:
    settings = ("metadata_store.urls=['zk:127.0.0.1:1']", "metadata_store.operation_timeout_seconds=1")
    away = [word for setting in settings for word in ("--set", setting)]
    ended = CliRunner().invoke(cli, [*away, "--set", f"orphans.folder={tmp_path}", "orphans", "scan"])
    assert (ended.exit_code, ended.stderr.count("\n")) == (StoreError.exit_code, 1)


class Topics:
    """Backlogs of the sweep's topics, and the marks on the retry topic by their delay in milliseconds from now."""

    def __init__(self, new: int = 0, directives: int = 0, delays: Sequence[int] = ()) -> None:
        self._new, self._directives = new, directives
        self._delays = delays

    def entries(self) -> dict[str, EntriesBehind]:
        deletion = DeletionSettings()
        numbers = {deletion.topic: self._new, deletion.retry_topic: len(self._delays)}
        return {f"{topic}-partition-0": EntriesBehind(number, None) for topic, number in numbers.items()}

    def in_flight(self) -> InFlight:
        number = self._new + len(self._delays)
        return InFlight((PartitionBacklog("", number, number, exact=True),))

    def directives(self) -> int:
        if self._directives < 0:
            raise PulsarError("no such topic")
        return self._directives

    def waiting(self) -> Iterator[ReceivedMark]:
        now_ms = int(time.time() * 1000)
        for delay in self._delays:
            yield ReceivedMark("", "", None, b"", {DELAY_TIME: "60000"}, now_ms - 60_000 + delay)


@pytest.mark.parametrize(
    ("topics", "waiting"),
    [
        (Topics(), 0),
        (Topics(delays=[120_000, 90_000]), 2),
        (Topics(delays=[120_000, -1]), None),
        (Topics(delays=[120_000, 1_000]), None),
        (Topics(new=1), None),
        (Topics(directives=1), None),
        (Topics(directives=-1), None),
    ],
    ids=["nothing", "waiting", "due", "due soon", "new", "directive", "no topic of directives"],
)
def test_spark_is_started_where_something_is_due(
    monkeypatch: pytest.MonkeyPatch, topics: Topics, waiting: int | None
) -> None:
    looked: list[bool] = []
    proof = SimpleNamespace(require=lambda: looked.append(True) or [])
    monkeypatch.setattr(sweep, "roots_proof_of", lambda *_: proof)
    cluster = SimpleNamespace(settings=load_settings(), deletion_topics=topics)
    found = sweep._look(cluster)  # type: ignore[arg-type]  # of it
    assert (found.marks if isinstance(found, sweep._Waiting) else None) == waiting
    # An end without Spark is no less careful about roots that do not belong to the BookKeeper.
    assert bool(looked) is (waiting is not None)
    if not isinstance(found, sweep._Waiting):
        # For the time that is left, while the topics are open.
        assert found == topics.in_flight().messages
    elif waiting:
        text = sweep._end_document(Counter(), drained=True, waiting=found).parts[0].text
        assert re.search(r"nothing was due; 2 marks wait, the first until \d{4}-", text)
        assert found.first_ms == pytest.approx(time.time() * 1000 + 90_000, abs=30_000)


@pytest.mark.parametrize(
    ("delays", "due"),
    [((), None), ((50_000, 90_000), 50_000), ((90_000, -1), -1)],
    ids=["nothing", "later", "now"],
)
def test_what_is_in_flight_has_an_age_and_a_time_when_it_is_due(delays: Sequence[int], due: int | None) -> None:
    firsts = list(Topics(delays=delays).waiting())
    now_s = time.time()
    waits = inflight._Waits.of(firsts, now_s)
    if due is None:
        assert waits == inflight._Waits(None, None)
        return
    assert waits.due_ms == pytest.approx(now_s * 1000 + due, abs=5_000)
    assert waits.oldest_s == pytest.approx(60 - min(delays) / 1000, abs=5)
    assert dict(waits.facts)["next mark due"] == ("now" if due < 0 else moment(waits.due_ms))


@pytest.mark.parametrize(
    ("verbose", "usual", "shown"),
    [
        (False, logging.INFO, ["WARNING"]),
        (False, logging.ERROR, []),
        (True, logging.INFO, ["INFO", "WARNING"]),
    ],
)
def test_sessions_with_stores_are_logged_where_that_is_asked_for(
    capsys: pytest.CaptureFixture[str], verbose: bool, usual: int, shown: list[str]
) -> None:
    Invocation(verbose=verbose).set_up_logging(usual)
    sessions = logging.getLogger("bookwarden.metastore.zookeeper.session")
    sessions.info("connected")
    sessions.warning("lost")
    assert re.findall(r" ([A-Z]+) bookwarden", capsys.readouterr().err) == shown


def test_a_command_that_a_test_ran_leaves_the_log_as_it_was() -> None:
    # Behind the test above, in whose process a command set levels.
    assert logging.getLogger("kazoo").level == logging.NOTSET
