"""Partitions that a query reads, and snapshots of many at once, in which unreachable ones are asked again."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import TopicPositions, list_partitions, list_topics, read_positions
from bookwarden.errors import DataGoneError, FormatError, NotFoundError, PulsarConflictError, PulsarUnavailableError
from bookwarden.ledgers.names import TopicName
from bookwarden.pipelines.pulsar_source.options import SourceOptions

_LOG = logging.getLogger(__name__)
_POLLS_AT_ONCE = 8
_RETRY_PAUSE_S = 0.2
# The answers of a broker while a topic moves or is loaded.
_PASSING = (PulsarUnavailableError, NotFoundError, FormatError, PulsarConflictError)


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
        return name.namespace_name == self._options.namespace and self._matches(str(name.base))

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


class PositionPolls:
    """Reads the positions of partitions; one that stays unreachable too long raises PulsarUnavailableError."""

    def __init__(self, options: SourceOptions, admin: PulsarAdmin, discovery: Discovery) -> None:
        self._options = options
        self._admin = admin
        self._discovery = discovery
        self._gone_since: dict[str, float] = {}
        self._failing_since: dict[str, float] = {}
        self._pool = ThreadPoolExecutor(_POLLS_AT_ONCE, thread_name_prefix="pulsar-poll")

    def poll(self, topics: Iterable[str]) -> dict[str, TopicPositions]:
        """Read the positions of the partitions that answer."""
        asked = [topic for topic in topics if not self._is_known_gone(topic)]
        found: dict[str, TopicPositions] = {}
        for topic, answer in zip(asked, self._pool.map(self._ask, asked), strict=True):
            if isinstance(answer, TopicPositions):
                self._failing_since.pop(topic, None)
                found[topic] = answer
            else:
                self._note_failure(topic, answer)
        return found

    def poll_all(self, topics: Iterable[str]) -> dict[str, TopicPositions]:
        """Read the positions of all these partitions, waiting for the ones that do not answer yet."""
        found: dict[str, TopicPositions] = {}
        wanted = set(topics)
        while True:
            found.update(self.poll(sorted(wanted - found.keys())))
            wanted = {topic for topic in wanted if not self._is_known_gone(topic)}
            if wanted <= found.keys():
                return found
            time.sleep(_RETRY_PAUSE_S)

    def _ask(self, topic: str) -> TopicPositions | Exception:
        try:
            return read_positions(self._admin, topic)
        except _PASSING as error:
            return error

    def _note_failure(self, topic: str, error: Exception) -> None:
        now = time.monotonic()
        since = self._failing_since.get(topic)
        if since is None:
            since = self._failing_since[topic] = now
            _LOG.warning("%s gives no positions, trying on: %s", topic, error)
            if isinstance(error, NotFoundError) and self._discovery.is_gone(topic):
                self._note_gone(topic, error)
                return
        if now - since >= self._options.max_unreachable_s:
            if self._options.is_control(topic):
                _LOG.warning("%s gave no positions for %.0f s (%s); going on without it", topic, now - since, error)
                self._leave_out(topic)
                return
            raise PulsarUnavailableError(
                f"{topic} gave no positions for {now - since:.0f} s ({error}); "
                "check the brokers, or raise maxUnreachableSeconds"
            ) from error

    def _note_gone(self, topic: str, error: NotFoundError) -> None:
        if self._options.fail_on_data_loss and not self._options.is_control(topic):
            raise DataGoneError(
                f"{topic} does not exist any more, and what was not read of it is gone; leave it out of the topics "
                "and start with a new checkpoint, or set failOnDataLoss to false"
            ) from error
        _LOG.warning("%s does not exist any more; going on without it", topic)
        self._leave_out(topic)

    def _leave_out(self, topic: str) -> None:
        """Leave the topic out until the next discovery."""
        self._failing_since.pop(topic, None)
        self._gone_since[topic] = time.monotonic()

    def _is_known_gone(self, topic: str) -> bool:
        since = self._gone_since.get(topic)
        return since is not None and time.monotonic() - since < self._options.discovery_s
