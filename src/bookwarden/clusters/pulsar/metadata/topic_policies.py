"""Policies of single topics in the nodes of a metadata store, where brokers are set to keep them (PIP-469).

Source: MetadataStoreTopicPoliciesService of Pulsar 4.2.4, which brokers use with that ``topicPoliciesServiceClassName``
for namespaces that have no ``__change_events`` (LegacyAwareTopicPoliciesService). A topic's own are in the metadata
store, those that it has for all clusters in the configuration store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from bookwarden.errors import FormatError
from bookwarden.ledgers.names import decode_local_name
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.topic_policies import decode_stored_policies, merged_policies

ROOT: Final = "/admin/topic-policies"
FOR_ALL: Final = f"{ROOT}/global"
OWN: Final = f"{ROOT}/local"
_FORGET_MS: Final = 86_400_000


def stored_policies(store: MetadataStore, namespace: str) -> dict[str, dict[str, Any]]:
    """Read the policies of the topics of a namespace that have some, by full name and the fields of TopicPolicies.

    ``store`` is taken for the configuration store too. Raises FormatError for a node that is not understood.
    """
    store.sync()
    _require_layout(store)
    found: dict[str, dict[str, Any]] = {}
    for root in (FOR_ALL, OWN):
        for domain in store.children_of(f"{root}/{namespace}"):
            parent = f"{root}/{namespace}/{domain}"
            names = store.children_of(parent)
            for name, node in zip(names, store.get_many([f"{parent}/{name}" for name in names]), strict=True):
                if node is not None:
                    topic = f"{domain}://{namespace}/{decode_local_name(name)}"
                    found[topic] = merged_policies(found.get(topic, {}), _policies(f"{parent}/{name}", node.value))
    return found


def namespaces_with_stored_policies(store: MetadataStore) -> frozenset[str]:
    """List the namespaces that have such nodes; FormatError where their layout is another."""
    store.sync()
    _require_layout(store)
    return frozenset(
        f"{tenant}/{name}"
        for root in (FOR_ALL, OWN)
        for tenant in store.children_of(root)
        for name in store.children_of(f"{root}/{tenant}")
    )


class LastStoredPolicies:
    """The last value of each node with policies of a topic, also of those that were deleted since, by path.

    ``store`` is taken for the configuration store too. Every call may raise StoreError.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._values: dict[str, bytes] = {}
        self._gone_ms: dict[str, int] = {}

    def look(self, paths: Collection[str], now_ms: int) -> None:
        """Read these nodes again. What was gone for a day is forgotten."""
        some = sorted(paths)
        for path, node in zip(some, self._store.get_many(some), strict=True):
            if node is not None:
                self._values[path] = node.value
                self._gone_ms.pop(path, None)
            elif path in self._values:
                self._gone_ms.setdefault(path, now_ms)
        for path in [path for path, gone_ms in self._gone_ms.items() if gone_ms < now_ms - _FORGET_MS]:
            del self._values[path], self._gone_ms[path]

    def look_at_all(self, namespaces: Iterable[str], now_ms: int) -> None:
        """Read all nodes of these namespaces again."""
        paths = {path for path in self._values if path not in self._gone_ms}
        roots = [root for root in (FOR_ALL, OWN) if self._store.get(root) is not None]
        for parent in [f"{root}/{name}/persistent" for name in namespaces for root in roots]:
            paths.update(f"{parent}/{name}" for name in self._store.children_of(parent))
        self.look(paths, now_ms)

    def of_topic(self, managed_ledger: str) -> dict[str, bytes]:
        """Return those of a topic without partitions, named as a managed ledger of it would be."""
        paths = [f"{root}/{managed_ledger}" for root in (FOR_ALL, OWN)]
        return {path: self._values[path] for path in paths if path in self._values}


def _require_layout(store: MetadataStore) -> None:
    unknown = sorted({f"{ROOT}/{name}" for name in store.children_of(ROOT)} - {FOR_ALL, OWN})
    if unknown:
        raise FormatError(f"policies of topics are kept in a layout that is not known here: {', '.join(unknown[:3])}")


def _policies(path: str, value: bytes) -> dict[str, Any]:
    try:
        return decode_stored_policies(value)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
