"""Pins: what holds ledgers of a topic, so that brokers do not trim them, and what to do about each.

Rules: ManagedLedgerImpl.internalTrimLedgers and ManagedCursorImpl.recoveredCursor of Pulsar 4.0.8 and 4.2.4. A loaded
topic is trimmed up to the slowest durable cursor, where retention lets it; the ledger that is written is never trimmed.
"""

from __future__ import annotations

import enum
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from bookwarden.findings import size_text, some
from bookwarden.ledgers.managed_ledger import (
    COMPACTION_CURSOR,
    SHADOW_SOURCE_PROPERTY,
    BucketRange,
    LedgerInfo,
    ManagedLedgerInfo,
    Position,
)
from bookwarden.ledgers.names import TopicName

DEDUPLICATION_CURSOR: Final = "pulsar.dedup"
_REPLICATOR: Final = "pulsar.repl."
_SHADOW_REPLICATOR: Final = "pulsar.repl-"
_MB: Final = 2**20
_MINUTE_MS: Final = 60_000
_UNITS: Final = ((86_400_000, "days"), (3_600_000, "hours"), (_MINUTE_MS, "minutes"), (1000, "seconds"))
_STATS: Final = "`pulsar-admin topics stats`"


class PinKind(enum.Enum):
    """The kinds of pins, the most important first."""

    SHADOW = "shadow topic"
    UNLISTED_POSITION = "position in no listed ledger"
    TRANSACTION = "open transaction"
    DELAYED = "delayed messages"
    UNACKNOWLEDGED = "unacknowledged messages"
    SUBSCRIPTION = "subscription"
    REPLICATOR = "replicator"
    COMPACTION = "compaction"
    DEDUPLICATION = "deduplication"
    RETENTION = "retention"
    OFFLOADED = "deletion lag of offload"
    OPEN_LEDGER = "open ledger"
    NOT_LOADED = "not loaded"
    READER = "reader"


_ORDER: Final = list(PinKind)


class Pin(NamedTuple):
    """Something that holds ledgers, or seems to: a reader holds none."""

    kind: PinKind  #: Of it.
    name: str  #: Of the subscription or reader; "" where it has none.
    ledgers: tuple[int, ...]  #: What it holds, the oldest first.
    bytes: int  #: Of these, each entry once.
    what: str  #: A sentence.
    todo: str  #: What to do about it.
    command: str = ""  #: That does it, or shows more; "" where there is none.

    @property
    def title(self) -> str:
        """Its kind, and the name of the subscription, cursor or reader."""
        return f"{self.kind.value} {self.name}".rstrip()


class TopicPins(NamedTuple):
    """The pins of one topic or partition; those first that hold its oldest ledger."""

    topic: str  #: Its full name.
    loaded: bool | None  #: None where it is not known.
    ledgers: tuple[int, ...]  #: In BookKeeper, the oldest first, with the one that is written.
    bytes: int  #: Of these.
    closed_ms: int  #: When the oldest was closed; 0 where it is not, or where the list does not say it.
    pins: tuple[Pin, ...]  #: In this order.
    outlook: str  #: What becomes of the oldest ledger where nothing holds it; "" where something does.
    unseen: tuple[str, ...]  #: What could not be seen, and why.

    @property
    def holding(self) -> tuple[Pin, ...]:
        """The pins that hold the oldest ledger."""
        return tuple(pin for pin in self.pins if self.ledgers and self.ledgers[0] in pin.ledgers)


class Retention(NamedTuple):
    """A retention policy, as Pulsar has it: -1 is without end."""

    minutes: int
    megabytes: int
    source: str  #: Whose policy it is.


class DeletionLag(NamedTuple):
    """The time that an offloaded ledger stays in BookKeeper."""

    milliseconds: int | None  #: None where it stays for ever.
    source: str  #: Whose policy it is.


class OpenTransaction(NamedTuple):
    """A transaction that is open, and what it did to one topic."""

    id: str  #: As brokers write it, such as ``(1,7)``.
    opened_ms: int  #: When it was begun.
    timeout_ms: int  #: After which its coordinator aborts it.
    first: Position | None  #: Its first message in the topic.
    subscriptions: frozenset[str]  #: Those of the topic that it has acknowledged messages of.


class CursorState(NamedTuple):
    """A cursor, by its node, its ledger, and the broker that has its topic loaded.

    What only a broker knows is None without one.
    """

    name: str  #: Decoded.
    position: Position | None  #: Up to which everything is acknowledged; None where it is not known.
    durable: bool = True  #: False of a reader's.
    #: Why it may be further by now; "" where the position is exact.
    inexact: str = ""
    #: What is acknowledged behind the position: each range with the entry before it, and its last one.
    acknowledged: tuple[tuple[Position, Position], ...] = ()
    recorded_ms: int = 0  #: When its position was written into its node; 0 where that has not the position.
    buckets: tuple[BucketRange, ...] = ()  #: The ledgers whose delayed messages are indexed.
    advanced_ms: int | None = None  #: When the position moved last; 0: not since its topic was loaded.
    behind: int | None = None  #: Entries that it has not acknowledged.
    delayed: int | None = None  #: Messages that wait for their time.
    consumers: int | None = None  #: That are connected.


@dataclass(frozen=True)
class TopicState:
    """All that decides about the trim of a topic, or a partition."""

    topic: str  #: Its full name.
    info: ManagedLedgerInfo  #: Its last ledger with entries and size, where they are known.
    cursors: Sequence[CursorState]  #: Durable or not.
    loaded: bool | None  #: Whether a broker has it loaded; None where that is not known.
    retention: Retention | None  #: The policy that applies; None where it is not known.
    lag: DeletionLag | None = None  #: The same for offloaded ledgers.
    clusters: Collection[str] | None = None  #: Those that the cluster knows; None where they are not known.
    transactions: Sequence[OpenTransaction] = ()  #: That touched the topic.
    check_s: int | None = None  #: Seconds between two trims; None where it is not known.
    rollover_minutes: int | None = None  #: After which a ledger that is written is closed at the latest.
    created_ms: int = 0  #: When the last ledger was created; 0 where it is not known.
    unseen: Sequence[str] = ()  #: What could not be seen, and why.

    @cached_property
    def stored(self) -> tuple[LedgerInfo, ...]:
        """The ledgers that are in BookKeeper."""
        return tuple(one for one in self.info.ledgers if one.offload is None or not one.offload.bookkeeper_deleted)

    @cached_property
    def written(self) -> int | None:
        """The ledger that is never trimmed, since it is written, or was the last of a terminated topic.

        None where there is none: a broker that loads a topic begins a new ledger, unless it is terminated.
        """
        if not self.info.ledgers or (self.loaded is False and self.info.terminated is None):
            return None
        return self.info.ledgers[-1].ledger_id


def find_pins(state: TopicState, now_ms: int) -> TopicPins:
    """Find all that holds ledgers of the topic."""
    return _Search(state, now_ms).result()


class _Search:
    """The search for the pins of one topic."""

    def __init__(self, state: TopicState, now_ms: int) -> None:
        self._state = state
        self._now_ms = now_ms
        self._listed = {ledger.ledger_id: ledger for ledger in state.info.ledgers}
        self._closed = tuple(one for one in state.stored if one.ledger_id != state.written)
        self._topic = shlex.quote(state.topic)
        self._partitioned = shlex.quote(str(TopicName.parse(state.topic).base))

    def result(self) -> TopicPins:
        state = self._state
        oldest = state.stored[0] if state.stored else None
        pins = sorted(
            self._all(),
            key=lambda pin: (
                oldest is None or oldest.ledger_id not in pin.ledgers,
                _ORDER.index(pin.kind),
                -len(pin.ledgers),
                pin.name,
            ),
        )
        found = TopicPins(
            state.topic,
            state.loaded,
            tuple(one.ledger_id for one in state.stored),
            sum(one.size for one in state.stored),
            0 if oldest is None else oldest.timestamp_ms,
            tuple(pins),
            "",
            tuple(state.unseen),
        )
        return found if found.holding or oldest is None else found._replace(outlook=self._outlook())

    def _all(self) -> Iterator[Pin]:
        source = self._state.info.properties.get(SHADOW_SOURCE_PROPERTY)
        if source is not None:
            yield self._pin(
                PinKind.SHADOW,
                source,
                self._state.stored,
                f"It is a shadow topic of {source}, whose ledgers it lists: only that one trims them.",
                "Ask for the source.",
                f"bookwarden disk why {shlex.quote(source)}",
            )
            return
        for cursor in self._state.cursors:
            pin = self._of_cursor(cursor) if cursor.durable else self._of_reader(cursor)
            if pin is not None:
                yield pin
        yield from self._retention()
        yield from self._offloaded()
        yield from self._open_ledger()
        if self._state.loaded is False and self._closed:
            yield self._pin(
                PinKind.NOT_LOADED,
                "",
                self._closed,
                "No broker has the topic loaded, and only a loaded topic is trimmed.",
                "Have a broker load it: whatever is held by nothing else goes at its next check.",
                f"pulsar-admin topics stats {self._topic}",
            )

    def _pin(
        self, kind: PinKind, name: str, ledgers: Sequence[LedgerInfo], what: str, todo: str, command: str = ""
    ) -> Pin:
        ids = tuple(one.ledger_id for one in ledgers)
        return Pin(kind, name, ids, sum(one.size for one in ledgers), what, todo, command)

    # Cursors

    def _of_cursor(self, cursor: CursorState) -> Pin | None:
        held = tuple(one for one in self._closed if one.ledger_id >= self._bound(cursor.position))
        if not held:
            return None
        kind, what, todo, command = self._why(cursor)
        sentence = " ".join((what, *self._signs(cursor)))
        return self._pin(kind, cursor.name, held, sentence, todo, command)

    def _bound(self, position: Position | None) -> int:
        """Return the first ledger that a cursor at this position holds."""
        if position is None:
            return 0
        listed = self._listed.get(position.ledger_id)
        if listed is None:
            return position.ledger_id
        is_passed = listed.ledger_id != self._state.written and listed.entries == position.entry_id + 1
        return position.ledger_id + is_passed

    def _why(self, cursor: CursorState) -> tuple[PinKind, str, str, str]:
        """Return kind, sentence, what to do and command for a cursor that holds ledgers."""
        name, position = cursor.name, cursor.position
        if name == COMPACTION_CURSOR:
            return (
                PinKind.COMPACTION,
                f"Compaction has come to {position}.",
                "Compact the topic, or set a compaction threshold. Where it is to be compacted no more, remove the "
                "threshold, and then the subscription __compaction, with its compacted ledger.",
                f"pulsar-admin topics compact {self._topic}",
            )
        if name == DEDUPLICATION_CURSOR:
            return (
                PinKind.DEDUPLICATION,
                f"The newest snapshot of deduplication is of {position}; a broker needs what is behind it to recover.",
                "Wait for the next snapshot, which a broker takes of a loaded topic that is written; or have it taken "
                "sooner; or turn deduplication off.",
                f"pulsar-admin topicPolicies set-deduplication-snapshot-interval --interval 10 {self._partitioned}",
            )
        if name.startswith(_REPLICATOR):
            return self._replicator(name, position)
        return self._subscription(cursor)

    def _replicator(self, name: str, position: Position | None) -> tuple[PinKind, str, str, str]:
        topic = TopicName.parse(self._state.topic)
        cluster = name.removeprefix(_REPLICATOR)
        if self._state.clusters is not None and cluster not in self._state.clusters:
            return (
                PinKind.REPLICATOR,
                f"It is to be replicated to the cluster {cluster}, which is gone; it stands at {position}.",
                f"Set the namespace's clusters without {cluster}; a broker that loads the topic then drops the cursor.",
                f"pulsar-admin namespaces set-clusters --clusters CLUSTERS {topic.namespace_name}; "
                f"pulsar-admin topics unload {self._topic}",
            )
        return (
            PinKind.REPLICATOR,
            f"It is replicated to the cluster {cluster}, up to {position} by now.",
            f"See in {_STATS}, below replication, whether {cluster} is connected; or replicate it there no more.",
            f"pulsar-admin topics stats {self._topic}",
        )

    def _subscription(self, cursor: CursorState) -> tuple[PinKind, str, str, str]:
        name, position = cursor.name, cursor.position
        quoted = shlex.quote(name)
        drop = f"bookwarden mark subscription {self._topic} {quoted}"
        if position is None:
            return PinKind.SUBSCRIPTION, f"The position of subscription {name} is not known.", "Look at its node.", ""
        # One in front of a ledger that is gone is moved to the next ledger by the broker that loads the topic.
        if not (position.ledger_id in self._listed or position.entry_id == -1):
            return (
                PinKind.UNLISTED_POSITION,
                f"Subscription {name} stands at {position}, in a ledger that the topic does not list.",
                f"An acknowledgement moves it to a listed ledger, a reset of its position too; or drop it: `{drop}`.",
                f"pulsar-admin topics reset-cursor --subscription {quoted} --messageId earliest {self._topic}",
            )
        open_ones = [one for one in self._state.transactions if name in one.subscriptions]
        written = [one for one in self._state.transactions if one.first is not None and one.first > position]
        if open_ones or (written and self._is_stopped_by(written, cursor)):
            one = min(open_ones or written, key=lambda each: each.opened_ms)
            how = "has acknowledged its messages" if open_ones else "has written messages that it may not read yet"
            return (
                PinKind.TRANSACTION,
                f"Subscription {name} stands at {position}: the transaction {one.id} {how}, and is open for "
                f"{_span(self._now_ms - one.opened_ms)}.",
                f"Have its client end it; after {_span(one.timeout_ms)} its coordinator aborts it. Or abort it.",
                "pulsar-admin transactions abort-transaction "
                + " ".join(f"{option} {half}" for option, half in zip(("-m", "-l"), _halves(one.id), strict=False)),
            )
        if cursor.delayed or any(one.first <= position.ledger_id <= one.last for one in cursor.buckets):
            number = f"{cursor.delayed:,} messages" if cursor.delayed else "messages"
            return (
                PinKind.DELAYED,
                f"Subscription {name} stands at {position}, and has {number} that wait for their time.",
                "Wait for it. A maximum delay of the namespace keeps later ones from waiting longer. Or drop it: "
                f"`{drop}`.",
                f"pulsar-admin topics stats {self._topic}",
            )
        if cursor.acknowledged:
            waiting = self._between(position, cursor.acknowledged[0][0])
            done = sum(self._between(*ends) for ends in cursor.acknowledged)
            return (
                PinKind.UNACKNOWLEDGED,
                f"Subscription {name} stands at {position}: {_number(waiting, 'entry is', 'entries are')} not "
                f"acknowledged there, before {_number(done, 'entry that is', 'entries that are')}.",
                "Look at the first of them. An acknowledgement timeout and a dead letter topic of the consumers keep "
                f"one from staying behind; `pulsar-admin topics skip -n {max(1, waiting)} -s {quoted} "
                f"{self._topic}` gives them up.",
                f"pulsar-admin topics peek-messages -n 1 -s {quoted} {self._topic}",
            )
        return (
            PinKind.SUBSCRIPTION,
            f"Subscription {name} stands at {position}.",
            "Let its consumers acknowledge. A time to live of messages, or an expiration of subscriptions, of the "
            "namespace ends that by itself. If nobody needs it, drop it.",
            drop,
        )

    def _is_stopped_by(self, written: Sequence[OpenTransaction], cursor: CursorState) -> bool:
        """Return whether all that a cursor has not acknowledged lies behind the first message of open transactions."""
        first = min(one.first for one in written if one.first is not None)
        position = cursor.position
        return position is not None and not cursor.acknowledged and self._next(position) >= first

    def _next(self, position: Position) -> Position:
        listed = self._listed.get(position.ledger_id)
        if listed is not None and listed.ledger_id != self._state.written and position.entry_id + 1 >= listed.entries:
            later = [one for one in self._listed if one > position.ledger_id]
            return Position(min(later), 0) if later else position
        return Position(position.ledger_id, position.entry_id + 1)

    def _signs(self, cursor: CursorState) -> Iterator[str]:
        """Yield what shows for how long a cursor stands there, and who reads it."""
        if cursor.behind is not None:
            yield f"{_number(cursor.behind, 'entry is', 'entries are')} behind it."
        else:
            behind = self._entries_behind(cursor.position)
            if behind:
                yield f"At least {_number(behind, 'entry is', 'entries are')} behind it."
        if cursor.advanced_ms:
            yield f"It has not moved for {_span(self._now_ms - cursor.advanced_ms)}."
        elif cursor.advanced_ms == 0:
            yield "It has not moved since the topic was loaded."
        elif cursor.recorded_ms:
            yield f"It was written down {_span(self._now_ms - cursor.recorded_ms)} ago."
        closed_ms = self._closed_behind(cursor.position)
        if closed_ms:
            yield f"What it waits for was written at least {_span(self._now_ms - closed_ms)} ago."
        if cursor.consumers is not None and not cursor.name.startswith(("pulsar.", "__")):
            yield "It has no consumer." if not cursor.consumers else f"It has {_number(cursor.consumers, 'consumer')}."
        if cursor.inexact:
            yield f"It may be further: {cursor.inexact}."

    def _entries_behind(self, position: Position | None) -> int:
        if position is None:
            return 0
        own = self._listed.get(position.ledger_id)
        rest = 0 if own is None else max(0, own.entries - position.entry_id - 1)
        return rest + sum(one.entries for one in self._listed.values() if one.ledger_id > position.ledger_id)

    def _between(self, position: Position, last: Position) -> int:
        """Count the entries behind a position, up to and with the last."""
        return max(0, self._entries_behind(position) - self._entries_behind(last))

    def _closed_behind(self, position: Position | None) -> int:
        """Return when the first ledger was closed that has an entry behind the position; 0 where it is open."""
        if position is None:
            return 0
        first = self._bound(position)
        return next((one.timestamp_ms for one in self._state.info.ledgers if one.ledger_id >= first), 0)

    def _of_reader(self, cursor: CursorState) -> Pin:
        shadow = cursor.name.removeprefix(_SHADOW_REPLICATOR)
        what = f"The reader {cursor.name}" if shadow == cursor.name else f"The replicator to the shadow topic {shadow}"
        return self._pin(
            PinKind.READER,
            cursor.name,
            (),
            f"{what} stands at {cursor.position}, and holds nothing: brokers trim what it has not "
            "read, and move it on.",
            "Nothing. What a reader must not lose needs retention, or a subscription.",
        )

    # Policies, and the state of ledgers

    def _retention(self) -> Iterator[Pin]:
        policy = self._state.retention
        if policy is None:
            return
        total = sum(one.size for one in self._listed.values())
        passed = 0
        for ledger in self._state.info.ledgers:
            passed += ledger.size
            # A broker that loads a topic takes its last ledger as closed at that moment.
            closed_ms = self._now_ms if ledger is self._state.info.ledgers[-1] else ledger.timestamp_ms
            is_expired = 0 <= policy.minutes * _MINUTE_MS < self._now_ms - closed_ms
            is_over = policy.megabytes >= 0 and total - passed >= policy.megabytes * _MB
            if is_expired or is_over:
                continue
            held = tuple(one for one in self._closed if one.ledger_id >= ledger.ledger_id)
            if held:
                yield self._of_retention(policy, held, closed_ms)
            return

    def _of_retention(self, policy: Retention, held: Sequence[LedgerInfo], closed_ms: int) -> Pin:
        time = "for ever" if policy.minutes < 0 else f"for {_span(policy.minutes * _MINUTE_MS)}"
        size = "of any size" if policy.megabytes < 0 else f"up to {size_text(policy.megabytes * _MB)}"
        what = f"Retention of {policy.source} keeps what is consumed, {time} and {size}."
        if policy.minutes >= 0:
            rest = closed_ms + policy.minutes * _MINUTE_MS - self._now_ms
            what += f" The first of them is kept for {_span(max(0, rest))} more"
            what += "." if policy.megabytes < 0 else ", or until later ledgers have that size."
        of_topic = policy.source.startswith("the topic")
        target = self._partitioned if of_topic else TopicName.parse(self._state.topic).namespace_name
        group = "topicPolicies" if of_topic else "namespaces"
        return self._pin(
            PinKind.RETENTION,
            "",
            held,
            what,
            "Wait, or keep less.",
            f"pulsar-admin {group} set-retention --time TIME --size SIZE {target}",
        )

    def _offloaded(self) -> Iterator[Pin]:
        held = tuple(one for one in self._closed if one.offload is not None and one.offload.complete)
        lag = self._state.lag
        if not held or lag is None:
            return
        command = (
            f"pulsar-admin namespaces set-offload-deletion-lag --lag LAG "
            f"{TopicName.parse(self._state.topic).namespace_name}"
        )
        if lag.milliseconds is None:
            what = f"They are offloaded, and stay in BookKeeper too: {lag.source} has no deletion lag."
            yield self._pin(PinKind.OFFLOADED, "", held, what, "Set one.", command)
            return
        offload = held[0].offload
        due_ms = (0 if offload is None else offload.timestamp_ms) + lag.milliseconds
        ended = due_ms < self._now_ms
        end = "has ended" if ended else f"ends in {_span(due_ms - self._now_ms)} for the first of them"
        yield self._pin(
            PinKind.OFFLOADED,
            "",
            held,
            f"They are offloaded, and stay in BookKeeper for the deletion lag of {lag.source}, "
            f"{_span(lag.milliseconds)}, which {end}.",
            "The broker deletes them at its next check, where it has an offload driver."
            if ended
            else "Wait, or shorten it.",
            command,
        )

    def _open_ledger(self) -> Iterator[Pin]:
        written = self._state.written
        if written is None or self._closed:
            return
        if self._state.info.terminated is not None:
            yield self._pin(
                PinKind.OPEN_LEDGER,
                "",
                self._state.stored,
                "The topic is terminated, and its last ledger is never trimmed.",
                "Delete the topic, once nobody needs what is in it.",
                f"bookwarden mark topic {self._topic}",
            )
            return
        since = f" for {_span(self._now_ms - self._state.created_ms)}" if self._state.created_ms else ""
        rolled = self._state.rollover_minutes
        when = f", after {_span(rolled * _MINUTE_MS)} at the latest where it has entries" if rolled else ""
        yield self._pin(
            PinKind.OPEN_LEDGER,
            "",
            (self._listed[written],) if written in self._listed else (),
            f"Ledger {written} is written{since}, and a ledger that is not closed is never trimmed.",
            f"Wait until it is full{when}; an unload closes it, too.",
            f"pulsar-admin topics unload {self._topic}",
        )

    def _outlook(self) -> str:
        state = self._state
        if state.loaded is None:
            return "Nothing that can be seen holds it."
        if state.retention is None:
            return "Nothing that can be seen holds it; retention is not known."
        often = "" if state.check_s is None else f", within {_span(state.check_s * 1000)}"
        return (
            f"Nothing holds it: the broker trims it at its next check{often}. "
            f"If it is still there then: `bookwarden mark trim {self._topic}`."
        )


def _halves(transaction: str) -> list[str]:
    """Return the halves of the id of a transaction, which is written ``(most,least)``."""
    return [half.strip() for half in transaction.strip("()").split(",")]


def _number(number: int, singular: str, plural: str | None = None) -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def _span(milliseconds: int) -> str:
    """Return a time in the largest unit of which it has two, or in seconds."""
    for unit_ms, name in _UNITS:
        if milliseconds >= 2 * unit_ms:
            return f"{milliseconds // unit_ms:,} {name}"
    return "a second" if milliseconds >= 1000 else "less than a second"


def held_text(one: TopicPins, pin: Pin) -> str:
    """Return what a pin of a topic holds."""
    if not pin.ledgers:
        return "nothing"
    oldest = "the oldest ledger" if pin.ledgers[0] == one.ledgers[0] else f"ledger {pin.ledgers[0]}"
    rest = f" and {_number(len(pin.ledgers) - 1, 'later one')}" if len(pin.ledgers) > 1 else ""
    return f"{oldest}{rest}, {size_text(pin.bytes)}"


def summary_of(found: Sequence[TopicPins]) -> str:
    """Return one sentence for all partitions of a topic."""
    kinds = dict.fromkeys(pin.kind.value for one in found for pin in one.holding)
    free = sum(1 for one in found if not one.holding)
    said = f"{_number(len(found), 'partition')}: " + (some(list(kinds)) if kinds else "nothing holds a ledger")
    return said + (f"; {free:,} of them held by nothing" if kinds and free else "")
