"""The journal: every record readable again, a record cut off or damaged never taken for one."""

from __future__ import annotations

import base64
import itertools
import os
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.deletion.journal.entries import (
    JournalEntry,
    JournalHeader,
    JournalRecord,
    UndoRecord,
    UndoStep,
    _render,
    decode_record,
)
from bookwarden.deletion.journal.reading import (
    Deletion,
    DeletionOrigin,
    JournalDamage,
    JournalFolder,
    JournalReader,
    SelectedDeletions,
    Selection,
    summarize_runs,
)
from bookwarden.deletion.journal.writing import FileJournal, ObjectJournal
from bookwarden.errors import FormatError, NotFoundError, StoreError, StoreUnavailableError

ENTRY = JournalEntry(7, "t/ns/persistent/a", "/ledgers/00/0000/L0007", 3, 1_000, b"\x00\xffraw", "query/4", 2_000)


@given(raw=st.binary(), holder=st.text())
def test_an_entry_reads_back_as_it_was_written(raw: bytes, holder: str) -> None:
    entry = replace(ENTRY, raw=raw, holder=holder)
    assert JournalEntry.decode(entry.encode()) == entry


@given(
    st.builds(
        JournalEntry,
        *(st.integers(), st.text(), st.text(), st.integers(), st.integers(), st.binary(), st.text(), st.integers()),
        st.text(),
    )
)
def test_an_entry_is_written_as_the_json_encoder_writes_it(entry: JournalEntry) -> None:
    fields = {**asdict(entry), "raw": base64.b64encode(entry.raw).decode()}
    text = _render(
        {name: each for name, each in fields.items() if each or name not in ("bookie_cluster", "instance")}
    ).encode()
    assert entry.encode() == b"%s\t%08x\n" % (text, zlib.crc32(text))


@given(st.integers(min_value=0, max_value=len(ENTRY.encode()) - 1))
def test_a_line_cut_off_anywhere_is_no_record(length: int) -> None:
    assert JournalEntry.decode(ENTRY.encode()[:length]) is None


@given(st.integers(min_value=0, max_value=len(ENTRY.encode()) - 12), st.integers(min_value=1, max_value=255))
def test_a_damaged_line_is_no_record(at: int, flip: int) -> None:
    line = bytearray(ENTRY.encode())
    line[at] ^= flip
    assert JournalEntry.decode(bytes(line)) is None


def read(folder: Path, damaged: list[JournalDamage] | None = None) -> list[JournalRecord]:
    found: list[JournalDamage] = [] if damaged is None else damaged
    return list(JournalReader(JournalFolder(folder), found.append))


def deleted(ledger_id: int, run: str = "query/4", at: int = 2_000, raw: bytes = b"raw") -> JournalEntry:
    return replace(ENTRY, ledger_id=ledger_id, run=run, journaled_at=at, raw=raw)


def undone(ledger_id: int, step: UndoStep, at: int) -> UndoRecord:
    return UndoRecord(ledger_id, "query/4", "undo-1", step, at)


def test_a_step_of_an_undo_reads_back_as_it_was_written() -> None:
    record = undone(7, UndoStep.LOST, 3)
    assert decode_record(record.encode()) == record


def test_records_of_the_first_version_which_had_no_header_are_read(tmp_path: Path) -> None:
    (tmp_path / "20260101T000000-host-1-a.jsonl").write_bytes(ENTRY.encode())
    assert read(tmp_path) == [ENTRY]


def test_what_is_appended_is_read_back_across_files(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, max_file_bytes=600)
    entries = [deleted(number) for number in range(20)]
    for entry in entries:
        journal.append([entry])
    journal.close()
    assert len(list(tmp_path.iterdir())) > 1
    assert read(tmp_path) == entries


def test_a_file_begins_with_who_writes_it(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, clock=lambda: 1_000.5)
    journal.append([ENTRY])
    journal.close()
    (file,) = tmp_path.iterdir()
    first = decode_record(file.read_bytes().splitlines(keepends=True)[0])
    assert isinstance(first, JournalHeader)
    assert (first.format, first.run, first.pid, first.opened_at) == (1, "query/4", os.getpid(), 1_000_500)
    assert file.name.startswith("19700101T001640.500000-")


def test_a_file_of_a_later_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_bytes(JournalHeader(2, "run", "host", 1, 0).encode() + ENTRY.encode())
    with pytest.raises(FormatError, match="later bookwarden"):
        read(tmp_path)


def test_each_day_has_a_file_of_its_own_and_names_sort_by_time(tmp_path: Path) -> None:
    now = [86_400 - 1.0]
    journal = FileJournal(tmp_path, clock=lambda: now[0])
    for number, moment in enumerate((86_399.0, 86_399.5, 86_400.0, 90_000.0, 200_000.0)):
        now[0] = moment
        journal.append([deleted(number)])
    journal.close()
    assert len(list(tmp_path.iterdir())) == 3
    assert [record.ledger_id for record in read(tmp_path)] == [0, 1, 2, 3, 4]


def test_files_that_ended_long_before_are_not_read_for_what_is_later(tmp_path: Path) -> None:
    now = [0.0]
    journal = FileJournal(tmp_path, clock=lambda: now[0])
    for day in range(6):
        now[0] = day * 86_400 + 43_200.0
        journal.append([deleted(day)])
    journal.close()
    (tmp_path / "of-another-name.jsonl").write_bytes(deleted(9).encode())
    reader = JournalReader(JournalFolder(tmp_path), since_ms=int(5.0 * 86_400_000))
    # A file may be written for a day, and clocks may differ by another.
    assert [record.ledger_id for record in reader if isinstance(record, JournalEntry)] == [3, 4, 5, 9]


def test_writers_of_one_folder_never_share_a_file(tmp_path: Path) -> None:
    journals = [FileJournal(tmp_path, clock=lambda: 1.0) for _ in range(20)]
    for number, journal in enumerate(journals):
        journal.append([deleted(number)])
    for journal in journals:
        journal.close()
    assert len(list(tmp_path.iterdir())) == 20
    assert {record.ledger_id for record in read(tmp_path)} == set(range(20))


def test_entries_are_on_disk_when_append_returns(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    journal.append([ENTRY])
    assert read(tmp_path) == [ENTRY]
    journal.close()


def test_others_cannot_read_what_may_have_passwords_in_it(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "new" / "journal")
    journal.append([ENTRY])
    journal.close()
    (file,) = (tmp_path / "new" / "journal").iterdir()
    assert file.stat().st_mode & 0o027 == 0


def test_files_beyond_their_age_go_and_the_newest_stays(tmp_path: Path) -> None:
    now = 100 * 86_400.0
    for name, age in (("1", 40), ("2", 31), ("3", 29), ("4", 35)):
        file = tmp_path / f"{name}.jsonl"
        file.write_bytes(ENTRY.encode())
        os.utime(file, (now - age * 86_400, now - age * 86_400))
    journal = FileJournal(tmp_path, keep_days=30, clock=lambda: now)
    journal.append([deleted(9)])
    journal.close()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left[-1] == "3.jsonl"
    assert len(left) == 2


def test_the_newest_file_stays_however_old_and_all_stay_by_default(tmp_path: Path) -> None:
    for number in range(3):
        file = tmp_path / f"{number}.jsonl"
        file.write_bytes(ENTRY.encode())
        os.utime(file, (number, number))
    for keep_days, left in ((None, 4), (1.0, 2)):
        journal = FileJournal(tmp_path, keep_days=keep_days)
        journal.append([ENTRY])
        journal.close()
        for file in tmp_path.glob("2*T*.jsonl"):
            os.utime(file.rename(tmp_path / "of another name.jsonl"), (0, 0))
        assert len(list(tmp_path.iterdir())) == left
    assert (tmp_path / "2.jsonl").exists()


def test_a_torn_record_ends_its_file_and_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_bytes(ENTRY.encode() + ENTRY.encode()[:40])
    (tmp_path / "2.jsonl").write_bytes(deleted(8).encode())
    damaged: list[JournalDamage] = []
    assert [record.ledger_id for record in read(tmp_path, damaged)] == [7, 8]
    assert damaged == [JournalDamage("1.jsonl", 2, cut_off=True)]
    assert "cut off in record 2" in str(damaged[0])


_OTHER = b'{"kind":"other"}'


@pytest.mark.parametrize(
    "junk", [b"junk\n", b"\n", ENTRY.encode()[:-3] + b"00\n", b"%s\t%08x\n" % (_OTHER, zlib.crc32(_OTHER))]
)
def test_a_damaged_line_is_left_out_and_told_of_and_the_rest_is_read(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "1.jsonl").write_bytes(ENTRY.encode() + junk + deleted(8).encode())
    damaged: list[JournalDamage] = []
    assert [record.ledger_id for record in read(tmp_path, damaged)] == [7, 8]
    assert damaged == [JournalDamage("1.jsonl", 2, cut_off=False)]


@given(st.binary(max_size=300))
def test_no_bytes_at_all_break_the_reader(junk: bytes) -> None:
    class Source:
        def names(self) -> list[str]:
            return ["a"]

        def open(self, name: str) -> object:
            from io import BytesIO

            return BytesIO(junk + b"\n" + ENTRY.encode())

    assert list(JournalReader(Source())) == [ENTRY]


def test_an_endless_line_is_not_held_in_memory(tmp_path: Path) -> None:
    with (tmp_path / "1.jsonl").open("wb") as file:
        file.truncate(200 * 1024 * 1024)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + ENTRY.encode())
    damaged: list[JournalDamage] = []
    limit = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (150 << 20, 150 << 20))"
    ended = subprocess.run(
        [sys.executable, "-c", f"{limit}\n{_READ_ALL}", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["7"]), ended.stderr
    assert read(tmp_path, damaged) == [ENTRY]
    assert damaged == [JournalDamage("1.jsonl", 1, cut_off=False)]


_READ_ALL = """
import sys
from pathlib import Path
from bookwarden.deletion.journal.reading import JournalFolder, JournalReader

for record in JournalReader(JournalFolder(Path(sys.argv[1]))):
    print(record.ledger_id)
"""


def test_a_folder_that_is_not_there_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"sweep\.journal"):
        read(tmp_path / "none")


def test_a_folder_that_cannot_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreUnavailableError, match="nothing is deleted"):
        FileJournal(file / "journal").append([ENTRY])


class Objects:
    """An object store: a sink and a source of journal objects."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.error: StoreError | None = None

    def put(self, name: str, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.objects[name] = data

    def close(self) -> None:
        self.error = StoreUnavailableError("closed")

    def names(self) -> list[str]:
        return sorted(self.objects)

    def open(self, name: str) -> object:
        from io import BytesIO

        return BytesIO(self.objects[name])


def test_a_journal_of_objects_writes_one_for_each_append_and_is_read_alike() -> None:
    objects = Objects()
    journal = ObjectJournal(objects)
    journal.append([deleted(1), deleted(2)])
    journal.append([])
    journal.append([deleted(3)])
    assert len(objects.objects) == 2
    assert [record.ledger_id for record in JournalReader(objects)] == [1, 2, 3]
    journal.close()
    with pytest.raises(StoreUnavailableError):
        journal.append([deleted(4)])


def test_runs_are_told_with_times_ledgers_and_bytes_latest_first() -> None:
    records = [
        deleted(1, "a/0", 10),
        deleted(2, "a/1", 20, b"longer"),
        undone(1, UndoStep.RESTORED, 99),
        deleted(3, "a/0", 5),
    ]
    runs = [(run.run, run.first, run.last, run.ledgers, run.bytes) for run in summarize_runs(records)]
    assert runs == [("a/1", 20, 20, 1, 6), ("a/0", 5, 10, 2, 6)]


@pytest.mark.parametrize(
    ("selection", "ids"),
    [
        (Selection(run="a/1"), [2]),
        (Selection(run="a"), [1, 2]),
        (Selection(run="a/"), [1, 2]),
        (Selection(run="a/11"), []),
        (Selection(ledger_ids=frozenset({2, 3, 9})), [2, 3]),
        (Selection(since_ms=20), [2, 3]),
        (Selection(run="a", since_ms=20), [2]),
    ],
)
def test_deletions_are_selected_by_run_ledger_and_time(tmp_path: Path, selection: Selection, ids: list[int]) -> None:
    write(tmp_path, deleted(1, "a/0", 10), deleted(2, "a/1", 20), deleted(3, "ab/1", 30))
    found = SelectedDeletions(JournalReader(JournalFolder(tmp_path)), selection)
    for _ in range(2):
        assert [deletion.entry.ledger_id for deletion in found] == ids
    assert len(found) == len(ids)


def write(folder: Path, *records: JournalRecord) -> None:
    journal = FileJournal(folder)
    for record in records:
        journal.append([record])
    journal.close()


def selected(folder: Path, selection: Selection) -> SelectedDeletions:
    return SelectedDeletions(JournalReader(JournalFolder(folder)), selection)


def test_a_ledger_comes_once_with_its_last_deletion_whichever_run_and_file_that_is_in(tmp_path: Path) -> None:
    later = deleted(1, "b/0", 50, b"closed since")
    write(tmp_path, later, deleted(1, "a/0", 10), deleted(2, "a/0", 10), deleted(2, "a/0", 10))
    entries = [deletion.entry for deletion in selected(tmp_path, Selection(run="a"))]
    assert entries == [later, deleted(2, "a/0", 10)]


@pytest.mark.parametrize(
    ("steps", "step"),
    [
        ([], None),
        ([undone(1, UndoStep.BEGUN, 20)], UndoStep.BEGUN),
        ([undone(1, UndoStep.BEGUN, 20), undone(1, UndoStep.LOST, 21)], UndoStep.LOST),
        ([undone(1, UndoStep.RESTORED, 20), undone(1, UndoStep.BEGUN, 21)], UndoStep.RESTORED),
        ([undone(1, UndoStep.RESTORED, 9)], None),
        ([undone(2, UndoStep.BEGUN, 20)], None),
    ],
    ids=["none", "begun", "lost", "restored outlasts", "before the deletion", "another ledger"],
)
def test_what_an_earlier_undo_did_since_the_deletion_is_known(
    tmp_path: Path, steps: list[UndoRecord], step: UndoStep | None
) -> None:
    write(tmp_path, *steps, deleted(1, "a/0", 10))
    (found,) = selected(tmp_path, Selection(ledger_ids=frozenset({1})))
    assert found == Deletion(deleted(1, "a/0", 10), step)


# A limit on the size of files, which stands for a full disk, holds for a whole process: so it is one of its own.
_FULL_DISK = """
import resource, signal, sys
from dataclasses import replace
from pathlib import Path
from bookwarden.deletion.journal.entries import JournalEntry
from bookwarden.deletion.journal.writing import FileJournal
from bookwarden.errors import StoreUnavailableError

entry = JournalEntry(7, "h", "/ledgers/00/0000/L0007", 3, 1_000, b"raw", "query/4", 2_000)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
journal = FileJournal(Path(sys.argv[1]))
journal.append([entry])
try:
    journal.append([replace(entry, ledger_id=8, raw=bytes(1000))])
except StoreUnavailableError as error:
    assert "nothing is deleted" in str(error), error
else:
    raise AssertionError("the second append did not fail")
for _ in range(3):
    # Nothing of this would fit even into a file of its own.
    try:
        journal.append([replace(entry, ledger_id=8, raw=bytes(2000))])
    except StoreUnavailableError:
        pass
journal.append([replace(entry, ledger_id=9)])
journal.close()
"""


class ManyRecords(JournalReader):
    """A journal of so many deletions, each undone, of which none is kept."""

    def __init__(self, ledgers: int) -> None:
        self._ledgers = ledgers

    def __iter__(self) -> Iterator[JournalRecord]:
        for ledger_id in range(self._ledgers):
            yield replace(ENTRY, ledger_id=10**12 + ledger_id, instance="i-1")
        for ledger_id in range(self._ledgers):
            yield UndoRecord(10**12 + ledger_id, ENTRY.run, "undo-1", UndoStep.UNVERIFIED, ENTRY.journaled_at + 1)


def test_of_a_million_selected_ledgers_some_bytes_are_kept_of_each() -> None:
    ledgers = 50_000
    tracemalloc.start()
    try:
        found = SelectedDeletions(ManyRecords(ledgers), Selection())
        assert sum(deletion.undone is UndoStep.UNVERIFIED for deletion in found) == ledgers == len(found)
        assert found.origins() == [DeletionOrigin("", "i-1", ledgers, 10**12)]
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 50 * ledgers
    assert peak < 140 * ledgers


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_records_of_several_processes_may_come_in_any_order(order: Sequence[int]) -> None:
    """Their files overlap in time."""
    first, last = replace(ENTRY, journaled_at=10), replace(ENTRY, journaled_at=30, instance="i-2")
    restored = UndoRecord(ENTRY.ledger_id, ENTRY.run, "u", UndoStep.RESTORED, 20)
    begun = UndoRecord(ENTRY.ledger_id, ENTRY.run, "u", UndoStep.BEGUN, 40)
    records: list[JournalRecord] = [(first, restored, last, begun)[at] for at in order]
    found = SelectedDeletions(Listed(records), Selection())
    assert [(deletion.entry, deletion.undone) for deletion in found] == [(last, UndoStep.BEGUN)]
    assert [origin.instance for origin in found.origins()] == ["i-2"]
    earlier = replace(restored, journaled_at=5)
    found = SelectedDeletions(Listed([first, restored, earlier]), Selection())
    assert [one.undone for one in found] == [UndoStep.RESTORED]


class Listed(JournalReader):
    """A journal of these records."""

    def __init__(self, records: Sequence[JournalRecord]) -> None:
        self._listed = records

    def __iter__(self) -> Iterator[JournalRecord]:
        return iter(self._listed)


def test_a_full_disk_is_an_error_and_what_was_written_before_is_kept(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert [record.ledger_id for record in read(tmp_path)] == [7, 9]
    assert len(list(tmp_path.iterdir())) == 2, "a file without a record stayed"


_TESTS = Path(__file__).parents[2]
_SWEEP_ON_A_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.deletion.journal.writing import FileJournal
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.errors import StoreUnavailableError
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.metastore.memory import MemoryStore
from servers.population import Population
from servers.sweep_parts import sweep_with

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = MemoryStore()
population, holder = Population(store), ManagedLedgerHolder("t/ns/persistent/a")
paths = [population.ledger(number, holder) for number in range(20)]
marks = [ReceivedMark("t", "1:0:0", None, b"", {}, 1, mark=mark_of_holder(number, holder, "")) for number in range(20)]
journal = FileJournal(Path(sys.argv[1]))
sweep = sweep_with(
    BookKeeperCatalog(store), MetadataReferences([store]), journal, None,
    DeletionPolicy(unlisted_grace=0), SweepLimits(max_unreachable=0.5),
)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    list(sweep.process(marks, "run/0"))
except StoreUnavailableError as error:
    assert "nothing is deleted" in str(error), error
else:
    raise AssertionError("the sweep went on")
assert all(store.get(path) for path in paths)
journal.close()
"""


def test_a_sweep_whose_journal_is_full_deletes_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _SWEEP_ON_A_FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (_TESTS, _TESTS.parent / "src")))},
    )
    assert ended.returncode == 0, ended.stderr
    assert list(tmp_path.iterdir()) == [], "a file without a record stayed"


def test_a_file_that_cannot_be_read_to_its_end_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").mkdir()
    with pytest.raises(StoreError, match=r"1\.jsonl"):
        read(tmp_path)

    class Failing:
        def names(self) -> list[str]:
            return ["a"]

        def open(self, name: str) -> object:
            return self

        def __enter__(self) -> object:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def readline(self, limit: int) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(StoreError, match="Input/output error"):
        list(JournalReader(Failing()))


def test_what_could_not_be_synced_counts_as_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FileJournal(tmp_path)
    journal.append([deleted(1)])

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        with pytest.raises(StoreUnavailableError, match="Input/output error"):
            journal.append([deleted(2)])
    journal.append([deleted(3)])
    journal.close()
    # What is behind a failed sync is not trusted: the next record is in a file of its own.
    assert len(list(tmp_path.iterdir())) == 2
    assert [record.ledger_id for record in read(tmp_path)] == [1, 2, 3]
