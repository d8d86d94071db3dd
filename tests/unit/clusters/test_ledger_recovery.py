"""Recovery of open ledgers, over bookies that hold, miss, refuse and keep silent as they are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import bookwarden
from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.digests import Entry, digest_of, master_key_of, pack_entry
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions, Bookies
from bookwarden.clusters.bookkeeper.copying.recovery import LedgerRecovery
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.errors import (
    BookieAccessError,
    BookieUnavailableError,
    BookwardenError,
    DigestMismatchError,
    FormatError,
    LostRaceError,
    NotFoundError,
    StoreUnavailableError,
)
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment, StoredLedger
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.ledger_metadata import decode_ledger_metadata, decode_ledger_password, encode_ledger_metadata
from bookwarden.wire.pb import bookie_protocol_pb2 as pb
from servers.scripted_bookie import ScriptedBookie

LEDGER = 7
PASSWORD = b"a password"
DIGEST = digest_of("HMAC", PASSWORD)
PATH = ledger_path("/ledgers", LEDGER)
CUSTOM = {"component": b"managed-ledger", "x": bytes(range(256))}


class Interrupted(MemoryStore):
    """Fails, or is changed by somebody else, right before the given writes of a ledger's metadata, counted from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[LedgerMetadata] = []
        self.fails_at = 0
        self.somebody: dict[int, bytes] = {}

    def put(self, path: str, value: bytes, version: int) -> int:
        self.writes.append(decode_ledger_metadata(value))
        number = len(self.writes)
        if number == self.fails_at:
            raise StoreUnavailableError("no connection")
        if number in self.somebody:
            super().put(path, self.somebody[number], version)
        return super().put(path, value, version)


class Site:
    """Three bookies with an open ledger of two entries of 5 bytes each that are confirmed, and some more."""

    def __init__(self, scripted: list[ScriptedBookie], write_quorum: int, ack_quorum: int) -> None:
        self.scripted = scripted
        self.store = Interrupted()
        ids = tuple(bookie.bookie_id for bookie in scripted)
        self.metadata = LedgerMetadata(
            3, LedgerState.OPEN, 3, write_quorum, ack_quorum, (Segment(0, ids),), 0, None, "HMAC", 1234, CUSTOM
        )
        self.add(self.metadata)

    def add(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        raw = encode_ledger_metadata(metadata, password=PASSWORD)
        if self.store.get(PATH) is None:
            self.store.create(PATH, raw, make_parents=True)
        else:
            MemoryStore.put(self.store, PATH, raw, self.version)

    @property
    def version(self) -> int:
        node = self.store.get(PATH)
        assert node is not None
        return node.version

    @property
    def raw(self) -> bytes:
        node = self.store.get(PATH)
        assert node is not None
        return node.value

    def has(self, entry_id: int, *bookies: int, confirmed: int | None = None) -> None:
        """Put an entry on these of its bookies, by their place in its write set; on all by default."""
        packet = pack_entry(DIGEST, self.entry(entry_id, confirmed))
        for place, bookie in enumerate(self.write_set(entry_id)):
            if not bookies or place in bookies:
                bookie.entries[LEDGER, entry_id] = packet

    def entry(self, entry_id: int, confirmed: int | None = None) -> Entry:
        payload = b"%05d" % entry_id
        return Entry(LEDGER, entry_id, entry_id - 1 if confirmed is None else confirmed, 5 * (entry_id + 1), payload)

    def write_set(self, entry_id: int) -> list[ScriptedBookie]:
        by_id = {bookie.bookie_id: bookie for bookie in self.scripted}
        return [by_id[bookie_id] for bookie_id in Replicas(self.metadata).of(entry_id)]

    def recover(self, ledger_id: int = LEDGER) -> StoredLedger:
        with Bookies(BookieAddresses(self.store, "/ledgers"), BookieOptions(request_timeout_s=1.5)) as bookies:
            return LedgerRecovery(self.store, "/ledgers", bookies).recover(ledger_id)

    def validate(self, closed: StoredLedger, last: int) -> None:
        """Everything through the last entry is there for its readers, and nothing but the end has changed."""
        expected = self.metadata._replace(state=LedgerState.CLOSED, last_entry_id=last, length=5 * (last + 1))
        assert closed.metadata == decode_ledger_metadata(self.raw) == expected
        assert decode_ledger_password(self.raw) == PASSWORD
        for entry_id in range(last + 1):
            holders = [bookie for bookie in self.write_set(entry_id) if (LEDGER, entry_id) in bookie.entries]
            assert len(holders) >= self.metadata.ack_quorum, entry_id

    def is_untouched(self) -> bool:
        return self.raw == encode_ledger_metadata(self.metadata, password=PASSWORD) and not any(
            bookie.fenced or bookie.added for bookie in self.scripted
        )


@pytest.fixture
def scripted() -> Iterator[list[ScriptedBookie]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ScriptedBookie()) for _ in range(3)]


@pytest.fixture
def site(scripted: list[ScriptedBookie]) -> Site:
    return Site(scripted, 2, 2)


def test_it_is_closed_behind_the_last_entry_that_any_bookie_has(site: Site) -> None:
    """Entry 21 is missing: what was sent after it was never acknowledged."""
    for entry_id in range(20):
        # As a writer with ten entries under way leaves them.
        site.has(entry_id, confirmed=max(-1, entry_id - 10))
    site.has(20, 1, confirmed=9)
    site.has(22, confirmed=9)
    site.validate(site.recover(), 20)
    assert [one.state for one in site.store.writes] == [LedgerState.IN_RECOVERY, LedgerState.CLOSED]
    # Fenced before it tells what is confirmed: nothing is acknowledged after that.
    assert [bookie.fencing[0] for bookie in site.scripted] == [(LEDGER, -1)] * 3
    assert all(bookie.master_keys == {master_key_of(PASSWORD)} for bookie in site.scripted)
    # What is confirmed stays as it is; all behind it goes to all its bookies again, as it was.
    again = {entry_id for bookie in site.scripted for _, entry_id in bookie.added}
    assert again == set(range(10, 21))
    assert {bookie.entries[LEDGER, 20] for bookie in site.write_set(20)} == {pack_entry(DIGEST, site.entry(20, 9))}


def test_a_closed_ledger_and_its_bookies_are_left_alone(site: Site) -> None:
    site.add(site.metadata._replace(state=LedgerState.CLOSED, last_entry_id=3, length=9))
    assert site.recover().metadata == site.metadata
    assert site.is_untouched()
    assert [bookie.asked for bookie in site.scripted] == [[], [], []]


def test_a_ledger_without_entries_ends_before_the_first(site: Site) -> None:
    site.validate(site.recover(), -1)


def test_what_came_before_the_last_segment_is_confirmed(site: Site) -> None:
    """The bookies of the last segment have nothing, or less: its first entry tells."""
    ids = site.metadata.segments[0].ensemble
    site.add(site.metadata._replace(segments=(Segment(0, ids), Segment(4, (ids[1], ids[2], ids[0])))))
    for entry_id in range(4):
        site.has(entry_id, confirmed=-1)
    site.validate(site.recover(), 3)
    assert [bookie.added for bookie in site.scripted] == [[], [], []]


def test_one_that_was_killed_in_recovery_is_recovered_by_the_next(site: Site) -> None:
    for entry_id in range(4):
        site.has(entry_id, 0, confirmed=-1)
    site.store.fails_at = 2
    with pytest.raises(StoreUnavailableError):
        site.recover()
    assert decode_ledger_metadata(site.raw).state is LedgerState.IN_RECOVERY
    before = [dict(bookie.entries) for bookie in site.scripted]
    site.validate(site.recover(), 3)
    assert [bookie.entries for bookie in site.scripted] == before


def test_who_closes_it_first_is_right(site: Site) -> None:
    site.has(0)
    theirs = site.metadata._replace(state=LedgerState.CLOSED, last_entry_id=-1)
    site.store.somebody[2] = encode_ledger_metadata(theirs, password=PASSWORD)
    assert site.recover().metadata == theirs


@pytest.mark.parametrize("number", [1, 2])
def test_one_that_somebody_changes_meanwhile_stays_open(site: Site, number: int) -> None:
    """As a broker does that lives after all, and replaces a bookie."""
    site.has(0)
    ids = site.metadata.segments[0].ensemble
    theirs = encode_ledger_metadata(site.metadata._replace(segments=(Segment(0, ids[::-1]),)), password=PASSWORD)
    site.store.somebody[number] = theirs
    with pytest.raises(LostRaceError, match=r"ledger 7 is not closed.* see that no broker lives"):
        site.recover()
    assert site.raw == theirs
    assert any(bookie.fenced for bookie in site.scripted) == (number == 2)


def test_too_few_bookies_change_nothing(site: Site) -> None:
    site.has(0)
    for bookie in site.scripted[:2]:
        bookie.close()
    with pytest.raises(BookieUnavailableError, match=r"ledger 7 is not closed: too few .* when they are up") as caught:
        site.recover()
    assert all(bookie.bookie_id in str(caught.value) for bookie in site.scripted[:2])
    assert site.is_untouched()


def test_a_bookie_that_is_down_is_asked_once_and_again_only_if_it_is_needed(site: Site) -> None:
    site = Site(site.scripted, 3, 2)
    site.has(0)
    down, other = site.scripted[:2]
    down.hang_up_after = 0
    with Bookies(BookieAddresses(site.store, "/ledgers")) as bookies:
        recovery = LedgerRecovery(site.store, "/ledgers", bookies)
        site.validate(recovery.recover(LEDGER), 0)
        assert down.connections == 1
        down.hang_up_after = None
        other.status = other.add_status = pb.EIO
        site.add(site.metadata)
        site.validate(recovery.recover(LEDGER), 0)
    assert LEDGER in down.fenced


def test_one_that_is_in_recovery_stays_so_while_too_few_bookies_answer(site: Site) -> None:
    """Entry 0 is absent where it should be; whether one that is confirmed comes after it only the others know."""
    site = Site(site.scripted, 1, 1)
    site.add(site.metadata._replace(state=LedgerState.IN_RECOVERY))
    site.scripted[2].close()
    with pytest.raises(BookieUnavailableError, match=rf"too few of its last bookies .*{site.scripted[2].bookie_id}"):
        site.recover()
    assert site.store.writes == []


@pytest.mark.parametrize("trouble", ["down", "silent", "failing"])
def test_a_bookie_that_cannot_have_acknowledged_anything_alone_is_not_needed(site: Site, trouble: str) -> None:
    """Write quorum 3, acknowledged by 2: of entry 2 nobody tells, and one bookie alone cannot have acknowledged it."""
    site = Site(site.scripted, 3, 2)
    site.has(0, 0, 1, confirmed=-1)
    site.has(1, 0, confirmed=-1)
    bookie = site.scripted[2]
    if trouble == "down":
        bookie.close()
    elif trouble == "silent":
        bookie.silent = True
    else:
        bookie.status = bookie.add_status = pb.EIO
    site.validate(site.recover(), 1)


def test_an_entry_of_which_nobody_knows_whether_it_was_acknowledged_keeps_the_ledger_open(site: Site) -> None:
    """Write quorum 3, acknowledged by 2: one bookie has no entry 1, and two fail once they are fenced."""
    site = Site(site.scripted, 3, 2)
    site.has(0)
    names = sorted(bookie.bookie_id for bookie in site.scripted[1:])
    for bookie in site.scripted[1:]:
        # Its last entry can be read; what comes next is damaged.
        bookie.entries[LEDGER, 0] = pack_entry(DIGEST, site.entry(0))
        bookie.damaged.add((LEDGER, 1))
    with pytest.raises(
        DigestMismatchError, match=rf"whether there is an entry 1: bookie {names[0]}.*bookie {names[1]}"
    ):
        site.recover()
    assert decode_ledger_metadata(site.raw).state is LedgerState.IN_RECOVERY
    for bookie in site.scripted[1:]:
        bookie.damaged.clear()
    site.validate(site.recover(), 0)


def test_an_entry_that_too_few_take_back_keeps_the_ledger_open(site: Site) -> None:
    site.has(0)
    site.scripted[1].add_status = pb.EIO
    with pytest.raises(BookieUnavailableError, match=rf"1 bookies took entry 0 .*{site.scripted[1].bookie_id}"):
        site.recover()
    assert decode_ledger_metadata(site.raw).state is LedgerState.IN_RECOVERY
    site.scripted[1].add_status = pb.EOK
    site.validate(site.recover(), 0)


def test_a_read_only_bookie_takes_an_entry_back(site: Site) -> None:
    """As one whose disk is full: it keeps room for that."""
    site.has(0, 0)
    for bookie in site.scripted:
        bookie.read_only = True
    site.validate(site.recover(), 0)


def test_a_password_that_is_not_the_ledgers_is_told(site: Site) -> None:
    site.has(0)
    for bookie in site.scripted:
        bookie.refuses_fencing = True
    with pytest.raises(BookieAccessError, match="another password"):
        site.recover()
    assert decode_ledger_metadata(site.raw).state is LedgerState.IN_RECOVERY


@pytest.mark.parametrize(
    ("raw", "kind", "says"),
    [
        (None, NotFoundError, "no ledger 8"),
        (b"no metadata", FormatError, "ledger 8 is not recovered"),
        (b"BookieMetadataFormatVersion\t1\n1\n1\n0\n0\t127.0.0.1:1\n", FormatError, "another version than 3"),
    ],
)
def test_metadata_that_cannot_be_changed_is_told(
    site: Site, raw: bytes | None, kind: type[BookwardenError], says: str
) -> None:
    if raw is not None:
        site.store.create(ledger_path("/ledgers", 8), raw, make_parents=True)
    with pytest.raises(kind, match=says):
        site.recover(8)
    assert site.store.writes == []


def test_nothing_but_recovery_can_fence() -> None:
    sources = Path(bookwarden.__file__).parent
    naming = {
        str(path.relative_to(sources)) for path in sources.rglob("*.py") if "FencingRead" in path.read_text("utf-8")
    }
    assert naming == {
        "clusters/bookkeeper/bookies/protocol.py",
        "clusters/bookkeeper/copying/recovery.py",
    }
