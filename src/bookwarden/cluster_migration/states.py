"""The state of a topic in a migration, by what its nodes and its broker say of it: a decision without input or output.

A topic's nodes say whether it was marked: it accepts no messages, and its clients are redirected to green. Once a flag
is set no broker loads a topic any more, and what a subscription has not read of a topic that is not loaded reaches no
client.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bookwarden.cluster_migration.scope import is_replicator
from bookwarden.ledgers.managed_ledger import ManagedLedgerInfo, Position
from bookwarden.redirects import MIGRATED_PROPERTY


class TopicState(enum.Enum):
    """The state of one topic, or partition."""

    SERVING = "SERVING"  #: No flag, not marked: as ever.
    WAITING = "WAITING"  #: Loaded under the flag, and not marked yet.
    HELD = "HELD"  #: Marked; replication to another cluster is behind, and holds the producers.
    DRAINING = "DRAINING"  #: Marked; consumers read what is left.
    STUCK = "STUCK"  #: Marked; something is left, and no consumer reads it.
    PRODUCERS_LEFT = "PRODUCERS LEFT"  #: Marked and drained; green has not seen a producer that blue had.
    CONSUMERS_LEFT = "CONSUMERS LEFT"  #: The same of a subscription's consumers.
    DRAINED = "DRAINED"  #: Marked; nothing is left to read.
    STRANDED = "STRANDED"  #: Marked, not loaded, something left: no broker loads it while the flag is set.
    UNMARKED = "UNMARKED"  #: Not marked and not loaded: the flag keeps all clients out, and nothing moves it.
    GONE = "GONE"  #: Deleted on blue.
    ROLLED_BACK = "ROLLED BACK"  #: Marked, and no flag any more: it accepts no message until it is reopened.
    UNKNOWN = "UNKNOWN"  #: The brokers did not say whether it is loaded.


#: Nothing is left to be read or sent on blue.
DONE: Final = frozenset({TopicState.DRAINED, TopicState.GONE})
#: Nothing is left to be read; clients that were there may be on no side any more.
CLIENTS_LEFT: Final = frozenset({TopicState.PRODUCERS_LEFT, TopicState.CONSUMERS_LEFT})
#: Nothing is left to be read.
UNNEEDED: Final = DONE | CLIENTS_LEFT
#: These stay as they are, and no client reaches them: an operator has to act.
LOST_SIGHT: Final = frozenset({TopicState.STRANDED, TopicState.UNMARKED})

ADVICE: Final[Mapping[TopicState, str]] = {
    TopicState.STRANDED: "`cluster-migration abort` now, restart its consumers on blue to drain it, then `start` again",
    TopicState.UNMARKED: "`cluster-migration abort` now, then `start` again, which loads every topic first",
    TopicState.STUCK: "bring its consumers back with blue's service URL, or skip what is left on the subscription",
    TopicState.HELD: "wait for the other cluster to take what is left, or remove it from the namespace's clusters",
    TopicState.WAITING: "if it stays so for two rounds look for WARN lines about it in the broker's log",
    TopicState.PRODUCERS_LEFT: "`cluster-migration release` lets those go that blue keeps fenced; see whether others "
    "run: one in Java may have ended with TopicTerminatedException, and its application has to be restarted",
    TopicState.CONSUMERS_LEFT: "`cluster-migration release` sends those to green that ask blue; see whether others "
    "run, and restart their processes: clients in C++ or Python may hang",
    TopicState.ROLLED_BACK: "let consumers drain it, then `cluster-migration reopen` it for producers",
    TopicState.UNKNOWN: "see that every registered broker answers",
}


@dataclass(frozen=True, slots=True)
class CursorStatus:
    """A subscription, or a replicator, of a topic; ``unread`` are its entries, None where that is not known."""

    name: str
    unread: int | None
    consumers: int | None = None  #: Connected now; None where the topic is not loaded.

    @property
    def is_read(self) -> bool:
        """True only where it is known that nothing is left."""
        return self.unread == 0


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A topic, or partition, as it was seen in one snapshot; ``info`` is None where it has no node any more."""

    topic: str  #: Full name.
    info: ManagedLedgerInfo | None  #: The value of its node.
    flagged: bool  #: Its namespace, or the whole cluster, is migrated.
    loaded: bool | None = None  #: A broker has it; None where one did not say.
    publishers: int | None = None  #: Connected now; None where the topic is not loaded.
    #: Subscriptions and replicators, without the cursors that brokers keep for themselves.
    cursors: tuple[CursorStatus, ...] = ()
    green_lacks_producer: bool = False  #: Blue had one at the start, and green has none.
    green_lacks: tuple[str, ...] = ()  #: Subscriptions that are read on blue, had a consumer there, and none on green.
    compacted: bool = False  #: It has the cursor of compaction.
    error: str = ""  #: Why something of it is not known.

    @property
    def unread(self) -> int:
        """Entries that its subscriptions and replicators have not read, as far as it is known."""
        return sum(cursor.unread or 0 for cursor in self.cursors)

    @property
    def is_read(self) -> bool:
        """True only where it is known that no cursor has anything left."""
        return all(cursor.is_read for cursor in self.cursors)

    @property
    def is_marked(self) -> bool:
        """True where it accepts no messages."""
        return self.info is not None and self.info.terminated is not None

    @property
    def is_moved(self) -> bool:
        """True where blue sends its clients to green; it may have deleted it since."""
        return self.flagged and (self.info is None or self.is_marked)

    @property
    def state(self) -> TopicState:
        """Its state."""
        return state_of(self)


def state_of(seen: TopicStatus) -> TopicState:
    """Decide the state of a topic; what is not known never counts as read."""
    if seen.info is None:
        return TopicState.GONE
    if not seen.flagged:
        by_migration = seen.is_marked and is_marked_by_migration(seen.info)
        return TopicState.ROLLED_BACK if by_migration else TopicState.SERVING
    if seen.is_marked and not seen.cursors:
        return _drained_state(seen)
    if seen.loaded is None:
        return TopicState.UNKNOWN
    if not seen.loaded:
        if not seen.is_marked:
            return TopicState.UNMARKED
        return _drained_state(seen) if seen.is_read else TopicState.STRANDED
    return _loaded_state(seen) if seen.is_marked else TopicState.WAITING


def _loaded_state(seen: TopicStatus) -> TopicState:
    left = [cursor for cursor in seen.cursors if not cursor.is_read]
    if not left:
        return _drained_state(seen)
    read_by_clients = [cursor for cursor in left if not is_replicator(cursor.name)]
    if not read_by_clients:
        return TopicState.HELD
    idle = [cursor for cursor in read_by_clients if cursor.consumers == 0]
    return TopicState.STUCK if idle else TopicState.DRAINING


def _drained_state(seen: TopicStatus) -> TopicState:
    if seen.green_lacks_producer:
        return TopicState.PRODUCERS_LEFT
    return TopicState.CONSUMERS_LEFT if seen.green_lacks else TopicState.DRAINED


def is_marked_by_migration(info: ManagedLedgerInfo) -> bool:
    """Return whether a migration terminated the topic, and not its user."""
    return info.terminated is not None and info.properties.get(MIGRATED_PROPERTY) == "true"


def entries_of(info: ManagedLedgerInfo) -> int:
    """Count the entries of a topic; those of a ledger that is being written are not known, and not counted."""
    return sum(_entries(info).values())


def unread_entries(info: ManagedLedgerInfo, mark_delete: Position | None) -> int | None:
    """Count the entries behind a cursor's position, those included that were acknowledged one by one before others.

    None where that is not known: the position is not, or the topic still accepts messages.
    """
    if mark_delete is None or info.terminated is None:
        return None
    left = 0
    for ledger_id, entries in _entries(info).items():
        if ledger_id == mark_delete.ledger_id:
            left += max(0, entries - mark_delete.entry_id - 1)
        elif ledger_id > mark_delete.ledger_id:
            left += entries
    return left


def _entries(info: ManagedLedgerInfo) -> dict[int, int]:
    counts = {ledger.ledger_id: ledger.entries for ledger in info.ledgers}
    if info.terminated is not None and info.terminated.ledger_id in counts:
        # The list may have been written before the last ledger's count was known.
        counts[info.terminated.ledger_id] = info.terminated.entry_id + 1
    return counts


@dataclass(frozen=True, slots=True)
class ExpectedTopic:
    """A topic as it was when its migration began: what green must have, and blue may lose."""

    topic: str
    subscriptions: tuple[str, ...] = ()
    had_producer: bool = False
    read_by: tuple[str, ...] = ()  #: Subscriptions that had a consumer.
    entries: int | None = None  #: When it was marked; None where that is not known.
