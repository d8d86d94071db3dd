"""The node that names the deletion topic to brokers that mark what leaves their metadata."""

from __future__ import annotations

from collections.abc import Callable

from bookwarden.clusters.pulsar.rest.deletion_topics import DeletionTopics, Provision
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.errors import NotFoundError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.broker_marks import DELETION_TOPIC_NODE, encode_deletion_topic


def publish_deletion_topic(
    store_of: Callable[[], MetadataStore], topics: Topics, wanted: DeletionTopics, *, dry_run: bool = False
) -> Provision:
    """Write the node if it is missing or has another value; ``store_of`` returns Pulsar's own metadata store.

    Raises StoreError, also where another init comes first. Brokers read the node at each send: what is in their
    outboxes goes where it then names.
    """
    try:
        partitions = topics.partition_count(wanted.topic)
    except NotFoundError:
        partitions = wanted.partitions
    value = encode_deletion_topic(
        wanted.topic,
        partitions,
        wanted.schema,
        wanted.subscription,
        retry_topic=wanted.retry_topic,
        dlq_topic=wanted.dlq_topic,
    )
    return Provision("node", DELETION_TOPIC_NODE, provide_deletion_topic_node(store_of(), value, dry_run=dry_run))


def provide_deletion_topic_node(store: MetadataStore, value: bytes, *, dry_run: bool = False) -> str:
    """Write this value, unless the node has it; return the state of the node, as a Provision has it."""
    found = store.get(DELETION_TOPIC_NODE)
    if found is not None and found.value == value:
        return "exists"
    if dry_run:
        return "would create" if found is None else "would replace"
    if found is None:
        store.create(DELETION_TOPIC_NODE, value, make_parents=True)
        return "created"
    store.put(DELETION_TOPIC_NODE, value, found.version)
    return "replaced"
