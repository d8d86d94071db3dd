"""A full disk under whatever is written here is one line and an exit code: never a stack trace, never a success."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bookwarden.bookie_clusters.offline.saved_nodes import save_nodes
from bookwarden.bookie_clusters.registry import REGISTRY_PATH, serialize_registry
from bookwarden.cli.dlq import _write_whole
from bookwarden.cli.main import cli
from bookwarden.cli.metadata_migration.verify import difference_file
from bookwarden.cli.shell.failures import TranslatingGroup
from bookwarden.cluster_migration.preparing.operation import PreparationJournal
from bookwarden.cluster_migration.preparing.plan import PreparationAction, PreparationStep, Side
from bookwarden.cluster_migration.record import MigrationRecord
from bookwarden.config import load_settings
from bookwarden.deletion.journal.entries import JournalEntry
from bookwarden.deletion.journal.writing import DriverFile, FileJournal
from bookwarden.deletion.phase_two.sent_on import FileSentRecords, SentOn
from bookwarden.errors import BookwardenError, ConfigError, FileError, StoreUnavailableError
from bookwarden.metadata_migration.comparison import Difference, DifferenceClass
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from bookwarden.pipelines.folders import Folder
from bookwarden.pipelines.scan.folder import folder_errors
from bookwarden.pipelines.streams.supervisor import Pulse, StreamLimits, Supervisor
from bookwarden.pipelines.sweep.query import remove_cut_short
from bookwarden.preflight import require_folder
from servers.full_disk import small_disk
from servers.switching.ground import registry_of

SAID = "No space left on device"


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own that has no room left; files of it may be made, and stay empty."""
    # The size is rounded up to a page.
    with small_disk(tmp_path / "full", "4k") as folder:
        (folder / "takes all room").write_bytes(b"\0" * 4096)
        yield folder


def ended(act: Callable[[], object]) -> tuple[int, str]:
    """Run the act as a command does, and return its exit code and what is told on the standard error."""

    @click.group(cls=TranslatingGroup)
    def root() -> None:
        """Has one command."""

    root.command("act")(lambda: act() and None)
    result = CliRunner().invoke(root, ["act"])
    # An error that no line was made of is in the result.
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.stderr


def journal(folder: Path) -> None:
    FileJournal(folder).append(
        [JournalEntry(7, "t/n/persistent/a", "/ledgers/00/0000/L0007", 0, 1, b"raw", "query/3", 1_000)]
    )


def differences(file: Path) -> None:
    with difference_file(file) as write:
        write([Difference(DifferenceClass.MISSING, f"/ledgers/{number}", None, None) for number in range(3_000)])


def saved(folder: Path) -> None:
    store = MemoryStore()
    store.create("/ledgers/00/0000/L0007", b"x" * 20_000, make_parents=True)
    save_nodes(store, "zk:a", folder, "a")


def prepared(folder: Path) -> None:
    with PreparationJournal(folder).writing() as note:
        note("begun", PreparationStep(Side.GREEN, PreparationAction.TENANT, "t"))


WRITERS: dict[str, tuple[Callable[[Path], object], type[BookwardenError]]] = {
    "the folders of sweep, follow and scan": (lambda at: require_folder("sweep.journal", str(at)), ConfigError),
    "journal": (journal, StoreUnavailableError),
    "file of the driver in the journal": (lambda at: DriverFile(at).write(), StoreUnavailableError),
    "journal of cluster-migration": (prepared, StoreUnavailableError),
    "record of cluster-migration": (lambda at: MigrationRecord(at).append("began"), FileError),
    "saved nodes": (saved, FileError),
    "differences as JSON": (lambda at: differences(at / "found.jsonl"), FileError),
    "differences as Parquet": (lambda at: differences(at / "found.parquet"), FileError),
    "dead letters": (lambda at: _write_whole(at / "letters", ["x" * 9_000]), FileError),
    "state of follow, outcomes": (lambda at: Folder(str(at)).write_json("a/b", {"x": "y" * 9_000}), FileError),
    "records of what was sent on": (
        lambda at: FileSentRecords(at).add("q/1", [SentOn("t", "1:2", "retry", "x")]),
        StoreUnavailableError,
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_cannot_be_written_is_one_line(name: str, full: Path) -> None:
    write, kind = WRITERS[name]
    code, told = ended(lambda: write(full))
    assert code == kind.exit_code, told
    assert (told.startswith("bookwarden: "), told.count("\n"), SAID in told) == (True, 1, True), told
    assert str(full) in told
    # Nothing that is half written passes for whole, or takes room.
    left = {path for path in full.rglob("*") if path.is_file() and path.stat().st_size}
    assert left == {full / "takes all room"}


def test_a_plan_that_has_no_room_is_one_line(full: Path) -> None:
    settings = load_settings(overrides={"orphans.folder": str(full)})

    def write() -> None:
        with folder_errors(settings):
            Folder(settings.orphans.folder).write_json("plans/p/manifest.json", {"x": "y" * 9_000})

    code, told = ended(write)
    assert (code, told.count("\n"), SAID in told) == (FileError.exit_code, 1, True), told


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_registry_that_cannot_be_saved_is_one_line(full: Path, form: str) -> None:
    store = shared_memory_store("full")
    if store.get(REGISTRY_PATH) is None:
        store.create(REGISTRY_PATH, serialize_registry(registry_of()), make_parents=True)
    file = full / "registry"
    arguments = ["--set", "metadata_store.urls=['memory:full']", "-o", form, "bookie-clusters", "registry", "export"]
    result = CliRunner().invoke(cli, [*arguments, str(file)])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (FileError.exit_code, "", 1)
    told = json.loads(result.stderr)["error"] if form == "json" else result.stderr
    assert f"{file} cannot be written: {SAID}" in told
    assert list(full.iterdir()) == [full / "takes all room"]


class Query:
    """A query that has failed because a disk is full."""

    isActive = False

    def stop(self) -> None:
        """It has ended."""

    def exception(self) -> Exception:
        return OSError(28, SAID, "/outcomes/x")


def test_a_query_that_runs_once_ends_at_a_full_disk_and_another_waits_for_room() -> None:
    started: list[int] = []

    def start() -> Query:
        started.append(1)
        return Query()

    limits = StreamLimits(stall=60, max_failures=3, failure_window=60, backoff=0.01, max_backoff=0.02, stop_timeout=5)
    with pytest.raises(FileError, match=r"No space left on device: '/outcomes/x'; make room, then start it again"):
        Supervisor(start, Pulse(), limits, once=True).run()
    assert len(started) == 1
    with pytest.raises(BookwardenError, match="3 failures within 60 s are too many") as told:
        Supervisor(start, Pulse(), limits).run()
    assert not isinstance(told.value, FileError)


def test_a_first_batch_that_was_cut_short_leaves_a_checkpoint_that_spark_takes(tmp_path: Path) -> None:
    remove_cut_short(str(tmp_path / "none"))
    remove_cut_short("s3://bucket/checkpoint")
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    for name in (".0.x.tmp", "..0.x.tmp.crc"):
        (offsets / name).touch()
    remove_cut_short(f"file://{tmp_path}")
    assert list(offsets.iterdir()) == []
    # With a batch in it all is left to Spark.
    for name in ("0", ".1.x.tmp"):
        (offsets / name).touch()
    remove_cut_short(str(tmp_path))
    assert sorted(path.name for path in offsets.iterdir()) == [".1.x.tmp", "0"]
