"""Reading entries from bookies that answer, fail, keep silent and hang up as they are told."""

from __future__ import annotations

import dataclasses
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.connection import BookieConnection
from bookwarden.clusters.bookkeeper.bookies.digests import Digest, Entry, digest_of
from bookwarden.clusters.bookkeeper.bookies.probe import Bookie, Presence
from bookwarden.clusters.bookkeeper.bookies.protocol import ReadEntry
from bookwarden.clusters.bookkeeper.bookies.reader import LedgerReader
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions, Bookies
from bookwarden.clusters.bookkeeper.bookies.tls import BookieTls
from bookwarden.errors import (
    BookieAccessError,
    BookieUnavailableError,
    ConfigError,
    DigestMismatchError,
    EntryAbsentError,
)
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.pb import bookie_protocol_pb2 as pb
from bookwarden_dev.devcluster.certificates import Authority
from servers.scripted_bookie import ScriptedBookie
from servers.waiting import eventually

LEDGER = 7
ENTRIES = 60
DIGEST = digest_of("CRC32C")
# Long enough for a slow machine, where a test needs the bookie to be given up at once; else it is not waited for.
SOON = 1.5

MakeReader = Callable[..., LedgerReader]


def packet(digest: Digest, ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    numbers = (ledger_id, entry_id, entry_id - 1, 1000 + entry_id)
    head = b"".join(number.to_bytes(8, "big", signed=True) for number in numbers)
    return head + digest.compute(head, payload) + payload


def payload_of(entry_id: int) -> bytes:
    return b"%d" % entry_id * (entry_id % 50)


EXPECTED = [Entry(LEDGER, entry, entry - 1, 1000 + entry, payload_of(entry)) for entry in range(ENTRIES)]


@pytest.fixture
def scripted() -> Iterator[list[ScriptedBookie]]:
    """Three bookies that hold the ledger: ensemble 3, write quorum 2."""
    with ExitStack() as stack:
        made = [stack.enter_context(ScriptedBookie()) for _ in range(3)]
        replicas = Replicas(metadata_of(made))
        for entry in range(ENTRIES):
            for bookie in made:
                if bookie.bookie_id in replicas.of(entry):
                    bookie.entries[LEDGER, entry] = packet(DIGEST, LEDGER, entry, payload_of(entry))
        yield made


def metadata_of(scripted: list[ScriptedBookie]) -> LedgerMetadata:
    ensemble = tuple(bookie.bookie_id for bookie in scripted)
    return LedgerMetadata(3, LedgerState.CLOSED, 3, 2, 2, (Segment(0, ensemble),), last_entry_id=ENTRIES - 1)


@pytest.fixture
def open_bookies() -> Iterator[Callable[[BookieOptions | None], Bookies]]:
    store = MemoryStore()
    store.create("/ledgers", b"")
    with ExitStack() as stack:
        yield lambda options=None: stack.enter_context(Bookies(BookieAddresses(store, "/ledgers"), options))


@pytest.fixture
def make_reader(scripted: list[ScriptedBookie], open_bookies: Callable[[BookieOptions | None], Bookies]) -> MakeReader:
    def make(options: BookieOptions | None = None, **changes: object) -> LedgerReader:
        metadata = metadata_of(scripted)._replace(**changes)
        return LedgerReader(LEDGER, metadata, DIGEST, open_bookies(options))

    return make


def test_entries_come_in_order_each_from_one_bookie(scripted: list[ScriptedBookie], make_reader: MakeReader) -> None:
    reader = make_reader()
    assert list(reader.read()) == EXPECTED
    assert [len(bookie.asked) for bookie in scripted] == [ENTRIES // 3] * 3
    assert list(reader.read(7, 9)) == EXPECTED[7:10]
    assert list(reader.read(7, 6)) == []
    assert [bookie.connections for bookie in scripted] == [1, 1, 1]


def test_no_more_is_under_way_than_allowed(scripted: list[ScriptedBookie], make_reader: MakeReader) -> None:
    entries = make_reader(BookieOptions(reads_in_flight=5)).read()
    next(entries)
    # What was asked for is answered before the next is asked for.
    assert sum(len(bookie.asked) for bookie in scripted) <= 5
    assert len(list(entries)) == ENTRIES - 1
    large = make_reader(BookieOptions(bytes_in_flight=16)).read()
    asked = sum(len(bookie.asked) for bookie in scripted)
    next(large)
    assert sum(len(bookie.asked) for bookie in scripted) <= asked + 8


def test_a_reading_that_is_given_up_leaves_nothing_for_the_next(make_reader: MakeReader) -> None:
    reader = make_reader(BookieOptions(reads_in_flight=5))
    entries = reader.read()
    next(entries)
    with pytest.raises(RuntimeError, match="under way"):
        next(reader.read())
    entries.close()
    assert list(reader.read(20, 59)) == EXPECTED[20:]


def test_answers_to_a_reading_that_was_given_up_are_not_taken_for_the_next_ones(
    scripted: list[ScriptedBookie], open_bookies: Callable[[BookieOptions | None], Bookies]
) -> None:
    bookies = open_bookies(BookieOptions(reads_in_flight=9))
    for bookie in scripted:
        for _, entry in list(bookie.entries):
            bookie.entries[8, entry] = packet(DIGEST, 8, entry, b"of ledger 8")
    scripted[1].gate.clear()
    entries = LedgerReader(LEDGER, metadata_of(scripted), DIGEST, bookies).read()
    next(entries)
    entries.close()
    scripted[1].gate.set()
    found = list(LedgerReader(8, metadata_of(scripted), DIGEST, bookies).read())
    assert [(entry.ledger_id, entry.payload) for entry in found] == [(8, b"of ledger 8")] * ENTRIES
    for bookie in scripted:
        assert len([entry for ledger, entry in bookie.asked if ledger == 8]) == ENTRIES // 3


def test_failures_that_nobody_took_end_with_their_exchange(
    open_bookies: Callable[[BookieOptions | None], Bookies],
) -> None:
    bookies = open_bookies(None)
    with bookies.exchange():
        bookies.ask("no-such-bookie", ReadEntry(LEDGER, 0))
    with bookies.exchange():
        assert bookies.answers() == []


def test_what_a_bookie_answered_before_it_hung_up_is_not_lost(scripted: list[ScriptedBookie]) -> None:
    scripted[0].hang_up_after = 2
    with closing(BookieConnection("one", ("127.0.0.1", scripted[0].port), 60.0, None)) as connection:
        for entry in (0, 3, 6):
            connection.ask(ReadEntry(LEDGER, entry))
        connection.send()
        eventually(lambda: scripted[0].ended)
        answered = [request for request, _ in connection.receive()]
        assert answered == [ReadEntry(LEDGER, 0), ReadEntry(LEDGER, 3)]
        assert connection.waiting == [ReadEntry(LEDGER, 6)]
        with pytest.raises(BookieUnavailableError, match="bookie one"):
            connection.receive()


def stop(bookie: ScriptedBookie) -> None:
    bookie.close()


def keep_silent(bookie: ScriptedBookie) -> None:
    bookie.silent = True


def hang_up(bookie: ScriptedBookie) -> None:
    bookie.hang_up_after = 3


def lose_entries(bookie: ScriptedBookie) -> None:
    bookie.entries.clear()


def fail(bookie: ScriptedBookie) -> None:
    bookie.status = pb.EIO


def be_overloaded(bookie: ScriptedBookie) -> None:
    bookie.status = pb.ETOOMANYREQUESTS


def want_authentication(bookie: ScriptedBookie) -> None:
    bookie.status = pb.EUA


def damage_entries(bookie: ScriptedBookie) -> None:
    bookie.entries = {key: packet[:-1] + bytes([packet[-1] ^ 1]) for key, packet in bookie.entries.items()}


def mix_up_entries(bookie: ScriptedBookie) -> None:
    bookie.entries = {
        (ledger, entry): packet(DIGEST, LEDGER, entry + 1, b"another's") for ledger, entry in bookie.entries
    }


FAULTS = {
    stop: BookieUnavailableError,
    keep_silent: BookieUnavailableError,
    hang_up: BookieUnavailableError,
    fail: BookieUnavailableError,
    be_overloaded: BookieUnavailableError,
    want_authentication: BookieAccessError,
    lose_entries: EntryAbsentError,
    damage_entries: DigestMismatchError,
    mix_up_entries: DigestMismatchError,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_another_replica_gives_what_one_does_not(
    scripted: list[ScriptedBookie], make_reader: MakeReader, fault: Callable[[ScriptedBookie], None]
) -> None:
    options = BookieOptions(request_timeout_s=SOON if fault is keep_silent else 60.0, reads_in_flight=20)
    fault(scripted[1])
    assert list(make_reader(options).read()) == EXPECTED


@pytest.mark.parametrize("fault", FAULTS)
def test_where_no_replica_gives_an_entry_the_error_says_what_is_known(
    scripted: list[ScriptedBookie], make_reader: MakeReader, fault: Callable[[ScriptedBookie], None]
) -> None:
    options = BookieOptions(request_timeout_s=SOON if fault is keep_silent else 60.0, reads_in_flight=1)
    # Entry 4 is on the second and third; the first, which has entries 2 and 3 too, is whole.
    for bookie in scripted[1:]:
        bookie.entries = {key: value for key, value in bookie.entries.items() if key[1] >= 4}
    entries = make_reader(options).read(3)
    assert next(entries) == EXPECTED[3]
    for bookie in scripted[1:]:
        fault(bookie)
        bookie.hang_up_after = 0 if fault is hang_up else None
    with pytest.raises(FAULTS[fault], match="entry 4 of ledger 7 cannot be read: ") as caught:
        next(entries)
    assert type(caught.value) is FAULTS[fault]
    assert all(bookie.bookie_id in str(caught.value) for bookie in scripted[1:])


@pytest.mark.parametrize("other", [lose_entries, damage_entries, want_authentication])
def test_an_entry_is_not_absent_or_damaged_while_one_bookie_has_not_answered(
    scripted: list[ScriptedBookie], make_reader: MakeReader, other: Callable[[ScriptedBookie], None]
) -> None:
    stop(scripted[1])
    other(scripted[2])
    with pytest.raises(BookieUnavailableError, match=r"does not answer.*try again"):
        list(make_reader().read(4, 4))


def test_a_bookie_that_does_not_answer_is_asked_last_for_a_while(
    scripted: list[ScriptedBookie], make_reader: MakeReader
) -> None:
    keep_silent(scripted[0])
    reader = make_reader(BookieOptions(request_timeout_s=SOON, reads_in_flight=5))
    assert list(reader.read()) == EXPECTED
    assert scripted[0].connections == 1


def test_answers_that_waited_while_the_caller_was_busy_are_no_silence(
    scripted: list[ScriptedBookie], make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted[1].gate.clear()
    entries = make_reader(BookieOptions(request_timeout_s=60.0, reads_in_flight=9)).read()
    assert next(entries) == EXPECTED[0]
    scripted[1].gate.set()
    eventually(lambda: scripted[1].answered == 3)
    late = time.monotonic() + 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: late)
    assert list(entries) == EXPECTED[1:]
    assert [len(bookie.asked) for bookie in scripted] == [ENTRIES // 3] * 3


def test_a_bookie_that_was_started_again_is_connected_to_again(
    scripted: list[ScriptedBookie], make_reader: MakeReader
) -> None:
    reader = make_reader()
    assert list(reader.read()) == EXPECTED
    for bookie in scripted:
        bookie.drop_connections()
    scripted[2].status = pb.EIO
    assert list(reader.read()) == EXPECTED
    assert [bookie.connections for bookie in scripted] == [2, 2, 2]


OPEN = {"state": LedgerState.OPEN, "last_entry_id": None}


def explicit_note(last_confirmed: int) -> bytes:
    head = LEDGER.to_bytes(8, "big") + last_confirmed.to_bytes(8, "big", signed=True)
    return head + DIGEST.compute(head, b"")


def test_of_an_open_ledger_the_most_advanced_bookie_tells_the_last_confirmed_entry(
    scripted: list[ScriptedBookie], make_reader: MakeReader
) -> None:
    reader = make_reader(**OPEN)
    assert reader.last_confirmed() == -1
    assert list(reader.read()) == []
    scripted[0].last_confirmed = (packet(DIGEST, LEDGER, 30, b"x"), b"")
    scripted[1].last_confirmed = (packet(DIGEST, LEDGER, 31, b"x"), b"")
    assert reader.last_confirmed() == 30
    assert list(reader.read()) == EXPECTED[:31]
    scripted[2].last_confirmed = (b"", explicit_note(33))
    assert reader.last_confirmed() == 33


def test_entries_before_the_last_segment_are_confirmed(scripted: list[ScriptedBookie], make_reader: MakeReader) -> None:
    (segment,) = metadata_of(scripted).segments
    later = dataclasses.replace(segment, first_entry_id=40)
    assert make_reader(**OPEN, segments=(segment, later)).last_confirmed() == 39


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in (lose_entries, mix_up_entries)])
def test_the_last_confirmed_entry_is_told_only_if_enough_bookies_are_heard(
    scripted: list[ScriptedBookie], make_reader: MakeReader, fault: Callable[[ScriptedBookie], None]
) -> None:
    options = BookieOptions(request_timeout_s=SOON if fault is keep_silent else 60.0)
    for bookie in scripted:
        bookie.last_confirmed = (packet(DIGEST, LEDGER, 31, b"x"), b"")

    def break_one(bookie: ScriptedBookie) -> None:
        fault(bookie)
        bookie.hang_up_after = 0 if fault is hang_up else None
        bookie.last_confirmed = (packet(DIGEST, LEDGER, 59, b"x")[:-1] + b"y", b"")

    # Of two copies, both acknowledged, one is on a bookie that is heard.
    break_one(scripted[0])
    assert make_reader(options, **OPEN).last_confirmed() == 30
    break_one(scripted[1])
    with pytest.raises(FAULTS[fault], match="the last confirmed entry of ledger 7 is not known"):
        make_reader(options, **OPEN).last_confirmed()


def test_a_bookie_says_of_each_ledger_whether_it_is_held(
    scripted: list[ScriptedBookie], open_bookies: Callable[[BookieOptions | None], Bookies]
) -> None:
    bookies = open_bookies(None)
    first = Bookie(scripted[0].bookie_id, bookies)
    assert first.holds([LEDGER, 8, LEDGER]) == {LEDGER: True, 8: False}
    scripted[0].status = pb.EUNKNOWNLEDGERSTATE
    assert first.holdings([LEDGER])[LEDGER].presence is Presence.UNKNOWN
    with pytest.raises(BookieUnavailableError, match=r"ledger 7 .*EUNKNOWNLEDGERSTATE"):
        first.holds([LEDGER])
    stop(scripted[0])
    holding = first.holdings([LEDGER])[LEDGER]
    assert (holding.presence, scripted[0].bookie_id in holding.reason) == (Presence.UNKNOWN, True)


@pytest.fixture
def authority(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    made = Authority("test")
    certificate, private_key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(made.certificate)
    private_key.write_bytes(made.private_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private_key)
    return certificate, context


def test_tls_begins_on_the_same_port(
    scripted: list[ScriptedBookie], make_reader: MakeReader, authority: tuple[Path, ssl.SSLContext]
) -> None:
    certificate, context = authority
    trusting = BookieOptions(tls=BookieTls(str(certificate)))
    with pytest.raises(BookieUnavailableError, match="has no TLS"):
        list(make_reader(trusting).read())
    for bookie in scripted:
        bookie.tls = context
    assert list(make_reader(trusting).read()) == EXPECTED
    with pytest.raises(BookieUnavailableError, match="certificate verify failed"):
        list(make_reader(BookieOptions(tls=BookieTls())).read())
    with pytest.raises(ConfigError, match="section bookkeeper"):
        list(make_reader(BookieOptions(tls=BookieTls("/no/such/file"))).read())
