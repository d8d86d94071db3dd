"""`bookwarden init` on a real broker: what it makes, what it leaves alone, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.deletion_topics import DeletionTopics, DeletionTopicsSetup, Provision
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.errors import NotFoundError, PulsarAccessError, RefusedError
from bookwarden.wire.avro import registry_schema
from bookwarden.wire.switch_event import switch_event_schema
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.waiting import eventually

pytestmark = pytest.mark.servers

SUBSCRIPTION = "ledger-deletion-worker"


@pytest.fixture
def wanted(namespace: str) -> DeletionTopics:
    return wanted_in(namespace)


def wanted_in(namespace: str, partitions: int = 2) -> DeletionTopics:
    topic = f"persistent://{namespace}/deletion"
    marks = topic, f"{topic}-RETRY", f"{topic}-DLQ"
    return DeletionTopics(*marks, SUBSCRIPTION, partitions, registry_schema(), f"{topic}-SWITCH", switch_event_schema())


def states(provisions: tuple[Provision, ...], kind: str) -> list[str]:
    return [found.state for found in provisions if found.kind == kind]


def test_everything_is_made_once_and_then_found(admin: PulsarAdmin, wanted: DeletionTopics) -> None:
    first = DeletionTopicsSetup(admin, wanted).run()
    assert states(first.provisions, "topic") == ["created"] * 4
    assert states(first.provisions, "subscription") == ["created"] * 4
    assert states(first.provisions, "schema") == ["created"] * 4
    topics = Topics(admin)
    made = [*(topic for topic, _ in wanted.all), wanted.switch_topic]
    assert [topics.partition_count(topic) for topic in made] == [2, 2, 0, 0]
    for topic in made:
        assert [topics.subscriptions(partition) for partition in topics.partitions(topic)] == (
            [[SUBSCRIPTION]] * len(topics.partitions(topic))
        )
        assert SchemaRegistry(admin).current(topic).kind == "AVRO"
    again = DeletionTopicsSetup(admin, wanted).run()
    assert {found.state for found in again.provisions} == {"exists"}
    assert again.warnings == ()


def test_a_dry_run_makes_nothing(admin: PulsarAdmin, wanted: DeletionTopics) -> None:
    report = DeletionTopicsSetup(admin, wanted, dry_run=True).run()
    assert states(report.provisions, "topic") == ["would create"] * 4
    with pytest.raises(NotFoundError):
        Topics(admin).partitions(wanted.topic)


def test_an_absent_tenant_and_namespace_are_made(admin: PulsarAdmin, namespace: str) -> None:
    tenant = f"{namespace.partition('/')[0]}-new"
    report = DeletionTopicsSetup(admin, wanted_in(f"{tenant}/system")).run()
    assert states(report.provisions, "tenant") == ["created"]
    assert states(report.provisions, "namespace") == ["created"]
    assert Topics(admin).partition_count(f"persistent://{tenant}/system/deletion") == 2


def test_the_default_topics_in_the_system_namespace_are_found_again(admin: PulsarAdmin) -> None:
    names = [f"persistent://pulsar/system/init-test{suffix}" for suffix in ("", "-RETRY", "-DLQ", "-SWITCH")]
    wanted = DeletionTopics(*names[:3], SUBSCRIPTION, 1, registry_schema(), names[3], switch_event_schema())
    DeletionTopicsSetup(admin, wanted).run()
    assert {found.state for found in DeletionTopicsSetup(admin, wanted).run().provisions} == {"exists"}


def test_messages_that_were_there_before_the_subscription_are_in_its_backlog(
    pulsar_cluster: DevCluster, admin: PulsarAdmin, wanted: DeletionTopics
) -> None:
    Topics(admin).create(wanted.dlq_topic)
    client = pulsar_cluster.connection().client()
    try:
        reader = client.create_reader(wanted.dlq_topic, pulsar.MessageId.earliest)
        client.create_producer(wanted.dlq_topic).send(b"kept by the reader until now")
        DeletionTopicsSetup(admin, wanted).run()
        reader.close()
        consumer = client.subscribe(wanted.dlq_topic, SUBSCRIPTION)
        assert consumer.receive(10_000).data() == b"kept by the reader until now"
    finally:
        client.close()


@pytest.mark.parametrize(("existing", "text"), [(1, "fewer than the 2"), (0, "without partitions")])
def test_a_topic_of_another_shape_is_refused(
    admin: PulsarAdmin, wanted: DeletionTopics, existing: int, text: str
) -> None:
    Topics(admin).create(wanted.topic, existing)
    with pytest.raises(RefusedError, match=text):
        DeletionTopicsSetup(admin, wanted).run()
    with pytest.raises(NotFoundError):
        Topics(admin).partitions(wanted.retry_topic)


def test_a_partitioned_dlq_is_refused(admin: PulsarAdmin, wanted: DeletionTopics) -> None:
    Topics(admin).create(wanted.dlq_topic, 3)
    with pytest.raises(RefusedError, match="3 partitions"):
        DeletionTopicsSetup(admin, wanted).run()


def test_more_partitions_than_wanted_are_kept(admin: PulsarAdmin, wanted: DeletionTopics) -> None:
    Topics(admin).create(wanted.topic, 5)
    DeletionTopicsSetup(admin, wanted).run()
    topics = Topics(admin)
    assert all(SUBSCRIPTION in topics.subscriptions(partition) for partition in topics.partitions(wanted.topic))


@pytest.mark.parametrize("partition", [0, 1])
def test_a_topic_whose_partitions_a_client_made_is_refused_until_they_are_deleted(
    pulsar_cluster: DevCluster, admin: PulsarAdmin, wanted: DeletionTopics, partition: int
) -> None:
    left = f"{wanted.retry_topic}-partition-{partition}"
    with (
        closing(pulsar_cluster.connection().client()) as client,
        closing(client.create_producer(left)),
        pytest.raises(RefusedError, match=f"{wanted.retry_topic} cannot be created"),
    ):
        DeletionTopicsSetup(admin, wanted).run()
    admin.request("DELETE", topic_path(left))
    report = DeletionTopicsSetup(admin, wanted).run()
    assert Provision("topic", wanted.retry_topic, "created", detail="2 partitions") in report.provisions
    assert Topics(admin).partition_count(wanted.retry_topic) == 2


NAMESPACE_POLICIES: Mapping[str, tuple[str, str, object]] = {
    "TTL": ("POST", "messageTTL", 60),
    "consumer_backlog_eviction": ("POST", "backlogQuota", {"limitSize": 9999, "policy": "consumer_backlog_eviction"}),
    "inactive": (
        "POST",
        "inactiveTopicPolicies",
        {
            "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
            "maxInactiveDurationSeconds": 60,
            "deleteWhileInactive": True,
        },
    ),
    "not used for 5 min": ("POST", "subscriptionExpirationTime", 5),
}


@pytest.mark.parametrize("text", NAMESPACE_POLICIES)
def test_a_namespace_that_could_drop_messages_is_refused(
    admin: PulsarAdmin, namespace: str, wanted: DeletionTopics, text: str
) -> None:
    method, name, body = NAMESPACE_POLICIES[text]
    admin.request(method, f"/namespaces/{namespace}/{name}", body=body)
    with pytest.raises(RefusedError, match=text):
        DeletionTopicsSetup(admin, wanted).run()
    with pytest.raises(NotFoundError):
        Topics(admin).partitions(wanted.topic)


def test_a_topics_own_policy_that_could_drop_messages_is_refused(admin: PulsarAdmin, wanted: DeletionTopics) -> None:
    DeletionTopicsSetup(admin, wanted).run()
    path = f"/persistent/{wanted.topic.removeprefix('persistent://')}/messageTTL"
    admin.post(path, params={"messageTTL": 60})
    eventually(lambda: applied(admin, path) == 60)
    with pytest.raises(RefusedError, match="deletion has a message TTL of 60 s"):
        DeletionTopicsSetup(admin, wanted).run()


def applied(admin: PulsarAdmin, path: str) -> Any:
    answer = admin.request("GET", path)
    return answer.json() if answer.data else None


def test_what_init_makes_is_what_the_sweep_and_the_cli_use(
    pulsar_cluster: DevCluster, admin: PulsarAdmin, namespace: str, tmp_path: Path
) -> None:
    site = DeletionSite.of(pulsar_cluster, namespace, tmp_path)
    DeletionTopicsSetup(admin, wanted_in(namespace)).run()
    assert (site.backlog(), site.backlog_of_dlq()) == (0, 0)


def test_a_topic_of_switch_directives_that_a_broker_made_with_partitions_is_taken(
    admin: PulsarAdmin, wanted: DeletionTopics
) -> None:
    Topics(admin).create(wanted.switch_topic, 2)
    DeletionTopicsSetup(admin, wanted).run()
    subscriptions = [Topics(admin).subscriptions(part) for part in Topics(admin).partitions(wanted.switch_topic)]
    assert subscriptions == [[SUBSCRIPTION]] * 2


def test_without_rights_for_the_topic_of_switch_directives_the_others_are_made(
    admin: PulsarAdmin, wanted: DeletionTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = admin.get_json

    def refusing(path: str, **options: Any) -> Any:
        if "-SWITCH" in path:
            raise PulsarAccessError("401")
        return ask(path, **options)

    monkeypatch.setattr(admin, "get_json", refusing)
    report = DeletionTopicsSetup(admin, wanted).run()
    assert states(report.provisions, "topic") == ["created"] * 3
    (warning,) = report.warnings
    assert f"may not create {wanted.switch_topic}, so the sweep sees no switch directives" in warning
