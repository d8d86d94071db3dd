"""The backlog of a subscription in messages: the broker's own count is of entries, and a batch is one entry.

Format: AnalyzeSubscriptionBacklogResult of Pulsar 4.0. The broker reads at most
subscriptionBacklogScanMaxEntries (10,000) per call, so larger backlogs take several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import (
    EntriesBehind,
    TopicPositions,
    list_partitions,
    read_positions,
    subscription_path,
)
from bookwarden.errors import FormatError, NotFoundError, PulsarError
from bookwarden.ledgers.managed_ledger import Position

_SCAN_TIMEOUT_S = 130.0


@dataclass(frozen=True, slots=True)
class PartitionBacklog:
    """The backlog of one partition; an entry holds one message or a batch of them.

    When not ``exact``, messages were counted in only part of the entries, and the rest taken to be like those.
    """

    topic: str
    entries: int
    messages: int
    exact: bool
    first: str = ""  #: Ledger and entry of the first; "" if there is none.


class SubscriptionBacklog:
    """Reads backlogs over the admin REST, with no consumer of its own."""

    def __init__(self, admin: PulsarAdmin) -> None:
        self._admin = admin

    def partitions(self, topic: str) -> list[str]:
        """List the partitions in order; a topic without partitions is its own only one."""
        return list_partitions(self._admin, topic)

    def entries(self, partition: str, subscription: str) -> EntriesBehind:
        """Count the entries behind the subscription's position, in one cheap request."""
        positions, start = self._position(partition, subscription)
        return positions.behind(start)

    def entries_by_partition(self, topics: Iterable[str], subscription: str) -> dict[str, EntriesBehind]:
        """Count them on each partition of the topics."""
        partitions = (partition for topic in topics for partition in self.partitions(topic))
        return {partition: self.entries(partition, subscription) for partition in partitions}

    def count(self, topic: str, subscription: str) -> int:
        """Count the entries on all partitions; PulsarError also where the topic or the subscription is missing."""
        try:
            return sum(behind.entries for behind in self.entries_by_partition((topic,), subscription).values())
        except (NotFoundError, FormatError) as error:
            raise PulsarError(f"the backlog of {topic} is not known: {error}") from error

    def backlog(self, partition: str, subscription: str, max_entries: int) -> PartitionBacklog:
        """Count the messages behind the subscription's position, reading at most `max_entries` entries."""
        positions, start = self._position(partition, subscription)
        entries, first = positions.behind(start)
        if first is None:
            return PartitionBacklog(partition, 0, 0, exact=True)
        seen, messages, complete = self._scan(partition, subscription, start, max_entries)
        if complete:
            return PartitionBacklog(partition, seen, messages, exact=True, first=str(first))
        entries = max(entries, seen)
        estimate = round(messages * entries / max(seen, 1))
        return PartitionBacklog(partition, entries, estimate, exact=False, first=str(first))

    def _position(self, partition: str, subscription: str) -> tuple[TopicPositions, Position]:
        positions = read_positions(self._admin, partition)
        found = positions.cursors.get(subscription)
        if found is None:
            raise NotFoundError(f"{partition} has no subscription {subscription!r}; `bookwarden init` creates it")
        return positions, found

    def _scan(self, partition: str, subscription: str, start: Position, max_entries: int) -> tuple[int, int, bool]:
        """Return the entries read, their messages, and whether that was all."""
        path = f"{subscription_path(partition, subscription)}/analyzeBacklog"
        seen = messages = 0
        position = start
        while seen < max_entries:
            body = {"ledgerId": position.ledger_id, "entryId": position.entry_id + 1, "partitionIndex": -1}
            found = self._admin.request("POST", path, body=body, timeout_s=_SCAN_TIMEOUT_S).json()
            entries, more, last = _parse(found, path)
            seen += entries
            messages += more
            if not found.get("aborted"):
                return seen, messages, True
            if entries == 0 or last is None:
                break
            position = last
        return seen, messages, False


def _parse(found: Any, path: str) -> tuple[int, int, Position | None]:
    if not isinstance(found, Mapping) or "entries" not in found or "messages" not in found:
        raise FormatError(f"POST {path}: the answer is no analysis of a backlog; is this a Pulsar broker?")
    last = found.get("lastMessageId")
    position = Position.parse(":".join(str(last).split(":")[:2])) if last else None
    return int(found["entries"]), int(found["messages"]), position
