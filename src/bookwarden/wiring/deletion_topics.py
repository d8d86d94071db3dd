"""Wiring of the topics of two-phase deletion."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bookwarden.clusters.pulsar.broker_marks import publish_deletion_topic
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.entries import TopicEntries
from bookwarden.clusters.pulsar.messages.mark_decoder import MarkDecoder
from bookwarden.clusters.pulsar.messages.mark_sender import PendingDeletionSender
from bookwarden.clusters.pulsar.messages.readers import DeadLetterTopic
from bookwarden.clusters.pulsar.messages.switch_events import SWITCH_TOPIC
from bookwarden.clusters.pulsar.messages.waiting import WaitingMessages
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.backlog import SubscriptionBacklog
from bookwarden.clusters.pulsar.rest.deletion_topics import DeletionTopics, DeletionTopicsSetup
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.config import DeletionSettings, Settings
from bookwarden.deletion.dead_letters import DeadLetters
from bookwarden.deletion.inflight import count_in_flight, requests_in_flight
from bookwarden.metastore.interface import MetadataStore
from bookwarden.resources import Resources
from bookwarden.wire.avro import PendingDeletionCodec, registry_schema
from bookwarden.wire.switch_event import switch_event_schema
from bookwarden.wiring.pulsar import connection_of


def mark_sender_of(settings: Settings, topic: str) -> PendingDeletionSender:
    """Make what sends marks to this topic; it connects at the first one."""
    return PendingDeletionSender(connection_of(settings.pulsar), topic, PendingDeletionCodec())


def decoder_of(deletion: DeletionSettings, registry: SchemaRegistry) -> MarkDecoder:
    """Make the decoder of messages on the deletion topics."""
    return MarkDecoder(registry, deletion.topic, deletion.retry_topic)


class TwoPhaseTopics(Resources):
    """Readers of the topics of two-phase deletion, and their set-up; ``store`` returns Pulsar's own metadata store."""

    def __init__(
        self,
        deletion: DeletionSettings,
        connection: PulsarConnection,
        admin: PulsarAdmin,
        store: Callable[[], MetadataStore],
    ) -> None:
        super().__init__()
        swept = (deletion.topic, deletion.retry_topic)
        backlog, entries = SubscriptionBacklog(admin), self.keep(TopicEntries(connection))
        #: Makes what creates and checks the topics.
        self.setup = partial(DeletionTopicsSetup, admin, _topics_of(deletion))
        #: Writes the deletion topic into a node, for brokers that mark.
        self.publish = partial(publish_deletion_topic, store, Topics(admin), _topics_of(deletion))
        #: Counts the messages in flight, as `count_in_flight` does.
        self.in_flight = partial(count_in_flight, backlog, swept, deletion.subscription)
        #: Counts the broker entries behind the sweep's subscription, by partition of both topics; names the first.
        self.entries = partial(backlog.entries_by_partition, swept, deletion.subscription)
        #: Counts the switch directives that the sweep has not read; PulsarError where their topic is missing.
        self.directives = partial(backlog.count, SWITCH_TOPIC, deletion.subscription)
        #: Says why nothing can be read from an entry on.
        self.why_unreadable = entries.why_unreadable
        waiting = WaitingMessages(entries, admin, deletion.subscription, deletion.retry_topic)
        #: Reads what is in flight now, without taking it from the subscription; not decoded.
        self.waiting = partial(waiting.read, swept)
        #: Reads the first message in flight on a partition; None where there is none.
        self.first_on = waiting.first
        #: Reads that of each partition of both topics that has any.
        self.first_marks = partial(waiting.first_of_each, swept)
        self.decode = decoder_of(deletion, SchemaRegistry(admin)).decode
        #: Reads what the marks in flight ask for.
        self.requests_in_flight = partial(requests_in_flight, self.waiting, self.decode)
        dlq = DeadLetterTopic(connection, admin, deletion.dlq_topic, deletion.topic, deletion.subscription)
        self.dead_letters = DeadLetters(dlq, SWITCH_TOPIC)
        dead = WaitingMessages(entries, admin, deletion.subscription, deletion.dlq_topic)
        #: Reads dead letters without taking them from whoever works on them; not decoded.
        self.look_at_dead_letters = partial(dead.read, (deletion.dlq_topic,))
        #: Counts their entries, by partition.
        self.dead_entries = partial(backlog.entries_by_partition, (deletion.dlq_topic,), deletion.subscription)


def _topics_of(deletion: DeletionSettings) -> DeletionTopics:
    return DeletionTopics(
        topic=deletion.topic,
        retry_topic=deletion.retry_topic,
        dlq_topic=deletion.dlq_topic,
        subscription=deletion.subscription,
        partitions=deletion.two_phase_deletion_ledger_deletion_parallelism,
        schema=registry_schema(),
        switch_topic=SWITCH_TOPIC,
        switch_schema=switch_event_schema(),
    )
