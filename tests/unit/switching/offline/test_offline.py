"""All ledgers are moved while brokers are stopped: in order, from wherever it was killed, and nothing half."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bookwarden.bookie_clusters.offline.checking import TargetUri
from bookwarden.bookie_clusters.offline.ledgers import CopyStatus
from bookwarden.bookie_clusters.offline.record import MOVE_PATH, MovePhase
from bookwarden.bookie_clusters.offline.saved_nodes import read_saved
from bookwarden.bookie_clusters.registry import REGISTRY_PATH, serialize_registry
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.errors import FormatError, RefusedError
from bookwarden.ledgers.custom_metadata import COPY_KEY, OWNER_KEY
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.ledgers.references import Doubt
from servers.switching.ground import registry_of
from unit.switching.mortal import Killed, Mortal
from unit.switching.offline.offline_grounds import CURSOR, ELSEWHERE, PULSAR, TO_A, TO_B, TOPIC, A, B, Ground, Part

OPEN = LedgerState.OPEN


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """With three closed ledgers and an open one, and a broker that stops when it is waited for."""
    return made(tmp_path)


def made(folder: Path) -> Ground:
    ground = Ground(folder)
    ground.ledger(A, 3, kind=PlaceKind.SCHEMA)
    ground.ledger(A, 4)
    ground.ledger(A, 7, kind=PlaceKind.CURSOR)
    ground.ledger(A, 9, state=OPEN)
    # Nobody names it, so it stays.
    ground.ledger(A, 8, kind=None)
    ground.start_broker()
    ground.meanwhile = [lambda: None, ground.stop_brokers]
    return ground


def require_moved(ground: Ground) -> None:
    """Everything that is named is on b, whole, with ids to come above all of a."""
    assert ground.record.phase is MovePhase.DONE
    for ledger_id in ground.named:
        here, there = ground.metadata(A, ledger_id), ground.metadata(B, ledger_id)
        assert here is not None
        assert there is not None
        assert (there.state, there.last_entry_id, there.length) == (LedgerState.CLOSED, here.last_entry_id, here.length)
        assert there.custom[OWNER_KEY] == ground.record.owner.encode()
        assert there.custom[COPY_KEY] == f"{here.last_entry_id}:{here.length}".encode()
    assert ground.metadata(B, 8) is None
    assert ground.ids(B).next_id() >= ground.ids(A).next_id()
    saved = {node.path: node.value for node in read_saved(Path(ground.record.saved), PULSAR)}
    assert (saved[TOPIC], saved[CURSOR]) == (b"topic", b"cursor")


def test_what_is_closed_goes_ahead_and_the_rest_when_no_broker_lives(ground: Ground) -> None:
    plan = ground.plan()
    assert plan.failing == []
    assert plan.brokers == ("br1",)
    assert dict(plan.tally.counts) == {CopyStatus.TO_COPY: 3, CopyStatus.OPEN: 1}
    assert ground.store.get(MOVE_PATH) is None

    moved = ground.carry_out()
    assert (moved.copied, moved.recovered, moved.tally.counts[CopyStatus.SAME]) == (4, 1, 4)
    assert ground.recovered == [9]
    assert ground.metadata(B, 9) is not None
    assert "Stop all brokers now; still there: br1" in ground.said
    assert moved.next_id >= 10
    require_moved(ground)


def test_ahead_leaves_what_is_open_and_does_not_wait(ground: Ground) -> None:
    moved = ground.carry_out(ahead=True)
    assert (moved.copied, moved.recovered, moved.record.phase) == (3, 0, MovePhase.AHEAD)
    assert moved.tally.counts[CopyStatus.OPEN] == 1
    assert ground.recovered == []
    assert ground.ids(B).next_id() >= 15
    assert ground.carry_out().copied == 1
    require_moved(ground)


@pytest.mark.parametrize("before", [True, False])
def test_killed_at_any_write_the_same_command_carries_on(tmp_path: Path, before: bool) -> None:
    points = 0
    while True:
        ground = made(tmp_path / f"{points}")
        whole = ground.store
        ground.store = Mortal(whole, points, before=before)
        try:
            ground.carry_out()
        except Killed:
            pass
        else:
            break
        ground.store = whole
        ground.end_sessions()
        ground.stop_brokers()
        ground.carry_out()
        require_moved(ground)
        points += 1
    assert points > 20


def test_it_is_carried_on_after_it_was_done_as_long_as_brokers_use_the_source(ground: Ground) -> None:
    first = ground.carry_out().record
    ground.ledger(A, 12)
    ground.start_broker()
    ground.meanwhile = [ground.stop_brokers]
    moved = ground.carry_out()
    assert (moved.copied, moved.record.owner) == (1, first.owner)
    require_moved(ground)


def test_a_broker_that_stays_ends_the_wait(ground: Ground) -> None:
    ground.meanwhile = []
    with pytest.raises(RefusedError, match="brokers live, such as br1: stop all of them, then repeat"):
        ground.carry_out()
    assert ground.record.phase is MovePhase.STOPPING
    assert ground.recovered == []


class Visitor:
    """A broker that comes and goes while one ledger is copied; ``writes`` is what it does meanwhile."""

    def __init__(self, ground: Ground, writes: Callable[[], object]) -> None:
        self._ground = ground
        self._writes = writes

    def __call__(self) -> None:
        self._ground.start_broker("br2")
        self._writes()
        self._ground.stop_brokers()


def write(ground: Ground, path: str) -> None:
    node = ground.store.get(path)
    assert node is not None
    ground.store.put(path, node.value, node.version)


def take_an_id(ground: Ground) -> None:
    ground.ids(A).take()


def add_a_topic(ground: Ground) -> None:
    ground.store.create("/managed-ledgers/t/n/persistent/late", b"topic")


def remove_a_schema(ground: Ground) -> None:
    ground.store.delete_many([("/schemas/t/n/orders", 0)])


@pytest.mark.parametrize(
    ("writes", "told"),
    [
        (lambda ground: ground.ledger(A, 12), "the next ledger id below /ledgers (10, now 13)"),
        (lambda ground: write(ground, TOPIC), TOPIC),
        (take_an_id, "the next ledger id below /ledgers (10, now 11)"),
        (add_a_topic, "/managed-ledgers/t/n/persistent/late"),
        (remove_a_schema, "/schemas/t/n/orders"),
    ],
    ids=["a ledger", "a list", "an id", "a topic", "a schema that is gone"],
)
def test_what_a_broker_did_during_the_rest_is_moved_too(
    ground: Ground, writes: Callable[[Ground], object], told: str
) -> None:
    """It is gone before anybody looks who lives: what it acknowledged would be missing on the target."""
    ground.before[9] = Visitor(ground, lambda: writes(ground))
    ground.recover = lambda ledger_id: ground.close(A, ledger_id)  # type: ignore[method-assign]
    moved = ground.carry_out()
    assert f"{told} changed since brokers were stopped: a broker was started meanwhile" in "".join(ground.said)
    assert moved.record.phase is MovePhase.DONE
    require_moved(ground)
    assert moved.next_id >= ground.ids(A).next_id()


def test_where_brokers_come_and_go_all_the_time_nothing_is_moved(ground: Ground) -> None:
    references = ground.read_all

    def visited() -> Iterator[Part]:
        Visitor(ground, lambda: write(ground, CURSOR))()
        return references()

    ground.stop_brokers()
    plan = ground.plan()
    ground.read_all = visited  # type: ignore[method-assign]
    with pytest.raises(RefusedError, match=f"{CURSOR} changed since .* See that nothing starts a broker"):
        ground.move.carry_out(plan, wait_s=5, say=ground.said.append)
    assert sum("The rest begins again" in one for one in ground.said) == 2
    assert ground.record.phase is MovePhase.REST


def test_a_broker_that_comes_back_ends_it_before_anything_is_recovered(ground: Ground) -> None:
    ground.ledger(A, 11, state=OPEN)
    ground.before[9] = ground.start_broker
    with pytest.raises(RefusedError, match="broker br1 was started meanwhile"):
        ground.carry_out()
    assert ground.recovered == [9]
    assert ground.metadata(B, 11) is None
    ground.stop_brokers()
    ground.carry_out()
    require_moved(ground)


def test_a_broker_that_comes_when_all_is_compared_keeps_it_from_being_done(ground: Ground) -> None:
    ground.before[9] = lambda: ground.before.update({9: ground.start_broker})
    with pytest.raises(RefusedError, match="was started meanwhile"):
        ground.carry_out()
    assert ground.record.phase is MovePhase.REST


def test_a_ledger_that_cannot_be_copied_is_told_and_nothing_is_done(ground: Ground) -> None:
    ground.refuses[4] = "entry 3 is damaged on all bookies"
    with pytest.raises(RefusedError, match=r"1 of 4 ledgers .* ledger 4: entry 3 is damaged on all bookies"):
        ground.carry_out()
    assert ground.record.phase is MovePhase.REST
    del ground.refuses[4]
    ground.carry_out()
    require_moved(ground)


def test_a_ledger_that_neither_has_stands_in_the_way_unless_it_was_lost_before(ground: Ground) -> None:
    """If the settings name another cluster than brokers use, all are missing."""
    ground.named[6] = PlaceKind.MANAGED_LEDGER.value
    assert [one.seen for one in ground.plan().failing] == [
        "1 ledgers that brokers want to find, such as 6, are in neither cluster"
    ]
    with pytest.raises(RefusedError, match="--may-miss 1: they stay missing"):
        ground.carry_out()
    # One more while it is copied.
    ground.before[9] = lambda: ground.named.update({5: PlaceKind.CURSOR.value})
    with pytest.raises(RefusedError, match=r"2 ledgers .* in neither cluster, and 1 may be"):
        ground.carry_out(may_miss=1)
    del ground.named[5]
    moved = ground.carry_out(may_miss=1)
    assert (moved.tally.missing, moved.record.phase) == ((6,), MovePhase.DONE)


def test_what_need_not_be_there_may_be_missing(ground: Ground) -> None:
    ground.offloaded = {6}
    assert ground.carry_out().tally.counts[CopyStatus.MISSING] == 1
    require_moved(ground)


def test_bookies_of_the_target_that_do_not_run_are_told(ground: Ground) -> None:
    ground.carry_out()
    ground.start_broker()
    ground.store.delete_many([("/bookies-b/available/b1:3181", 0)])
    told = [one.seen for one in ground.plan().findings if one.check == "ledgers"]
    assert told == ["b1:3181 of the target does not run, and has ledgers that are there already"]


def foreign(ground: Ground) -> None:
    ground.ledger(B, 2, kind=None)


def collision(ground: Ground) -> None:
    """Of an earlier move of ours, with the id of another ledger by now."""
    ground.carry_out(ahead=True)
    owner = ground.record.owner.encode()
    ground.ledger(A, 20, end=(1, 10))
    ground.ledger(B, 20, kind=None, **{OWNER_KEY: owner, COPY_KEY: b"9:1000"})


def on_target_alone(ground: Ground) -> None:
    ground.carry_out()
    owner = ground.record.owner.encode()
    ground.ledger(B, 30, **{OWNER_KEY: owner, COPY_KEY: b"9:1000"})


def registered(ground: Ground) -> None:
    ground.store.create(REGISTRY_PATH, serialize_registry(registry_of()), make_parents=True)


def another_move(ground: Ground) -> None:
    ground.cluster(LedgersRoot(ELSEWHERE, "/c"), "instance-c", ("c1:3181",))
    move = ground.move
    target = TargetUri("zk+hierarchical://elsewhere:2181/c", LedgersRoot(ELSEWHERE, "/c"))
    move.carry_out(move.plan(target, ground.folder), ahead_only=True)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (foreign, "1 ledgers are below /bookies-b in .* that this move did not copy there, such as 2"),
        (collision, "ledger 20: it ends at entry 1 with 10 bytes on the source, and at entry 9"),
        (on_target_alone, "ledger 30: it is on the target, and not on the source"),
        (registered, "2 bookie clusters are registered, .* use `bookie-clusters switch`"),
        (another_move, "a move from /ledgers in .* to /c in .* is under way"),
        (lambda ground: setattr(ground, "place", B), "both have the INSTANCEID instance-bookies-b"),
        (lambda ground: ground.store.create("/bookies-b/cookies/a1:3181", b""), "a1:3181 is in both clusters"),
    ],
)
def test_what_is_no_move_that_can_be_made_is_refused(
    ground: Ground, spoil: Callable[[Ground], object], says: str
) -> None:
    spoil(ground)
    with pytest.raises(RefusedError, match=says):
        ground.plan()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"autoSkipNonRecoverableData": "true"}, "br1 has autoSkipNonRecoverableData=true"),
        ({"managedLedgerDefaultEnsembleSize": "3"}, "target has 2 writable bookies, too few for an ensemble of 3"),
        ({"bookkeeperMetadataServiceUri": TO_B.uri}, "br1 uses the target already"),
        ({"bookkeeperMetadataServiceUri": "bookwarden://h/ledgers"}, "br1 has the jar"),
    ],
)
def test_what_brokers_tell_stands_in_the_way(ground: Ground, settings: dict[str, str], says: str) -> None:
    ground.settings.update(settings)
    plan = ground.plan()
    assert next(one.seen for one in plan.failing).startswith(says)
    with pytest.raises(RefusedError, match=says.split(",")[0]):
        ground.carry_out()
    assert ground.store.get(MOVE_PATH) is None


def test_roots_that_brokers_confuse_are_refused(ground: Ground) -> None:
    place = LedgersRoot(PULSAR, "/ledgers-b")
    ground.cluster(place, "instance-other", ("c1:3181",))
    with pytest.raises(RefusedError, match="one begins with the other"):
        ground.plan(TargetUri("zk+hierarchical://pulsar:2181/ledgers-b", place))


def test_a_target_elsewhere_gets_the_form_that_brokers_understand(ground: Ground) -> None:
    """By the other one they would look into their own store, whatever host it names."""
    place = LedgersRoot(ELSEWHERE, "/ledgers")
    ground.cluster(place, "instance-c", ("c1:3181",))
    plan = ground.plan(TargetUri("metadata-store:zk:elsewhere:2181", place))
    assert plan.sides.broker_uri == "zk+hierarchical://elsewhere:2181/ledgers"


def test_what_could_not_be_read_is_in_the_way_once_brokers_are_stopped(ground: Ground) -> None:
    ground.doubts = [Doubt(CURSOR, PULSAR, "its ledger is open")]
    with pytest.raises(RefusedError, match=f"could not be read whole: {CURSOR}: its ledger is open"):
        ground.carry_out()
    # What was open is closed by then, and nothing is done.
    assert (ground.recovered, ground.record.phase) == ([9], MovePhase.REST)


def test_ids_that_are_given_on_the_source_meanwhile_are_passed(ground: Ground) -> None:
    ground.before[4] = lambda: ground.ledger(A, 5_000)
    moved = ground.carry_out()
    assert moved.next_id > 5_000
    require_moved(ground)


def test_two_commands_do_not_work_at_once(ground: Ground) -> None:
    plan = ground.plan()
    ground.move.node.write(plan.record)
    with ground.move.node.held(), pytest.raises(RefusedError, match="works at it"):
        ground.carry_out()
    ground.carry_out()
    require_moved(ground)


def test_the_way_back_is_the_same_with_both_exchanged(ground: Ground) -> None:
    ground.carry_out()
    ground.place = B
    ground.settings["bookkeeperMetadataServiceUri"] = TO_B.uri
    # Brokers on b: two more ledgers, and one of a is trimmed.
    first = ground.ids(B).next_id()
    ground.ledger(B, first)
    ground.ledger(B, first + 1, state=OPEN)
    del ground.named[4]
    ground.start_broker()
    ground.meanwhile = [ground.stop_brokers]
    plan = ground.plan(TO_A)
    assert plan.failing == []
    assert dict(plan.tally.counts) == {CopyStatus.SAME: 3, CopyStatus.TO_COPY: 1, CopyStatus.OPEN: 1}
    moved = ground.carry_out(TO_A)
    assert (moved.copied, moved.recovered, moved.record.uri) == (2, 1, TO_A.uri)
    assert moved.record.phase is MovePhase.DONE
    assert ground.ids(A).next_id() > first + 1
    # What was there first was never touched.
    original, back = ground.metadata(A, 3), ground.metadata(A, first)
    assert original is not None
    assert back is not None
    assert (COPY_KEY in original.custom, COPY_KEY in back.custom) == (False, True)


def test_a_move_that_is_not_done_can_be_given_up(ground: Ground) -> None:
    with pytest.raises(RefusedError, match="no move is under way"):
        ground.move.abandon()
    another_move(ground)
    assert ground.move.abandon().phase is MovePhase.ABANDONED
    ground.carry_out()
    require_moved(ground)
    with pytest.raises(RefusedError, match="no move is under way"):
        ground.move.abandon()


def test_a_record_that_is_none_is_told(ground: Ground) -> None:
    ground.store.create(MOVE_PATH, b'{"format": 2}', make_parents=True)
    with pytest.raises(FormatError, match="is no record of a move"):
        ground.plan()
