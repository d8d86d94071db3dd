"""Which entry counts as a ledger's last one, while its writer is still at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bookwarden.clusters.bookkeeper.bookies import last_entries
from bookwarden.clusters.bookkeeper.bookies.digests import Entry
from bookwarden.clusters.bookkeeper.bookies.last_entries import LastEntries
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.errors import BookieUnavailableError, EntryAbsentError, FormatError, NotFoundError
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, StoredLedger
from bookwarden.metastore.memory import MemoryStore
from servers.population import Population


class Reader:
    """A ledger of whose entries the bookies know the first ``confirmed`` + 1 to be confirmed, and have the others."""

    def __init__(self, entries: list[bytes], confirmed: int, error: Exception | None = None) -> None:
        self._entries = entries
        self._confirmed = confirmed
        self._error = error

    def last_confirmed(self) -> int:
        return self._confirmed

    def read(self, first: int, last: int) -> Iterator[Entry]:
        for entry_id in range(first, last + 1):
            if entry_id >= len(self._entries):
                raise self._error or EntryAbsentError(f"no entry {entry_id}")
            yield Entry(7, entry_id, entry_id - 1, 0, self._entries[entry_id])


def last_entry(reader: Reader, monkeypatch: pytest.MonkeyPatch, *, closed_at: int | None = None) -> bytes | None:
    state = LedgerState.OPEN if closed_at is None else LedgerState.CLOSED
    metadata = LedgerMetadata(3, state, 1, 1, 1, (), last_entry_id=closed_at)
    catalog = BookKeeperCatalog(MemoryStore())
    monkeypatch.setattr(catalog, "read_many", lambda ids: [StoredLedger(ids[0], "/x", 0, 0, b"", metadata)])
    monkeypatch.setattr(last_entries, "open_ledger", lambda *_: reader)
    read = LastEntries(catalog, lambda: None)  # type: ignore[arg-type, return-value]
    last = read.last_entry(7)
    # The same, of several.
    behind = [b"%d" % number for number in range(int(last or -1), -1, -1)]
    assert [read.newest(7, count) for count in (1, 2, 9)] == [behind[:1], behind[:2], behind]
    return last


@pytest.mark.parametrize(
    ("entries", "confirmed", "expected"),
    [([], -1, None), ([b"0"], -1, b"0"), ([b"0", b"1"], 0, b"1"), ([b"0", b"1", b"2"], 0, b"2"), ([b"0"], 0, b"0")],
)
def test_the_last_entry_of_an_open_ledger_is_the_last_that_bookies_have(
    entries: list[bytes], confirmed: int, expected: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert last_entry(Reader(entries, confirmed), monkeypatch) == expected


def test_of_a_closed_ledger_the_metadata_says_which_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    assert last_entry(Reader([b"0", b"1", b"2"], 1), monkeypatch, closed_at=1) == b"1"
    assert last_entry(Reader([b"0"], -1), monkeypatch, closed_at=-1) is None


def test_a_bookie_that_does_not_answer_is_no_end_of_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BookieUnavailableError):
        last_entry(Reader([b"0"], 0, BookieUnavailableError("away")), monkeypatch)


def test_a_ledger_that_is_absent_or_cannot_be_read_has_no_last_entry() -> None:
    store = MemoryStore()
    population = Population(store)
    path = population.ledger(8, None)
    store.put(path, b"nonsense", 0)
    entries = LastEntries(BookKeeperCatalog(store), lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(NotFoundError, match="no ledger 7"):
        entries.last_entry(7)
    with pytest.raises(FormatError, match="ledger 8"):
        entries.last_entry(8)
