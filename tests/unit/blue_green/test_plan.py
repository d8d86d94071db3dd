"""The plan of `prepare`: what green lacks and nothing else, and blue as it was before it was held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bookwarden.cluster_migration.preparing.plan import PreparationAction, Side, plan
from bookwarden.cluster_migration.sides.values import BrokerInfo, Observations, SchemaInfo, SubscriptionStats
from unit.blue_green import seen as clusters
from unit.blue_green.seen import (
    HELD,
    NAME,
    PARTED,
    PARTS,
    SINGLE,
    namespace,
    policies,
    ready,
    side,
    topic,
    with_blue,
    with_green,
    with_topic,
)

INACTIVE, CREATION = "inactiveTopicPolicies", "autoTopicCreation"
DELETES = {"deleteWhileInactive": True, "inactiveTopicDeleteMode": "x", "maxInactiveDurationSeconds": 60}


def steps(seen: Observations, originals: Any = None) -> list[tuple[str, str, str]]:
    return [(one.action.value, one.target, one.key) for one in plan(seen, originals or {}).steps]


def test_nothing_is_planned_where_nothing_is_missing() -> None:
    found = plan(ready(), {})
    assert (found.steps, found.manual) == ((), ())


def test_a_green_without_anything_gets_all_in_the_order_of_need() -> None:
    seen = ready(green=side("green", tenants={}, namespaces={}))
    assert steps(seen) == [
        ("tenant", "shop", ""),
        ("namespace", NAME, ""),
        ("topic", PARTED, ""),
        ("topic", SINGLE, ""),
        ("schema", SINGLE, "0"),
        ("policy of topic", SINGLE, "maxConsumers"),
        ("policy of topic", SINGLE, "replication"),
        *(("subscription", part, "app") for part in PARTS),
        ("subscription", SINGLE, "app"),
    ]
    found = plan(seen, {}).steps
    assert found[0].value == {"adminRoles": ["boss"], "allowedClusters": ["green"]}
    assert found[1].value["replication_clusters"] == ["green"]
    assert found[1].value["topicDispatchRate"] == {"green": {"dispatchThrottlingRateInMsg": 5}}
    assert found[2].value == 2
    assert found[3].value is None
    assert found[6].value == ["green"]
    assert {one.side for one in found} == {Side.GREEN}


def test_flags_and_places_of_offloaded_copies_are_not_copied() -> None:
    own = policies("blue", migrated=True, deleted=False, offload_policies={"secret": "x"}, offload_threshold=7)
    seen = ready(
        blue=side("blue", namespaces={NAME: namespace("blue", policies=own)}), green=side("green", namespaces={})
    )
    made = next(one for one in plan(seen, {}).steps if one.action is PreparationAction.NAMESPACE)
    assert not {"migrated", "deleted", "offload_policies", "offload_threshold"} & set(made.value)


def test_green_is_made_as_blue_was_before_it_was_held() -> None:
    """Blue's policies of now are those of the migration; the journal has the others."""
    seen = ready(green=side("green", namespaces={}))
    originals = {(NAME, INACTIVE): DELETES, (NAME, CREATION): None}
    found = {one.key or one.action.value: one for one in plan(seen, originals).steps}
    assert found["namespace"].value["inactive_topic_policies"] == DELETES
    assert found["namespace"].value["autoTopicCreationOverride"] is None
    assert (found[INACTIVE].value, found[INACTIVE].before) == (HELD, DELETES)


def test_what_green_has_otherwise_is_left() -> None:
    theirs = namespace(
        "green",
        policies=policies("green", message_ttl_in_seconds=5, auth_policies={"namespace_auth": {"reader": ["produce"]}}),
        partitioned={PARTED: 4},
        topics={
            name: topic(name, subscriptions=(SubscriptionStats("app", properties={"a": "b"}), SubscriptionStats("own")))
            for name in (SINGLE, *PARTS, f"{PARTED}-partition-2", f"{PARTED}-partition-3")
        },
        schemas={SINGLE: (clusters.SCHEMA, SchemaInfo("JSON", "{}"))},
        topic_policies={SINGLE: {"maxConsumerPerTopic": 1, "replicationClusters": ["green"], "maxMessageSize": 7}},
    )
    assert steps(ready(green=side("green", namespaces={NAME: theirs}))) == []


def test_what_is_missing_of_a_namespace_is_set_one_by_one() -> None:
    theirs = policies("green", message_ttl_in_seconds=None, topicDispatchRate={}, auth_policies={})
    assert steps(with_green(policies=theirs)) == [
        ("policy", NAME, "dispatchRate"),
        ("policy", NAME, "messageTTL"),
        ("rights", NAME, "reader"),
    ]


def test_partitions_and_their_subscriptions_are_added() -> None:
    seen = with_green(partitioned={PARTED: 1}, topics={name: topic(name) for name in (SINGLE, PARTS[0])})
    assert steps(seen) == [("partitions", PARTED, ""), ("subscription", PARTS[1], "app")]
    assert plan(seen, {}).steps[0].before == 1


def test_each_partition_of_green_gets_the_subscriptions() -> None:
    """Also those beyond blue's: a message sent there before its consumer looks would be lost to it."""
    extra = f"{PARTED}-partition-2"
    topics = {**namespace("green").topics, extra: topic(extra, subscriptions=(), cursors=frozenset())}
    assert steps(with_green(partitioned={PARTED: 3}, topics=topics)) == [("subscription", extra, "app")]


def test_subscriptions_of_brokers_and_readers_stay_away() -> None:
    own = ("__compaction", "pulsar.dedup", "pulsar.repl.west")
    found = [SubscriptionStats(name) for name in own] + [SubscriptionStats("reader-1", durable=False)]
    assert steps(with_topic(subscriptions=tuple(found))) == []


def test_schemas_follow_in_their_order_or_not_at_all() -> None:
    second, third = SchemaInfo("AVRO", "2"), SchemaInfo("AVRO", "3", {"k": "v"})
    ours = {SINGLE: (clusters.SCHEMA, second, third)}
    seen = with_blue(schemas=ours)
    assert steps(seen) == [("schema", SINGLE, "1"), ("schema", SINGLE, "2")]
    assert plan(seen, {}).steps[1].value == {"type": "AVRO", "schema": "3", "properties": {"k": "v"}}
    other = replace(seen, green=side("green", namespaces={NAME: namespace("green", schemas={SINGLE: (third,)})}))
    found = plan(other, {})
    assert found.steps == ()
    assert [one.seen for one in found.manual] == [f"green has other schemas of {SINGLE}, or in another order"]


def test_a_topic_of_another_kind_is_told_and_not_touched() -> None:
    single = with_green(partitioned={}, topics={SINGLE: topic(SINGLE), PARTS[0]: topic(PARTS[0])})
    found = plan(single, {})
    assert found.steps == ()
    assert PARTED in found.manual[0].seen


def test_a_cluster_that_green_does_not_know_keeps_the_namespace_from_being_made() -> None:
    west = policies("blue", replication_clusters=["blue", "west"])
    found = plan(with_blue(policies=west), {})
    assert found.steps == ()
    assert "west" in found.manual[0].seen


def test_what_would_begin_to_be_replicated_to_green_is_not_made_there() -> None:
    both = policies("blue", replication_clusters=["blue", "green"])
    blue = side("blue", namespaces={NAME: namespace("blue", policies=both)})
    found = plan(ready(blue=blue, green=side("green", namespaces={})), {})
    assert found.steps == ()
    assert "replicated to green" in found.manual[0].seen
    own = {SINGLE: {"replicationClusters": ["blue", "green"]}}
    theirs = namespace("green", topics={name: topic(name) for name in PARTS}, topic_policies={}, schemas={})
    green = side("green", namespaces={NAME: theirs})
    found = plan(ready(blue=side("blue", namespaces={NAME: namespace("blue", topic_policies=own)}), green=green), {})
    assert found.steps == ()
    assert SINGLE in found.manual[0].seen


def test_a_name_that_blue_does_not_have_is_told() -> None:
    found = plan(ready(scope=(NAME, "shop/ordres")), {})
    assert found.steps == ()
    assert [one.namespace for one in found.manual] == ["shop/ordres"]


def test_a_third_cluster_goes_along() -> None:
    west = policies("blue", replication_clusters=["blue", "west"])
    green = side("green", clusters=frozenset({"green", "west"}), namespaces={})
    seen = ready(blue=side("blue", namespaces={NAME: namespace("blue", policies=west)}), green=green)
    made = {one.action: one for one in plan(seen, {}).steps}
    assert made[PreparationAction.NAMESPACE].value["replication_clusters"] == ["green", "west"]


def test_a_tenant_gets_clusters_added_and_keeps_the_rest() -> None:
    green = side("green", tenants={"shop": {"adminRoles": ["other"], "allowedClusters": ["west"]}})
    found = plan(ready(green=green), {}).steps
    assert [one.action for one in found] == [PreparationAction.TENANT_CLUSTERS]
    assert found[0].value == {"adminRoles": ["other"], "allowedClusters": ["green", "west"]}


def test_both_sides_are_kept_from_deleting_and_blue_from_growing() -> None:
    blue = policies("blue", inactive_topic_policies=DELETES, autoTopicCreationOverride=None)
    green = policies("green", inactive_topic_policies=None)
    seen = ready(
        blue=side("blue", namespaces={NAME: namespace("blue", policies=blue)}),
        green=side("green", namespaces={NAME: namespace("green", policies=green)}),
    )
    found = plan(seen, {}).steps
    assert [(one.side.value, one.key, one.value, one.before) for one in found] == [
        ("green", INACTIVE, DELETES, None),
        ("green", INACTIVE, HELD, DELETES),
        ("blue", CREATION, {"allowAutoTopicCreation": False}, None),
        ("blue", INACTIVE, HELD, DELETES),
    ]


def test_brokers_that_do_not_tell_are_taken_for_deleting() -> None:
    silent = BrokerInfo("blue:8080", "4.0.8", None, "refused")
    own = namespace("blue", policies=policies("blue", inactive_topic_policies=None))
    seen = ready(blue=side("blue", brokers=(silent,), namespaces={NAME: own}))
    assert ("policy", NAME, INACTIVE) in steps(seen)


def test_topics_with_policies_of_their_own_are_kept_too() -> None:
    own = {SINGLE: {"maxConsumerPerTopic": 5, "replicationClusters": ["blue"], "inactiveTopicPolicies": DELETES}}
    found = plan(with_blue(topic_policies=own), {}).steps
    assert [(one.side.value, one.value["deleteWhileInactive"]) for one in found] == [
        ("green", True),
        ("green", False),
        ("blue", False),
    ]
