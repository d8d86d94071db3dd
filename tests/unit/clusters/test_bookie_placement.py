"""What namespaces ask of bookies, as Pulsar keeps it."""

from __future__ import annotations

import json

import pytest

from bookwarden.clusters.bookkeeper.members import Members, read_instance, read_members
from bookwarden.clusters.pulsar.metadata.bookie_placement import (
    Map,
    Placement,
    read_bookie_map,
    read_placements,
)
from bookwarden.errors import FormatError
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
