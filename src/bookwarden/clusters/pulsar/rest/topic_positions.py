"""Positions of a topic's entries and cursors, read from the admin REST without a consumer.

Formats: ``internalStats`` (ManagedLedgerInternalStats) and the headers of ``ledger/L/entry/E``
(PersistentTopicsBase.generateResponseWithEntry) of Pulsar 4.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.errors import FormatError, NotFoundError, PulsarConflictError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.names import TopicName, decode_local_name, encode_local_name


@dataclass(frozen=True, slots=True)
class LedgerSpan:
    """A ledger of a topic and the number of entries in it that are confirmed."""

    ledger_id: int
    entries: int


class EntriesBehind(NamedTuple):
    """The number of entries behind a subscription's position, and the first of them."""

    entries: int
    first: Position | None


@dataclass(frozen=True, slots=True)
class TopicPositions:
    """A snapshot of one topic: its ledgers in order, and the mark-delete position of each durable cursor."""

    topic: str
    ledgers: tuple[LedgerSpan, ...]
    cursors: Mapping[str, Position]

    @property
    def earliest(self) -> Position:
        """The place before the first entry that still exists."""
        return Position(self.ledgers[0].ledger_id, -1)

    @property
    def latest(self) -> Position:
        """The last confirmed entry, or the place before the first ledger's first entry if there is none."""
        for ledger in reversed(self.ledgers):
            if ledger.entries > 0:
                return Position(ledger.ledger_id, ledger.entries - 1)
        return self.earliest

    def behind(self, start: Position) -> EntriesBehind:
        """Count the entries behind a position, which may be in a ledger that is not there any more."""
        behind, first = 0, None
        for ledger in self.ledgers:
            begin = start.entry_id + 1 if ledger.ledger_id == start.ledger_id else 0
            if ledger.ledger_id >= start.ledger_id and ledger.entries > begin:
                behind += ledger.entries - begin
                first = first or Position(ledger.ledger_id, begin)
        return EntriesBehind(behind, first)


def topic_path(topic: str) -> str:
    """Return the admin path of a persistent topic, below ``/admin/v2``."""
    name = TopicName.parse(topic)
    return f"/{name.domain}/{quote(name.tenant)}/{quote(name.namespace)}/{encode_local_name(name.local_name)}"


def subscription_path(topic: str, subscription: str) -> str:
    """Return the admin path of a subscription; the broker decodes its name twice (URL, Codec)."""
    return f"{topic_path(topic)}/subscription/{quote(encode_local_name(subscription), safe='')}"


def read_positions(admin: PulsarAdmin, topic: str) -> TopicPositions:
    """Read the ledgers and cursors of one partition or unpartitioned topic; this loads the topic on its owner."""
    return parse_positions(topic, admin.get_json(f"{topic_path(topic)}/internalStats"))


def parse_positions(topic: str, stats: Mapping[str, Any]) -> TopicPositions:
    """Parse an answer of ``internalStats``; raise FormatError if it is not one."""
    try:
        confirmed = Position.parse(stats["lastConfirmedEntry"])
        ledgers = tuple(_span(ledger, confirmed) for ledger in stats["ledgers"])
        cursors = {
            decode_local_name(name): Position.parse(cursor["markDeletePosition"])
            for name, cursor in stats["cursors"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"internalStats of {topic} lacks or misshapes {error}; is this a Pulsar broker?") from error
    if not ledgers:
        raise FormatError(f"internalStats of {topic} names no ledger; it is being loaded, try again")
    return TopicPositions(topic, ledgers, cursors)


def _span(ledger: Mapping[str, Any], confirmed: Position) -> LedgerSpan:
    # An open ledger has 0 entries here until it is closed; lastConfirmedEntry has its confirmed ones.
    ledger_id = int(ledger["ledgerId"])
    if ledger_id == confirmed.ledger_id:
        return LedgerSpan(ledger_id, confirmed.entry_id + 1)
    return LedgerSpan(ledger_id, int(ledger["entries"]) if ledger_id < confirmed.ledger_id else 0)


def next_to_read(admin: PulsarAdmin, topic: str, subscription: str) -> Position | None:
    """Return the entry that a broker reads next for a subscription, durable or not; None if it serves none."""
    stats = admin.get_json(f"{topic_path(topic)}/internalStats")
    try:
        found = {decode_local_name(name): cursor["readPosition"] for name, cursor in stats["cursors"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"internalStats of {topic} lacks or misshapes {error}; is this a Pulsar broker?") from error
    return Position.parse(found[subscription]) if subscription in found else None


def is_passed_over(admin: PulsarAdmin, topic: str, position: Position) -> bool:
    """Return whether brokers deliver an entry to no reader: a marker, or a message of an aborted transaction.

    Raises NotFoundError if its ledger is not the topic's any more.
    """
    answer = admin.request("GET", f"{topic_path(topic)}/ledger/{position.ledger_id}/entry/{position.entry_id}")
    return "X-Pulsar-marker-type" in answer.headers or answer.headers.get("X-Pulsar-txn-aborted") == "true"


def list_partitions(admin: PulsarAdmin, topic: str) -> list[str]:
    """List the partitions of a topic in order; a topic without partitions is its own only one.

    Raises NotFoundError if there is no such topic.
    """
    name = TopicName.parse(topic)
    if name.partition is None:
        try:
            count = int(admin.get_json(f"{topic_path(topic)}/partitions")["partitions"])
        except NotFoundError as error:
            raise _absent(name) from error
        if count > 0:
            return [str(name.partition_name(index)) for index in range(count)]
    if str(name) not in _existing_topics(admin, name):
        raise _absent(name)
    return [str(name)]


def _absent(name: TopicName) -> NotFoundError:
    return NotFoundError(f"topic {name} does not exist: create it, or check its name")


def _existing_topics(admin: PulsarAdmin, name: TopicName) -> set[str]:
    # Without this the topics of pulsar/system, where the DLQ is, are missing.
    everything = {"includeSystemTopic": True}
    return set(admin.get_json(f"/{name.domain}/{quote(name.tenant)}/{quote(name.namespace)}", params=everything))


def list_topics(admin: PulsarAdmin, tenant: str, namespace: str) -> list[str]:
    """List the persistent topics of a namespace, partitioned ones once and without their partitions."""
    path = f"/persistent/{quote(tenant)}/{quote(namespace)}"
    partitioned = set(admin.get_json(f"{path}/partitioned"))
    loose = (str(topic) for topic in admin.get_json(path))
    return sorted(partitioned | {topic for topic in loose if str(TopicName.parse(topic).base) not in partitioned})


def create_subscription(admin: PulsarAdmin, topic: str, subscription: str, after: Position) -> bool:
    """Create a durable subscription whose backlog begins behind a position; return False if it is there already."""
    body = {"ledgerId": after.ledger_id, "entryId": after.entry_id + 1}
    try:
        admin.put(subscription_path(topic, subscription), body)
    except PulsarConflictError:
        return False
    return True


def move_subscription(admin: PulsarAdmin, topic: str, subscription: str, after: Position) -> None:
    """Move a durable subscription so that its backlog begins behind a position."""
    body = {"ledgerId": after.ledger_id, "entryId": after.entry_id + 1, "partitionIndex": -1, "isExcluded": False}
    admin.post(f"{subscription_path(topic, subscription)}/resetcursor", body)


def entries_passed(admin: PulsarAdmin, topic: str, subscription: str) -> int:
    """Count the entries that a durable subscription has behind it; NotFoundError if there is none of that name."""
    found = read_positions(admin, topic)
    if subscription not in found.cursors:
        raise NotFoundError(f"{topic} has no subscription {subscription}")
    position = found.cursors[subscription]
    return sum(
        one.entries if one.ledger_id < position.ledger_id else min(one.entries, position.entry_id + 1)
        for one in found.ledgers
        if one.ledger_id <= position.ledger_id
    )


def reset_to_earliest(admin: PulsarAdmin, topic: str, subscription: str) -> None:
    """Move a durable subscription to the first message; its consumers are disconnected, and connect again."""
    first = read_positions(admin, topic).earliest
    move_subscription(admin, topic, subscription, first)


def find_position_before(admin: PulsarAdmin, topic: str, timestamp_ms: int) -> Position:
    """Find the place behind which every message was published at or after a moment (ms since 1970)."""
    answer = admin.get_json(f"{topic_path(topic)}/messageid/{timestamp_ms}")
    return Position(int(answer["ledgerId"]), int(answer["entryId"]) - 1)
