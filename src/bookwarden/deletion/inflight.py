"""In flight: pending deletions that are marked and not yet settled, counted in the subscription's backlog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from bookwarden.clusters.pulsar.rest.backlog import PartitionBacklog, SubscriptionBacklog
from bookwarden.ledgers.pending_deletion import Request
from bookwarden.ledgers.received import Decode, ReceivedMark, decoded

DEFAULT_MAX_ENTRIES = 100_000


@dataclass(frozen=True, slots=True)
class InFlight:
    """The backlog of all partitions of the deletion topic and its retry topic."""

    partitions: tuple[PartitionBacklog, ...]

    @property
    def entries(self) -> int:
        """The entries of all partitions."""
        return sum(partition.entries for partition in self.partitions)

    @property
    def messages(self) -> int:
        """The messages of all partitions."""
        return sum(partition.messages for partition in self.partitions)

    @property
    def exact(self) -> bool:
        """Whether each message was counted."""
        return all(partition.exact for partition in self.partitions)


def count_in_flight(
    reader: SubscriptionBacklog, topics: Sequence[str], subscription: str, max_entries: int = DEFAULT_MAX_ENTRIES
) -> InFlight:
    """Count the messages in flight on each partition of the topics; ``max_entries`` bounds the work for each."""
    return InFlight(
        tuple(
            reader.backlog(partition, subscription, max_entries)
            for topic in topics
            for partition in reader.partitions(topic)
        )
    )


def requests_in_flight(read: Callable[[], Iterable[ReceivedMark]], decode: Decode) -> frozenset[Request]:
    """Read what the marks in flight ask for; raises what ``read`` and ``decode`` do."""
    received = (decoded(message, decode) for message in read())
    return frozenset(
        replace(message.mark, waives=message.waives).request for message in received if message.mark is not None
    )
