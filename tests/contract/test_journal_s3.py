"""The journal in an object store, on a real S3 server: written whole or not at all, and read back by undo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bookwarden.config import load_settings
from bookwarden.deletion.journal.entries import JournalEntry
from bookwarden.deletion.journal.reading import SelectedDeletions, Selection, summarize_runs
from bookwarden.deletion.phase_two.sent_on import SentOn
from bookwarden.errors import StoreAccessError, StoreError, StoreUnavailableError
from bookwarden.wiring.journal import journal_of, journal_reader_of, sent_records_of
from servers.object_store import ACCESS_KEY, REGION, SECRET_KEY, ObjectStore, TroubledStore

pytestmark = pytest.mark.servers

ENTRIES = [
    JournalEntry(number, "t/n/persistent/a", f"/ledgers/00/0000/L{number:04d}", 0, 1, b"\x00raw", f"q/{number % 2}", 5)
    for number in range(10)
]


@pytest.fixture(scope="module")
def server(object_store: ObjectStore) -> ObjectStore:
    object_store.create_bucket("journals")
    return object_store


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[TroubledStore]:
    proxy = TroubledStore(server.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    yield proxy
    proxy.close()


def settings(prefix: str):
    return load_settings(overrides={"sweep.journal": f"s3://journals/{prefix}"})


def test_what_is_appended_is_there_and_read_back_by_run(store: TroubledStore, server: ObjectStore) -> None:
    with closing(journal_of(settings("a/b").sweep)) as journal:
        journal.append(ENTRIES[:4])
        journal.append(ENTRIES[4:])
    server.client.put_object(Bucket="journals", Key="a/b/notes.txt", Body=b"not the journal's")
    server.client.put_object(Bucket="journals", Key="a/bc/other.jsonl", Body=ENTRIES[0].encode())
    damaged = []
    with closing(journal_reader_of(settings("a/b/").sweep, damaged.append)) as reader:
        assert list(reader) == ENTRIES
        assert [(run.run, run.ledgers) for run in summarize_runs(reader)] == [("q/1", 5), ("q/0", 5)]
        found = SelectedDeletions(reader, Selection(run="q/1"))
        assert [deletion.entry.ledger_id for deletion in found] == [1, 3, 5, 7, 9]
    assert damaged == []
    assert len([key for key in server.keys("journals") if key.startswith("a/b/2")]) == 2


def test_what_was_sent_on_is_known_to_every_process_and_is_no_part_of_the_journal(store: TroubledStore) -> None:
    where, damaged = settings("both"), []
    sent = [SentOn("topic", f"1:{number}:0", "retry", "later") for number in range(4)]
    with closing(sent_records_of(where.sweep)) as records, closing(sent_records_of(where.sweep)) as of_another:
        records.add("q/1", sent[:1])
        of_another.add("q/1", sent[1:2])
        records.add("q/1", sent[2:3])
        records.add("q/10", sent[3:])
        store.refuse(99, 503, "SlowDown", "later")
        with pytest.raises(StoreUnavailableError):
            records.add("q/2", sent)
        # What cannot be known is no empty answer: everything would be sent again.
        with pytest.raises(StoreUnavailableError):
            list(of_another.read("q/1"))
    store.refuse(0, 200, "", "")
    with closing(journal_of(where.sweep)) as journal:
        journal.append(ENTRIES)
    with closing(sent_records_of(where.sweep)) as later:
        assert set(later.read("q/1")) == set(sent[:3])
        assert list(later.read("q/10")) == sent[3:]
        assert list(later.read("q/2")) == []
    with closing(journal_reader_of(where.sweep, damaged.append)) as reader:
        assert list(reader) == ENTRIES
    assert damaged == []


def test_an_object_that_the_store_does_not_confirm_is_an_error_that_waits(store: TroubledStore) -> None:
    with closing(journal_of(settings("slow").sweep)) as journal:
        store.refuse(99, 503, "SlowDown", "later")
        with pytest.raises(StoreUnavailableError, match="nothing is deleted"):
            journal.append(ENTRIES)
        store.refuse(1, 500, "InternalError", "once")
        journal.append(ENTRIES)


def test_a_store_that_is_away_is_waited_for(store: TroubledStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with (
        closing(journal_of(settings("away").sweep)) as journal,
        pytest.raises(StoreUnavailableError, match="nothing is"),
    ):
        journal.append(ENTRIES)


def test_refused_credentials_and_a_missing_bucket_are_told_apart(store: TroubledStore) -> None:
    with closing(journal_of(settings("denied").sweep)) as journal:
        store.refuse(99, 403, "AccessDenied", "no")
        with pytest.raises(StoreAccessError, match="AccessDenied"):
            journal.append(ENTRIES)
    store.refuse(0, 200, "", "")
    nowhere = load_settings(overrides={"sweep.journal": "s3://nowhere/x"})
    with closing(journal_of(nowhere.sweep)) as journal, pytest.raises(StoreError, match="NoSuchBucket"):
        journal.append(ENTRIES)
    with closing(journal_reader_of(nowhere.sweep)) as reader, pytest.raises(StoreError, match="NoSuchBucket"):
        list(reader)


def test_the_checksum_that_is_sent_is_that_of_the_object(store: TroubledStore, tmp_path: Path) -> None:
    with closing(journal_of(settings("sum").sweep)) as journal:
        journal.append(ENTRIES)
    (headers,) = (found for line, found in zip(store.requests, store.headers, strict=True) if line.startswith("PUT"))
    assert "Content-MD5" in headers
