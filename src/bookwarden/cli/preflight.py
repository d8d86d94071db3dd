"""Checks before a command begins anything: causes of failure, reported at once and in one line."""

from __future__ import annotations

import importlib.util

import pulsar

from bookwarden.clusters.pulsar.client_errors import translate
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.config import Settings
from bookwarden.errors import MissingExtraError, NotFoundError, ServerError, SparkError
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.offload import offload_stores_of
from bookwarden.wiring.pulsar import TopicsContext, connection_of

_PATIENCE_S = 10


def require_topics(admin: PulsarAdmin, settings: Settings, *topics: str) -> None:
    """Raise NotFoundError unless the deletion topics exist and have their subscription.

    A producer would let the broker create a topic without one, which keeps nothing.
    """
    found = Topics(admin)
    subscription = settings.deletion.subscription
    for topic in topics:
        try:
            partitions = found.partitions(topic)
        except NotFoundError as error:
            raise NotFoundError(f"there is no topic {topic}: `bookwarden init` creates the deletion topics") from error
        for partition in partitions:
            if subscription not in found.subscriptions(partition):
                raise NotFoundError(f"{partition} has no subscription {subscription!r}: `bookwarden init` creates it")


def require_marking(settings: Settings, admin: PulsarAdmin | None = None) -> None:
    """Raise PulsarError or NotFoundError if marks could not be sent, or would not be kept; ``admin`` is one open."""
    with TopicsContext(settings, admin) as topics:
        require_topics(topics.admin, settings, settings.deletion.topic)
    _require_service_url(settings)


def require_sweeping(settings: Settings) -> None:
    """Raise PulsarError, NotFoundError or StoreError where a broker, a topic or a metadata store is out of reach.

    Raises MissingExtraError where the library of an offload store is not installed.
    """
    offload_stores_of(settings.offload).close()
    deletion = settings.deletion
    with MetadataContext(settings) as metadata:
        require_topics(metadata.admin, settings, deletion.topic, deletion.retry_topic, deletion.dlq_topic)
        _require_service_url(settings)
        # This reads the ledgers root as well, where a wrong URL shows.
        metadata.catalog.read_many([0])
        for store in metadata.stores.values():
            store.sync()


def require_spark() -> None:
    """Raise MissingExtraError or SparkError unless Spark can be started here; its own error has many lines."""
    if importlib.util.find_spec("pyspark") is None:
        raise MissingExtraError("Spark is not installed: pip install 'bookwarden[spark]'")
    # Imported late: nothing else here starts servers.
    from bookwarden.devcluster.servers.java import find_java

    try:
        find_java()
    except ServerError as error:
        raise SparkError(f"Spark cannot start: {error}") from error


def _require_service_url(settings: Settings) -> None:
    client = connection_of(settings.pulsar).client(operation_timeout_seconds=_PATIENCE_S)
    try:
        client.get_topic_partitions(settings.deletion.topic)
    except pulsar.PulsarException as error:
        raise translate(error, f"looking up {settings.deletion.topic} at {settings.pulsar.service_url}") from error
    finally:
        client.close()
