"""Wiring of what is asked of Pulsar: its brokers, and the topics of two-phase deletion."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.mark_decoder import MarkDecoder
from bookwarden.clusters.pulsar.messages.readers import DeadLetterTopic
from bookwarden.clusters.pulsar.messages.waiting import WaitingMessages
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.backlog import SubscriptionBacklog
from bookwarden.clusters.pulsar.rest.deletion_topics import DeletionTopics
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry
from bookwarden.config import Settings
from bookwarden.deletion.dead_letters import DeadLetters
from bookwarden.deletion.inflight import DEFAULT_MAX_ENTRIES, InFlight, count_in_flight
from bookwarden.ledgers.received import ReceivedMark, believed_properties
from bookwarden.wire.avro import registry_schema


def connection_of(settings: Settings) -> PulsarConnection:
    """Return how to reach the Pulsar cluster."""
    pulsar = settings.pulsar
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
        oauth2={name: value for name, value in pulsar.oauth2.model_dump().items() if value},
        client_options=dict(pulsar.client),
    )


def deletion_topics_of(settings: Settings) -> DeletionTopics:
    """Return the topics that two-phase deletion runs on."""
    deletion = settings.deletion
    return DeletionTopics(
        topic=deletion.topic,
        retry_topic=deletion.retry_topic,
        dlq_topic=deletion.dlq_topic,
        subscription=deletion.subscription,
        partitions=deletion.two_phase_deletion_ledger_deletion_parallelism,
        schema=registry_schema(),
    )


def backlog_of(settings: Settings) -> dict[str, int]:
    """Count the broker entries behind the sweep's subscription, by partition of both topics."""
    deletion = settings.deletion
    with closing(PulsarAdmin(connection_of(settings))) as admin:
        backlog = SubscriptionBacklog(admin)
        return {
            partition: backlog.entries(partition, deletion.subscription)
            for topic in (deletion.topic, deletion.retry_topic)
            for partition in backlog.partitions(topic)
        }


def in_flight_of(settings: Settings, max_entries: int = DEFAULT_MAX_ENTRIES) -> InFlight:
    """Count the messages in flight on the deletion topic and its retry topic."""
    deletion = settings.deletion
    with closing(PulsarAdmin(connection_of(settings))) as admin:
        reader = SubscriptionBacklog(admin)
        return count_in_flight(reader, (deletion.topic, deletion.retry_topic), deletion.subscription, max_entries)


def dead_letters_of(settings: Settings) -> DeadLetters:
    """Return access to the DLQ."""
    deletion, connection = settings.deletion, connection_of(settings)
    box = DeadLetterTopic(
        connection, PulsarAdmin(connection), deletion.dlq_topic, deletion.topic, deletion.subscription
    )
    return DeadLetters(box)


def decoder_of(settings: Settings) -> MarkDecoder:
    """Make the decoder of messages on the deletion topics."""
    return decoder_over(settings, SchemaRegistry(PulsarAdmin(connection_of(settings))))


def decoder_over(settings: Settings, registry: SchemaRegistry) -> MarkDecoder:
    """Make that decoder over a registry that is open."""
    return MarkDecoder(registry, settings.deletion.topic, settings.deletion.retry_topic)


def waiting_messages_of(settings: Settings) -> Iterator[ReceivedMark]:
    """Read what is in flight now, on both topics, without taking it from the subscription; not decoded."""
    deletion, connection = settings.deletion, connection_of(settings)
    backlog = WaitingMessages(connection, PulsarAdmin(connection), deletion.subscription)
    for received in backlog.read((deletion.topic, deletion.retry_topic)):
        believed = believed_properties(received.properties, received.topic, deletion.retry_topic)
        yield replace(received, properties=believed)
