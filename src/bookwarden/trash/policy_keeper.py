"""The sweep's part in what the trash has of policies: seen while topics live, added to their records when they do not.

Brokers delete the permissions and the policies of a topic before its nodes, and those of a namespace with it, where
nothing of the trash can come before. So the newest of each is kept as long as it is there: the policies of namespaces
in nodes, as they were last seen, and those of topics in memory, since ``__change_events`` has them at each start.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from bookwarden.clusters.pulsar.metadata.namespaces import known_namespaces
from bookwarden.clusters.pulsar.metadata.paths import local_policies_path, namespace_policies_path
from bookwarden.clusters.pulsar.metadata.topic_policies import ROOT as POLICIES_IN_NODES
from bookwarden.clusters.pulsar.metadata.topic_policies import LastStoredPolicies
from bookwarden.clusters.pulsar.trash import TrashNodes
from bookwarden.errors import FormatError, LostRaceError, StoreError, StoreUnavailableError
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.trash import (
    FormerPolicies,
    KeepRule,
    NamespaceCopy,
    PolicyEvent,
    TrashRecord,
    first_rule,
    namespace_of,
)
from bookwarden.metastore.changes import ChangeFeed
from bookwarden.metastore.interface import MetadataStore
from bookwarden.trash.namespace_copies import copied, permissions_of
from bookwarden.wire.trash import (
    TRASH_EVENT_SCHEMAS,
    TRASH_NAMESPACES,
    copy_node,
    decode_copy,
    encode_copy,
    with_policies,
)

logger = logging.getLogger(__name__)
_PREFIXES: Final = ("/admin/policies", "/admin/local-policies", POLICIES_IN_NODES)
_AT_ONCE: Final = 1_000
#: What outlives a record by this is needed by none: brokers' clocks differ.
_GRACE_MS: Final = 600_000
NOT_SEEN_POLICIES: Final = "its policies: the sweep did not run, or could not read them, before the delete"
NOT_SEEN_PERMISSIONS: Final = "its permissions: the sweep did not run before the delete, or the namespace is elsewhere"


class SeesPolicyEvents(Protocol):
    """The policies of topics, by the events of their namespaces."""

    def follow(self, namespaces: Collection[str]) -> Mapping[str, str]:
        """Read all events of these until now; return those that cannot be read, and why."""

    def seen_since_ms(self, namespace: str) -> int | None:
        """Return since when everything there was seen; None where it never was."""

    def last(self, topic: str) -> Sequence[tuple[str, bytes, str]]:
        """Return the last events that had policies of a topic: key, value, and the definition of its schema."""


@dataclass(frozen=True, slots=True)
class _Kept:
    copy: NamespaceCopy
    version: int
    first_ms: int  #: When the first copy of that life was made, by the store's clock.
    written_ms: int


class PolicyKeeper:
    """Keeps policies and permissions of topics and namespaces for the trash of one metadata store; for one thread.

    ``rules`` say of which namespaces. ``clock`` returns seconds since the epoch.
    """

    def __init__(
        self,
        store: MetadataStore,
        events: SeesPolicyEvents,
        rules: Sequence[KeepRule],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._events = events
        self._stored = LastStoredPolicies(store)
        self._rules = rules
        self._clock = clock
        self._feed: ChangeFeed | None = None
        self._is_watched = True
        #: By namespace, the newest life last; None before they are read.
        self._kept: dict[str, list[_Kept]] | None = None
        self._seen_ms = 0
        self._unread: Mapping[str, str] = {}
        self._schemas: set[str] = set()
        self._reported: set[str] = set()

    def look(self) -> None:
        """See what there is now. Raises StoreError: the next call does the rest."""
        began_ms = self._now_ms()
        changed = self._changed()
        try:
            if self._kept is None:
                self._kept = self._read_copies()
                changed = None
            self._update(self._kept, None if changed is None else _namespaces(changed))
            self._expire(self._kept)
            live = [name for name, of in self._kept.items() if not of[-1].copy.gone_ms]
            if changed is None:
                self._stored.look_at_all(live, began_ms)
            else:
                self._stored.look([path for path in changed if self._is_stored(path)], began_ms)
        except StoreError:
            # What was taken from the feed is not done: everything is looked at again.
            self._kept = None
            raise
        self._seen_ms = began_ms
        self._unread = self._events.follow(live)
        for namespace in self._unread.keys() - self._reported:
            logger.warning("policies of topics of %s are not kept now: %s", namespace, self._unread[namespace])
        self._reported = set(self._unread)

    def keep(self, nodes: TrashNodes[Any], paths: Iterable[str]) -> int:
        """Add what was seen to records of deleted topics that have none yet; return of how many.

        ``paths`` are nodes that may have some. Raises StoreError: what was done is done.
        """
        count = 0
        for path in paths:
            found: dict[TrashRecord, FormerPolicies] = {}
            for record in nodes.records(path):
                if record.deletes_topic and record.policies is None:
                    policies = self._of(record)
                    if policies is not None:
                        found[record] = policies
            if found and nodes.rewrite(path, partial(with_policies, found=found)):
                count += len(found)
        return count

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _is_stored(self, path: str) -> bool:
        """Return whether a path is that of the policies of a topic of which something is kept."""
        parts = path.removeprefix(f"{POLICIES_IN_NODES}/").split("/")
        return path.startswith(POLICIES_IN_NODES) and len(parts) == 5 and self._is_kept(f"{parts[1]}/{parts[2]}")

    def _changed(self) -> Collection[str] | None:
        """Return the nodes that changed; None: any may have. Without a rule nothing is watched."""
        if not self._rules:
            return None
        if self._feed is None and self._is_watched:
            try:
                self._feed = self._store.follow_below(_PREFIXES)
            except StoreUnavailableError:
                raise
            except StoreError as error:
                logger.info("all namespaces are read each time: %s", error)
                self._is_watched = False
            return None
        if self._feed is None:
            return None
        taken = self._feed.take()
        self._store.sync()
        return None if taken.gap or taken.unwatched else taken.paths

    def _read_copies(self) -> dict[str, list[_Kept]]:
        kept: dict[str, list[_Kept]] = defaultdict(list)
        paths = [f"{TRASH_NAMESPACES}/{name}" for name in self._store.children_of(TRASH_NAMESPACES)]
        for path, node in zip(paths, self._store.get_many(paths), strict=True):
            try:
                if node is not None:
                    copy = decode_copy(node.value)
                    kept[copy.namespace].append(_Kept(copy, node.version, node.created_ms, node.modified_ms))
            except FormatError as error:
                logger.error("%s: %s", path, error)
        return {name: sorted(of, key=lambda one: one.copy.created_ms) for name, of in kept.items()}

    def _update(self, kept: dict[str, list[_Kept]], changed: set[str] | None) -> None:
        if changed is None and not self._rules:
            changed = set()
        if changed is None:
            live = {name for name, of in kept.items() if not of[-1].copy.gone_ms}
            changed = live | (known_namespaces(self._store) or frozenset())
        names = sorted(name for name in changed if name.count("/") == 1 and self._is_kept(name))
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            policies = self._store.get_many([namespace_policies_path(name) for name in some])
            local = self._store.get_many([local_policies_path(name) for name in some])
            for name, of_namespace, of_broker in zip(some, policies, local, strict=True):
                before = kept[name][-1] if name in kept else None
                try:
                    copy = copied(
                        None if before is None else before.copy,
                        *(name, of_namespace, of_broker),
                        seen_ms=self._seen_ms or (0 if before is None else before.written_ms),
                        now_ms=self._now_ms(),
                    )
                except FormatError as error:
                    logger.warning("the policies of %s are not kept: %s", name, error)
                    continue
                if copy is None or (before is not None and copy == before.copy):
                    continue
                if before is None or copy.created_ms == before.copy.created_ms:
                    kept[name] = [*kept.get(name, [])[:-1], self._write(copy, before)]
                else:
                    # It was deleted and made again since.
                    if not before.copy.gone_ms:
                        gone = replace(
                            before.copy, gone_ms=copy.created_ms, alive_ms=self._seen_ms or before.written_ms
                        )
                        before = self._write(gone, before)
                    kept[name] = [*kept[name][:-1], before, self._write(copy, None)]

    def _is_kept(self, namespace: str) -> bool:
        rule = first_rule(self._rules, namespace)
        return rule is not None and rule.deleted_s > 0

    def _write(self, copy: NamespaceCopy, before: _Kept | None) -> _Kept:
        path, value = copy_node(copy), encode_copy(copy)
        if before is None:
            self._store.create(path, value, make_parents=True)
        else:
            self._store.put(path, value, before.version)
        node = self._store.get(path)
        if node is None:
            raise LostRaceError(f"{path} was deleted by another")
        return _Kept(copy, node.version, node.created_ms, node.modified_ms)

    def _expire(self, kept: dict[str, list[_Kept]]) -> None:
        """Delete the copies of namespaces whose time is over, or of which nothing is kept any more."""
        now_ms = self._now_ms()
        for name, of in list(kept.items()):
            rule = first_rule(self._rules, name)
            keep_ms = 0 if rule is None else 1000 * rule.deleted_s
            over = [
                one
                for one in of
                if not keep_ms or (one.copy.gone_ms and one.copy.gone_ms + keep_ms + _GRACE_MS <= now_ms)
            ]
            if over:
                self._store.delete_many([(copy_node(one.copy), one.version) for one in over])
                kept[name] = [one for one in of if one not in over]
                if not kept[name]:
                    del kept[name]

    def _of(self, record: TrashRecord) -> FormerPolicies | None:
        """Return what a deleted topic had; None where that cannot be said now."""
        namespace = namespace_of(record.managed_ledger)
        if namespace in self._unread:
            return None
        kept = [] if self._kept is None else self._kept.get(namespace, [])
        try:
            base = TopicName.of_managed_ledger(record.managed_ledger).base
            # Those that were there before. One that was made since is no proof of anything.
            permissions = permissions_of(record, [one.copy for one in kept if one.first_ms <= record.time_ms])
        except FormatError:
            return FormerPolicies(unseen=(NOT_SEEN_POLICIES, NOT_SEEN_PERMISSIONS))
        events = tuple(PolicyEvent(key, value, self._schema(text)) for key, value, text in self._events.last(str(base)))
        since_ms = self._events.seen_since_ms(namespace)
        nodes = self._stored.of_topic(base.managed_ledger)
        is_late = since_ms is None or since_ms > record.time_ms
        unseen = [NOT_SEEN_POLICIES] if is_late and not events and not nodes else []
        unseen += [NOT_SEEN_PERMISSIONS] if permissions is None else []
        return FormerPolicies(permissions or {}, events, nodes, tuple(unseen))

    def _schema(self, definition: str) -> str:
        """Keep the definition, of which there are a few in all; return its name."""
        value = definition.encode()
        name = hashlib.sha256(value).hexdigest()
        path = f"{TRASH_EVENT_SCHEMAS}/{name}"
        if name not in self._schemas and self._store.get(path) is None:
            self._store.create(path, value, make_parents=True)
        self._schemas.add(name)
        return name


def _namespaces(paths: Iterable[str]) -> set[str]:
    """Return the namespaces of those paths that are of policies of one."""
    parts = [path.split("/") for path in paths if not path.startswith(f"{POLICIES_IN_NODES}/")]
    return {f"{one[3]}/{one[4]}" for one in parts if len(one) == 5}
