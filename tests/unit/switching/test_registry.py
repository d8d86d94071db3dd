"""The registry of bookie clusters: what it says, what it refuses, and that only whole ones are believed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.bookie_clusters.registry import (
    BookieCluster,
    Directive,
    Registry,
    Status,
    parse_registry,
    serialize_registry,
)
from bookwarden.errors import FormatError, RefusedError

SAMPLES = Path(__file__).parents[2] / "data" / "bookie_cluster_registry"
BROKEN = sorted((SAMPLES / "broken").glob("*.json"))
VALID = sorted((SAMPLES / "valid").glob("*.json"))

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
NUMBERS = st.integers(0, 2**63 - 1)
TEXTS = st.text(min_size=1, max_size=40)
ROOTS = st.from_regex(r"(/[a-z-]{1,8}){1,3}", fullmatch=True)


@st.composite
def registries(draw: st.DrawFn) -> Registry:
    epoch = draw(NUMBERS)
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    roots = draw(st.lists(ROOTS, min_size=len(names), max_size=len(names), unique=True))
    active = draw(st.sampled_from(names))
    clusters = {
        name: BookieCluster(
            name,
            draw(TEXTS),
            draw(st.none() | TEXTS),
            root,
            draw(TEXTS),
            draw(st.integers(0, epoch)),
            bootstrap=draw(st.booleans()),
            deprecated=name != active and draw(st.booleans()),
            shared=draw(st.booleans()),
            unmarked_below=draw(st.none() | NUMBERS),
        )
        for name, root in zip(names, roots, strict=True)
    }
    directive = draw(st.none() | st.builds(Directive, NAMES, st.just(active), TEXTS, NUMBERS, NUMBERS))
    owner, *former = draw(st.lists(st.from_regex(r"[0-9a-f]{8}", fullmatch=True), min_size=1, max_size=3))
    return Registry(epoch, owner, draw(ROOTS), active, clusters, directive, tuple(former))


def switched() -> Registry:
    return parse_registry((SAMPLES / "valid" / "switched.json").read_bytes())


@given(registries())
def test_what_is_written_is_read_again(registry: Registry) -> None:
    assert parse_registry(serialize_registry(registry)) == registry


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_each_valid_sample_is_read(path: Path) -> None:
    registry = parse_registry(path.read_bytes())
    assert registry.status_of(registry.active) is Status.ACTIVE
    assert [registry.status_of(name) for name in registry.clusters].count(Status.ACTIVE) == 1


def test_one_of_the_first_release_names_no_former_owner_and_closes_no_range() -> None:
    registry = switched()
    assert registry.former_owners == ()
    assert {each.unmarked_below for each in registry.clusters.values()} == {None}
    upgraded = parse_registry((SAMPLES / "valid" / "upgraded.json").read_bytes())
    assert upgraded.former_owners == ("0badc0de", "1badc0de")
    assert {name: each.unmarked_below for name, each in upgraded.clusters.items()} == {"a": None, "b": 0}


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.stem)
def test_no_broken_sample_is_believed(path: Path) -> None:
    with pytest.raises(FormatError, match="no registry of bookie clusters"):
        parse_registry(path.read_bytes())


@given(st.binary(max_size=60) | st.recursive(st.none() | st.text(), st.lists).map(lambda it: json.dumps(it).encode()))
def test_no_bytes_raise_anything_else(value: bytes) -> None:
    with pytest.raises(FormatError):
        parse_registry(value)


def test_the_statuses_are_those_of_the_proposal() -> None:
    registry = switched()
    assert {name: registry.status_of(name) for name in "ab"} == {"a": Status.STANDBY, "b": Status.ACTIVE}
    assert registry.with_deprecated("a", True).status_of("a") is Status.DEPRECATED


def test_a_switch_is_one_new_value_that_says_all_of_it() -> None:
    after = switched().switched("a", "host-2:9", 77)
    assert (after.epoch, after.active) == (4, "a")
    assert after.directive == Directive("b", "a", "host-2:9", 4, 77)
    assert after.status_of("b") is Status.STANDBY


def test_the_active_cluster_is_asked_first_then_the_newest() -> None:
    added = switched().with_cluster(replace(switched().cluster("a"), name="c", ledgers_root="/c", bootstrap=False))
    assert [each.name for each in added.in_reading_order()] == ["b", "c", "a"]
    assert [each.name for each in added.switched("a", "x", 0).in_reading_order()] == ["a", "c", "b"]
    assert added.cluster("c").since == added.epoch == 4


def test_what_no_registry_may_become_is_refused() -> None:
    registry = switched()
    for change in (
        lambda: registry.switched("b", "x", 0),
        lambda: registry.switched("c", "x", 0),
        lambda: registry.with_deprecated("a", True).switched("a", "x", 0),
        lambda: registry.without_cluster("b"),
        lambda: registry.without_cluster("c"),
        lambda: registry.with_deprecated("b", True),
        lambda: registry.with_cluster(registry.cluster("a")),
    ):
        with pytest.raises(RefusedError):
            change()
    assert sorted(registry.without_cluster("a").clusters) == ["b"]
