"""Which bookies hold an entry, where they listen, and when enough of them have answered."""

from __future__ import annotations

import itertools

import pytest

from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas, is_covered
from bookwarden.errors import BookieUnavailableError, FormatError
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.pb.bookie_service_info_pb2 import BookieServiceInfoFormat


def ledger(write_quorum: int, *segments: Segment) -> LedgerMetadata:
    size = len(segments[0].ensemble)
    return LedgerMetadata(3, LedgerState.CLOSED, size, write_quorum, 1, segments, last_entry_id=99)


def test_entries_go_round_the_ensemble_of_their_segment() -> None:
    replicas = Replicas(ledger(2, Segment(0, ("a", "b", "c")), Segment(10, ("a", "d", "c"))))
    assert [replicas.of(entry) for entry in range(4)] == [("a", "b"), ("b", "c"), ("c", "a"), ("a", "b")]
    # Segments begin anywhere; the entry's own id counts.
    assert [replicas.of(entry) for entry in (9, 10, 11, 12)] == [("a", "b"), ("d", "c"), ("c", "a"), ("a", "d")]
    assert replicas.of(2**62) == [("a", "d"), ("d", "c"), ("c", "a")][2**62 % 3]


def test_an_entry_before_all_segments_is_nowhere() -> None:
    with pytest.raises(FormatError, match="entry 4"):
        Replicas(ledger(1, Segment(5, ("a",)))).of(4)


@pytest.mark.parametrize(("size", "write", "ack"), [(1, 1, 1), (3, 2, 2), (3, 3, 2), (5, 3, 2), (4, 2, 1), (5, 5, 3)])
def test_covered_means_that_no_acknowledged_entry_can_be_unknown(size: int, write: int, ack: int) -> None:
    for known in itertools.product((True, False), repeat=size):
        silent = {index for index, answered in enumerate(known) if not answered}
        write_sets = [{(entry + offset) % size for offset in range(write)} for entry in range(size)]
        hidden = any(
            set(acknowledged) <= silent
            for bookies in write_sets
            for acknowledged in itertools.combinations(bookies, ack)
        )
        assert is_covered(known, write, ack) is not hidden


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    for path in ("/ledgers", "/ledgers/available", "/ledgers/available/readonly"):
        made.create(path, b"")
    return made


def registration(*endpoints: tuple[str, int, str]) -> bytes:
    info = BookieServiceInfoFormat()
    for host, port, protocol in endpoints:
        info.endpoints.add(id="x", host=host, port=port, protocol=protocol)
    return info.SerializeToString()


def test_a_registration_says_where_the_bookie_listens(store: MemoryStore) -> None:
    addresses = BookieAddresses(store, "/ledgers/")
    value = registration(("h", 8000, "http"), ("10.0.0.1", 3181, "bookie-rpc"))
    store.create("/ledgers/available/one", value)
    store.create("/ledgers/available/readonly/two:3181", registration(("10.0.0.2", 3182, "bookie-rpc")))
    store.create("/ledgers/available/old:3181", b"")
    assert addresses.find("one") == ("10.0.0.1", 3181)
    assert addresses.find("two:3181") == ("10.0.0.2", 3182)
    assert addresses.find("old:3181") == ("old", 3181)


def test_an_id_that_is_an_address_needs_no_registration(store: MemoryStore) -> None:
    addresses = BookieAddresses(store, "/ledgers")
    assert addresses.find("host.example:3181") == ("host.example", 3181)
    with pytest.raises(BookieUnavailableError, match="bookie named is not registered below /ledgers/available"):
        addresses.find("named")
    store.close()
    assert addresses.find("host.example:3181") == ("host.example", 3181)


@pytest.mark.parametrize("value", [registration(("h", 8000, "http")), b"\x32\xff", b"nonsense"])
def test_a_registration_that_says_nothing_of_use_is_an_error(store: MemoryStore, value: bytes) -> None:
    store.create("/ledgers/available/one:3181", value)
    with pytest.raises(FormatError, match="bookie one:3181"):
        BookieAddresses(store, "/ledgers").find("one:3181")


def test_a_bookie_of_another_registered_cluster_is_found_where_that_has_its_registrations(store: MemoryStore) -> None:
    elsewhere = MemoryStore()
    elsewhere.create("/bookies-b/available/three", registration(("10.0.0.3", 3183, "bookie-rpc")), make_parents=True)
    store.create("/ledgers/available/one", registration(("10.0.0.1", 3181, "bookie-rpc")))
    addresses = BookieAddresses(store, "/ledgers", lambda: [(elsewhere, "/bookies-b")])
    assert addresses.find("three") == ("10.0.0.3", 3183)
    assert addresses.find("one") == ("10.0.0.1", 3181)
    assert addresses.find("10.0.0.9:3181") == ("10.0.0.9", 3181)
    with pytest.raises(BookieUnavailableError):
        addresses.find("four")
