"""A deleted namespace made again with the policies that it had, so that its topics can come back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bookwarden.clusters.pulsar.metadata.paths import local_policies_path, namespace_policies_path
from bookwarden.errors import LostRaceError, NotFoundError, RefusedError
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.trash import NamespaceCopy, namespace_of
from bookwarden.metastore.interface import MetadataStore, Write
from bookwarden.trash.generations import PAUSE_MS, TrashedGeneration
from bookwarden.wire.namespace_policies import is_to_be_deleted
from bookwarden.wire.trash import TRASH_NAMESPACES, decode_copy

#: Brokers make it again, and it says of topics that are deleted too that they have no policies any more.
_MADE_AGAIN: Final = ("__change_events",)


class NamespaceRestore:
    """Makes namespaces again from the copies that the sweep has kept. Every call may raise StoreError."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def absent(self) -> list[NamespaceCopy]:
        """Return the copies of namespaces that are not there, each of the newest life."""
        newest = {copy.namespace: copy for copy in self._gone()}
        nodes = self._store.get_many([namespace_policies_path(name) for name in newest])
        return [copy for copy, node in zip(newest.values(), nodes, strict=True) if node is None]

    def _gone(self) -> list[NamespaceCopy]:
        paths = [f"{TRASH_NAMESPACES}/{name}" for name in self._store.children_of(TRASH_NAMESPACES)]
        copies = [decode_copy(node.value) for node in self._store.get_many(paths) if node is not None]
        return sorted((copy for copy in copies if copy.gone_ms), key=lambda copy: (copy.namespace, copy.created_ms))

    def find(self, namespace: str) -> NamespaceCopy:
        """Return the copy of its newest life that is over; NotFoundError where there is none."""
        gone = [copy for copy in self._gone() if copy.namespace == namespace]
        if not gone:
            raise NotFoundError(
                f"the trash has no policies of a deleted namespace {namespace}: the sweep did not see it before it was "
                "deleted, or its time is over; create it, and restore its topics one by one"
            )
        return gone[-1]

    def is_there(self, copy: NamespaceCopy) -> bool:
        """Return whether there is a namespace of that name; RefusedError where it is only half deleted."""
        node = self._store.get(namespace_policies_path(copy.namespace))
        if node is not None and node.value and is_to_be_deleted(node.value):
            raise RefusedError(
                f"brokers are deleting {copy.namespace}, or failed to: let them finish with "
                f"`pulsar-admin namespaces delete -f {copy.namespace}` first"
            )
        return node is not None

    def write(self, copy: NamespaceCopy) -> bool:
        """Make it again unless it is there; return whether it was made. RefusedError without its tenant."""
        if self.is_there(copy):
            return False
        tenant = copy.namespace.partition("/")[0]
        if self._store.get(f"/admin/policies/{tenant}") is None:
            raise RefusedError(f"the tenant {tenant} is not there: create it first")
        local_path = local_policies_path(copy.namespace)
        writes = [Write(namespace_policies_path(copy.namespace), copy.policies, None)]
        if copy.local is not None and self._store.get(local_path) is None:
            # First: with its policies it is there.
            writes.insert(0, Write(local_path, copy.local, None))
        try:
            self._store.write_together(writes)
        except LostRaceError:
            if not self.is_there(copy):
                raise
        return True


def deleted_with(copy: NamespaceCopy, generations: Iterable[TrashedGeneration]) -> list[TrashedGeneration]:
    """Return the topics that were deleted with their namespace, the newest life of each, and not before it."""
    newest: dict[str, TrashedGeneration] = {}
    for one in generations:
        if one.topic is None or namespace_of(one.managed_ledger) != copy.namespace:
            continue
        if one.topic.time_ms + PAUSE_MS < copy.alive_ms:
            continue
        if TopicName.of_managed_ledger(one.managed_ledger).base.local_name not in _MADE_AGAIN:
            newest.setdefault(one.managed_ledger, one)
    return list(newest.values())
