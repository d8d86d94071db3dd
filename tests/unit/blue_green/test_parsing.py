"""Answers of a topic's owner made into what is seen of it; what has another form is trouble, never nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from bookwarden.cluster_migration.sides.observing import ClusterObserver, parse_history, parse_topic
from bookwarden.cluster_migration.sides.policies import retains
from bookwarden.cluster_migration.sides.values import ReplicationStats, SubscriptionStats
from bookwarden.clusters.pulsar.rest.registered_brokers import RegisteredBroker
from bookwarden.errors import FormatError

STATS: dict[str, Any] = {
    "storageSize": 29,
    "msgInCounter": 3,
    "ongoingTxnCount": 1,
    "committedTxnCount": 2,
    "publishers": [{"clientVersion": "Pulsar-CPP-v4.2.0"}],
    "subscriptions": {
        "app": {
            "msgBacklog": 1,
            "consumers": [{"clientVersion": "2.10.6"}, {}],
            "durable": True,
            "replicated": True,
            "subscriptionProperties": {"a": "b"},
            "msgDelayed": 4,
        },
        "reader-1": {"durable": False},
    },
    "replication": {"west": {"replicationBacklog": 7, "connected": False}},
}
INFO: dict[str, Any] = {
    "cursors": {"o+d%2B": {}},
    "terminatedPosition": {"ledgerId": 1, "entryId": -1},
    "properties": {"migrated": "true"},
}


def test_a_topic_is_what_its_owner_and_its_metadata_say() -> None:
    found = parse_topic("t", STATS, "", INFO, "")
    assert found.subscriptions == (
        SubscriptionStats("app", 1, 2, replicated=True, properties={"a": "b"}, delayed=4),
        SubscriptionStats("reader-1", durable=False),
    )
    assert [one.name for one in found.copied] == ["app"]
    assert found.remotes == (ReplicationStats("west", 7, False),)
    assert found.client_versions == {"Pulsar-CPP-v4.2.0", "2.10.6", ""}
    assert (found.size, found.transactions, found.producers) == (29, 3, 1)
    assert (found.terminated, found.migrated, found.cursors) == (True, True, frozenset({"o d+"}))


def test_what_was_not_answered_is_trouble() -> None:
    found = parse_topic("t", None, "500 already migrated", None, "404")
    assert (found.error, found.metadata_error) == ("500 already migrated", "404")


@pytest.mark.parametrize("broken", [{"subscriptions": ["app"]}, {"storageSize": "much"}, {"publishers": 3}])
def test_another_form_is_trouble(broken: dict[str, Any]) -> None:
    assert parse_topic("t", {**STATS, **broken}, "", INFO, "").error


TOPICS, STORED = (
    "org.apache.pulsar.broker.service." + name
    for name in ("SystemTopicBasedTopicPoliciesService", "MetadataStoreTopicPoliciesService")
)
BROKER = RegisteredBroker("b", "4.2.4", {"topicPoliciesServiceClassName": STORED})


def seen_policies(*brokers: RegisteredBroker, events: bool = False, error: str = "") -> tuple[Any, tuple[str, ...]]:
    """Say where the policies of topics were read from, and what was told of them."""

    def stored(_: str) -> Mapping[str, Mapping[str, Any]]:
        if error:
            raise FormatError(error)
        return {"stored": {}}

    sources: Any = SimpleNamespace(
        admin=None, brokers=lambda: list(brokers), topic_policies=lambda _: {"events": {}}, stored_policies=stored
    )
    found, errors = ClusterObserver(sources)._topic_policies("t/n", events=events)
    return next(iter(found), None), errors


def test_policies_of_topics_are_read_from_where_the_brokers_have_them() -> None:
    told = RegisteredBroker("a", "4.2.4", {"topicPoliciesServiceClassName": TOPICS})
    silent = RegisteredBroker("c", None, None, "?")
    older = RegisteredBroker("d", "4.0.8", {"x": "y"})
    assert seen_policies(BROKER, events=True) == ("events", ())
    assert seen_policies(BROKER) == ("stored", ())
    assert seen_policies(told, BROKER) == ("stored", ())
    assert seen_policies(told, silent) == ("stored", ())
    assert seen_policies(told, older) == (None, ())


def test_policies_of_topics_that_cannot_be_known_are_told() -> None:
    assert seen_policies(BROKER, error="field x") == (None, ("t/n: field x",))
    found, (error,) = seen_policies(BROKER._replace(other_configuration="zk:other:2181"))
    assert (found, "zk:other:2181" in error) == ("stored", True)
    found, (error,) = seen_policies(RegisteredBroker("b", None, {"topicPoliciesServiceClassName": "their.Own"}))
    assert (found, "their.Own" in error) == (None, True)


def test_history_is_what_the_slowest_subscription_has_behind_it() -> None:
    ledgers = [
        {"ledgerId": 3, "entries": 10, "size": 100},
        {"ledgerId": 5, "entries": 4, "size": 40},
        {"ledgerId": 8, "entries": 0, "size": 0},
    ]
    stats = {"ledgers": ledgers, "currentLedgerEntries": 6, "currentLedgerSize": 60}

    def history(**cursors: str) -> tuple[int, int]:
        told = {name: {"markDeletePosition": position} for name, position in cursors.items()}
        return parse_history({**stats, "cursors": {**told, "__compaction": {"markDeletePosition": "3:-1"}}}, cursors)

    assert history(app="8:5") == (20, 200)
    assert history(app="8:5", slow="5:1") == (12, 120)
    assert history(app="3:-1") == (0, 0)
    assert parse_history(None, ["app"]) == parse_history({**stats, "cursors": {}}, ["app"]) == (-1, -1)


@pytest.mark.parametrize(
    ("own", "time", "size", "expected"),
    [
        (None, "0", "0", False),
        (None, "-1", "-1", True),
        (None, "60", "0", False),
        ({"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}, "0", "0", True),
        ({"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, "-1", "-1", False),
    ],
)
def test_retention_is_the_policy_or_else_the_brokers(
    own: dict[str, int] | None, time: str, size: str, expected: bool
) -> None:
    brokers = [{"defaultRetentionTimeInMinutes": time, "defaultRetentionSizeInMB": size}]
    assert retains(own, brokers) is expected
    # A broker that does not tell may.
    assert retains(own, [None]) is (own is None or expected)
