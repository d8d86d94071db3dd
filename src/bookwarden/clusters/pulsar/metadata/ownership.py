"""Owners of topics, read from the metadata store: asking a broker would make one load the topic.

A topic counts as owned as soon as a broker owns its bundle, whether or not it is loaded: that broker may load it at
any moment. Formats of Pulsar 4.0: ephemeral nodes ``/loadbalance/brokers/<broker>`` and
``/namespace/<tenant>/<namespace>/<lower>_<upper>`` (ServiceUnitUtils), the bundle being that of the CRC32 of the
topic's name (NamespaceBundleFactory).
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable
from typing import Final

from bookwarden.ledgers.names import TopicName
from bookwarden.metastore.interface import MetadataStore, Versioned

_BROKERS = "/loadbalance/brokers"
_LAST = 0xFFFFFFFF
#: The clocks of a broker and of the metadata store may differ by this much.
CLOCK_SKEW_MS: Final = 60_000
_BUNDLE = re.compile(r"0x([0-9a-f]{8})_0x([0-9a-f]{8})")


class BundleOwnership:
    """The owners of bundles, as the brokers announce them in the metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def owner(self, topic: str) -> str | None:
        """Return the broker that has the topic, or could have it, loaded; None if certainly none does.

        While a broker lives whose load manager keeps ownership in a topic (PIP-192), or whose node is not understood,
        each topic counts as owned by it.
        """
        self._store.sync()
        name = TopicName.parse(topic)
        return self._bundle_owner(name) or self._broker_that_hides_its_bundles()

    def loaded_since(self, topic: str) -> int | None:
        """Return the earliest time since which a broker can have the topic loaded; None if certainly none has.

        That is when the owner started (ms since 1970), by its own clock or, where that was ahead, when the store made
        its node; 0 where it is not known. The age of an ownership proves nothing: splitting a bundle, or a lost
        session, creates it again while the topic stays loaded.
        """
        self._store.sync()
        bundles = self._covering_bundles(TopicName.parse(topic))
        started = [_started(node) for node in self.brokers()]
        if not bundles:
            return None if self._broker_that_hides_its_bundles() is None else min((s for _, s in started), default=0)
        owners = {_url(node.value) for _, node in bundles}
        return min(dict(started).get(owner, 0) if owner is not None else 0 for owner in owners)

    def brokers(self) -> list[Versioned]:
        """Read the nodes of all live brokers."""
        paths = [f"{_BROKERS}/{broker}" for broker in self._store.children_of(_BROKERS)]
        return [node for node in self._store.get_many(paths) if node is not None]

    def _bundle_owner(self, name: TopicName) -> str | None:
        for path, node in self._covering_bundles(name):
            return _url(node.value) or path
        return None

    def _covering_bundles(self, name: TopicName) -> list[tuple[str, Versioned]]:
        root = f"/namespace/{name.namespace_name}"
        if name.cluster is not None:
            root = f"/namespace/{name.tenant}/{name.cluster}/{name.namespace}"
        covering = [f"{root}/{bundle}" for bundle in self._store.children_of(root) if _covers(bundle, str(name))]
        found = zip(covering, self._store.get_many(covering), strict=True)
        return [(path, node) for path, node in found if node is not None]

    def _broker_that_hides_its_bundles(self) -> str | None:
        brokers = self._store.children_of(_BROKERS)
        nodes = self._store.get_many([f"{_BROKERS}/{broker}" for broker in brokers])
        for broker, node in zip(brokers, nodes, strict=True):
            if node is not None and not _announces_bundles(node.value):
                return broker
        return None


def owner_in(roots: Iterable[MetadataStore], topic: str) -> str | None:
    """Return a broker of any metadata root that has the topic, or could have it, loaded; None if certainly none has."""
    owners = (BundleOwnership(store).owner(topic) for store in roots)
    return next((owner for owner in owners if owner is not None), None)


def read_all_started(store: MetadataStore) -> int:
    """Read when the first of the live brokers was started, or before (ms since 1970); 0 where that is not known.

    A broker that lost its session is not among them.
    """
    ownership = BundleOwnership(store)
    store.sync()
    return max(0, min((started for _, started in map(_started, ownership.brokers())), default=0) - CLOCK_SKEW_MS)


def bundle_hash(topic: str) -> int:
    """Hash a full topic name as NamespaceBundleFactory does."""
    return zlib.crc32(topic.encode())


def _covers(bundle: str, topic: str) -> bool:
    match = _BUNDLE.fullmatch(bundle)
    if match is None:
        # Not a known form of bundle: it may cover anything.
        return True
    lower, upper = int(match[1], 16), int(match[2], 16)
    hashed = bundle_hash(topic)
    return lower <= hashed < upper or hashed == upper == _LAST


def _url(value: bytes) -> str | None:
    try:
        owner = json.loads(value)
    except ValueError:
        return None
    return str(owner["nativeUrl"]) if isinstance(owner, dict) and owner.get("nativeUrl") else None


def _started(node: Versioned) -> tuple[str | None, int]:
    """Return a broker's service URL and its start (LocalBrokerData, BrokerLookupData); 0 if it is not recorded.

    A node is made when its broker starts, or later: a start after that is by a clock that was ahead.
    """
    try:
        broker = json.loads(node.value)
    except ValueError:
        return None, 0
    if not isinstance(broker, dict) or not isinstance(broker.get("startTimestamp"), int):
        return None, 0
    url = broker.get("pulsarServiceUrl")
    return url if isinstance(url, str) else None, min(broker["startTimestamp"], node.created_ms)


def _announces_bundles(value: bytes) -> bool:
    try:
        broker = json.loads(value)
    except ValueError:
        return False
    manager = broker.get("loadManagerClassName") if isinstance(broker, dict) else None
    return isinstance(manager, str) and ".extensions." not in manager
