"""The checks of the pre-flight: each fault is found by the check of its kind, and by no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookwarden.cluster_migration.readiness.checks import CHECKS, evaluate
from bookwarden.cluster_migration.readiness.findings import ACCEPTED, CheckResult, Override, Severity, blocking
from bookwarden.cluster_migration.sides.values import (
    BrokerInfo,
    LookupResult,
    Observations,
    ReplicationStats,
    SchemaInfo,
    SubscriptionStats,
)
from bookwarden.cluster_migration.starting import without_moved
from bookwarden.cluster_migration.states import ExpectedTopic
from bookwarden.disk_space import DiskSpace
from bookwarden.findings import Verdict
from bookwarden.redirects import ClusterFlag, RedirectUrls
from unit.blue_green import seen as clusters
from unit.blue_green.seen import (
    NAME,
    PARTED,
    PARTS,
    PLAIN,
    SINGLE,
    both_with,
    broker_of_blue,
    namespace,
    policies,
    ready,
    side,
    topic,
    with_blue,
    with_green,
    with_topic,
)

L, F, W = Severity.LOSES, Severity.FAILS, Severity.WARNING
APP = SubscriptionStats("app", consumers=1)


def faults(seen: Observations) -> list[tuple[int, Severity | None, Override | None]]:
    """List what is not well; green's address for TLS, which nobody uses, never is."""
    found = [(one.number, one.severity, one.override) for one in evaluate(seen) if one.severity is not None]
    return [one for one in found if one != (4, W, None)]


def test_nothing_blocks_where_both_are_alike() -> None:
    findings = evaluate(ready())
    assert faults(ready()) == []
    assert {one.number for one in findings} == set(range(1, 25))
    assert blocking(findings) == []


def test_the_checks_are_those_that_were_measured() -> None:
    assert len(CHECKS) == 23 + 1
    assert set(ACCEPTED) == set(Override)


NO_BROKER = ready(blue=side("blue", brokers=()))
SILENT = ready(blue=side("blue", brokers=(BrokerInfo("b", "4.0.8", None, "refused", ("pulsar://blue:6650",)),)))
WITH_WEST = {"replication_clusters": ["blue", "west"]}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (broker_of_blue("4.0.1"), [(1, F, None)]),
        (broker_of_blue("3.3.3"), [(1, F, None)]),
        (broker_of_blue("3.3.4"), []),
        (broker_of_blue("4.2.4"), []),
        (broker_of_blue("unknown"), [(1, F, None)]),
        (broker_of_blue(clusterMigrationCheckDurationSeconds="0"), [(2, L, None)]),
        (broker_of_blue(clusterMigrationAutoResourceCreation="true"), [(2, W, None)]),
        (broker_of_blue(numExecutorThreadPoolSize="3"), [(2, W, None)]),
        (broker_of_blue(numExecutorThreadPoolSize="4"), []),
        (broker_of_blue("4.2.4", numExecutorThreadPoolSize="3"), []),
        (SILENT, [(2, L, None), (19, L, None), (19, L, None), (19, L, None)]),
        (ready(blue=side("blue", clusters=frozenset({"other"}))), [(3, F, None)]),
        (broker_of_blue(clusterName="other"), [(3, F, None)]),
        (ready(urls=RedirectUrls("", "", PLAIN, "")), [(4, L, None)]),
        (ready(urls=RedirectUrls("", "", "pulsar://green", clusters.TLS)), [(4, L, None)]),
        (ready(lookups=(LookupResult(PLAIN, "t", error="refused"),)), [(4, L, None)]),
        (ready(lookups=(LookupResult(PLAIN, "t", "pulsar://blue:6650"),)), [(4, L, None)]),
        (ready(lookups=(LookupResult(PLAIN, "t", "pulsar://third:6650"),)), [(4, L, None)]),
        (ready(lookups=()), [(4, L, None)]),
        (ready(web_brokers={"http://b": frozenset({"blue:8080"})}), [(4, L, None)]),
        (ready(web_brokers={"http://b": frozenset({"third:8080"})}), [(4, L, None)]),
        (ready(green=side("green", flag=ClusterFlag(True, clusters.URLS))), [(5, L, None)]),
        (ready(green=side("green", flagged=(NAME,))), [(5, L, None)]),
        (ready(green=side("green", flagged=("a/b",))), [(5, W, None)]),
        (ready(blue=side("blue", flag=ClusterFlag(True, clusters.URLS))), [(5, F, None)]),
        (ready(blue=side("blue", flagged=(NAME,))), [(5, W, None)]),
        (ready(scope=(NAME, "no/such")), [(6, F, None)]),
        (ready(green=side("green", tenants={})), [(6, F, None)]),
        (ready(green=side("green", tenants={"shop": {"allowedClusters": ["blue"]}})), [(6, F, None)]),
        (with_green(policies=policies("green", replication_clusters=["west"])), [(6, F, None)]),
        (
            ready(green=side("green", namespaces={})),
            [(6, F, None), (8, F, None), (9, L, None), (10, F, None)],
        ),
        (ready(shared_configuration="zk:one"), [(7, L, None)]),
        (
            with_blue(policies=policies("blue", replication_clusters=["blue", "green"])),
            [(7, L, Override.TWO_WAY_REPLICATION)],
        ),
        (
            with_green(policies=policies("green", replication_clusters=["blue", "green"])),
            [(7, L, Override.TWO_WAY_REPLICATION)],
        ),
        (
            with_blue(topic_policies={SINGLE: {"maxConsumerPerTopic": 5, "replicationClusters": ["blue", "green"]}}),
            [(7, L, Override.TWO_WAY_REPLICATION)],
        ),
        (with_green(partitioned={PARTED: 1}), [(8, F, None)]),
        (with_green(topics={**ready().green.namespaces[NAME].topics, PARTED: topic(PARTED)}), [(8, F, None)]),
        (with_green(partitioned={PARTED: 3}), [(8, W, None)]),
        (with_green(partitioned={}), [(8, F, None)]),
        (
            with_green(topics={name: topic(name) for name in PARTS}),
            [(8, F, None), (9, L, None)],
        ),
        (
            with_green(topics={name: topic(name, subscriptions=(APP,)) for name in (SINGLE, PARTS[0])}),
            [(8, F, None), (9, L, None)],
        ),
        (with_topic(subscriptions=(APP, SubscriptionStats("new", consumers=1))), [(9, L, None)]),
        (with_topic(subscriptions=(SubscriptionStats("app", consumers=1, properties={"a": "b"}),)), [(9, W, None)]),
        (with_green(schemas={}), [(10, F, None)]),
        (with_green(schemas={SINGLE: (SchemaInfo("JSON", "{}"),)}), [(10, F, None)]),
        (with_green(schemas={SINGLE: (clusters.SCHEMA, SchemaInfo("JSON", "{}"))}), []),
        (with_blue(schema_errors=("t: refused",)), [(10, F, None)]),
        (with_green(policies=policies("green", is_allow_auto_update_schema=False)), [(10, W, None), (11, W, None)]),
        (with_green(policies=policies("green", message_ttl_in_seconds=5)), [(11, W, None)]),
        (with_green(policies=policies("green", auth_policies={})), [(11, W, None)]),
        (with_green(topic_policies={}), [(11, W, None)]),
        (with_blue(policies=policies("blue", offload_threshold=5)), [(11, W, None)]),
        (with_green(policy_errors=("refused",)), [(11, F, None)]),
        (with_topic(error="500"), [(12, L, None)]),
        (with_topic(size=5, subscriptions=()), [(13, L, Override.READERS)]),
        (with_topic(size=5, history=(3, 5)), [(13, L, Override.HISTORY)]),
        (with_topic(size=5, history=(-1, -1)), [(13, L, Override.HISTORY)]),
        (
            with_topic(subscriptions=(APP, SubscriptionStats("reader-1", consumers=1, durable=False))),
            [(13, L, Override.READERS)],
        ),
        (with_topic(subscriptions=(APP, SubscriptionStats("__compaction"))), [(13, L, Override.COMPACTED_TOPICS)]),
        (
            with_topic(subscriptions=(SubscriptionStats("app", backlog=5),)),
            [(14, F, Override.IDLE_SUBSCRIPTIONS)],
        ),
        (with_topic(subscriptions=(replace(APP, delayed=3),)), [(14, W, None)]),
        (with_topic(subscriptions=(replace(APP, backlog=5),)), []),
        (with_topic(subscriptions=(APP, SubscriptionStats("away"))), [(15, L, None)]),
        (with_topic(remotes=(ReplicationStats("west", 7, True),)), [(16, F, None)]),
        (with_topic(remotes=(ReplicationStats("west", 0, False),)), [(16, F, None)]),
        (with_blue(policies=policies("blue", **WITH_WEST)), [(16, W, None)]),
        (ready(blue=side("blue", open_transactions={"1": frozenset({SINGLE})})), [(17, L, Override.TRANSACTIONS)]),
        (ready(blue=side("blue", open_transactions={"1": frozenset()})), [(17, L, Override.TRANSACTIONS)]),
        (ready(blue=side("blue", open_transactions={"1": frozenset({"a/b/c"})})), [(17, W, None)]),
        (ready(blue=side("blue", transaction_error="refused")), [(17, L, Override.TRANSACTIONS)]),
        (with_topic(transactions=1), [(17, L, Override.TRANSACTIONS)]),
        (with_blue(transaction_bytes=100), [(17, L, Override.TRANSACTIONS)]),
        (with_topic(client_versions=frozenset({"2.10.6"})), [(18, L, Override.OLD_CLIENTS)]),
        (with_topic(client_versions=frozenset({"Shaded 1"})), [(18, L, Override.OLD_CLIENTS)]),
        (with_topic(client_versions=frozenset({"Pulsar-CPP-v4.2.0"})), [(18, W, None)]),
        (broker_of_blue(loadBalancerEnabled="true"), [(19, L, None), (19, L, None)]),
        (
            broker_of_blue(
                loadBalancerEnabled="true",
                loadBalancerSheddingEnabled="false",
                loadBalancerAutoBundleSplitEnabled="false",
            ),
            [],
        ),
        (ready(at_ms=clusters.STARTED_MS + 599_000), [(19, W, None)]),
        (ready(at_ms=clusters.STARTED_MS + 600_000), []),
        (with_blue(policies=policies("blue", inactive_topic_policies=None)), [(20, L, None)]),
        (with_green(policies=policies("green", inactive_topic_policies=None)), [(20, L, None)]),
        (
            with_blue(
                topic_policies={
                    SINGLE: {
                        "maxConsumerPerTopic": 5,
                        "replicationClusters": ["blue"],
                        "inactiveTopicPolicies": {**clusters.HELD, "deleteWhileInactive": True},
                    }
                }
            ),
            [(11, W, None), (20, L, None)],
        ),
        (
            with_green(policies=policies("green", subscription_expiration_time_minutes=60)),
            [(11, W, None), (20, L, None)],
        ),
        (
            with_green(policies=policies("green", subscription_expiration_time_minutes=5_000)),
            [(11, W, None), (20, W, None)],
        ),
        (with_topic(terminated=True), [(21, W, None)]),
        (with_topic(terminated=True, migrated=True), [(21, W, None)]),
        (with_topic(metadata_error="500"), [(21, F, None)]),
        (with_blue(policies=policies("blue", deleted=True)), [(21, F, None)]),
        (with_green(policies=policies("green", max_topics_per_namespace=2)), [(11, W, None), (22, F, None)]),
        (ready(disks={"b1": DiskSpace(1000, 149)}), [(22, W, None)]),
        (ready(disks={"b1": DiskSpace(1000, 150)}), []),
        (ready(disks={"b1": DiskSpace(1000, 900), "b2": DiskSpace(error="no answer")}), [(22, W, None)]),
        (ready(disks={}), [(22, F, None)]),
        (ready(disks={}, disk_error="refused"), [(22, W, None)]),
        (with_topic(size=501), [(22, W, None)]),
        (with_topic(size=500), []),
        (broker_of_blue(defaultRetentionTimeInMinutes="60"), []),
        (both_with({"ttlDurationDefaultInSeconds": "60"}, {"ttlDurationDefaultInSeconds": "5"}), []),
        (both_with({"maxMessageSize": "10"}, {"maxMessageSize": "5"}), [(22, W, None)]),
        (both_with({"maxMessageSize": "5"}, {"maxMessageSize": "5"}), []),
        (both_with({"delayedDeliveryEnabled": "true"}, {"delayedDeliveryEnabled": "false"}), [(22, W, None)]),
        (both_with({}, {"managedLedgerDefaultWriteQuorum": "3"}, size=167), [(22, W, None)]),
        (both_with({}, {"managedLedgerDefaultWriteQuorum": "3"}, size=166), []),
        (with_blue(policies=policies("blue", autoTopicCreationOverride=None)), [(11, W, None), (23, W, None)]),
        (ready(kept_out=frozenset({NAME})), [(24, F, None)]),
    ],
)
def test_each_fault_is_found_by_its_check(
    seen: Observations, expected: list[tuple[int, Severity, Override | None]]
) -> None:
    assert faults(seen) == expected


def test_without_brokers_nothing_is_well() -> None:
    well = {one.number for one in evaluate(NO_BROKER) if one.severity is None}
    assert well.isdisjoint({1, 2, 19})
    assert blocking(evaluate(NO_BROKER))


def test_what_is_accepted_by_name_is_a_warning_and_nothing_else_is() -> None:
    seen = with_topic(subscriptions=(), size=5, client_versions=frozenset({"2.10.6"}))
    findings = evaluate(seen)
    assert {one.override for one in blocking(findings)} == {Override.READERS, Override.OLD_CLIENTS}
    left = blocking(findings, {Override.READERS})
    assert [one.override for one in left] == [Override.OLD_CLIENTS]
    assert left[0].evidence == (f"2.10.6 on {SINGLE}",)
    told = left[0].as_finding()
    assert told.verdict is Verdict.FAILS
    assert told.advice.endswith("or --accept old-clients")
    accepted = {Override.READERS, Override.OLD_CLIENTS}
    assert blocking(findings, accepted) == []
    assert left[0].as_finding(accepted).verdict is Verdict.WARNING
    assert left[0].as_json(accepted)["accepted"]


def test_replication_between_clusters_of_one_name_is_none() -> None:
    seen = ready(green=side("blue", namespaces={NAME: namespace("blue")}))
    assert 7 not in {one[0] for one in faults(seen)}


def test_a_second_start_names_only_the_topics_that_did_not_move() -> None:
    moved, read, alone = (f"persistent://{NAME}/{name}" for name in ("moved", "read", "alone"))
    line = CheckResult(13, "x", L, "all", "", NAME, (moved, read, alone), Override.READERS)
    expected = {name: ExpectedTopic(name, ("app",), entries=5) for name in (moved, read)}
    (left,) = without_moved([line], expected, {read})
    assert left.evidence == (read, alone)
    assert moved not in left.seen
    assert read in left.seen
    assert without_moved([replace(line, evidence=(moved,))], expected) == []
