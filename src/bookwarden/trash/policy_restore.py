"""The permissions and policies of a deleted topic, put back before its nodes.

Each is written only where there is none: what somebody gave to the name since then stays. So every step may be killed
and run again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol
from urllib.parse import quote

from bookwarden.clusters.pulsar.metadata.paths import namespace_policies_path
from bookwarden.errors import LostRaceError, NotFoundError, OutcomeUnknownError, RefusedError
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.trash import FormerPolicies, PolicyEvent, namespace_of
from bookwarden.metastore.interface import MetadataStore
from bookwarden.trash.generations import TrashedGeneration
from bookwarden.wire.namespace_policies import topic_permissions, with_topic_permissions
from bookwarden.wire.topic_policies import event_of_topic
from bookwarden.wire.trash import TRASH_EVENT_SCHEMAS, TRASH_NAMESPACES
from bookwarden.wire.writer_schema import parse_writer_schema

_TRIES: Final = 50


class SendsPolicyEvents(Protocol):
    """The topics that have the policies of topics."""

    def current(self, namespace: str, keys: Collection[str]) -> Mapping[str, bytes]:
        """Return the newest events of these keys, of those whose newest has a value."""

    def send(self, namespace: str, events: Sequence[tuple[str, bytes, str]]) -> None:
        """Send events, each a key, a value and the definition of its schema; all are confirmed when it returns."""


class PolicyRestore:
    """Puts back what topics had besides their nodes; for one thread."""

    def __init__(self, store: MetadataStore, events: SendsPolicyEvents) -> None:
        self._store = store
        self._events = events
        #: Partitions have those of one topic.
        self._sent: set[PolicyEvent] = set()

    def write(self, trashed: TrashedGeneration) -> None:
        """Put back what the trash has; PulsarError, StoreError: run it again, and NotFoundError without the schema."""
        policies = former_policies(trashed)
        namespace = namespace_of(trashed.managed_ledger)
        self.require_namespace(trashed)
        self._grant(namespace, policies)
        for path, value in policies.nodes.items():
            with suppress(LostRaceError):
                self._store.create(path, value, make_parents=True)
        new = [event for event in policies.events if event not in self._sent]
        if not new:
            return
        there = self._events.current(namespace, [event.key for event in new])
        missing = [event for event in new if event.key not in there]
        if missing:
            self._events.send(namespace, [self._event(trashed, one) for one in missing])
        self._sent.update(new)

    def problems(self, trashed: TrashedGeneration) -> Iterator[str]:
        """Yield what is not there now of what was put back."""
        policies = former_policies(trashed)
        namespace = namespace_of(trashed.managed_ledger)
        if policies.permissions:
            node = self._store.get(namespace_policies_path(namespace))
            there = {} if node is None else topic_permissions(node.value)
            for topic in sorted(policies.permissions.keys() - there.keys()):
                yield f"the permissions of {topic} are not there"
        nodes = self._store.get_many(list(policies.nodes))
        yield from (f"{path} is not there" for path, node in zip(policies.nodes, nodes, strict=True) if node is None)
        if policies.events:
            keys = [event.key for event in policies.events]
            for key in sorted(set(keys) - self._events.current(namespace, keys).keys()):
                yield f"the policies of {key} are not there"

    def require_namespace(self, trashed: TrashedGeneration) -> None:
        """Refuse to go on without a namespace, where namespaces are known to be here, and not in another store."""
        namespace = namespace_of(trashed.managed_ledger)
        if self._is_there(namespace):
            return
        if trashed.origin is not None and self._is_known(namespace_of(trashed.origin.managed_ledger)):
            raise RefusedError(f"the namespace {namespace} is not there: create it")
        if self._is_known(namespace) or former_policies(trashed).permissions:
            raise RefusedError(
                f"the namespace {namespace} is not there: create it, or restore it with `--namespace {namespace}`"
            )

    def _is_there(self, namespace: str) -> bool:
        return self._store.get(namespace_policies_path(namespace)) is not None

    def _is_known(self, namespace: str) -> bool:
        copies = f"{quote(namespace, safe='')}-"
        names = self._store.children_of(TRASH_NAMESPACES)
        return self._is_there(namespace) or any(name.startswith(copies) for name in names)

    def _grant(self, namespace: str, policies: FormerPolicies) -> None:
        if not policies.permissions:
            return
        path = namespace_policies_path(namespace)
        for _ in range(_TRIES):
            node = self._store.get(path)
            if node is None:
                raise LostRaceError(f"{path} was deleted just now")
            value = with_topic_permissions(node.value, policies.permissions)
            if value == node.value:
                return
            try:
                self._store.put(path, value, node.version)
                return
            except (LostRaceError, OutcomeUnknownError):
                continue
        raise LostRaceError(f"{path} is written all the time: run it again")

    def _event(self, trashed: TrashedGeneration, event: PolicyEvent) -> tuple[str, bytes, str]:
        definition, value = self._definition(event), event.value
        if trashed.origin is not None:
            name = TopicName.of_managed_ledger(trashed.managed_ledger).base
            value = event_of_topic(value, parse_writer_schema(definition), name)
        return event.key, value, definition

    def _definition(self, event: PolicyEvent) -> str:
        path = f"{TRASH_EVENT_SCHEMAS}/{event.schema}"
        node = self._store.get(path)
        if node is None:
            raise NotFoundError(f"{path} is not there, without which the policies of {event.key} cannot be sent")
        return node.value.decode()


def former_policies(trashed: TrashedGeneration) -> FormerPolicies:
    """Return what the trash has of the policies and permissions of a topic."""
    found = None if trashed.topic is None else trashed.topic.policies
    return FormerPolicies() if found is None else found
