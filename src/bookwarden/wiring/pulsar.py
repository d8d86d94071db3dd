"""Wiring of Pulsar: its brokers, and the topics of two-phase deletion."""

from __future__ import annotations

from functools import partial

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.deletion_topic_node import publish_deletion_topic
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
from bookwarden.config import DeletionSettings, PulsarSettings, Settings
from bookwarden.deletion.dead_letters import DeadLetters
from bookwarden.deletion.inflight import count_in_flight, requests_in_flight
from bookwarden.resources import Resources
from bookwarden.wire.avro import PendingDeletionCodec, registry_schema
from bookwarden.wire.switch_event import switch_event_schema
from bookwarden.wiring.stores import open_metadata_store


def connection_of(pulsar: PulsarSettings) -> PulsarConnection:
    """Return the addresses and credentials of the Pulsar cluster."""
    key = pulsar.oauth2.private_key.get_secret_value()
    return PulsarConnection(
        service_url=pulsar.service_url,
        admin_url=pulsar.admin_url,
        auth=pulsar.auth,
        token=pulsar.token.get_secret_value() if pulsar.token else None,
        token_file=pulsar.token_file,
        tls_certificate_file=pulsar.tls_certificate_file,
        tls_private_key_file=pulsar.tls_private_key_file,
        tls_trust_certs_file=pulsar.tls_trust_certs_file,
        tls_allow_insecure=pulsar.tls_allow_insecure,
        tls_validate_hostname=pulsar.tls_validate_hostname,
        trusted_hosts=pulsar.trusted_hosts,
        oauth2={name: value for name, value in {**pulsar.oauth2.model_dump(), "private_key": key}.items() if value},
        client_options=dict(pulsar.client),
    )


def admin_of(connection: PulsarConnection, timeout_s: float) -> PulsarAdmin:
    """Make an admin client of its own, whose requests take so long at most; the caller closes it."""
    return PulsarAdmin(connection, timeout_s)


def mark_sender_of(settings: Settings, topic: str) -> PendingDeletionSender:
    """Make what sends marks to this topic; it connects at the first one."""
    return PendingDeletionSender(connection_of(settings.pulsar), topic, PendingDeletionCodec())


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


class TopicsContext(Resources):
    """The topics of two-phase deletion, over one admin client; close it, or use it in a with statement.

    ``admin`` is that of a caller who has one, and closes it.
    """

    def __init__(self, settings: Settings, admin: PulsarAdmin | None = None) -> None:
        super().__init__()
        connection, deletion = connection_of(settings.pulsar), settings.deletion
        swept = (deletion.topic, deletion.retry_topic)
        with self._closed_on_error():
            self.admin = admin or self._keep(PulsarAdmin(connection))
            backlog, entries = SubscriptionBacklog(self.admin), self._keep(TopicEntries(connection))
            #: Makes what creates and checks the topics.
            self.setup = partial(DeletionTopicsSetup, self.admin, _topics_of(deletion))
            store = partial(open_metadata_store, settings.metadata_store, settings.metadata_store.urls[0])
            #: Writes the deletion topic into a node, for brokers that mark.
            self.publish = partial(publish_deletion_topic, store, Topics(self.admin), _topics_of(deletion))
            #: Counts the messages in flight, as `count_in_flight` does.
            self.in_flight = partial(count_in_flight, backlog, swept, deletion.subscription)
            #: Counts the broker entries behind the sweep's subscription, by partition of both topics; names the first.
            self.entries = partial(backlog.entries_by_partition, swept, deletion.subscription)
            #: Counts the switch directives that the sweep has not read; PulsarError where their topic is missing.
            self.directives = partial(backlog.count, SWITCH_TOPIC, deletion.subscription)
            #: Says why nothing can be read from an entry on.
            self.why_unreadable = entries.why_unreadable
            waiting = WaitingMessages(entries, self.admin, deletion.subscription, deletion.retry_topic)
            #: Reads what is in flight now, without taking it from the subscription; not decoded.
            self.waiting = partial(waiting.read, swept)
            #: Reads the first message in flight on a partition; None where there is none.
            self.first_on = waiting.first
            self.decode = decoder_of(deletion, SchemaRegistry(self.admin)).decode
            #: Reads what the marks in flight ask for.
            self.requests_in_flight = partial(requests_in_flight, self.waiting, self.decode)
            dlq = DeadLetterTopic(connection, self.admin, deletion.dlq_topic, deletion.topic, deletion.subscription)
            self.dead_letters = DeadLetters(dlq, SWITCH_TOPIC)


def decoder_of(deletion: DeletionSettings, registry: SchemaRegistry) -> MarkDecoder:
    """Make the decoder of messages on the deletion topics."""
    return MarkDecoder(registry, deletion.topic, deletion.retry_topic)
