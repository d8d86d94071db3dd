"""Records of the trash: ledgers that left the metadata and are kept for a time, and the former values of their nodes.

How they are written: `wire.trash`, docs/trash.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import groupby
from typing import NamedTuple

from bookwarden.ledgers.kinds import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    ManagedLedgerHolder,
    SchemaHolder,
)
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.pending_deletion import PendingDeletion, mark_of_holder


@dataclass(frozen=True, slots=True)
class FormerNode:
    """A node as it was right before it was deleted, or one part of it: the first of one is the whole."""

    value: bytes  #: As it was stored, or a part of it.
    version: int  #: By which it was deleted.
    created_ms: int  #: By the store's clock, as ``modified_ms``.
    modified_ms: int  #: When it was last written.
    part: int = 1  #: Number of this part.
    parts: int = 1  #: Number of parts of the value.


class ClearedCursor(NamedTuple):
    """A cursor that its delete moved to the end of the topic, as it was before."""

    position: Position  #: Its mark-delete position.
    node: bytes | None  #: The value of its node that was replaced within the delete; None: none was.


#: Of each role the actions that it is allowed.
Roles = Mapping[str, tuple[str, ...]]


class PolicyEvent(NamedTuple):
    """The last event of ``__change_events`` that had policies of a topic."""

    key: str  #: The topic's full name; of policies for all clusters with a prefix.
    value: bytes  #: As it was sent.
    schema: str  #: SHA-256 of the definition by which it was written, in hex.


class LostPermissions(NamedTuple):
    """The permissions of a topic that its namespace's policies no longer have."""

    topic: str  #: Its full name.
    roles: Roles
    seen_ms: int  #: When they were there.
    gone_ms: int  #: When they were not any more.


@dataclass(frozen=True, slots=True)
class NamespaceCopy:
    """The policies of one life of a namespace as they were last seen."""

    namespace: str  #: Tenant/namespace.
    created_ms: int  #: When the policies' node was made.
    policies: bytes  #: Before the namespace was to be deleted.
    local: bytes | None = None  #: Its local policies: bundles, placement of bookies.
    gone_ms: int = 0  #: When it was seen to be deleted, or gone; 0 while it lives.
    alive_ms: int = 0  #: Until when it was not, as far as is known, once it is gone.
    permissions: tuple[LostPermissions, ...] = ()  #: Those of topics that it had.


@dataclass(frozen=True, slots=True)
class FormerPolicies:
    """Everything else that a deleted topic had: what the sweep's driver saw of it before."""

    permissions: Mapping[str, Roles] = field(
        default_factory=dict
    )  #: Of the topic, and of the one it is a partition of.
    events: tuple[PolicyEvent, ...] = ()  #: Its policies, where brokers keep them in ``__change_events``.
    nodes: Mapping[str, bytes] = field(default_factory=dict)  #: Likewise, where they keep them in nodes: by path.
    unseen: tuple[str, ...] = ()  #: What of it was not seen in time, for people.


class Generation(NamedTuple):
    """One life of a topic: a topic of the same name that is made later is another one."""

    managed_ledger: str
    created_ms: int  #: When the topic's node was made.


@dataclass(frozen=True, slots=True)
class TrashRecord:
    """One drop that the trash keeps: a deleted node, or ledgers that a broker took out of one.

    The same drop may be there twice, as an equal record.
    """

    managed_ledger: str  #: Tenant/namespace/persistent/topic, with the topic's name encoded.
    time_ms: int  #: When it was dropped, by the broker's clock.
    created_ms: int  #: When the node that named the ledgers was made: of the topic, the cursor or the schema.
    cursor: str | None = None  #: Encoded, as in its path.
    schema_id: str | None = None  #: Of a schema's drop, whose ``managed_ledger`` is the topic without partitions.
    data: tuple[int, ...] = ()  #: Ledgers of the topic.
    cursors: tuple[int, ...] = ()  #: The ledger of the cursor.
    buckets: tuple[int, ...] = ()  #: Of the cursor's delayed messages.
    compacted: tuple[int, ...] = ()  #: Of the topic's compacted view.
    schemas: tuple[int, ...] = ()  #: Of the schema.
    entries: tuple[bytes, ...] = ()  #: `LedgerInfo` of each of ``data`` that was taken out of the list; else none.
    node: FormerNode | None = None  #: The deleted node, or the schema's that is going to be.
    partitioned: bytes | None = None  #: Of a deleted partition: the node of its partitioned topic.
    #: Of a cursor that a delete of its topic is about to move: where it is. ``node`` is as it is, and not deleted.
    position: Position | None = None
    #: Of a deleted cursor; None: its delete did not move it. Not stored: `trash.generations` finds it.
    cleared: ClearedCursor | None = None
    #: Added later to the topic's node; None before the sweep has looked for them.
    policies: FormerPolicies | None = field(default=None, compare=False)

    @property
    def drop(self) -> tuple[str, str, str, int, int, bool, bool]:
        """What the parts of one drop have in common, and its copies; in the order of names and times."""
        return (
            self.managed_ledger,
            self.cursor or "",
            self.schema_id or "",
            self.time_ms,
            self.created_ms,
            # A list that was shortened in the same millisecond is another drop, as is a cursor that was moved.
            bool(self.entries),
            self.position is not None,
        )

    @property
    def deletes_topic(self) -> bool:
        """Whether it is the end of a generation: the topic's own node, deleted."""
        return self.node is not None and self.cursor is None and self.schema_id is None

    @property
    def generation(self) -> Generation | None:
        """The generation that it is of; None for cursors and schemas, whose nodes have other times."""
        if self.cursor is not None or self.schema_id is not None:
            return None
        return Generation(self.managed_ledger, self.created_ms)

    @property
    def ledger_ids(self) -> frozenset[int]:
        """All of its ledgers."""
        return frozenset().union(self.data, self.cursors, self.buckets, self.compacted, self.schemas)

    def marks(self, reason: str) -> Iterator[PendingDeletion]:
        """Yield the pending deletions of its ledgers, stamped with when they were dropped."""
        named: list[tuple[tuple[int, ...], Holder]] = [(self.data, ManagedLedgerHolder(self.managed_ledger))]
        named.append((self.compacted, CompactedHolder(self.managed_ledger)))
        if self.cursor is not None:
            named.append((self.cursors, CursorHolder(self.managed_ledger, self.cursor)))
            named.append((self.buckets, BucketHolder(self.managed_ledger, self.cursor)))
        if self.schema_id is not None:
            named.append((self.schemas, SchemaHolder(self.schema_id)))
        for ids, holder in named:
            for ledger_id in ids:
                yield mark_of_holder(ledger_id, holder, reason).stamped(self.time_ms)


def joined(records: Iterable[TrashRecord]) -> tuple[list[TrashRecord], list[TrashRecord]]:
    """Put divided nodes together; return the records, each once, and those of nodes that lack a part.

    The ledgers of a divided node are divided as well: the record of the whole node has all of them.
    """
    whole: list[TrashRecord] = []
    broken: list[TrashRecord] = []
    looked_for_last = sorted(records, key=lambda record: record.policies is None)
    # Of equal keys a dict keeps the first.
    once = sorted(dict.fromkeys(looked_for_last), key=_drop)
    for _, group in groupby(once, key=_drop):
        of_drop = list(group)
        nodes = {record.node.part: record.node for record in of_drop if record.node is not None}
        if not nodes:
            whole += of_drop
        elif all(node.parts == len(nodes) for node in nodes.values()):
            whole.append(_joined(of_drop, [nodes[part] for part in sorted(nodes)]))
        else:
            broken += of_drop
    return whole, broken


def _drop(record: TrashRecord) -> tuple[object, ...]:
    return record.drop


def _joined(of_drop: list[TrashRecord], parts: list[FormerNode]) -> TrashRecord:
    node = replace(parts[0], value=b"".join(part.value for part in parts), part=1, parts=1)
    return replace(
        of_drop[0],
        node=node,
        data=_united(record.data for record in of_drop),
        cursors=_united(record.cursors for record in of_drop),
        buckets=_united(record.buckets for record in of_drop),
        compacted=_united(record.compacted for record in of_drop),
        schemas=_united(record.schemas for record in of_drop),
        partitioned=next((record.partitioned for record in of_drop if record.partitioned is not None), None),
        position=next((record.position for record in of_drop if record.position is not None), None),
        policies=next((record.policies for record in of_drop if record.policies is not None), None),
    )


def _united(ids: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted(frozenset().union(*ids)))


@dataclass(frozen=True, slots=True)
class KeepRule:
    """For how long the trash keeps what namespaces drop; 0 keeps nothing."""

    namespaces: str  #: A pattern of ``tenant/namespace``, with * and ?.
    deleted_s: int = 0  #: Deleted topics, subscriptions and schemas.
    trimmed_s: int = 0  #: Ledgers that leave the list of a topic that stays.

    def matches(self, namespace: str) -> bool:
        """Return whether it is the rule of a namespace, unless an earlier one is."""
        return fnmatchcase(namespace, self.namespaces)


@dataclass(frozen=True, slots=True)
class TrashLease:
    """The leave that the sweep gives brokers to keep what they drop in the trash, until it ends or is renewed."""

    defer_until_ms: int
    renewed_by: str
    max_bytes: int
    keep: tuple[KeepRule, ...]  #: The first that matches holds.

    def is_valid(self, now_ms: int) -> bool:
        """Return whether brokers keep anything in the trash now."""
        return now_ms < self.defer_until_ms

    def rule_of(self, namespace: str) -> KeepRule | None:
        """Return the rule that holds for a namespace; None where nothing of it is kept."""
        return first_rule(self.keep, namespace)


def first_rule(rules: Iterable[KeepRule], namespace: str) -> KeepRule | None:
    """Return the first rule that matches a namespace; None where none does, or it keeps nothing."""
    found = next((rule for rule in rules if rule.matches(namespace)), None)
    return found if found is not None and (found.deleted_s or found.trimmed_s) else None


def namespace_of(managed_ledger: str) -> str:
    """Return the namespace of a managed ledger, ``tenant/namespace``, as patterns name it."""
    return managed_ledger.partition("/persistent/")[0]
