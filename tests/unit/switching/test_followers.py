"""Brokers with the jar are known by the session of their node; what cannot be told counts as without."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from bookwarden.bookie_clusters.brokers import STORE_URL, UNMARKED_BELOW, read_brokers, read_followers
from bookwarden.bookie_clusters.registry import FOLLOWERS_PATH
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.wrappers import ForwardingStore
from servers.switching.ground import follower_value, registry_of

BROKERS = "/loadbalance/brokers"


class WithSessions(ForwardingStore):
    """A store whose nodes have the sessions that they were given."""

    def __init__(self, store: MemoryStore, sessions: Mapping[str, int]) -> None:
        super().__init__(store)
        self._sessions = sessions

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        found = zip(paths, super().get_many(paths), strict=True)
        return [None if node is None else node._replace(session=self._sessions.get(path)) for path, node in found]


def store_of(nodes: Mapping[str, bytes], sessions: Mapping[str, int]) -> WithSessions:
    store = MemoryStore()
    for path, value in nodes.items():
        store.create(path, value, make_parents=True)
    return WithSessions(store, sessions)


def brokers_without_jar(store: MetadataStore) -> list[str]:
    return [broker.name for broker in read_brokers(store) if broker.follower is None]


def test_without_nodes_nobody_follows() -> None:
    store = store_of({}, {})
    assert read_followers(store) == []
    assert brokers_without_jar(store) == []


@pytest.mark.parametrize(
    ("fields", "understands"),
    [
        ({}, {UNMARKED_BELOW, STORE_URL}),
        ({"understands": []}, set()),
        ({"understands": ["unmarkedBelow"]}, {UNMARKED_BELOW}),
    ],
)
def test_a_follower_says_what_its_jar_understands(fields: Mapping[str, object], understands: set[str]) -> None:
    store = store_of({f"{FOLLOWERS_PATH}/1": follower_value(registry_of(epoch=3), **fields)}, {})
    (follower,) = read_followers(store)
    assert follower.follower is not None
    assert follower.follower.understands == understands


def test_the_jar_of_the_first_release_understands_nothing_of_it() -> None:
    fields = json.loads(follower_value(registry_of(epoch=3)))
    del fields["understands"]
    (follower,) = read_followers(store_of({f"{FOLLOWERS_PATH}/1": json.dumps(fields).encode()}, {}))
    assert follower.follower is not None
    assert follower.follower.understands == frozenset()


def test_a_broker_follows_if_a_follower_has_its_session() -> None:
    one = f"{FOLLOWERS_PATH}/1"
    store = store_of(
        {one: follower_value(registry_of(epoch=3), host="h"), f"{BROKERS}/x:8080": b"", f"{BROKERS}/y:8080": b""},
        {one: 7, f"{BROKERS}/x:8080": 7, f"{BROKERS}/y:8080": 8},
    )
    (follower,) = read_followers(store)
    assert follower.follower is not None
    assert (follower.path, follower.epoch, follower.follower.host) == (one, 3, "h")
    assert brokers_without_jar(store) == ["y:8080"]


def test_where_the_store_tells_no_session_no_broker_is_known_to_follow() -> None:
    store = store_of({f"{FOLLOWERS_PATH}/1": follower_value(registry_of()), f"{BROKERS}/x:8080": b""}, {})
    assert brokers_without_jar(store) == ["x:8080"]


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"{", b'{"epoch":"3"}', b'{"epoch":true}', b'{"epoch":null}'])
def test_a_follower_that_cannot_be_understood_follows_no_epoch(value: bytes) -> None:
    (follower,) = read_followers(store_of({f"{FOLLOWERS_PATH}/1": value}, {}))
    assert (follower.epoch, follower.follower) == (None, None)
