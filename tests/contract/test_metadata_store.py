"""What every metadata store must do; one table of stores."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from uuid import uuid4

import pytest

from bookwarden.errors import FormatError, LostRaceError, NotFoundError, StoreError, StoreUnavailableError
from bookwarden.ledgers.metadata import Condition, DeleteResult
from bookwarden.metastore.changes import ChangedNodes, ChangeFeed
from bookwarden.metastore.following.flag import PARTICIPANTS_PATH
from bookwarden.metastore.following.store import MigratingStore
from bookwarden.metastore.interface import MetadataStore, Write
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.store_clock import StoreClock
from servers.waiting import eventually

DELETED, ABSENT, LOST_RACE = DeleteResult.DELETED, DeleteResult.ABSENT, DeleteResult.LOST_RACE

# Two sessions on the same nodes: what one does, the other sees.
Pair = tuple[MetadataStore, MetadataStore]


def memory(_: pytest.FixtureRequest) -> Pair:
    store = MemoryStore()
    return store, store


def zookeeper(request: pytest.FixtureRequest) -> Pair:
    make = request.getfixturevalue("connect")
    return make(), make()


def oxia(request: pytest.FixtureRequest) -> Pair:
    make = request.getfixturevalue("connect_oxia")
    return make(), make(batch_size=7, in_flight=2)


def zookeeper_single_reads(request: pytest.FixtureRequest) -> Pair:
    make = request.getfixturevalue("connect")
    return make(multi_read=False), make(batch_size=7, in_flight=2)


def migrating(request: pytest.FixtureRequest) -> Pair:
    """Two participants of migrations, while there is none."""
    make = request.getfixturevalue("connect")
    with suppress(LostRaceError):
        make().create(PARTICIPANTS_PATH, b"", make_parents=True)
    pair = MigratingStore(make()), MigratingStore(make(batch_size=7, in_flight=2))
    for store in pair:
        request.addfinalizer(store.close)
    return pair


FACTORIES: list[Callable[[pytest.FixtureRequest], Pair]] = [memory, zookeeper, zookeeper_single_reads, migrating, oxia]


@pytest.fixture(params=FACTORIES, ids=lambda factory: factory.__name__)
def stores(request: pytest.FixtureRequest) -> Pair:
    pair: Pair = request.param(request)
    return pair


@pytest.fixture
def store(stores: Pair) -> MetadataStore:
    return stores[0]


@pytest.fixture
def root(store: MetadataStore) -> str:
    path = f"/t-{uuid4().hex}"
    store.create(path, b"")
    return path


def fill(store: MetadataStore, root: str, count: int) -> list[str]:
    paths = [f"{root}/n{index:05d}" for index in range(count)]
    for index, path in enumerate(paths):
        store.create(path, str(index).encode())
    return paths


def expected_of(store: MetadataStore, paths: Sequence[str]) -> list[tuple[str, int]]:
    """Pair each path with its version, as delete_many wants them."""
    return [(path, node.version if node else 0) for path, node in zip(paths, store.get_many(paths), strict=True)]


def version_of(store: MetadataStore, path: str) -> int:
    node = store.get(path)
    assert node is not None
    return node.version


def test_reads_come_in_the_order_asked_over_many_requests(store: MetadataStore, root: str) -> None:
    paths = fill(store, root, 1050)
    asked = [*reversed(paths), f"{root}/none", paths[3], paths[3]]
    found = store.get_many(asked)
    values = [None if node is None else node.value for node in found]
    assert values == [*(str(index).encode() for index in reversed(range(1050))), None, b"3", b"3"]


def test_nothing_asked_is_nothing_done(store: MetadataStore) -> None:
    assert store.get_many([]) == []
    assert store.delete_many([]) == []


def test_a_node_has_its_version_and_creation_time(store: MetadataStore, root: str) -> None:
    path = f"{root}/a"
    store.create(path, b"one")
    first = store.get(path)
    assert first is not None
    changed = store.put(path, b"two", first.version)
    second = store.get(path)
    assert second is not None
    assert (first.value, second.value, second.version) == (b"one", b"two", changed)
    assert changed > first.version
    assert first.created_ms == second.created_ms > 1_500_000_000_000
    assert second.modified_ms >= second.created_ms


def test_a_node_tells_whether_it_was_written_since_it_was_made(store: MetadataStore, root: str) -> None:
    store.create(f"{root}/emptied", b"")
    made = store.get(f"{root}/emptied")
    assert made is not None
    assert made.is_as_created
    store.put(f"{root}/emptied", b"", store.put(f"{root}/emptied", b"list", made.version))
    emptied = store.get(f"{root}/emptied")
    assert emptied is not None
    assert (emptied.value, emptied.is_as_created) == (b"", False)
    assert store.delete_many([(f"{root}/emptied", emptied.version)]) == [DeleteResult.DELETED]
    store.create(f"{root}/emptied", b"")
    again = store.get(f"{root}/emptied")
    assert again is not None
    assert again.is_as_created


def test_an_ephemeral_node_says_that_it_is_one(store: MetadataStore, root: str) -> None:
    path = store.ephemeral_sequential(f"{root}/id-", b"")
    found = store.get_many([path, root])
    assert [node and node.ephemeral for node in found] == [True, False]
    sessions = [node.session for node in (*found, store.get(path)) if node is not None]
    # A store in memory has no sessions.
    assert sessions[0] == sessions[2]
    assert sessions[1] is None


def test_children_of_many_nodes_are_listed_in_the_order_asked(store: MetadataStore, root: str) -> None:
    for topic in ("a", "b", "c", "d", "b-2"):
        for cursor in ("y", "x", "ü"):
            store.create(f"{root}/{topic}/{cursor}", b"", make_parents=True)
    store.create(f"{root}/leaf", b"")
    # A neighbour in between is not asked for, and one is not there.
    asked = [f"{root}/{name}" for name in ("d", "absent", "a", "leaf", "c", "a")]
    assert store.list_many(asked) == [["x", "y", "ü"], [], ["x", "y", "ü"], [], ["x", "y", "ü"], ["x", "y", "ü"]]
    assert store.list_many([]) == []
    # What is below the children of a neighbour lies between the children of both.
    store.create(f"{root}/b/x/deep", b"")
    store.create(f"{root}/a/x/deep/er", b"", make_parents=True)
    assert store.list_many(asked)[::2] == [["x", "y", "ü"]] * 3
    assert store.list_many([root, f"{root}/a/x", f"{root}/b/x"]) == [
        ["a", "b", "b-2", "c", "d", "leaf"],
        ["deep"],
        ["deep"],
    ]
    assert root[1:] in store.list_many(["/"])[0]


def test_parents_are_told_from_nodes_without_children(store: MetadataStore, root: str) -> None:
    # So many siblings that a store may ask for all of them at once, and a few.
    for siblings, parents in ((f"{root}/many", range(0, 40, 13)), (f"{root}/few", (1,)), (f"{root}/none", ())):
        store.create(siblings, b"")
        for name in range(40 if siblings != f"{root}/few" else 3):
            store.create(f"{siblings}/{name:02d}", b"")
        for name in parents:
            store.create(f"{siblings}/{name:02d}/child", b"")
        paths = [f"{siblings}/{name}" for name in store.list_children(siblings)]
        assert store.parents_among(paths) == {f"{siblings}/{name:02d}" for name in parents}
    assert store.parents_among([root, f"{root}/absent"]) == {root}
    assert store.parents_among([]) == set()


def test_each_node_of_a_batch_with_stale_versions_has_its_own_result(store: MetadataStore, root: str) -> None:
    paths = fill(store, root, 450)
    asked = expected_of(store, paths)
    for path, version in (asked[0], asked[150], asked[199], asked[449]):
        store.put(path, b"changed", version)
    store.create(f"{paths[77]}/child", b"")
    store.delete_many([asked[155], asked[156]])
    results = store.delete_many(asked)
    expected = {0: LOST_RACE, 77: LOST_RACE, 150: LOST_RACE, 155: ABSENT, 156: ABSENT, 199: LOST_RACE, 449: LOST_RACE}
    assert results == [expected.get(index, DELETED) for index in range(450)]
    left = [index for index, node in enumerate(store.get_many(paths)) if node is not None]
    assert left == [0, 77, 150, 199, 449]


def test_a_pair_that_occurs_twice_is_deleted_once(store: MetadataStore, root: str) -> None:
    first, second, changed = expected_of(store, fill(store, root, 3))
    now = store.put(changed[0], b"", changed[1])
    asked = [first, second, first, changed, (changed[0], now), (f"{root}/none", 4)]
    assert store.delete_many(asked) == [DELETED, DELETED, DELETED, LOST_RACE, DELETED, ABSENT]


def test_a_node_that_was_created_again_keeps_its_results_apart(store: MetadataStore, root: str) -> None:
    (path,) = fill(store, root, 1)
    node = store.get(path)
    assert node is not None
    assert store.delete_many([(path, node.version)], created_ms=[node.created_ms]) == [DELETED]
    assert store.delete_many([(path, node.version)], created_ms=[node.created_ms]) == [ABSENT]


def test_its_time_is_told_whatever_our_own_clock_says(stores: Pair) -> None:
    (one, other), wrong = stores, time.time() + 86_400
    clocks = [StoreClock(store, local=lambda: wrong) for store in (one, other, one)]
    times = [clock() for clock in clocks]
    assert all(later - earlier > -0.01 for earlier, later in pairwise(times))
    # The same machine, so that the store's clock is ours.
    assert all(abs(told - time.time()) < 60 for told in times)


def test_a_delete_demands_that_other_nodes_are_as_they_were_read(stores: Pair, root: str) -> None:
    store, theirs = stores
    holders = [Condition(path, version) for path, version in expected_of(store, fill(store, root, 5))]
    store.create(f"{root}/ledgers", b"")
    doomed = expected_of(store, fill(store, f"{root}/ledgers", 300))
    # Each ledger has the node of one of five holders, every tenth one more, and some have none.
    conditions = [
        () if index % 7 == 6 else (holders[index % 5], *([holders[(index + 1) % 5]] if index % 10 == 0 else []))
        for index in range(300)
    ]
    theirs.put(holders[1].path, b"it names them again", holders[1].version)
    theirs.delete_many([holders[4]])
    # Oxia has no transaction over several keys.
    changed = set() if isinstance(store, OxiaStore) else {holders[1], holders[4]}
    results = theirs.delete_many(doomed, conditions=conditions)
    assert results == [LOST_RACE if changed.intersection(some) else DELETED for some in conditions]
    left = [index for index, node in enumerate(store.get_many([path for path, _ in doomed])) if node is not None]
    assert left == [index for index, some in enumerate(conditions) if changed.intersection(some)]
    # Read again, they go.
    again = [doomed[index] for index in left]
    now = [[Condition(holders[1].path, version_of(store, holders[1].path))] for _ in again]
    assert store.delete_many(again, conditions=now) == [DELETED] * len(again)


def test_paths_may_hold_any_text(store: MetadataStore, root: str) -> None:
    names = ["grüße", "話題", "a%2Fb", "sp ace", "..x"]
    for name in names:
        store.create(f"{root}/{name}", name.encode())
    assert store.list_children(root) == sorted(names)
    values = [node and node.value for node in store.get_many([f"{root}/{name}" for name in names])]
    assert values == [name.encode() for name in names]
    assert store.delete_many(expected_of(store, [f"{root}/{name}" for name in names])) == [DELETED] * len(names)


@pytest.mark.parametrize(
    "path", ["", "a", "/a/", "//a", "/a/../b", "/./a", "/a\0", "/\ud800", "/" + "x" * 40_000], ids=repr
)
def test_what_is_no_path_is_refused_and_harms_no_later_call(store: MetadataStore, root: str, path: str) -> None:
    with pytest.raises(FormatError):
        store.get_many([root, path])
    with pytest.raises(FormatError):
        store.delete_many([(path, 0)])
    assert store.get(root) is not None


@pytest.mark.parametrize("size", [0, 1, 150_000, 900_000])
def test_values_may_be_empty_or_large(store: MetadataStore, root: str, size: int) -> None:
    paths = [f"{root}/v{index}" for index in range(12)]
    for path in paths:
        store.create(path, b"v" * size)
    found = store.get_many(paths)
    assert [node and node.value for node in found] == [b"v" * size] * 12


def test_long_paths_share_no_request_that_is_too_large(store: MetadataStore, root: str) -> None:
    parent = f"{root}/{'p' * 20_000}"
    store.create(parent, b"")
    paths = fill(store, parent, 120)
    assert all(store.get_many(paths))
    assert store.delete_many(expected_of(store, paths)) == [DELETED] * 120


def test_children_are_listed_even_if_their_names_are_larger_than_a_request_may_be(
    store: MetadataStore, root: str
) -> None:
    names = [f"{number:03d}{'n' * 12_000}" for number in range(120)]
    for name in names:
        store.create(f"{root}/{name}", b"")
    assert store.list_children(root) == names


def test_a_put_loses_the_race_to_a_change_and_to_a_delete(store: MetadataStore, root: str) -> None:
    (path,) = fill(store, root, 1)
    first = version_of(store, path)
    second = store.put(path, b"theirs", first)
    with pytest.raises(LostRaceError, match=rf"version .*\b{first}\b"):
        store.put(path, b"ours", first)
    assert store.delete_many([(path, second)]) == [DELETED]
    with pytest.raises(LostRaceError, match="deleted"):
        store.put(path, b"ours", second)


def test_a_node_is_created_once_and_below_its_parent(store: MetadataStore, root: str) -> None:
    with pytest.raises(NotFoundError):
        store.create(f"{root}/a/b/c", b"x")
    store.create(f"{root}/a/b/c", b"x", make_parents=True)
    store.create(f"{root}/a/b/d", b"y", make_parents=True)
    with pytest.raises(LostRaceError):
        store.create(f"{root}/a/b/c", b"z", make_parents=True)
    node = store.get(f"{root}/a/b/c")
    assert node is not None
    assert node.value == b"x"
    assert store.list_children(f"{root}/a/b") == ["c", "d"]
    assert store.list_children(f"{root}/a/b/c") == []
    with pytest.raises(NotFoundError):
        store.list_children(f"{root}/none")


def test_of_many_writes_each_has_its_own_result(store: MetadataStore, root: str) -> None:
    there = fill(store, root, 3)
    first = version_of(store, there[0])
    lost = version_of(store, there[1])
    store.put(there[1], b"another's", lost)
    made = [f"{root}/new/{number % 7}/{number}" for number in range(250)]
    writes = [
        *(Write(path, path.encode(), None) for path in made),
        Write(there[0], b"replaced", first),
        Write(there[1], b"replaced", lost),
        Write(there[2], b"made", None),
        Write(f"{root}/gone", b"replaced", first),
    ]
    results = store.write_many(writes)
    assert [type(result) for result in results[len(made) :]] == [type(None), *[LostRaceError] * 3]
    assert results[: len(made)] == [None] * len(made)
    store.sync()
    found = [node and node.value for node in store.get_many([*made, *there, f"{root}/gone"])]
    assert found == [*(path.encode() for path in made), b"replaced", b"another's", b"2", None]


def test_nodes_are_written_together_or_not_at_all(stores: Pair, root: str) -> None:
    store, theirs = stores
    (there,) = fill(store, root, 1)
    topic, cursor = f"{root}/ns/topic", f"{root}/ns/topic/cursor"
    first = version_of(store, there)
    # A node may come before its parent.
    writes = [Write(cursor, b"position", None), Write(topic, b"list", None), Write(there, b"locator", first)]
    store.write_together(writes)
    store.sync()
    found = [node and node.value for node in theirs.get_many([cursor, topic, there])]
    assert found == [b"position", b"list", b"locator"]
    assert theirs.list_children(f"{root}/ns") == ["topic"]

    def again() -> list[Write]:
        return [Write(path, b"again", version_of(store, path)) for path in (cursor, topic)]

    for lost, match in (
        (Write(there, b"again", first), there),
        (Write(topic, b"again", None), topic),
        (Write(f"{root}/ns/gone", b"again", first), "gone"),
    ):
        with pytest.raises(LostRaceError, match=match):
            store.write_together([again()[0], lost, again()[1]])
    store.sync()
    # Oxia has no transaction over several keys: what comes before the first error is done.
    done = b"again" if isinstance(store, OxiaStore) else b"position"
    assert [node and node.value for node in theirs.get_many([cursor, topic, there])] == [done, b"list", b"locator"]
    store.write_together([])


def test_what_is_written_together_has_a_size_that_the_servers_take(store: MetadataStore, root: str) -> None:
    if isinstance(store, MemoryStore):
        pytest.skip("memory takes any size")
    writes = [Write(f"{root}/large-{number}", b"x" * 400_000, None) for number in range(3)]
    if isinstance(store, OxiaStore):
        store.write_together(writes)
        return
    with pytest.raises(StoreError, match="jute_maxbuffer"):
        store.write_together(writes)
    assert store.list_children(root) == []


def test_a_read_after_sync_sees_what_another_session_wrote(stores: Pair, root: str) -> None:
    ours, theirs = stores
    for round_ in range(20):
        theirs.create(f"{root}/r{round_}", b"")
        ours.sync()
        assert ours.get(f"{root}/r{round_}") is not None


def test_a_watch_reports_creation_change_and_deletion_until_it_ends(stores: Pair, root: str) -> None:
    ours, theirs = stores
    path = f"{root}/watched"
    seen: list[bytes | None] = []
    changed_to: dict[str, threading.Event] = {name: threading.Event() for name in ("made", "changed", "gone")}

    def changed(at: str) -> None:
        node = ours.get(at)
        seen.append(node and node.value)
        name = "gone" if node is None else node.value.decode()
        changed_to[name].set()

    end = ours.watch(path, changed)
    theirs.create(path, b"made")
    assert changed_to["made"].wait(20)
    now = theirs.put(path, b"changed", version_of(theirs, path))
    assert changed_to["changed"].wait(20)
    theirs.delete_many([(path, now)])
    assert changed_to["gone"].wait(20)
    end()
    calls = len(seen)
    theirs.create(path, b"made")
    ours.sync()
    assert len(seen) == calls


def test_ephemeral_nodes_are_numbered_and_end_with_their_session(
    request: pytest.FixtureRequest, stores: Pair, root: str
) -> None:
    ours, theirs = stores
    paths = [ours.ephemeral_sequential(f"{root}/id-", b"me") for _ in range(3)]
    assert paths == sorted(paths)
    assert all(path.startswith(f"{root}/id-") and len(path) == len(f"{root}/id-") + 10 for path in paths)
    assert [node and node.value for node in theirs.get_many(paths)] == [b"me"] * 3
    with pytest.raises(NotFoundError):
        ours.ephemeral_sequential(f"{root}/none/id-", b"")
    ours.close()
    if theirs is not ours:
        eventually(lambda: theirs.get_many(paths) == [None] * 3)


def test_a_closed_store_is_unavailable(store: MetadataStore, root: str) -> None:
    store.close()
    with pytest.raises(StoreUnavailableError):
        store.get(root)
    with pytest.raises(StoreUnavailableError):
        store.delete_many([(root, 0)])
    store.close()


def test_four_threads_share_a_store(store: MetadataStore, root: str) -> None:
    paths = fill(store, root, 800)
    asked = expected_of(store, paths)

    def work(_: int) -> list[DeleteResult]:
        assert len(store.get_many(paths)) == 800
        return store.delete_many(asked)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    for of_one_node in zip(*results, strict=True):
        assert sorted(result.name for result in of_one_node) == ["ABSENT", "ABSENT", "ABSENT", "DELETED"]
    assert store.get_many(paths) == [None] * 800


def taken(feed: ChangeFeed, wanted: set[str]) -> set[str]:
    """Take changes until those wanted were told; what else came is returned too."""
    found: set[str] = set()

    def came() -> bool:
        changed = feed.take()
        assert not changed.gap, changed.gap
        found.update(changed.paths)
        return wanted <= found

    eventually(came)
    return found


def test_what_changes_below_some_nodes_is_collected_until_it_is_taken(stores: Pair, root: str) -> None:
    ours, theirs = stores
    for name in ("a/old", "b", "c"):
        theirs.create(f"{root}/{name}", b"", make_parents=True)
    feed = ours.follow_below([f"{root}/a", f"{root}/b", f"{root}/none"])
    assert feed.take() == ChangedNodes(frozenset())
    theirs.create(f"{root}/c/beside", b"")
    theirs.create(f"{root}/a/t/ns/topic", b"", make_parents=True)
    theirs.put(f"{root}/a/t/ns/topic", b"new", version_of(theirs, f"{root}/a/t/ns/topic"))
    theirs.create(f"{root}/a/t/ns/topic/ü", b"")
    theirs.delete_many([(f"{root}/a/old", version_of(theirs, f"{root}/a/old"))])
    theirs.put(f"{root}/b", b"new", version_of(theirs, f"{root}/b"))
    theirs.create(f"{root}/none/made", b"", make_parents=True)
    told = {f"{root}/a/t/ns/topic", f"{root}/a/t/ns/topic/ü", f"{root}/a/old", f"{root}/none/made"}
    found = taken(feed, told)
    # Nodes above them may be told, and a new child for its parent; nothing beside them is.
    assert not {path for path in found - told if not path.startswith((f"{root}/a/", f"{root}/none/"))}
    theirs.put(f"{root}/a/t/ns/topic", b"newer", version_of(theirs, f"{root}/a/t/ns/topic"))
    assert taken(feed, {f"{root}/a/t/ns/topic"}) == {f"{root}/a/t/ns/topic"}
    feed.close()
    theirs.create(f"{root}/a/late", b"")
    ours.sync()
    assert f"{root}/a/late" not in feed.take().paths
