"""Writing entries to bookies that take them, refuse them, keep silent and hang up as they are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.digests import Entry, digest_of, master_key_of, verify_entry
from bookwarden.clusters.bookkeeper.bookies.reader import LedgerReader
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions, Bookies
from bookwarden.clusters.bookkeeper.bookies.writer import EntryWriting, LedgerWriter
from bookwarden.errors import BookieAccessError, BookieError, BookieUnavailableError
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.pb import bookie_protocol_pb2 as pb
from servers.scripted_bookie import ScriptedBookie

PASSWORD = b"a password"
# Long enough for a slow machine; only a bookie that keeps silent is waited for.
SOON = 1.5


@pytest.fixture
def scripted() -> Iterator[list[ScriptedBookie]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ScriptedBookie()) for _ in range(3)]


@pytest.fixture
def bookies() -> Iterator[Bookies]:
    store = MemoryStore()
    store.create("/ledgers", b"")
    options = BookieOptions(request_timeout_s=SOON, bytes_in_flight=4096)
    with Bookies(BookieAddresses(store, "/ledgers"), options) as made:
        yield made


def metadata_of(scripted: list[ScriptedBookie], digest: str = "CRC32C") -> LedgerMetadata:
    """Ensemble 3, write quorum 2; from entry 30 on in another order."""
    first = tuple(bookie.bookie_id for bookie in scripted)
    segments = (Segment(0, first), Segment(30, first[::-1]))
    return LedgerMetadata(3, LedgerState.OPEN, 3, 2, 2, segments, digest_type=digest)


def payload_of(entry_id: int) -> bytes:
    return b"%d" % entry_id * (entry_id % 50)


def write(writer: LedgerWriter, count: int) -> None:
    for entry_id in range(writer.last_entry_id + 1, count):
        writer.add(payload_of(entry_id))


@pytest.mark.parametrize("kind", ["CRC32C", "CRC32", "HMAC", "DUMMY"])
def test_each_entry_goes_to_its_write_set_and_is_read_back(
    scripted: list[ScriptedBookie], bookies: Bookies, kind: str
) -> None:
    metadata = metadata_of(scripted, kind)
    with EntryWriting(bookies) as writing:
        writer = writing.ledger(7, metadata, PASSWORD)
        write(writer, 600)
        writer.finish()
    replicas = Replicas(metadata)
    for bookie in scripted:
        wanted = [(7, entry) for entry in range(600) if bookie.bookie_id in replicas.of(entry)]
        assert bookie.added == wanted
        assert bookie.master_keys == {master_key_of(PASSWORD)}
    closed = metadata._replace(state=LedgerState.CLOSED, last_entry_id=writer.last_entry_id, length=writer.length)
    length = 0
    for number, entry in enumerate(LedgerReader(7, closed, digest_of(kind, PASSWORD), bookies).read()):
        length += len(payload_of(number))
        assert entry == Entry(7, number, entry.last_add_confirmed, length, payload_of(number))
        assert -1 <= entry.last_add_confirmed < number
    assert (writer.last_entry_id, writer.last_confirmed, writer.length) == (599, 599, length)


def test_no_more_is_under_way_than_allowed(scripted: list[ScriptedBookie], bookies: Bookies) -> None:
    """An entry that would be too much waits until others have arrived at all their bookies."""
    with EntryWriting(bookies) as writing:
        writer = writing.ledger(7, metadata_of(scripted), PASSWORD)
        for _ in range(20):
            writer.add(bytes(1500))
            # Two packets have less than 4096 bytes, three have more.
            assert writer.under_way <= 2
        writer.finish()
    assert sum(len(bookie.added) for bookie in scripted) == 40


def test_confirmed_is_what_all_bookies_of_each_entry_have(scripted: list[ScriptedBookie], bookies: Bookies) -> None:
    """A recovery goes by it: what it names is taken to be there."""
    scripted[1].gate.clear()
    with EntryWriting(bookies) as writing:
        writer = writing.ledger(7, metadata_of(scripted), PASSWORD)
        # Entry 2 alone goes without the second bookie.
        write(writer, 3)
        while writer.under_way == 3:
            writing.take_answers()
        writer.add(b"fourth")
        assert (writer.last_confirmed, writer.last_entry_id) == (-1, 3)
        scripted[1].gate.set()
        writer.finish()
    assert writer.last_confirmed == 3
    packet = scripted[0].entries[7, 3]
    assert verify_entry(digest_of("CRC32C"), 7, 3, packet).last_add_confirmed == -1


def test_ledgers_are_written_side_by_side_and_the_failure_of_one_is_its_own(
    scripted: list[ScriptedBookie], bookies: Bookies
) -> None:
    whole = metadata_of(scripted[:2])._replace(
        ensemble_size=2, segments=(Segment(0, tuple(bookie.bookie_id for bookie in scripted[:2])),)
    )
    scripted[2].add_status = pb.EFENCED
    with EntryWriting(bookies) as writing:
        one, other = writing.ledger(7, whole, PASSWORD), writing.ledger(8, metadata_of(scripted), PASSWORD)
        for entry_id in range(9):
            one.add(payload_of(entry_id))
            other.add(payload_of(entry_id))
        with pytest.raises(BookieError, match=rf"ledger 8 .*{scripted[2].bookie_id} answered EFENCED .*fenced"):
            other.finish()
        one.finish()
    assert (one.last_confirmed, one.refusals, other.denied) == (8, {}, set())


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (pb.EUA, BookieAccessError, "wants authentication, or has this ledger with another password"),
        (pb.EREADONLY, BookieError, "answered EREADONLY"),
        (pb.EIO, BookieError, "answered EIO"),
        (pb.ETOOMANYREQUESTS, BookieError, "answered ETOOMANYREQUESTS"),
    ],
)
def test_a_refusal_names_the_bookie_and_ends_the_ledger(
    scripted: list[ScriptedBookie], bookies: Bookies, status: int, kind: type[BookieError], says: str
) -> None:
    scripted[1].add_status = status
    with EntryWriting(bookies) as writing:
        writer = writing.ledger(7, metadata_of(scripted), PASSWORD)
        # Entry 0 goes to the first two, entry 2 to the last and the first.
        with pytest.raises(kind, match=rf"bookie {scripted[1].bookie_id} answered .* to entry 0") as caught:
            write(writer, 5_000)
        assert says in str(caught.value)
        assert writer.last_confirmed < writer.last_entry_id < 4_999
        assert list(writer.refusals) == [scripted[1].bookie_id]
        assert writer.denied == ({scripted[1].bookie_id} if status == pb.EUA else set())


def test_a_bookie_that_hangs_up_or_keeps_silent_is_told(scripted: list[ScriptedBookie], bookies: Bookies) -> None:
    scripted[0].hang_up_after = 3
    scripted[2].silent = True
    with EntryWriting(bookies) as writing:
        writer = writing.ledger(7, metadata_of(scripted), PASSWORD)
        write(writer, 12)
        with pytest.raises(BookieUnavailableError) as caught:
            writer.finish()
    # Which of the two it is depends on what was on its way.
    told = str(caught.value)
    assert any(f"bookie {scripted[0].bookie_id} {how}" in told for how in ("closed the connection", "does not answer"))
    assert f"bookie {scripted[2].bookie_id} did not answer within" in told
    assert scripted[1].bookie_id not in told


def test_only_a_recovery_writes_a_ledger_that_is_fenced(scripted: list[ScriptedBookie], bookies: Bookies) -> None:
    for bookie in scripted:
        bookie.fenced.add(7)
    with EntryWriting(bookies) as writing:
        writer = writing.ledger(7, metadata_of(scripted), PASSWORD)
        writer.add(b"entry")
        with pytest.raises(BookieError, match="EFENCED"):
            writer.finish()
        again = writing.ledger(7, metadata_of(scripted), PASSWORD, recovery=True)
        again.add(b"entry")
        again.finish()
    assert (again.last_confirmed, again.refusals) == (0, {})
    assert [(7, 0) in bookie.entries for bookie in scripted] == [True, True, False]
