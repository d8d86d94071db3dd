"""What namespaces ask of bookies, as Pulsar keeps it."""

from __future__ import annotations

import json

import pytest

from bookwarden.clusters.bookkeeper.bookie_cluster import Members, RunningBookies, read_instance, read_members
from bookwarden.clusters.pulsar.metadata.bookie_placement import (
    Map,
    Placement,
    read_bookie_map,
    read_placements,
)
from bookwarden.errors import FormatError, NoBookieError
from bookwarden.metastore.memory import MemoryStore

PERSISTENCE = {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}
AFFINITY = {"bookkeeperAffinityGroupPrimary": "g1, g2", "bookkeeperAffinityGroupSecondary": "g3"}


def store_of(nodes: dict[str, object]) -> MemoryStore:
    store = MemoryStore()
    for path, value in nodes.items():
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        store.create(path, text, make_parents=True)
    return store


def test_only_namespaces_that_ask_for_something_are_told() -> None:
    store = store_of(
        {
            "/admin/policies/t/plain": {"bundles": {}},
            "/admin/policies/t/large": {"persistence": PERSISTENCE},
            "/admin/policies/t/placed": {"persistence": None},
            "/admin/local-policies/t/placed": {"bookieAffinityGroup": AFFINITY},
            "/admin/local-policies/t/plain": {"bookieAffinityGroup": None, "bundles": {}},
        }
    )
    nothing: frozenset[str] = frozenset()
    assert read_placements(store) == [
        Placement("t/large", (3, 2, 2), nothing, nothing),
        Placement("t/placed", None, frozenset({"g1", "g2"}), frozenset({"g3"})),
    ]


def test_a_store_without_policies_tells_nothing() -> None:
    assert read_placements(MemoryStore()) is None


@pytest.mark.parametrize(
    "value", [b"{", b"[]", {"persistence": {"bookkeeperEnsemble": "many"}}, {"persistence": {"x": 1}}]
)
def test_policies_that_cannot_be_read_are_no_default(value: object) -> None:
    with pytest.raises(FormatError):
        read_placements(store_of({"/admin/policies/t/n": value}))


def test_bookies_by_group_and_rack() -> None:
    groups = {"g1": {"b1:3181": {"rack": "/r1", "hostname": "b1"}, "b2:3181": {"rack": None}}, "default": {}}
    assert read_bookie_map(store_of({"/bookies": groups})) == Map(
        {"g1": frozenset({"b1:3181", "b2:3181"}), "default": frozenset()}, {"b1:3181": "/r1"}
    )
    assert read_bookie_map(MemoryStore()) == Map({}, {})
    with pytest.raises(FormatError):
        read_bookie_map(store_of({"/bookies": {"g1": []}}))


def test_bookies_that_run_and_those_that_are_known() -> None:
    store = store_of(
        {
            "/r/available/b1": b"",
            "/r/available/readonly/b2": b"",
            **dict.fromkeys(("/r/cookies/b1", "/r/cookies/b3"), b""),
            "/r/INSTANCEID": b"5e1f",
        }
    )
    assert read_members(store, "/r") == Members(frozenset({"b1"}), frozenset({"b2"}), frozenset({"b1", "b3"}))
    assert (read_instance(store, "/r"), read_instance(store, "/other")) == ("5e1f", "")


def running(store: MemoryStore, pauses: list[float] | None = None, register: bytes = b"") -> RunningBookies:
    """Return what looks for bookies; with ``register`` one is registered by that name in the second pause."""
    waited = [] if pauses is None else pauses

    def pause(seconds: float) -> None:
        waited.append(seconds)
        if register and len(waited) == 2:
            store.create(f"/r/available/{register.decode()}", b"", make_parents=True)

    await_s = 1000.0 if register else 0.0
    return RunningBookies(lambda: (store, "/r"), lambda: "zk:a, /r", await_s=await_s, pause=pause)


@pytest.mark.parametrize("paths", [[], ["/r/available"], ["/r/available/readonly"], ["/r/cookies/b1"]])
def test_a_bookkeeper_without_a_registered_bookie_is_not_in_service(paths: list[str]) -> None:
    bookies = running(store_of(dict.fromkeys(paths, b"")))
    for ask in (bookies.require, bookies.require_soon):
        with pytest.raises(
            NoBookieError, match="no bookie is registered in /r/available of zk:a, /r: BookKeeper is not"
        ):
            ask()


@pytest.mark.parametrize("path", ["/r/available/b1", "/r/available/readonly/b1"])
def test_one_bookie_that_is_only_read_is_enough(path: str) -> None:
    running(store_of({path: b""})).require()


def test_a_bookie_that_is_started_again_is_waited_for() -> None:
    pauses: list[float] = []
    running(store_of({"/r/available": b""}), pauses, b"b1").require_soon()
    assert len(pauses) == 2
