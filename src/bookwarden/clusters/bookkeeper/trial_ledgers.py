"""Ledgers that are made to see whether a bookie cluster takes them: created, filled, read back, closed, removed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.digests import digest_of, verify_entry
from bookwarden.clusters.bookkeeper.bookies.protocol import OK, ReadEntry, status_name
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas
from bookwarden.clusters.bookkeeper.bookies.requests import Answer, BookieOptions, Bookies
from bookwarden.clusters.bookkeeper.bookies.writer import EntryWriting
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.errors import BookieError, DigestMismatchError, LostRaceError, OutcomeUnknownError, StoreError
from bookwarden.ledgers.metadata import AbsentLedger, DeleteResult, LedgerMetadata, LedgerState, StoredLedger
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.ledger_metadata import encode_ledger_metadata

# Nothing of it is worth one, and bookies keep the key of a ledger's first writer.
_PASSWORD: Final = b""
_ENTRY_BYTES: Final = 1024


class TrialLedgers:
    """Trial ledgers in one bookie cluster. Every call may raise StoreError."""

    def __init__(self, store: MetadataStore, ledgers_root: str, options: BookieOptions) -> None:
        self._store = store
        self._root = ledgers_root
        self._options = options

    def create(self, ledger_id: int, metadata: LedgerMetadata) -> bool:
        """Create the metadata of an open ledger; False if there is another ledger of this id."""
        raw = encode_ledger_metadata(metadata, password=_PASSWORD)
        path = ledger_path(self._root, ledger_id)
        try:
            self._store.create(path, raw, make_parents=True)
        except (LostRaceError, OutcomeUnknownError):
            node = self._store.get(path)
            if node is None:
                raise
            return node.value == raw
        return True

    def fill(self, ledger_id: int, metadata: LedgerMetadata, count: int) -> tuple[dict[str, str], frozenset[str], int]:
        """Write a number of entries, and read each back from every bookie that should have it.

        Return which bookies did not take or give one, and why, by bookie id, which of them asked for credentials, and
        the ledger's length in bytes.
        """
        payloads = [_payload(ledger_id, entry_id) for entry_id in range(count)]
        with Bookies(BookieAddresses(self._store, self._root), self._options) as bookies:
            with EntryWriting(bookies) as writing:
                writer = writing.ledger(ledger_id, metadata, _PASSWORD)
                try:
                    for payload in payloads:
                        writer.add(payload)
                    writer.finish()
                except BookieError:
                    # It says no more than is returned.
                    return writer.refusals, frozenset(writer.denied), writer.length
            return _read_back(bookies, ledger_id, metadata, payloads), frozenset(), writer.length

    def close(self, ledger_id: int, metadata: LedgerMetadata, last_entry_id: int, length: int) -> None:
        """Close it; LostRaceError if it is gone."""
        closed = metadata._replace(state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)
        found = self._store.get(ledger_path(self._root, ledger_id))
        if found is None or found.value != encode_ledger_metadata(metadata, password=_PASSWORD):
            raise LostRaceError(f"the metadata of ledger {ledger_id} was changed or removed by another client")
        self._store.put(
            ledger_path(self._root, ledger_id), encode_ledger_metadata(closed, password=_PASSWORD), found.version
        )

    def remove(self, ledger_id: int, marks: Mapping[str, bytes]) -> bool:
        """Delete the metadata if the ledger has these marks in its custom metadata, so that bookies drop the entries.

        False if it has others, and stays. StoreError where it is still there, or may be.
        """
        catalog = BookKeeperCatalog(self._store, self._root)
        (found,) = catalog.read_many([ledger_id])
        if isinstance(found, AbsentLedger):
            return True
        if not isinstance(found, StoredLedger):
            raise StoreError(f"ledger {ledger_id} stays, since its metadata cannot be read: {found.reason}")
        if any(found.metadata.custom.get(key) != value for key, value in marks.items()):
            return False
        (result,) = catalog.delete_many([found])
        if result not in (DeleteResult.DELETED, DeleteResult.ABSENT):
            raise StoreError(f"ledger {ledger_id} was not deleted ({result.value})")
        return True


def _read_back(bookies: Bookies, ledger_id: int, metadata: LedgerMetadata, payloads: list[bytes]) -> dict[str, str]:
    replicas = Replicas(metadata)
    found: dict[str, str] = {}
    with bookies.exchange():
        for entry_id in range(len(payloads)):
            for bookie_id in replicas.of(entry_id):
                bookies.ask(bookie_id, ReadEntry(ledger_id, entry_id))
        for answer in _answers(bookies):
            assert isinstance(answer.request, ReadEntry)
            entry_id = answer.request.entry_id
            why = _difference(answer, metadata, entry_id, payloads[entry_id])
            if why:
                found.setdefault(answer.bookie_id, why)
    return found


def _answers(bookies: Bookies) -> Iterator[Answer]:
    while answers := bookies.answers():
        yield from answers


def _difference(answer: Answer, metadata: LedgerMetadata, entry_id: int, payload: bytes) -> str:
    assert isinstance(answer.request, ReadEntry)
    response = answer.response
    if response is None:
        return answer.failure
    other = f"bookie {answer.bookie_id} gives back another entry {entry_id} than it took"
    if response.status != OK:
        return f"bookie {answer.bookie_id} took entry {entry_id}, and answered {status_name(response.status)} to a read"
    try:
        digest = digest_of(metadata.digest_type, _PASSWORD)
        entry = verify_entry(digest, answer.request.ledger_id, entry_id, response.entry)
    except DigestMismatchError as error:
        return f"{other}: {error}"
    return "" if entry.payload == payload else other


def _payload(ledger_id: int, entry_id: int) -> bytes:
    text = f"bookwarden: entry {entry_id} of the trial ledger {ledger_id}. ".encode()
    return (text * (_ENTRY_BYTES // len(text) + 1))[:_ENTRY_BYTES]
