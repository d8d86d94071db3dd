"""A ledger is copied whole and proven, or it is not copied: nothing in between is ever closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.protocol import ReadEntry
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions, Bookies
from bookwarden.clusters.bookkeeper.copying.copier import LedgerCopier, closed_copy, opened_copy
from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.errors import StoreUnavailableError
from bookwarden.ledgers.custom_metadata import COPY_KEY, OWNER_KEY, expected_custom_metadata, is_unfinished
from bookwarden.ledgers.kinds import SchemaHolder
from bookwarden.ledgers.metadata import LedgerState, Segment
from bookwarden.ledgers.outcomes import CopyOutcome, CopyResult
from bookwarden.metastore.interface import Write
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.pb import bookie_protocol_pb2 as pb
from servers.scripted_bookie import ScriptedBookie
from unit.clusters.copy_site import HOLDER, OWNER, A, B, CopySite, Named, placement_in


@pytest.fixture
def ground() -> Iterator[CopySite]:
    with ExitStack() as stack:
        yield CopySite(stack)


@pytest.mark.parametrize("kind", ["CRC32C", "CRC32", "HMAC", "DUMMY", None])
def test_a_copy_is_the_ledger_under_the_same_id(ground: CopySite, kind: str | None) -> None:
    source = ground.plant(7, kind=kind)
    assert ground.copy(7) == CopyResult(7, CopyOutcome.COPIED, HOLDER, 120, source.length)
    ground.require_same(7, source)


def test_many_ledgers_are_copied_at_once_and_a_second_time_are_there(ground: CopySite) -> None:
    sources = {ledger_id: ground.plant(ledger_id, count=ledger_id % 5) for ledger_id in range(1, 1100)}
    results = list(ground.copier().copy(sources))
    assert sorted((result.ledger_id, result.outcome) for result in results) == [
        (ledger_id, CopyOutcome.COPIED) for ledger_id in sources
    ]
    for ledger_id, source in sources.items():
        ground.require_same(ledger_id, source)
    assert {bookie.bookie_id: len(bookie.entries) > 1000 for bookie in ground.targets} == {
        bookie.bookie_id: True for bookie in ground.targets
    }
    added = sum(len(bookie.added) for bookie in ground.targets)
    assert {result.outcome for result in ground.copier().copy(sources)} == {CopyOutcome.COMPLETE}
    assert sum(len(bookie.added) for bookie in ground.targets) == added


def test_no_more_is_under_way_than_allowed(ground: CopySite) -> None:
    ground.bookies.options = BookieOptions(request_timeout_s=30, bytes_in_flight=300)
    source = ground.plant(7)
    asked: list[int] = []

    def look() -> None:
        # Bookies of the target keep silent as long as more is asked for.
        previous = -1
        while previous != (previous := sum(len(bookie.asked) for bookie in ground.sources)) or not previous:
            time.sleep(0.3)
        asked.append(previous)
        for bookie in ground.targets:
            bookie.gate.set()

    ground.named.before = lambda reading: looking.start() if reading == 1 else None
    looking = threading.Thread(target=look)
    # The first question is whether they know the ledger.
    for bookie in ground.targets:
        bookie.answers_before_gate = 1
        bookie.gate.clear()
    assert ground.copy(7).outcome is CopyOutcome.COPIED
    looking.join()
    ground.require_same(7, source)
    assert 0 < asked[0] <= 300 // (source.length // 120) + 1


def test_limits_change_nothing_else(ground: CopySite) -> None:
    sources = {ledger_id: ground.plant(ledger_id, count=20) for ledger_id in (7, 8)}
    limits = CopyLimits(bytes_per_second=20_000, ledgers_per_second=20)
    assert ground.copy(7, 8, limits=limits).outcome is CopyOutcome.COPIED
    for ledger_id, source in sources.items():
        ground.require_same(ledger_id, source)


def test_what_is_not_closed_not_named_or_not_asked_for_is_left(ground: CopySite) -> None:
    ground.plant(1, state=LedgerState.OPEN, last_entry_id=None, length=0)
    ground.plant(2)
    ground.named.ids.remove(2)
    ground.plant(3, custom={"application": b"DistributedLog"})
    custom = {key: value.encode() for key, value in expected_custom_metadata(SchemaHolder("t/n/s")).items()}
    ground.plant(4, custom=custom)
    ground.plant(5, custom={**ground.plant(6).custom, COPY_KEY: b"unproven"})
    found = {
        result.ledger_id: result.outcome
        for result in ground.copier(wanted=lambda holder: holder == HOLDER).copy([1, 2, 3, 4, 5, 99])
    }
    assert found == {
        1: CopyOutcome.OPEN,
        2: CopyOutcome.GONE,
        3: CopyOutcome.LEFT_OUT,
        4: CopyOutcome.LEFT_OUT,
        5: CopyOutcome.LEFT_OUT,
        99: CopyOutcome.GONE,
    }
    assert all(ground.copied(ledger_id) is None for ledger_id in found)


def test_a_ledger_that_does_not_say_whose_it_is_is_copied_for_the_one_that_names_it(ground: CopySite) -> None:
    sources = {ledger_id: ground.plant(ledger_id, custom={}) for ledger_id in (1, 2, 3)}
    ground.named.ids.remove(2)
    ground.plant(4, custom={"application": b"DistributedLog"})
    told = {1: HOLDER, 2: HOLDER, 4: HOLDER}
    copier = ground.copier(holder_of=told.get, wanted=lambda holder: holder == HOLDER)
    found = {result.ledger_id: (result.outcome, result.holder) for result in copier.copy([1, 2, 3, 4])}
    assert found == {
        1: (CopyOutcome.COPIED, HOLDER),
        # Nothing names it any more, whoever did when all was looked at.
        2: (CopyOutcome.GONE, HOLDER),
        3: (CopyOutcome.LEFT_OUT, None),
        # What says of itself that it is another's stays his.
        4: (CopyOutcome.LEFT_OUT, None),
    }
    ground.require_same(1, sources[1])
    assert ground.copied(2) is ground.copied(3) is ground.copied(4) is None


def test_on_a_shared_source_only_our_own_are_copied(ground: CopySite) -> None:
    ground.plant(7)
    source = ground.plant(8, custom={**ground.plant(9).custom, OWNER_KEY: OWNER.encode()})

    def why_not_ours(ledger_id: int, custom: Mapping[str, bytes]) -> tuple[CopyOutcome, str] | None:
        assert ledger_id in (7, 8)
        return None if OWNER_KEY in custom else (CopyOutcome.LEFT_OUT, "a stranger's")

    left = ground.copy(7, why_not_ours=why_not_ours)
    assert (left.outcome, left.reason, left.holder) == (CopyOutcome.LEFT_OUT, "a stranger's", HOLDER)
    assert ground.copy(8, why_not_ours=why_not_ours).outcome is CopyOutcome.COPIED
    ground.require_same(8, source)


def test_references_in_doubt_defer_a_copy(ground: CopySite) -> None:
    ground.plant(7)
    ground.named.doubt = "its node cannot be understood"
    assert ground.copy(7)[1:] == (CopyOutcome.DEFERRED, HOLDER, 0, 0, "its node cannot be understood")
    assert ground.copied(7) is None


def test_what_is_trimmed_while_it_is_copied_leaves_nothing(ground: CopySite) -> None:
    ground.plant(7)
    ground.named.before = lambda reading: ground.named.ids.clear() if reading == 2 else None
    assert ground.copy(7).outcome is CopyOutcome.GONE
    assert ground.named.readings == 2
    assert ground.copied(7) is None


def test_a_doubt_before_closing_leaves_the_copy_unfinished(ground: CopySite) -> None:
    ground.plant(7)

    def doubt(reading: int) -> None:
        ground.named.doubt = "no answer" if reading == 2 else None

    ground.named.before = doubt
    assert ground.copy(7).outcome is CopyOutcome.DEFERRED
    copy = ground.copied(7)
    assert copy is not None
    assert is_unfinished(copy)


def test_what_is_deleted_everywhere_while_it_is_copied_is_not_resurrected(ground: CopySite) -> None:
    ground.plant(7)

    def delete(reading: int) -> None:
        if reading == 2:
            ground.named.ids.clear()
            for root in (A, B):
                ground.remove(root, 7)

    ground.named.before = delete
    assert ground.copy(7).outcome is CopyOutcome.GONE
    assert ground.copied(7) is None


@pytest.mark.parametrize("offloaded", [False, True])
def test_a_source_that_vanishes_while_something_names_it_is_named_and_gone(ground: CopySite, offloaded: bool) -> None:
    """What was copied of it may be all that is left, unless the list names an offloaded copy in its place."""
    ground.plant(7)

    def vanish(reading: int) -> None:
        if reading == 1:
            ground.remove(A, 7)
            ground.named.offloaded = {7} if offloaded else set()

    ground.named.before = vanish
    for _ in range(2):
        result = ground.copy(7)
        assert (result.outcome, "named and gone" in result.reason) == (
            (CopyOutcome.GONE, False) if offloaded else (CopyOutcome.FAILED, True)
        )
        copy = ground.copied(7)
        assert copy is not None
        assert is_unfinished(copy)


def test_an_unfinished_copy_without_its_source_is_left_to_phase_two(ground: CopySite) -> None:
    """That keeps it in the journal; a doubt about who names it decides nothing."""
    ground.plant(7)
    ground.named.before = lambda reading: ground.remove(A, 7) if reading == 1 else None
    assert ground.copy(7).outcome is CopyOutcome.FAILED
    ground.named.doubt = "no answer"
    assert ground.copy(7)[1:] == (CopyOutcome.DEFERRED, HOLDER, 0, 0, "no answer")
    ground.named.doubt = None
    ground.named.ids.clear()
    result = ground.copy(7)
    assert (result.outcome, "goes by `bookie-clusters cleanup --src-cluster`" in result.reason) == (
        CopyOutcome.GONE,
        True,
    )
    assert ground.copied(7) is not None


def test_what_is_gone_before_its_turn_is_not_begun(ground: CopySite) -> None:
    """The last of many is begun hours after they were read."""
    ground.plant(7, count=20)
    ground.plant(8, count=20)
    ground.plant(9, count=20)

    def meanwhile(reading: int) -> None:
        if reading == 2:
            ground.remove(A, 8)
            ground.named.ids.remove(9)

    ground.named.before = meanwhile
    limits = CopyLimits(ledgers_per_second=0.2)
    found = {result.ledger_id: result.outcome for result in ground.copier(limits=limits).copy([7, 8, 9])}
    assert found == {7: CopyOutcome.COPIED, 8: CopyOutcome.GONE, 9: CopyOutcome.GONE}
    assert ground.copied(8) is ground.copied(9) is None


def test_a_bookie_that_moved_from_the_source_to_the_target_is_copied_from_and_to(ground: CopySite) -> None:
    """Its id is in both ensembles; what it answers is told by what it was asked."""
    moved = ground.targets[0].bookie_id
    source = ground.plant(7, count=60, segments=(Segment(0, (moved, ground.sources[0].bookie_id)),))
    assert ground.copy(7).outcome is CopyOutcome.COPIED
    copy = ground.copied(7)
    assert copy is not None
    assert is_unfinished(copy) is False
    ground.require_same(7, source)


def damage(bookie: ScriptedBookie, ledger_id: int, entry_id: int) -> None:
    packet = bytearray(bookie.entries[ledger_id, entry_id])
    packet[-1] ^= 1
    bookie.entries[ledger_id, entry_id] = bytes(packet)


def test_a_damaged_replica_of_the_source_is_passed_over(ground: CopySite) -> None:
    source = ground.plant(7)
    damage(ground.sources[0], 7, 42)
    assert ground.copy(7).outcome is CopyOutcome.COPIED
    ground.require_same(7, source)


def test_an_entry_that_no_bookie_has_whole_is_named_and_the_rest_is_copied(ground: CopySite) -> None:
    ground.plant(7)
    source = ground.plant(8)
    for bookie in ground.sources:
        damage(bookie, 7, 42)
    results = {result.ledger_id: result for result in ground.copier().copy([7, 8])}
    assert results[7].outcome is CopyOutcome.FAILED
    assert "entry 42 of ledger 7 cannot be read" in results[7].reason
    copy = ground.copied(7)
    assert copy is not None
    assert is_unfinished(copy)
    ground.require_same(8, source)


def test_an_entry_that_is_missing_is_named(ground: CopySite) -> None:
    ground.plant(7)
    for bookie in ground.sources:
        del bookie.entries[7, 42]
    result = ground.copy(7)
    assert (result.outcome, "entry 42 of ledger 7 cannot be read" in result.reason) == (CopyOutcome.FAILED, True)


def test_a_length_that_its_entries_do_not_have_is_told(ground: CopySite) -> None:
    ground.plant(7, length=5)
    result = ground.copy(7)
    assert (result.outcome, "bytes in its entries, and its metadata says 5" in result.reason) == (
        CopyOutcome.FAILED,
        True,
    )


def test_bookies_of_the_source_that_are_down_defer_it(ground: CopySite) -> None:
    ground.plant(7)
    for bookie in ground.sources:
        bookie.close()
    assert ground.copy(7).outcome is CopyOutcome.DEFERRED


@pytest.mark.parametrize("status", [pb.EREADONLY, pb.EIO, pb.EFENCED])
def test_another_bookie_takes_the_place_of_one_that_does_not_take_entries(ground: CopySite, status: int) -> None:
    sources = {ledger_id: ground.plant(ledger_id) for ledger_id in (7, 8, 9)}
    ground.targets[1].add_status = status
    assert {result.outcome for result in ground.copier().copy(sources)} == {CopyOutcome.COPIED}
    for ledger_id, source in sources.items():
        ground.require_same(ledger_id, source)


def test_a_target_without_enough_bookies_defers_everything(ground: CopySite) -> None:
    ground.plant(7)
    for bookie in ground.targets[1:]:
        bookie.add_status = pb.EREADONLY
    result = ground.copy(7)
    assert (result.outcome, "there are 1" in result.reason) == (CopyOutcome.DEFERRED, True)
    assert "is read-only: its disks may be full" in result.reason
    # What was sent to it before its first refusal came back is refused too.
    with ground.bookies.exchange():
        ground.bookies.ask(ground.targets[1].bookie_id, ReadEntry(7, 0))
        while ground.bookies.answers():
            pass
    ground.targets[1].add_status = pb.EOK
    assert ground.copy(7).outcome is CopyOutcome.COPIED


def test_bookies_that_keep_an_earlier_ledger_of_the_id_are_told_to_collect_it_first(ground: CopySite) -> None:
    ground.plant(7)
    for bookie in ground.targets:
        bookie.entries[7, 0] = b"of an earlier life"
    result = ground.copy(7)
    assert (result.outcome, "missing" in result.reason) == (CopyOutcome.DEFERRED, True)
    assert "has entries of an earlier ledger of this id, which its next garbage collection removes" in result.reason
    assert ground.copied(7) is None


class Forgetful(dict[tuple[int, int], bytes]):
    """Entries of a bookie that takes each, and changes one."""

    def __setitem__(self, key: tuple[int, int], packet: bytes) -> None:
        super().__setitem__(key, packet[:-1] + b"?" if key == (7, 42) else packet)


def test_a_bookie_that_gives_back_something_else_is_found_out(ground: CopySite) -> None:
    source = ground.plant(7)
    for bookie in ground.targets[:2]:
        bookie.entries = Forgetful()
    result = ground.copy(7)
    assert (result.outcome, "entry 42, and gave back another" in result.reason) == (CopyOutcome.FAILED, True) or (
        "there are 1" in result.reason
    )
    copy = ground.copied(7)
    assert copy is not None
    assert is_unfinished(copy)
    for bookie in ground.targets[:2]:
        bookie.entries = {}
    assert ground.copy(7).outcome is CopyOutcome.COPIED
    ground.require_same(7, source)


def test_another_bookie_takes_the_place_of_one_that_gives_back_something_else(ground: CopySite) -> None:
    sources = {ledger_id: ground.plant(ledger_id) for ledger_id in (6, 7, 8)}
    ground.targets[1].entries = Forgetful()
    assert {result.outcome for result in ground.copier().copy(sources)} == {CopyOutcome.COPIED}
    for ledger_id, source in sources.items():
        ground.require_same(ledger_id, source)


def test_a_copy_that_is_not_proven_counts_as_unfinished_whoever_closes_it(ground: CopySite) -> None:
    source = ground.plant(7)
    opened = opened_copy(source, ("x:1", "y:1"), OWNER)
    closed = opened._replace(state=LedgerState.CLOSED, last_entry_id=source.last_entry_id, length=source.length)
    assert is_unfinished(opened)
    assert is_unfinished(closed)
    assert not is_unfinished(closed_copy(opened, source))


def test_bookies_with_entries_of_an_earlier_life_are_not_used(ground: CopySite) -> None:
    source = ground.plant(7)
    ground.targets[0].entries[7, 3] = b"of a copy that was deleted"
    assert ground.copy(7).outcome is CopyOutcome.COPIED
    ground.require_same(7, source)
    assert not any(ledger_id == 7 for ledger_id, _ in ground.targets[0].added)
    ground.plant(8)
    for bookie in ground.targets:
        bookie.entries[8, 3] = b"of a copy that was deleted"
    result = ground.copy(8)
    assert result.outcome is CopyOutcome.DEFERRED
    assert ground.copied(8) is None


def test_an_unfinished_copy_is_begun_anew_in_place(ground: CopySite) -> None:
    source = ground.plant(7)
    names = tuple(bookie.bookie_id for bookie in ground.targets[:2])
    half = source._replace(
        state=LedgerState.OPEN,
        segments=(Segment(0, names),),
        last_entry_id=None,
        length=0,
        custom={**source.custom, COPY_KEY: b"unproven"},
    )
    ground.write(B, 7, half)
    for bookie in ground.targets[:2]:
        bookie.entries[7, 0] = b"of the attempt that was killed"
        bookie.fenced.add(7)
    path = ledger_path(B, 7)
    before = ground.store.get(path)
    assert ground.copy(7).outcome is CopyOutcome.COPIED
    ground.require_same(7, source)
    after = ground.store.get(path)
    assert before is not None
    assert after is not None
    assert (after.version, after.created_ms) == (before.version + 2, before.created_ms)


def test_a_copy_that_an_auditor_closed_is_begun_anew(ground: CopySite) -> None:
    source = ground.plant(7)
    names = tuple(bookie.bookie_id for bookie in ground.targets[:2])
    for last in (source.last_entry_id, 5):
        closed = source._replace(
            segments=(Segment(0, names),), last_entry_id=last, custom={**source.custom, COPY_KEY: b"unproven"}
        )
        ground.write(B, 7, closed)
        assert ground.copy(7).outcome is CopyOutcome.COPIED
        ground.require_same(7, source)


@pytest.mark.parametrize(
    "changes",
    [
        {"last_entry_id": 5},
        {"length": 5},
        {"custom": {"application": b"pulsar"}},
        {"state": LedgerState.OPEN},
        {"custom": {"application": b"pulsar", COPY_KEY: b"unproven"}},
    ],
    ids=["shorter", "other length", "another's", "open", "another's copy"],
)
def test_another_ledger_of_the_same_id_is_never_touched(ground: CopySite, changes: dict[str, Any]) -> None:
    source = ground.plant(7)
    other = source._replace(**changes)
    if other.state is LedgerState.OPEN:
        other = other._replace(last_entry_id=None, length=0)
    ground.write(B, 7, other)
    before = ground.store.get(ledger_path(B, 7))
    result = ground.copy(7)
    told = "other custom metadata" if COPY_KEY in other.custom else "the target has another ledger of this id"
    assert (result.outcome, told in result.reason) == (CopyOutcome.FAILED, True)
    assert ground.store.get(ledger_path(B, 7)) == before


def test_the_original_on_the_target_is_the_ledger_itself(ground: CopySite) -> None:
    original = ground.plant(7)
    ground.write(B, 7, original)
    ground.write(A, 7, original._replace(custom={**original.custom, COPY_KEY: f"119:{original.length}".encode()}))
    assert ground.copy(7).outcome is CopyOutcome.COMPLETE


class Contested(MemoryStore):
    """A store in which somebody else writes just before the first closing."""

    def __init__(self) -> None:
        super().__init__()
        self.contest: Callable[[], object] | None = None

    def write_many(self, writes: Sequence[Write]) -> list[Any]:
        if self.contest is not None and any(write.version is not None for write in writes):
            contest, self.contest = self.contest, None
            contest()
        return super().write_many(writes)


def test_of_two_copiers_one_closes_and_the_other_finds_it_done(ground: CopySite) -> None:
    store = Contested()
    for path in (
        f"{root}/available/{each.bookie_id}"
        for root, all_ in ((A, ground.sources), (B, ground.targets))
        for each in all_
    ):
        store.create(path, b"", make_parents=True)
    ground.store = store
    source = ground.plant(7)
    other = Named({7})

    def contest() -> None:
        addresses = BookieAddresses(store, A, lambda: [(store, B)])
        with Bookies(addresses, BookieOptions(request_timeout_s=1.5)) as bookies:
            places = (store, A), (store, B)
            (result,) = LedgerCopier(*places, bookies, other.read, placement_in(store), owner=OWNER).copy([7])
            assert result.outcome is CopyOutcome.COPIED

    store.contest = contest
    assert ground.copy(7).outcome is CopyOutcome.COMPLETE
    ground.require_same(7, source)


def test_a_copy_that_somebody_else_began_anew_meanwhile_is_not_closed(ground: CopySite) -> None:
    source = ground.plant(7)

    class Meddled(dict[tuple[int, int], bytes]):
        """Entries of a bookie at whose first one another copier begins anew."""

        def __setitem__(self, key: tuple[int, int], packet: bytes) -> None:
            if not self:
                opened = ground.copied(7)
                assert opened is not None
                ground.write(B, 7, opened._replace(segments=(Segment(0, opened.segments[0].ensemble[::-1]),)))
            super().__setitem__(key, packet)

    ground.targets[0].entries = Meddled()
    ground.targets[1].entries[7, 0] = b"of an earlier life"
    assert ground.copy(7).outcome is CopyOutcome.COPIED
    ground.require_same(7, source)
    node = ground.store.get(ledger_path(B, 7))
    assert node is not None
    # Made, begun anew by the other one, by ours, and closed.
    assert node.version == 3


def test_a_store_that_does_not_answer_ends_it(ground: CopySite) -> None:
    ground.plant(7)
    ground.store.close()
    with pytest.raises(StoreUnavailableError):
        ground.copy(7)
