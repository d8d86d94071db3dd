"""Green made ready by hand: the topics of a namespace of blue, and every subscription from the earliest message."""

from __future__ import annotations

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import Position, create_subscription, list_topics, topic_path
from bookwarden.clusters.pulsar.rest.topics import Topics
from servers.blue_green.site import KEEP_INACTIVE, BlueGreenSite


def make_ready(site: BlueGreenSite, namespace: str) -> None:
    """Make topics and subscriptions on green, and keep blue from deleting what is inactive."""
    site.make_namespace(namespace, site.green, deletes=False)
    tenant, _, local = namespace.partition("/")
    with site.admin(site.blue) as blue, site.admin(site.green) as green:
        blue.post(f"/namespaces/{namespace}/inactiveTopicPolicies", KEEP_INACTIVE)
        for topic in list_topics(blue, tenant, local):
            _make_topic(blue, green, topic)


def _make_topic(blue: PulsarAdmin, green: PulsarAdmin, topic: str) -> None:
    there = Topics(blue)
    partitions = there.partition_count(topic)
    path = topic_path(topic)
    green.put(f"{path}/partitions", partitions) if partitions else green.put(path)
    for partition in there.partitions(topic):
        for subscription in there.subscriptions(partition):
            create_subscription(green, partition, subscription, Position(-1, -2))
