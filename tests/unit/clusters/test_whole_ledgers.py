"""A ledger is whole only if each bookie that should have an entry gives it as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.digests import Entry, digest_of, pack_entry
from bookwarden.clusters.bookkeeper.bookies.proof import WholeLedgers
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions, Bookies
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment, StoredLedger
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from servers.scripted_bookie import ScriptedBookie

COUNT = 150
LEDGER = 7


@pytest.fixture
def scripted() -> Iterator[list[ScriptedBookie]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ScriptedBookie()) for _ in range(3)]


@pytest.fixture
def proof() -> Iterator[WholeLedgers]:
    store = MemoryStore()
    store.create("/ledgers", b"")
    with Bookies(BookieAddresses(store, "/ledgers"), BookieOptions(request_timeout_s=1.5)) as bookies:
        yield WholeLedgers(lambda: bookies)


def written_to(scripted: list[ScriptedBookie], kind: str = "CRC32C", count: int = COUNT) -> StoredLedger:
    """Write a ledger to the bookies, and return it closed."""
    names = tuple(bookie.bookie_id for bookie in scripted)
    length = sum(map(len, map(payload_of, range(count))))
    metadata = LedgerMetadata(
        *(3, LedgerState.CLOSED, 3, 2, 2, (Segment(0, names), Segment(70, names[::-1])), length, count - 1, kind)
    )
    replicas, behind = Replicas(metadata), 0
    for entry_id in range(count):
        behind += len(payload_of(entry_id))
        packet = pack_entry(digest_of(kind), Entry(LEDGER, entry_id, entry_id - 1, behind, payload_of(entry_id)))
        for bookie in scripted:
            if bookie.bookie_id in replicas.of(entry_id):
                bookie.entries[LEDGER, entry_id] = packet
    return stored(metadata)


def stored(metadata: LedgerMetadata) -> StoredLedger:
    return StoredLedger(LEDGER, "/ledgers/00/0000/L0007", 0, 0, encode_ledger_metadata(metadata), metadata)


def payload_of(entry_id: int) -> bytes:
    return b"%d" % entry_id * (entry_id % 50)


@pytest.mark.parametrize("kind", ["CRC32C", "CRC32", "HMAC"])
def test_a_whole_ledger_is_asked_of_all_its_bookies(
    scripted: list[ScriptedBookie], proof: WholeLedgers, kind: str
) -> None:
    assert proof.problem_of(written_to(scripted, kind)) is None
    assert sorted(key for bookie in scripted for key in bookie.asked) == sorted(
        [(LEDGER, entry_id) for entry_id in range(COUNT)] * 2
    )


def test_an_empty_ledger_is_whole(scripted: list[ScriptedBookie], proof: WholeLedgers) -> None:
    assert proof.problem_of(written_to(scripted, count=0)) is None


@pytest.mark.parametrize("entry_id", [0, 69, 70, COUNT - 1])
def test_one_replica_that_is_missing_is_a_problem(
    scripted: list[ScriptedBookie], proof: WholeLedgers, entry_id: int
) -> None:
    ledger = written_to(scripted)
    lacking = next(bookie for bookie in scripted if bookie.entries.pop((LEDGER, entry_id), None))
    assert proof.problem_of(ledger) == f"bookie {lacking.bookie_id} answered ENOENTRY to entry {entry_id}"


def test_one_replica_that_is_damaged_is_a_problem(scripted: list[ScriptedBookie], proof: WholeLedgers) -> None:
    ledger = written_to(scripted)
    damaged = next(bookie for bookie in scripted if (LEDGER, 99) in bookie.entries)
    packet = bytearray(damaged.entries[LEDGER, 99])
    packet[-1] ^= 1
    damaged.entries[LEDGER, 99] = bytes(packet)
    problem = proof.problem_of(ledger)
    assert problem is not None
    assert problem.startswith(f"bookie {damaged.bookie_id}: ")
    # What was under way is forgotten, and the next ledger is asked for as if nothing had been.
    assert proof.problem_of(written_to(scripted)) is None


def test_a_bookie_that_does_not_answer_is_a_problem(scripted: list[ScriptedBookie], proof: WholeLedgers) -> None:
    ledger = written_to(scripted)
    scripted[1].close()
    problem = proof.problem_of(ledger)
    assert problem is not None
    assert scripted[1].bookie_id in problem


def test_metadata_that_says_another_length_is_a_problem(scripted: list[ScriptedBookie], proof: WholeLedgers) -> None:
    metadata = written_to(scripted).metadata
    problem = proof.problem_of(stored(metadata._replace(length=metadata.length + 1)))
    assert problem == f"its entries have {metadata.length} bytes, and its metadata says {metadata.length + 1}"


def test_what_is_open_or_without_digests_cannot_be_proven(scripted: list[ScriptedBookie], proof: WholeLedgers) -> None:
    ledger = written_to(scripted)
    opened = ledger.metadata._replace(state=LedgerState.OPEN, last_entry_id=None)
    assert proof.problem_of(stored(opened)) == "it is not closed"
    problem = proof.problem_of(written_to(scripted, "DUMMY"))
    assert problem is not None
    assert problem.startswith("its entries have no digest")
