"""Two metadata stores compared: what was edited is found and classed, and nothing else."""

from __future__ import annotations

import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookwarden.errors import StoreUnavailableError
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.paths import ancestors, parent_of
from bookwarden.migration import walking
from bookwarden.migration.comparison import Comparison
from bookwarden.migration.differences import Difference, DifferenceClass, Side
from bookwarden.migration.findings import Findings, Report, VersionRule
from bookwarden.migration.pieces import Pieces

MISSING, EXTRA, BYTES, VERSION = (
    DifferenceClass.MISSING,
    DifferenceClass.EXTRA,
    DifferenceClass.BYTES,
    DifferenceClass.VERSION,
)
LATE_SOURCE, CHANGED = DifferenceClass.LATE_SOURCE, DifferenceClass.CHANGED

SWITCHED_MS = 1_000
BEFORE, AFTER = 500, 1_500

Nodes = dict[str, Versioned]


class Planted:
    """A tree of the nodes that a test plants; ``tells_children`` as ZooKeeper's reads do, otherwise as Oxia's."""

    def __init__(self, nodes: Nodes, *, tells_children: bool = True, answers_at_once: bool = True) -> None:
        self.nodes = nodes
        self.answers_at_once = answers_at_once
        self.calls: Counter[str] = Counter()
        self.largest_batch = 0
        self.most_listed = 0
        self._tells_children = tells_children
        self._children: dict[str, list[str]] = {path: [] for path in ("/", *nodes)}
        for path in sorted(nodes):
            self._children.setdefault(parent_of(path), []).append(path.rpartition("/")[2])

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        self.calls["get_many"] += 1
        self.largest_batch = max(self.largest_batch, len(paths))
        found = [self.nodes.get(path) for path in paths]
        if not self._tells_children:
            return found
        return [
            node and node._replace(children=len(self._children[path])) for path, node in zip(paths, found, strict=True)
        ]

    def list_many(self, paths: Sequence[str]) -> list[list[str]]:
        self.calls["list_many"] += 1
        found = [self._children.get(path, []) for path in paths]
        if len(paths) > 1:
            self.most_listed = max(self.most_listed, sum(map(len, found)))
        return found

    def parents_among(self, paths: Sequence[str]) -> set[str]:
        assert not self._tells_children
        return {path for path in paths if self._children.get(path)}

    def sync(self) -> None:
        self.calls["sync"] += 1


def node(value: bytes = b"v", version: int = 0, *, modified_ms: int = BEFORE, ephemeral: bool = False) -> Versioned:
    return Versioned(value, version, BEFORE, modified_ms, ephemeral=ephemeral)


def tree(*paths: str) -> Nodes:
    """Plant nodes of these paths and above them."""
    return {path: node() for end in paths for path in (*ancestors(end), end)}


def compared(source: Nodes, target: Nodes, **options: Any) -> tuple[Report, dict[str, DifferenceClass]]:
    found: list[Difference] = []
    options = {"switched_ms": SWITCHED_MS, "versions": VersionRule.REQUIRED, "sink": found.extend, **options}
    report = Comparison(Planted(source), Planted(target, tells_children=False), **options).run()
    classes = {one.path: one.kind for one in found}
    assert len(classes) == len(found), "a node was reported twice"
    assert Counter(classes.values()) == +Counter(report.counts)
    return report, classes


def test_a_faithful_copy_has_no_differences() -> None:
    nodes = tree("/ledgers/00/0000/L0001", "/managed-ledgers/t/n/persistent/a/c", "/admin")
    report, classes = compared(nodes, dict(nodes))
    assert classes == {}
    assert (report.compared, report.equal, report.faults, report.versions_kept) == (11, 11, 0, True)


def test_each_kind_of_edit_has_its_class() -> None:
    nodes = tree("/a/gone", "/a/bytes", "/a/version", "/a/changed", "/a/late", "/a/same")
    target = {
        **nodes,
        "/a/bytes": node(b"vx"),
        "/a/version": node(version=1),
        "/a/changed": node(b"w", 1, modified_ms=AFTER),
        "/new": node(),
        "/new-after": node(modified_ms=AFTER),
    }
    del target["/a/gone"]
    source = {**nodes, "/a/late": node(version=3, modified_ms=AFTER)}
    report, classes = compared(source, target)
    assert classes == {
        "/a/gone": MISSING,
        "/a/bytes": BYTES,
        "/a/version": VERSION,
        "/a/changed": CHANGED,
        "/a/late": LATE_SOURCE,
        "/new": EXTRA,
        "/new-after": CHANGED,
    }
    assert (report.compared, report.equal, report.faults) == (9, 2, 5)
    assert report.first[BYTES] == (
        Difference(BYTES, "/a/bytes", Side(0, 0, 1, BEFORE, BEFORE), Side(0, 0, 2, BEFORE, BEFORE), 1),
    )
    assert report.first[MISSING] == (Difference(MISSING, "/a/gone", Side(0, 0, 1, BEFORE, BEFORE), None),)


def test_without_a_switch_no_node_is_late() -> None:
    source = {"/a": node(version=1, modified_ms=AFTER), "/b": node(modified_ms=AFTER)}
    _, classes = compared(source, {"/a": node(b"x", modified_ms=AFTER)}, switched_ms=None)
    assert classes == {"/a": BYTES, "/b": MISSING}


def test_what_is_below_a_node_that_one_side_lacks_is_compared_too() -> None:
    _, classes = compared(tree("/a/b/c"), tree("/x/y/z"))
    assert classes == {
        **dict.fromkeys(("/a", "/a/b", "/a/b/c"), MISSING),
        **dict.fromkeys(("/x", "/x/y", "/x/y/z"), EXTRA),
    }


def test_children_of_a_key_that_is_not_there_itself_are_found() -> None:
    # Oxia lets them be; the source has the node between.
    source = tree("/a/b/c")
    target = {path: one for path, one in source.items() if path != "/a/b"}
    _, classes = compared(source, target)
    assert classes == {"/a/b": MISSING}


def test_a_leaf_of_the_source_that_has_children_in_the_target_is_looked_into() -> None:
    _, classes = compared(tree("/a/b"), tree("/a/b/c"))
    assert classes == {"/a/b/c": EXTRA}


def test_ephemeral_nodes_are_passed_over_in_both_stores() -> None:
    source = {"/a": node(ephemeral=True), "/b": node(), "/c": node(ephemeral=True)}
    target = {"/c": node(b"other", 7, ephemeral=True), "/b": node(), "/d": node(ephemeral=True)}
    report, classes = compared(source, target)
    assert classes == {}
    assert (report.compared, report.ephemeral) == (1, 3)


def test_an_ephemeral_node_is_no_copy_of_a_persistent_one_nor_the_other_way_round() -> None:
    source = {"/a": node(ephemeral=True), "/b": node()}
    target = {"/a": node(), "/b": node(ephemeral=True)}
    assert compared(source, target)[1] == {"/a": EXTRA, "/b": MISSING}


def test_zookeepers_own_nodes_and_those_of_the_migration_are_passed_over() -> None:
    source = tree("/zookeeper/quota", "/pulsar/migration-coordinator/migration", "/zookeeper-like", "/pulsar/other")
    report, classes = compared(
        source,
        tree("/pulsar/migration-coordinator/participants"),
        passed_over=("/zookeeper", "/pulsar/migration-coordinator"),
    )
    assert classes == {"/zookeeper-like": MISSING, "/pulsar/other": MISSING}
    assert report.compared == 3


def test_the_number_of_modifications_is_compared_where_a_store_tells_it() -> None:
    source = {"/a": node(version=3), "/b": node(version=3)}
    target = {"/a": node(version=3)._replace(modifications=3), "/b": node(version=3)._replace(modifications=0)}
    assert compared(source, target)[1] == {"/b": VERSION}


def with_versions_of_its_own(nodes: Nodes) -> Nodes:
    return {
        path: one._replace(version=4_000 + number, modifications=0)
        for number, (path, one) in enumerate(sorted(nodes.items()))
    }


@pytest.mark.parametrize("count", [3, 2_500])
def test_a_store_with_versions_of_its_own_is_told_once_and_not_for_each_node(count: int) -> None:
    source = tree(*(f"/ledgers/{number:05d}" for number in range(count)))
    target = with_versions_of_its_own(source)
    target["/ledgers/00001"] = target["/ledgers/00001"]._replace(value=b"other")
    report, classes = compared(source, target, versions=VersionRule.AUTO)
    assert classes == {"/ledgers/00001": BYTES}
    assert (report.versions_kept, report.other_versions, report.equal) == (False, count, count)


@pytest.mark.parametrize("count", [3, 2_500])
def test_a_version_is_a_difference_where_most_were_kept(count: int) -> None:
    source = tree(*(f"/ledgers/{number:05d}" for number in range(count)))
    edited = {f"/ledgers/{number:05d}": node(version=9) for number in (1, count - 1)}
    report, classes = compared(source, {**source, **edited}, versions=VersionRule.AUTO)
    assert classes == dict.fromkeys(edited, VERSION)
    assert (report.versions_kept, report.other_versions) == (True, 2)


def test_no_more_is_held_back_than_is_needed_to_tell_whether_versions_are_kept() -> None:
    told: list[Difference] = []
    findings = Findings(keep=1, versions=VersionRule.AUTO, sink=told.extend)
    other = Difference(VERSION, "/a", None, None)
    findings.add(999, 0, [other])
    assert told == []
    findings.add(1, 0, [])
    findings.add(1, 0, [other])
    assert told == [other, other]


def test_versions_can_be_required_or_ignored() -> None:
    source = tree("/a/b/c")
    target = with_versions_of_its_own(source)
    assert compared(source, target, versions=VersionRule.REQUIRED)[1] == dict.fromkeys(source, VERSION)
    report, classes = compared(source, target, versions=VersionRule.IGNORED)
    assert classes == {}
    assert (report.versions_kept, report.other_versions, report.equal) == (None, 3, 3)


def test_what_was_written_again_after_the_switch_does_not_tell_whether_versions_are_kept() -> None:
    source = tree(*(f"/a/{number}" for number in range(9)))
    target = {path: one._replace(version=5, modified_ms=AFTER) for path, one in source.items()} | {"/a": node()}
    report, classes = compared(source, {**target, "/a/1": node(version=1)}, versions=VersionRule.AUTO)
    assert classes == {**dict.fromkeys(source.keys() - {"/a", "/a/1"}, CHANGED), "/a/1": VERSION}
    assert report.faults == 1


def test_the_first_differences_of_each_class_are_kept_and_all_are_counted() -> None:
    source = tree(*(f"/a/{number:02d}" for number in range(50)))
    report, classes = compared(source, {"/a": node()}, keep=3)
    assert [one.path for one in report.first[MISSING]] == ["/a/00", "/a/01", "/a/02"]
    assert report.counts[MISSING] == len(classes) == 50


def test_both_stores_are_synchronized_first_and_progress_is_told() -> None:
    source, target = Planted(tree("/a/b")), Planted(tree("/a/b"))
    told: list[int] = []
    Comparison(source, target, progress=told.append).run()
    assert source.calls["sync"] == target.calls["sync"] == 1
    assert told == [1, 2]


def test_many_directories_are_read_in_few_batches_of_a_bounded_size() -> None:
    nodes = tree(*(f"/t/{topic:04d}/c{cursor}" for topic in range(2_000) for cursor in range(2)))
    source = Planted(nodes)
    report = Comparison(source, Planted(dict(nodes))).run()
    assert report.compared == 6_001
    assert source.largest_batch <= 1_000
    # The topics, and their cursors fifty topics at a time.
    assert source.calls["get_many"] <= 2 + 2 + 2_000 // 50
    assert source.calls["list_many"] <= 2 + 2_000 // 50


def test_directories_with_many_children_are_listed_apart() -> None:
    nodes = tree(*(f"/d{number}/{child:03d}" for number in range(6) for child in range(400)))
    target = Planted(dict(nodes))
    report = Comparison(Planted(nodes, tells_children=True), target).run()
    assert report.compared == 6 * 401
    assert target.most_listed <= 1_000


class Endless:
    """A tree of ``width`` to the third leaves, made as it is read."""

    answers_at_once = True

    def __init__(self, width: int) -> None:
        self._names = [f"n{number:04d}" for number in range(width)]

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        return [node()] * len(paths)

    def list_many(self, paths: Sequence[str]) -> list[list[str]]:
        return [self._names if path == "/" or path.count("/") < 3 else [] for path in paths]

    def parents_among(self, paths: Sequence[str]) -> set[str]:
        return {path for path in paths if path.count("/") < 3}

    def sync(self) -> None:
        pass


def test_a_tree_is_never_in_memory_as_a_whole() -> None:
    comparing = Comparison(Endless(40), Endless(40))
    tracemalloc.start()
    try:
        report = comparing.run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.compared == 40 + 40**2 + 40**3
    # The paths alone would take more than five times as much.
    assert peak < 1_000_000


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("most", [1, 30, 400])
def test_a_tree_that_is_compared_in_parts_is_compared_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, most: int, at_once: bool
) -> None:
    monkeypatch.setattr(walking, "_BATCH", 7)
    nodes = tree(*(f"/t/{one:02d}/{two}/c" for one in range(40) for two in range(one % 9)), "/other/flat")
    nodes |= tree(*(f"/flat/{number:03d}" for number in range(300)))
    target = {**nodes, "/flat/200": node(b"damaged"), "/t/10/0/c/x": node()}
    del target["/t/17/4/c"], target["/t/17/4"]
    source, copy = Planted(nodes, answers_at_once=at_once), Planted(target, tells_children=False)
    whole = Comparison(source, copy, versions=VersionRule.REQUIRED).run()
    where, parts, found = walking.WHOLE_TREE, 0, list[Difference]()
    compared = equal = 0
    while where.paths or where.directories:
        part = Comparison(source, copy, versions=VersionRule.REQUIRED, sink=found.extend)
        report, where = part.run_part(where, most)
        # What the threads had begun when enough was compared is compared to its end.
        assert report.compared <= most + 4 * 7
        compared, equal, parts = compared + report.compared, equal + report.equal, parts + 1
    assert (compared, equal) == (whole.compared, whole.equal)
    assert {one.path: one.kind for one in found} == {
        "/flat/200": BYTES,
        "/t/10/0/c/x": EXTRA,
        "/t/17/4": MISSING,
        "/t/17/4/c": MISSING,
    }
    assert parts > whole.compared // (most + 4 * 7)


def test_versions_of_its_own_are_counted_also_where_they_are_not_looked_at_one_by_one() -> None:
    source = tree(*(f"/a/{number:04d}" for number in range(5_000)))
    target = {
        **with_versions_of_its_own(source),
        "/a/4999": node(b"w", 77),
        "/a/4998": node(version=9, modified_ms=AFTER),
    }
    report, classes = compared(source, target, versions=VersionRule.AUTO)
    assert classes == {"/a/4999": BYTES, "/a/4998": CHANGED}
    assert (report.versions_kept, report.other_versions, report.equal) == (False, 4_999, 4_999)


def test_no_more_pieces_wait_than_there_is_room_for() -> None:
    pieces = Pieces(["first"], 2)
    assert [pieces.offer("second"), pieces.offer("third")] == [True, False]
    assert list(pieces.each()) == ["first", "second"]


def test_an_error_of_a_store_ends_the_comparison_in_all_threads() -> None:
    class Failing(Planted):
        def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
            if "/a/5/x" in paths:
                raise StoreUnavailableError("no answer")
            return super().get_many(paths)

    nodes = tree(*(f"/a/{number}/x" for number in range(40)))
    with pytest.raises(StoreUnavailableError, match="no answer"):
        Comparison(Failing(nodes, answers_at_once=False), Planted(nodes)).run()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("compare")]


def test_directories_are_compared_by_several_threads_where_a_store_waits_for_servers() -> None:
    meeting = threading.Barrier(3, timeout=30)

    class Waiting(Planted):
        def list_many(self, paths: Sequence[str]) -> list[list[str]]:
            if paths[0].startswith("/a/"):
                # Nobody passes alone.
                meeting.wait()
            return super().list_many(paths)

    nodes = tree(*(f"/a/{number}/x" for number in range(3)))
    report = Comparison(Waiting(nodes, answers_at_once=False), Planted(dict(nodes))).run()
    assert report.compared == 7


def test_memory_stores_are_compared_with_their_own_reads() -> None:
    source, target = MemoryStore(), MemoryStore()
    for store in (source, target):
        store.create("/a/b/c", b"1", make_parents=True)
        store.create("/z", b"")
    target.put("/a/b/c", b"2", 0)
    source.ephemeral_sequential("/a/id-", b"")
    source.create("/a/b/d", b"", make_parents=True)
    report = Comparison(source, target, versions=VersionRule.REQUIRED).run()
    assert (report.counts[BYTES], report.counts[MISSING], report.faults, report.ephemeral) == (1, 1, 2, 1)


NAMES = st.sampled_from(["a", "b", "c0", "c1", "-", "é"])
PATHS = st.lists(NAMES, min_size=1, max_size=5).map(lambda names: "/" + "/".join(names))
VALUES = st.builds(node, st.binary(max_size=3), st.integers(0, 3))


def remove(path: str, source: Nodes, target: Nodes) -> Mapping[str, DifferenceClass]:
    gone = [other for other in source if f"{other}/".startswith(f"{path}/")]
    for other in gone:
        target.pop(other, None)
    return {other: MISSING for other in gone if not source[other].ephemeral}


def replace(kind: DifferenceClass, change: Callable[[Versioned], Versioned]) -> Callable[..., Any]:
    def edit(path: str, source: Nodes, target: Nodes) -> Mapping[str, DifferenceClass]:
        if source[path].ephemeral:
            return {}
        target[path] = change(source[path])
        return {path: kind}

    return edit


def add(path: str, source: Nodes, target: Nodes) -> Mapping[str, DifferenceClass]:
    if source[path].ephemeral:
        return {}
    target[f"{path}/added"] = node()
    return {f"{path}/added": EXTRA}


def write_late(path: str, source: Nodes, target: Nodes) -> Mapping[str, DifferenceClass]:
    if source[path].ephemeral:
        return {}
    source[path] = source[path]._replace(value=source[path].value + b"!", modified_ms=AFTER)
    return {path: LATE_SOURCE}


EDITS: Mapping[str, Callable[[str, Nodes, Nodes], Mapping[str, DifferenceClass]]] = {
    "remove": remove,
    "bytes": replace(BYTES, lambda one: one._replace(value=one.value + b"?", version=one.version + 1)),
    "version": replace(VERSION, lambda one: one._replace(version=one.version + 1)),
    "modifications": replace(VERSION, lambda one: one._replace(modifications=one.version + 1)),
    "change": replace(CHANGED, lambda one: one._replace(version=one.version + 1, modified_ms=AFTER)),
    "add": add,
    "write late": write_late,
}


def planted(paths: Iterable[str], values: Sequence[Versioned], ephemeral: Sequence[bool]) -> Nodes:
    nodes = {path: values[number % len(values)] for number, path in enumerate(sorted(tree(*paths)))}
    leaves = [path for path in nodes if not any(other.startswith(f"{path}/") for other in nodes)]
    for path, ends in zip(leaves, ephemeral, strict=False):
        nodes[path] = nodes[path]._replace(ephemeral=ends)
    return nodes


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    paths=st.lists(PATHS, min_size=1, max_size=25),
    values=st.lists(VALUES, min_size=1, max_size=5),
    ephemeral=st.lists(st.booleans(), max_size=20),
    edits=st.lists(st.tuples(st.integers(0, 100), st.sampled_from(sorted(EDITS))), max_size=12),
    batch=st.integers(1, 7),
    waiting=st.integers(1, 3),
    at_once=st.booleans(),
    tells=st.tuples(st.booleans(), st.booleans()),
)
def test_the_differences_are_exactly_the_edits(
    monkeypatch: pytest.MonkeyPatch,
    paths: list[str],
    values: list[Versioned],
    ephemeral: list[bool],
    edits: list[tuple[int, str]],
    batch: int,
    waiting: int,
    at_once: bool,
    tells: tuple[bool, bool],
) -> None:
    monkeypatch.setattr(walking, "_BATCH", batch)
    monkeypatch.setattr(walking, "_MOST_WAITING", waiting)
    source = planted(paths, values, ephemeral)
    target = {path: one for path, one in source.items() if not one.ephemeral}
    expected: dict[str, DifferenceClass] = {}
    for place, edit in edits:
        # What lies in the way of an earlier edit would change what that one has to be found as.
        free = [path for path in source if not any(is_near(path, other) for other in expected)]
        if free:
            path = sorted(free)[place % len(free)]
            expected |= EDITS[edit](path, source, target)
    found: list[Difference] = []
    report = Comparison(
        Planted(source, tells_children=tells[0], answers_at_once=at_once),
        Planted(target, tells_children=tells[1]),
        switched_ms=SWITCHED_MS,
        versions=VersionRule.REQUIRED,
        sink=found.extend,
    ).run()
    assert {one.path: one.kind for one in found} == expected
    assert len(found) == len(expected) == sum(report.counts.values())
    assert report.compared == len(
        {path for nodes in (source, target) for path, one in nodes.items() if not one.ephemeral}
    )
    assert report.equal == report.compared - len(expected)
    assert report.ephemeral == sum(one.ephemeral and path not in target for path, one in source.items())


def is_near(path: str, other: str) -> bool:
    return f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/")
