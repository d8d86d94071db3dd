"""Partitions that a query reads: of named topics, or of a namespace's topics that match a pattern."""

from __future__ import annotations

import logging
import re
import time

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import list_partitions, list_topics
from bookwarden.errors import NotFoundError, PulsarUnavailableError
from bookwarden.ledgers.names import TopicName
from bookwarden.pipelines.pulsar_source.options import SourceOptions

_LOG = logging.getLogger(__name__)


class Discovery:
    """The partitions, asked for again when the discovery interval has passed."""

    def __init__(self, options: SourceOptions, admin: PulsarAdmin) -> None:
        self._options = options
        self._admin = admin
        self._pattern = re.compile(options.pattern) if options.pattern is not None else None
        self._known: tuple[str, ...] = ()
        self._asked_at: float | None = None

    def partitions(self) -> tuple[str, ...]:
        """List the partitions; a failure of the first request is raised, later ones leave the known partitions."""
        now = time.monotonic()
        if self._asked_at is not None and now - self._asked_at < self._options.discovery_s:
            return self._known
        try:
            self._known = self._ask()
        except (PulsarUnavailableError, NotFoundError) as error:
            if self._asked_at is None:
                raise
            _LOG.warning("partition discovery failed, going on with the known ones: %s", error)
        self._asked_at = now
        return self._known

    def asks_for(self, topic: str) -> bool:
        """Return whether the options select this partition, existing or not."""
        name = TopicName.parse(topic)
        if self._pattern is None:
            return str(name) in self._options.topics or str(name.base) in self._options.topics
        return f"{name.tenant}/{name.namespace}" == self._options.namespace and self._matches(str(name.base))

    def is_gone(self, topic: str) -> bool:
        """Return whether a partition no longer exists."""
        try:
            return topic not in list_partitions(self._admin, str(TopicName.parse(topic).base)) and topic not in (
                list_partitions(self._admin, topic)
            )
        except NotFoundError:
            return True
        except PulsarUnavailableError:
            return False

    def _ask(self) -> tuple[str, ...]:
        topics = self._options.topics
        if self._options.namespace is not None:
            tenant, namespace = self._options.namespace.split("/")
            topics = tuple(topic for topic in list_topics(self._admin, tenant, namespace) if self._matches(topic))
        return tuple(sorted({partition for topic in topics for partition in self._partitions_of(topic)}))

    def _partitions_of(self, topic: str) -> list[str]:
        try:
            return list_partitions(self._admin, topic)
        except NotFoundError:
            if not self._options.is_control(topic):
                raise
            return []

    def _matches(self, topic: str) -> bool:
        return self._pattern is not None and self._pattern.fullmatch(TopicName.parse(topic).local_name) is not None
