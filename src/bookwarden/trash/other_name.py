"""A deleted topic that comes back under another name than its own.

The custom metadata of all ledgers is changed before the list names them, so that they are that name's: a mark of the
former name is a mismatch from then on, before the list and after it, and one of the new name finds the list. Where a
client takes the name first, all of it is changed back, and the trash has it as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from bookwarden.bookie_clusters.bookie_clusters import MultiClusterCatalog
from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path, partitioned_topic_path
from bookwarden.errors import LostRaceError, NotFoundError, RefusedError
from bookwarden.ledgers.custom_metadata import HolderChange
from bookwarden.ledgers.managed_ledger import COMPACTION_CURSOR
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.trash import FormerPolicies, Generation
from bookwarden.metastore.interface import MetadataStore
from bookwarden.trash.generations import TrashedGeneration
from bookwarden.trash.plan import (
    NodesNow,
    RestoreRequest,
    cursor_ledgers,
    holder_changes,
    plan_restore,
    wanted_cursors,
    why_name_is_taken,
)
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.managed_ledger import ledger_entries
from bookwarden.wire.schema_locator import decode_schema_locator

_TRIES: Final = 50


def under_name(trashed: TrashedGeneration, name: TopicName) -> TrashedGeneration:
    """Return it as a life of a topic of another name; a partition as that partition of it.

    Its records stay those that the trash has.
    """
    former = TopicName.of_managed_ledger(trashed.managed_ledger)
    renamed = name if former.partition is None else name.partition_name(former.partition)
    topic, schema = trashed.topic, trashed.schema
    if topic is not None and topic.policies is not None:
        topic = replace(topic, policies=_policies_under(topic.policies, former, renamed))
    return replace(
        trashed,
        generation=Generation(renamed.managed_ledger, trashed.generation.created_ms),
        topic=topic,
        schema=None if schema is None else replace(schema, schema_id=renamed.schema_id),
        origin=trashed,
    )


def _policies_under(policies: FormerPolicies, former: TopicName, renamed: TopicName) -> FormerPolicies:
    """Return policies by the other name; values of events still name the former one."""
    names = {str(former): str(renamed), str(former.base): str(renamed.base)}
    own = former.base.managed_ledger
    return replace(
        policies,
        permissions={names[topic]: roles for topic, roles in policies.permissions.items()},
        events=tuple(
            event._replace(key=event.key.replace(str(former.base), str(renamed.base))) for event in policies.events
        ),
        nodes={
            f"{path.removesuffix(own)}{renamed.base.managed_ledger}": value for path, value in policies.nodes.items()
        },
    )


class OtherName:
    """Gives the ledgers of a topic to the name under which it comes back; of one that keeps its own name nothing.

    ``unload`` has brokers close a topic, by its managed ledger.
    """

    def __init__(
        self,
        store: MetadataStore,
        catalog: MultiClusterCatalog | BookKeeperCatalog,
        last_entries: DecodedEntries,
        unload: Callable[[str], None],
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._last_entries = last_entries
        self._unload = unload

    def require(self, trashed: TrashedGeneration, request: RestoreRequest, former: NodesNow) -> None:
        """Refuse a name that cannot be taken, and ledgers that ``former``, the topic of the former name, has now."""
        if trashed.origin is None:
            return
        base = TopicName.of_managed_ledger(trashed.managed_ledger).base
        for path in (managed_ledger_path(base.managed_ledger), partitioned_topic_path(base.managed_ledger)):
            if self._store.get(path) is not None:
                raise RefusedError(f"{base} is there: --as takes the name of a topic that is not")
        used = _named_ledgers(former) & holder_changes(trashed, request, {}).keys()
        if used:
            raise RefusedError(
                f"{TopicName.of_managed_ledger(trashed.origin.managed_ledger)} is there, and it or its schema has "
                f"ledger {min(used)}: that does not come back under another name"
            )

    def take(self, trashed: TrashedGeneration, request: RestoreRequest) -> None:
        """Have the custom metadata of all ledgers name it."""
        self._change_all(trashed, request, back=False)

    def leave_if_taken(self, trashed: TrashedGeneration, request: RestoreRequest, now: NodesNow) -> RefusedError | None:
        """Leave it to a client that took it, with nothing of this restore; return what to raise then."""
        taken = None if trashed.origin is None else why_name_is_taken(trashed, now)
        if taken is None:
            return None
        none = replace(now, topic=None, cursors={}, schema=None)
        own = {write.path: write.value for write in plan_restore(trashed, request, none).writes}
        found = zip(own.items(), self._store.get_many(list(own)), strict=True)
        left = [(path, node.version) for (path, value), node in found if node is not None and node.value == value]
        if left:
            # In a store without transactions a broker may have loaded these.
            self._store.delete_many(left)
            self._unload(trashed.managed_ledger)
        self._change_all(trashed, request, back=True)
        return RefusedError(
            f"{taken}. That was not so when the restore began: all of it is in the trash again, and "
            f"{TopicName.of_managed_ledger(trashed.managed_ledger)} has at most its policies and permissions"
        )

    def _change_all(self, trashed: TrashedGeneration, request: RestoreRequest, back: bool) -> None:
        if trashed.origin is None:
            return
        self._change(holder_changes(trashed, request, {}), back)
        if COMPACTION_CURSOR in wanted_cursors(trashed, request):
            # Only now: a ledger that names one holder here, and another there, cannot be read.
            entries: dict[int, bytes | None] = {}
            for own in cursor_ledgers(trashed, request, {}):
                with suppress(NotFoundError):
                    entries[own] = self._last_entries.last_entry(own)
            self._change(holder_changes(trashed, request, entries), back)

    def _change(self, changes: Mapping[int, HolderChange], back: bool) -> None:
        if back:
            changes = {one: HolderChange(change.holder, change.former) for one, change in changes.items()}
        left = sorted(changes)
        for _ in range(_TRIES):
            left = self._catalog.change_holders({one: changes[one] for one in left})
            if not left:
                return
        raise LostRaceError(f"ledger {left[0]} is written all the time: run it again")


def _named_ledgers(now: NodesNow) -> frozenset[int]:
    """Return all ledgers that the nodes of a topic name; FormatError where one cannot be read."""
    found = frozenset() if now.topic is None else frozenset(ledger_entries(now.topic.value))
    found |= frozenset() if now.schema is None else decode_schema_locator(now.schema.value).ledger_ids
    return found.union(*(decode_cursor(node.value).ledger_ids for node in now.cursors.values()))
