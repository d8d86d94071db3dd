"""Which brokers follow: by the session that a broker and its jar have in common, and nothing else."""

from __future__ import annotations

import json

import pytest

from bookwarden.bookie_clusters.brokers import Broker, FollowerNode, follower_node, matched, read_brokers
from bookwarden.metastore.interface import Versioned
from servers.switching.ground import Ground, follower_value, registry_of

VALUE = follower_value(registry_of())


def node(session: int | None, value: bytes = b"{}", client: str | None = None) -> Versioned:
    return Versioned(value, 0, 0, 5, ephemeral=session is not None, session=session, client=client)


def told(session: int | None, value: bytes = VALUE, client: str | None = None) -> FollowerNode:
    return follower_node("/f", node(session, value, client))


def test_a_broker_is_matched_by_its_session_whatever_it_says_of_itself() -> None:
    ground = Ground()
    ground.broker("b1:8080")
    ground.broker("b2:8080", host="b1", unreachable=["b"])
    ground.broker("b3:8080", jar=False)
    first, second, third = read_brokers(ground.store)
    assert (first.name, first.follows(2), first.follows(3)) == ("b1:8080", True, False)
    assert second.follower is not None
    assert second.follower.unreachable == {"b"}
    assert third == Broker("b3:8080")
    assert not third.follows(0)


def test_without_nodes_there_are_no_brokers() -> None:
    assert read_brokers(Ground().store) == []


def test_a_session_that_is_not_told_matches_nothing() -> None:
    assert matched("b", node(None), [told(None)]).follower is None


def test_where_a_client_has_many_sessions_the_client_counts() -> None:
    followers = [told(4, client="theirs"), told(9, client="ours")]
    assert matched("b", node(4, client="ours"), followers).follower is not None
    # Of another shard, another client may have a session of the same number.
    assert matched("b", node(4, client="ours"), followers[:1]).follower is None
    assert matched("b", node(4, client=""), [told(4, client="")]).follower is None


def test_of_several_nodes_the_one_furthest_behind_counts() -> None:
    followers = [told(1, follower_value(registry_of(epoch=epoch))) for epoch in (5, 3, 4)]
    found = matched("b", node(1), followers).follower
    assert found is not None
    assert (found.epoch, found.reported_ms) == (3, 5)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b'{"epoch": 3}',
        *(
            json.dumps({**json.loads(VALUE), field: wrong}).encode()
            for field, wrong in {
                "epoch": "3",
                "pid": True,
                "instances": [],
                "unreachable": [1],
                "active": None,
                "owner": 7,
            }.items()
        ),
    ],
)
def test_a_node_that_is_no_followers_is_trouble(value: bytes) -> None:
    found = matched("b", node(1), [told(1), told(1, value)])
    assert found.follower is None
    assert "no follower's" in found.error
