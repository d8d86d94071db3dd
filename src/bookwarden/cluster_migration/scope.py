"""The topics that a migration is about: all of a namespace but those that brokers keep for themselves."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from bookwarden.errors import ConfigError, RefusedError
from bookwarden.ledgers.names import TopicName

_NAMESPACE: Final = re.compile(r"[-=:.\w]+/[-=:.\w]+", re.ASCII)
# SystemTopicNames of Pulsar 4.0: these stay on blue, as the broker leaves them out.
_OF_BROKERS: Final = ("__change_events", "__transaction_buffer_snapshot", "__transaction_log_")
_PENDING_ACK: Final = "__transaction_pending_ack"
TRANSACTION_SNAPSHOT: Final = "__transaction_buffer_snapshot"
#: Cursors that are no subscriptions: of deduplication, and of compaction.
_NO_SUBSCRIPTIONS: Final = frozenset({"pulsar.dedup", "__compaction"})
_REPLICATOR: Final = "pulsar.repl."


def checked_namespace(text: str) -> str:
    """Return the namespace if it is ``tenant/namespace``; ConfigError for anything else."""
    if not _NAMESPACE.fullmatch(text):
        raise ConfigError(f"{text!r} is no namespace: name it as tenant/namespace")
    return text


def namespace_of(topic: str) -> str:
    """Return the namespace of a topic, ``tenant/namespace``."""
    return TopicName.parse(topic).namespace_name


def refuse_deletion_topics(topics: Iterable[str], namespaces: Collection[str]) -> None:
    """Raise RefusedError if a topic of two-phase deletion is in one of these namespaces.

    The sweep would lose its backlog, or go to a cluster whose ledgers it does not know.
    """
    for topic in topics:
        if namespace_of(topic) in namespaces:
            raise RefusedError(
                f"{topic}, a topic of two-phase deletion, is in {namespace_of(topic)} and must not move: give it a "
                "namespace of its own that stays (`deletion` in the settings)"
            )


def is_brokers_own(topic: TopicName) -> bool:
    """Return whether a topic is one that brokers keep for themselves and do not migrate."""
    local = topic.base.local_name
    return local.startswith(_OF_BROKERS) or local.endswith(_PENDING_ACK)


def is_subscription(cursor: str) -> bool:
    """Return whether a cursor is that of a subscription that clients have, by its decoded name."""
    return cursor not in _NO_SUBSCRIPTIONS and not cursor.startswith(_REPLICATOR)


def holds_messages(cursor: str) -> bool:
    """Return whether a cursor, by its decoded name, holds messages for a client or another cluster."""
    return cursor not in _NO_SUBSCRIPTIONS


def is_replicator(cursor: str) -> bool:
    """Return whether a cursor is that of the replication to another cluster."""
    return cursor.startswith(_REPLICATOR)
