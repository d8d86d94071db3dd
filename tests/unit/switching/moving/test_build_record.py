"""The record of a build: one process builds, everybody sees how far it is, and what a killed one left is taken over."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest

from bookwarden.bookie_clusters.moving.build import (
    BUILD_PATH,
    Build,
    BuildLease,
    CopyCounts,
    CopyPace,
    FoundBuild,
    find_build,
)
from bookwarden.bookie_clusters.moving.scope import Scope
from bookwarden.errors import FormatError, RefusedError, StoreUnavailableError
from bookwarden.leases import LeaseTimes
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.metastore.memory import MemoryStore
from servers.waiting import eventually
from unit.switching.mortal import Killed

QUICK = LeaseTimes(renew_s=0.01, lease_s=20, given_up_s=0.3)
# So slow that no renewal comes in a test.
SILENT = LeaseTimes(renew_s=60, lease_s=60, given_up_s=0.1)
BUILD = Build("a", "b", Scope(), "/builds/one", 1_700_000_000_000)


def counts(number: int) -> CopyCounts:
    found = CopyCounts()
    for _ in range(number):
        found.add(CopyOutcome.COPIED, "schema", 100)
    return found


def found_in(store: MemoryStore) -> FoundBuild:
    found = find_build(store)
    assert found is not None
    return found


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_a_build_is_seen_while_it_runs_and_after_it(store: MemoryStore) -> None:
    assert find_build(store) is None
    with BuildLease(store, QUICK) as lease:
        lease.take(BUILD)
        half = replace(BUILD, is_listed=True, ledgers=4, size=400, looked_at=2, size_looked_at=200, counts=counts(2))
        half = replace(half, pace=CopyPace(0.5, 50.0))
        lease.tell(half)
        eventually(lambda: found_in(store).newest == half, 30)
        assert (found_in(store).is_free, found_in(store).last_through) == (False, None)
        assert found_in(store).as_json()["underWay"]["ledgersLookedAt"] == 2
        assert found_in(store).as_json()["underWay"]["secondsLeft"] == 4
        whole = replace(half, ended_ms=1_700_000_001_000, looked_at=4, size_looked_at=400, counts=counts(4))
        lease.end(whole)
    found = found_in(store)
    assert (found.newest, found.last_through, found.is_free, found.is_stopped) == (whole, whole, True, False)
    assert found.as_json()["underWay"] is None
    assert found.as_json()["last"]["outcomes"] == [{"outcome": "copied", "kind": "schema", "ledgers": 4, "bytes": 400}]


def test_a_second_build_is_refused_while_one_runs(store: MemoryStore) -> None:
    with BuildLease(store, QUICK) as first:
        first.take(BUILD)
        said: list[str] = []
        with BuildLease(store, QUICK) as second, pytest.raises(RefusedError, match="a build from a to b is under way"):
            second.take(replace(BUILD, source="b", target="a"), said.append)
        assert "A build is carried out by" in said[0]
        first.require()
    assert found_in(store).newest == BUILD


def test_a_build_that_was_stopped_is_taken_over_at_once(store: MemoryStore) -> None:
    with suppress(Killed), BuildLease(store, SILENT) as first:
        first.take(BUILD)
        raise Killed
    assert found_in(store).is_stopped
    with BuildLease(store, SILENT) as second:
        second.take(BUILD)


def test_a_build_whose_machine_is_gone_is_taken_over_after_a_while(store: MemoryStore) -> None:
    dead = BuildLease(store, SILENT)
    dead.take(BUILD)
    with BuildLease(store, SILENT) as second:
        second.take(replace(BUILD, folder="/builds/two"))
        # The first one wakes up again.
        with pytest.raises(RefusedError, match="another process builds now"):
            dead.end(BUILD)
        second.require()
    assert found_in(store).newest.folder == "/builds/two"


def test_the_newest_that_was_through_stays_beside_one_that_was_not(store: MemoryStore) -> None:
    through = replace(BUILD, ended_ms=1_700_000_001_000)
    with BuildLease(store, SILENT) as lease:
        lease.take(BUILD)
        lease.end(through)
    with BuildLease(store, SILENT) as lease:
        lease.take(replace(BUILD, folder="/builds/two"))
    found = found_in(store)
    assert (found.newest.folder, found.last_through, found.is_stopped) == ("/builds/two", through, True)


def test_a_lease_that_could_not_be_renewed_ends_the_build(store: MemoryStore) -> None:
    lease = BuildLease(store, LeaseTimes(renew_s=60, lease_s=0, given_up_s=60))
    lease.take(BUILD)
    with pytest.raises(StoreUnavailableError, match="build --resume"):
        lease.end(BUILD)


def test_a_record_of_an_earlier_release_has_no_pace(store: MemoryStore) -> None:
    fields = replace(BUILD, pace=CopyPace(1.0, 2.0)).as_json()
    assert Build.of_json(fields).pace == CopyPace(1.0, 2.0)
    del fields["ledgersPerSecond"], fields["bytesPerSecond"]
    assert Build.of_json(fields) == BUILD


@pytest.mark.parametrize(
    "damage",
    [
        {"build": None},
        {"build": {}},
        {"build": {**BUILD.as_json(), "source": 1}},
        {"build": {**BUILD.as_json(), "ledgers": "many"}},
        {"build": {**BUILD.as_json(), "ledgersPerSecond": "many"}},
        {"build": {**BUILD.as_json(), "scope": {"kinds": ["none"]}}},
        {"build": {**BUILD.as_json(), "outcomes": [{"outcome": "none"}]}},
        {"last": {}},
        {"holder": None, "isHeld": 1},
    ],
)
def test_what_is_no_record_is_said_to_be_none(store: MemoryStore, damage: dict[str, object]) -> None:
    with BuildLease(store, SILENT) as lease:
        lease.take(BUILD)
    node = store.get(BUILD_PATH)
    assert node is not None
    fields = json.loads(node.value)
    if "holder" in damage:
        del fields["holder"]
    else:
        fields.update(damage)
    store.put(BUILD_PATH, json.dumps(fields).encode(), node.version)
    with pytest.raises(FormatError, match="no record of a build"):
        find_build(store)
