"""Ledgers that may be in use although no metadata names them: compacted ledgers, and buckets of delayed messages.

The ledger of a compaction under way is referenced nowhere, and the one in use is named by the last entry of an open
cursor's ledger, not by the node. A bucket whose property could not be put is used from memory until the topic is
unloaded (AbstractTwoPhaseCompactor, PulsarCompactorSubscription and Bucket of Pulsar 4.0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bookwarden.clusters.bookkeeper.bookies.last_entries import LastEntries
from bookwarden.clusters.pulsar.metadata.ownership import CLOCK_SKEW_MS, BundleOwnership
from bookwarden.clusters.pulsar.references.nodes import CursorNode
from bookwarden.clusters.pulsar.rest.brokers import Brokers
from bookwarden.errors import (
    BookieError,
    BookieUnavailableError,
    BookwardenError,
    FormatError,
    NotFoundError,
    PulsarError,
)
from bookwarden.ledgers.kinds import BucketHolder, CompactedHolder, PlaceKind
from bookwarden.ledgers.live_references import LiveReferences, UnnamedUse
from bookwarden.ledgers.managed_ledger import COMPACTION_CURSOR, CursorInfo
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.ledgers.references import Doubt, NodeReferences, ReferencePlace
from bookwarden.metastore.interface import MetadataStore

# Each silent bookie costs its timeout: after this number in a row no further one is asked.
_MOST_FAILURES = 3
_NO_BROKER = "there is no broker to ask"


class CompactedNow:
    """Completes references from cursors' nodes; for one piece of a scan, since it gives up on silent bookies."""

    def __init__(self, entries: LastEntries | None) -> None:
        self._entries = entries
        self._failures = 0

    def complete(self, node: CursorNode, references: NodeReferences) -> NodeReferences:
        """Add the compacted ledger in use if this is a compaction's cursor, or a doubt about it."""
        cursor = references.cursor
        if node.cursor != COMPACTION_CURSOR or cursor is None or cursor.cursors_ledger_id is None:
            return references
        holder = CompactedHolder(node.managed_ledger)
        try:
            compacted = self._last_recorded(cursor.cursors_ledger_id)
        except _NotReadError as error:
            return references._replace(doubt=Doubt(node.path, references.root, str(error), (holder,)))
        if compacted is None:
            return references
        place = ReferencePlace(PlaceKind.COMPACTED_NOW, str(holder), node.path, references.root)
        return references._replace(named=(*references.named, (place, frozenset((compacted,)))))

    def _last_recorded(self, ledger_id: int) -> int | None:
        if self._entries is None:
            raise _NotReadError(f"the compacted ledger in use stands in the last entry of ledger {ledger_id}")
        if self._failures >= _MOST_FAILURES:
            raise _NotReadError(
                f"the last entry of ledger {ledger_id} was not asked for: bookies did not answer {_MOST_FAILURES} times"
            )
        try:
            position = self._entries.position(ledger_id)
            self._failures = 0
            return None if position is None else position.compacted_ledger_id
        except BookwardenError as error:
            self._failures = self._failures + 1 if isinstance(error, BookieUnavailableError) else 0
            raise _NotReadError(f"the last entry of ledger {ledger_id} cannot be read: {error}") from error


class _NotReadError(Exception):
    """The compacted ledger in use could not be read, for the reason given."""


class UnnamedUses:
    """Completes the references of holders whose ledgers may be in use unnamed.

    ``stores`` are the metadata roots, ``brokers`` those of the first.
    """

    def __init__(
        self, stores: Sequence[MetadataStore], brokers: Brokers | None, entries: LastEntries | None = None
    ) -> None:
        self._ownership = tuple(BundleOwnership(store) for store in stores)
        self._brokers = brokers
        self._entries = entries

    def of_compacted(
        self, holder: CompactedHolder, named: frozenset[int], cursors: Mapping[int, CursorInfo | None]
    ) -> LiveReferences:
        """Read the compacted ledgers in use; earlier ones are ruled out.

        ``named`` are the ledgers that the nodes name; ``cursors`` the compaction's cursor by the number of each root
        that has the topic, None where there is no such cursor.
        """
        if not cursors:
            return LiveReferences(named, exists=False)
        if set(cursors) != {0}:
            reason = "the topic is in a further metadata root, whose brokers cannot be asked"
            return _doubtful(self._named_now(named, cursors), reason, lasting=True)
        if self._brokers is None:
            return _doubtful(self._named_now(named, cursors), _NO_BROKER, lasting=True)
        cursor, topic = cursors[0], str(TopicName.of_managed_ledger(holder.managed_ledger))
        try:
            found = self._brokers.compaction(topic)
            if found.running:
                named = self._named_now(named, cursors) | found.ledger_ids
                return _doubtful(named, "a compaction is under way")
            recorded = self._recorded(cursor)
        except (PulsarError, NotFoundError, FormatError, BookieError) as error:
            reason = f"which compacted ledger is in use is not known: {error}"
            return _doubtful(named, reason, lasting=isinstance(error, FormatError))
        in_use = found.ledger_ids | recorded
        if cursor is None and not (in_use or found.subscribed):
            # Without a subscription no compaction runs, and none has ended.
            return LiveReferences(named, exists=True)
        if not in_use:
            named = self._named_now(named, cursors)
            if cursor is None or not (found.subscribed and found.recorded):
                return _doubtful(named, "no compacted ledger of the topic is in use, and its compaction is not at rest")
            # A compaction that begins now makes a ledger of its own. One that ended without its owner's knowledge has
            # closed its ledger a moment ago; one that goes on cut off from the topic cannot close a deleted ledger.
            reason = "a compaction that wrote it a moment ago may be about to record it"
            return LiveReferences(named, True, UnnamedUse(reason, changed_lately=True))
        if cursor is not None and cursor.cursors_ledger_id is not None and cursor.compacted_ledger_id is not None:
            # The node's value is from the last switch of the cursor's ledger, and outdated.
            named = named - {cursor.compacted_ledger_id}
        effective = min(in_use)
        reason = f"it was made after {effective}, the compacted ledger in use, perhaps by a compaction under way"
        return LiveReferences(named | in_use, True, UnnamedUse(reason, before_ledger=effective))

    def of_buckets(
        self,
        holder: BucketHolder,
        named: frozenset[int],
        cursors: Mapping[int, CursorInfo | None],
        lists: Mapping[int, frozenset[int]],
    ) -> LiveReferences:
        """Read the unnamed buckets that a broker may have in memory.

        ``lists`` are the ledgers of the topic by the number of each root that has it; the rest is as for compacted
        ledgers.
        """
        exists = any(cursor is not None for cursor in cursors.values())
        topic = str(TopicName.of_managed_ledger(holder.managed_ledger))
        loaded_since = []
        for root, cursor in cursors.items():
            since = self._ownership[root].loaded_since(topic)
            if since is None and self._is_open(lists[root]):
                reason = (
                    f"the topic has no owner, yet its last ledger {max(lists[root])} is open: a broker that lost its "
                    "session may have it loaded (or it died: let a broker load and unload the topic)"
                )
                return _doubtful(named, reason)
            if since is not None and (cursor is not None or self._knows_subscription(root, topic, holder.cursor)):
                loaded_since.append(since)
        if not loaded_since:
            return LiveReferences(named, exists)
        reason = "the topic's owner has run since before it was made, and may use it from memory until it unloads it"
        return LiveReferences(named, exists, UnnamedUse(reason, before_ms=min(loaded_since) - CLOCK_SKEW_MS))

    def _is_open(self, ledger_ids: frozenset[int]) -> bool:
        """Whether the list's last ledger is open, as for every topic that a broker has loaded.

        Closing a topic closes it; an owner's node ends with its session, and the broker may go on serving without one.
        """
        return bool(ledger_ids) and self._entries is not None and self._entries.may_be_written(max(ledger_ids))

    def _named_now(self, named: frozenset[int], cursors: Mapping[int, CursorInfo | None]) -> frozenset[int]:
        """Replace the former compacted ledgers, which the nodes still name, by those of the last entries.

        A scan reads the same. Without an answer of the bookies, the ledgers named by the nodes stay.
        """
        if self._entries is None:
            return named
        there = [cursor for cursor in cursors.values() if cursor is not None]
        before = {cursor.compacted_ledger_id for cursor in there if cursor.cursors_ledger_id is not None}
        current = {cursor.compacted_ledger_id for cursor in there if cursor.cursors_ledger_id is None}
        try:
            recorded = [self._recorded(cursor) for cursor in there]
        except (BookieError, NotFoundError, FormatError):
            return named
        return (named - (before - current)).union(*recorded)

    def _recorded(self, cursor: CursorInfo | None) -> frozenset[int]:
        """Return the compacted ledger in the last entry of the cursor's ledger, if the cursor has one."""
        if cursor is None or cursor.cursors_ledger_id is None or self._entries is None:
            return frozenset()
        position = self._entries.position(cursor.cursors_ledger_id)
        if position is None:
            raise FormatError(f"the compaction cursor's ledger {cursor.cursors_ledger_id} has no entry")
        compacted = position.compacted_ledger_id
        return frozenset() if compacted is None else frozenset({compacted})

    def _knows_subscription(self, root: int, topic: str, cursor: str) -> bool:
        """Whether a broker may have a subscription of this name; one that is not durable has no cursor's node."""
        if root != 0 or self._brokers is None:
            return True
        try:
            return decode_local_name(cursor) in self._brokers.subscriptions(topic)
        except (PulsarError, NotFoundError, FormatError):
            return True


def _doubtful(named: frozenset[int], reason: str, *, lasting: bool = False) -> LiveReferences:
    return LiveReferences(named, True, UnnamedUse(reason, lasting=lasting))
