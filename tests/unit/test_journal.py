"""The journal: every record readable again, a record cut off or damaged never taken for one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.deletion.journal import FileJournal, JournalEntry, read_journal
from bookwarden.errors import StoreUnavailableError

ENTRY = JournalEntry(7, "t/ns/persistent/a", "/ledgers/00/0000/L0007", 3, 1_000, b"\x00\xffraw", "query/4", 2_000)


@given(raw=st.binary(), holder=st.text())
def test_an_entry_reads_back_as_it_was_written(raw: bytes, holder: str) -> None:
    entry = replace(ENTRY, raw=raw, holder=holder)
    assert JournalEntry.decode(entry.encode()) == entry


@given(st.integers(min_value=0, max_value=len(ENTRY.encode()) - 1))
def test_a_line_cut_off_anywhere_is_no_record(length: int) -> None:
    assert JournalEntry.decode(ENTRY.encode()[:length]) is None


@given(st.integers(min_value=0, max_value=len(ENTRY.encode()) - 12), st.integers(min_value=1, max_value=255))
def test_a_damaged_line_is_no_record(at: int, flip: int) -> None:
    line = bytearray(ENTRY.encode())
    line[at] ^= flip
    assert JournalEntry.decode(bytes(line)) is None


def test_what_is_appended_is_read_back_across_files(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, max_file_bytes=600)
    entries = [replace(ENTRY, ledger_id=number) for number in range(20)]
    for entry in entries:
        journal.append([entry])
    journal.close()
    assert len(list(tmp_path.iterdir())) > 1
    assert list(read_journal(tmp_path)) == entries


def test_entries_are_on_disk_when_append_returns(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    journal.append([ENTRY])
    assert list(read_journal(tmp_path)) == [ENTRY]
    journal.close()


def test_what_follows_a_torn_record_is_still_read(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_bytes(ENTRY.encode() + ENTRY.encode()[:40])
    (tmp_path / "2.jsonl").write_bytes(replace(ENTRY, ledger_id=8).encode())
    assert [entry.ledger_id for entry in read_journal(tmp_path)] == [7, 8]


def test_a_folder_that_cannot_be_written_is_an_error_that_says_so(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreUnavailableError, match="nothing is deleted"):
        FileJournal(file / "journal").append([ENTRY])


# A limit on the size of files, which stands for a full disk, holds for a whole process: so it is one of its own.
_FULL_DISK = """
import resource, signal, sys
from dataclasses import replace
from pathlib import Path
from bookwarden.deletion.journal import FileJournal, JournalEntry
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
journal.append([replace(entry, ledger_id=9)])
journal.close()
"""


def test_a_full_disk_is_an_error_and_what_was_written_before_is_kept(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert [entry.ledger_id for entry in read_journal(tmp_path)] == [7, 9]
