"""A pending deletion as it arrived: its message, and the mark read from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pending_deletion import PendingDeletion, Waiver
from bookwarden.ledgers.switch_event import SwitchEvent

# Properties of the Java client's retry and dead-letter messages (RetryMessageUtil).
RECONSUME_TIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"
REAL_TOPIC = "REAL_TOPIC"
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
ORIGIN_MESSAGE_ID_MISSPELT = "ORIGIN_MESSAGE_IDY_TIME"
# Our own.
FIRST_PUBLISHED = "bookwarden.first-published"
REASON = "bookwarden.reason"
OUTCOME = "bookwarden.outcome"
ATTEMPTS = "bookwarden.attempts"
FIRST_READ = "bookwarden.first-read"
VERIFIED_AT = "bookwarden.verified-at"
# All of the above: what phase two writes on a message that it sends on, and nothing that its first sender wrote.
OF_PHASE_TWO = frozenset(
    (
        RECONSUME_TIMES,
        DELAY_TIME,
        REAL_TOPIC,
        REAL_SUBSCRIPTION,
        ORIGIN_MESSAGE_ID,
        ORIGIN_MESSAGE_ID_MISSPELT,
        FIRST_PUBLISHED,
        FIRST_READ,
        REASON,
        OUTCOME,
        ATTEMPTS,
        VERIFIED_AT,
    )
)

# What phase one writes, and what stays on a message that is sent on, or back from the DLQ.
WAIVES = "bookwarden.waives"
_WAIVERS = {waiver.value: waiver for waiver in Waiver}

# The most that travels with a message that is sent on, in bytes of UTF-8 and in properties: a broker that is asked for
# an entry answers with a header for each, and its web server has 8 KiB for all.
MOST_TRAVELLING = 6 * 1024
MOST_PROPERTIES = 60
# Longer ones are not what we write. Names are of topics and subscriptions; all else is numbers, ids and single words.
_LONGEST_NAME = 1024
_LONGEST_WORD = 64
_LONGEST_WAIVES = 256

# In bytes. A mark has less than a tenth of it; one must fit into a retry, with what is written on it.
LARGEST_MARK = 1 << 18
# In bytes, once it is decompressed: senders gather few hundred KiB of marks, and an entry that claims more is not read.
LARGEST_ENTRY = 5 << 20

# Takes topic, payload and schema version; raises MalformedMarkError.
Decode = Callable[[str, bytes, bytes | None], PendingDeletion]


@dataclass(frozen=True, slots=True)
class ReceivedMark:
    """One message of a deletion topic."""

    topic: str  #: The partition that it was read from.
    message_id: str  #: ``ledger:entry:partition``, and ``:batch index`` if batched, as the Java client writes it.
    key: str | None  #: Text of the holder, unless another producer wrote something else.
    payload: bytes  #: Avro, as in schemas/.
    properties: Mapping[str, str]  #: Of the message; in a sweep only the `believed_properties`.
    published_at: int  #: By the producer's clock, in ms since the epoch.
    event_time: int | None = None  #: In ms since the epoch; None if unset.
    schema_version: bytes | None = None  #: Of the writer's schema; None if the message has none.
    mark: PendingDeletion | None = None  #: None when ``problem`` says why there is none.
    problem: str | None = None  #: For people; None where the mark could be read.
    failure: Exception | None = None  #: An error of ours while decoding it.
    directive: SwitchEvent | None = None  #: What it is in place of a mark.

    @property
    def attempts(self) -> int:
        """The times it was sent to the retry topic; 0 for a count that no client writes."""
        return self._number(RECONSUME_TIMES, 9) or 0

    @property
    def due_at(self) -> int:
        """When its delay is over, in ms since the epoch."""
        return self.published_at + (self._number(DELAY_TIME) or 0)

    @property
    def verified_at(self) -> int | None:
        """When a delayed deletion was first found fit to be deleted; None for a time that we did not write.

        It cannot have been before phase two first read it.
        """
        first = self._number(FIRST_READ)
        first = self._number(FIRST_PUBLISHED) if first is None else first
        verified = self._number(VERIFIED_AT)
        return None if first is None or verified is None else max(first, verified)

    @property
    def waives(self) -> frozenset[Waiver]:
        """The reasons to keep the ledger that an operator has overruled."""
        names = self.properties.get(WAIVES, "").split(",")
        return frozenset(_WAIVERS[name] for name in names if name in _WAIVERS)

    def age(self, now_ms: int) -> float:
        """Seconds since phase two first read it, 0 at its first look.

        The times of marking and publishing are by foreign clocks: with one that is behind, the holder's update would
        seem long overdue at each mark.
        """
        first, delay = self._number(FIRST_READ), self._number(DELAY_TIME)
        if first is None and self.attempts and delay is not None:
            # A Java client keeps no first time; each of its retries but the last waited this time until the next.
            first = self.published_at - (self.attempts - 1) * delay
        return 0.0 if first is None else max(0, now_ms - first) / 1000

    def _number(self, name: str, digits: int = 15) -> int | None:
        """Read a number that phase two writes; None for one that no clock or count comes to."""
        text = self.properties.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None


def waiving(waives: Collection[Waiver]) -> dict[str, str]:
    """Return the properties of a message whose mark waives these."""
    return {WAIVES: ",".join(sorted(waiver.value for waiver in waives))} if waives else {}


def properties_of_phase_two(received: ReceivedMark) -> dict[str, str]:
    """Return the properties of phase two that a message has, but the reason and what phase two does not write."""
    names = (REAL_TOPIC, REAL_SUBSCRIPTION)
    return {
        name: value
        for name, value in received.properties.items()
        if name in OF_PHASE_TWO - {REASON} and size_of(value) <= (_LONGEST_NAME if name in names else _LONGEST_WORD)
    }


def travelling(received: ReceivedMark, ours: Mapping[str, str], reason: str) -> tuple[str | None, dict[str, str]]:
    """Return the key and the properties of a message that is sent on: those of phase two, its waives, and the reason.

    Of those of its first sender as many as there is room for, small ones first. Where there is no room at all, the
    reason is shortened. So a mark that goes round does not grow, and what is too much is gone after one round.
    """
    key = received.key
    if key is not None and size_of(key) > _LONGEST_NAME:
        # No holder of a cluster has a name of this length. Equal keys have equal digests, and stay in one partition.
        key = f"sha256:{hashlib.sha256(key.encode(errors='replace')).hexdigest()}"
    kept = {**_waives_of(received), **ours}
    room = MOST_TRAVELLING - size_of(key or "") - size_of(REASON) - sum(map(_size_of_pair, kept.items()))
    kept[REASON] = shortened(reason, max(0, room))
    room -= size_of(kept[REASON])
    theirs = {name: value for name, value in received.properties.items() if name not in OF_PHASE_TWO and name != WAIVES}
    for size, name, value in sorted((_size_of_pair(pair), *pair) for pair in theirs.items()):
        if size > room or len(kept) == MOST_PROPERTIES:
            break
        kept[name] = value
        room -= size
    return key, kept


def _waives_of(received: ReceivedMark) -> dict[str, str]:
    # As they were written: a later version may know more of them than this one.
    written = received.properties.get(WAIVES, "")
    if size_of(written) > _LONGEST_WAIVES:
        return waiving(received.waives)
    return {WAIVES: written} if written else {}


def shortened(text: str, most: int) -> str:
    """Cut a text to a number of bytes of UTF-8, and append its length."""
    size = size_of(text)
    if size <= most:
        return text
    end = f"... ({size:,} bytes)"
    return (text.encode(errors="replace")[: max(0, most - size_of(end))].decode(errors="ignore") + end)[:most]


def size_of(text: str) -> int:
    """Return the number of bytes of a text in UTF-8."""
    return len(text.encode(errors="replace"))


def _size_of_pair(pair: tuple[str, str]) -> int:
    return size_of(pair[0]) + size_of(pair[1])


def believed_properties(properties: Mapping[str, str], topic: str, retry_topic: str) -> dict[str, str]:
    """Return the properties without those of phase two, unless the message is of its own topic.

    Anybody who may mark could otherwise forge them, and so shorten the time for which a ledger is kept.
    """
    if is_partition_of(topic, retry_topic):
        return dict(properties)
    return {name: value for name, value in properties.items() if name not in OF_PHASE_TWO}


@lru_cache(maxsize=1024)
def is_partition_of(partition: str, topic: str) -> bool:
    """Return whether a partition belongs to a topic, or is it."""
    return TopicName.parse(partition).base == TopicName.parse(topic).base


def decoded(received: ReceivedMark, decode: Decode) -> ReceivedMark:
    """Return the message with its mark, or with what is wrong with it."""
    if received.problem is not None:
        return received
    mark, problem = decode_mark(decode, received.topic, received.payload, received.schema_version)
    return replace(received, mark=mark, problem=problem)


def decode_mark(
    decode: Decode, topic: str, payload: bytes, version: bytes | None
) -> tuple[PendingDeletion | None, str | None]:
    """Return the mark of a payload, or what is wrong with it."""
    if len(payload) > LARGEST_MARK:
        return None, f"its payload has {len(payload):,} bytes, and no pending deletion more than {LARGEST_MARK:,}"
    try:
        mark = decode(topic, payload, version)
        mark.validate()
    except MalformedMarkError as error:
        return None, str(error)
    return mark, None
