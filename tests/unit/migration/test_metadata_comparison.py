"""Two metadata stores compared: what was edited is found and classed, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookwarden.metadata_migration import walking
from bookwarden.metadata_migration.comparison import (
    Comparison,
    Difference,
    DifferenceClass,
    DifferenceCounts,
    NodeSummary,
    Report,
    VersionRule,
)
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.memory import MemoryStore
from servers.planted_tree import AFTER, BEFORE, SWITCHED_MS, Nodes, Planted, node, tree

MISSING, EXTRA, BYTES, VERSION = (
    DifferenceClass.MISSING,
    DifferenceClass.EXTRA,
    DifferenceClass.BYTES,
    DifferenceClass.VERSION,
)
LATE_SOURCE, CHANGED = DifferenceClass.LATE_SOURCE, DifferenceClass.CHANGED


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
        Difference(BYTES, "/a/bytes", NodeSummary(0, 0, 1, BEFORE, BEFORE), NodeSummary(0, 0, 2, BEFORE, BEFORE), 1),
    )
    assert report.first[MISSING] == (Difference(MISSING, "/a/gone", NodeSummary(0, 0, 1, BEFORE, BEFORE), None),)


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
    findings = DifferenceCounts(keep=1, versions=VersionRule.AUTO, sink=told.extend)
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
