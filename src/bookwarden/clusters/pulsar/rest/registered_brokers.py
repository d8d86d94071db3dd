"""Registered brokers, with the answers of their own REST.

Formats: the nodes of ``/loadbalance/brokers``, LocalBrokerData or, with the extensible load manager, BrokerLookupData;
``/brokers/version``, ``/brokers/configuration/runtime``, ``/brokers/health`` and
``/broker-stats/bookieops`` of Pulsar 4.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any, Final, NamedTuple

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.metadata.ownership import BundleOwnership
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.errors import BookwardenError, ConfigError, PulsarError, SilentBrokerError
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.urls import split_chroot

_BROKERS_PATH: Final = "/loadbalance/brokers"
_TIMEOUT_S: Final = 10.0
# A broker may have a hundred thousand topics.
_TOPICS_TIMEOUT_S: Final = 60.0
_AT_ONCE: Final = 16
# BrokersBase.healthCheck of Pulsar 4.0 and 4.2, by ThreadMXBean.findDeadlockedThreads.
_DEADLOCKED: Final = b"Deadlocked threads detected"


class RegisteredBroker(NamedTuple):
    """A broker by its id. ``settings`` are those it runs with; without an answer None, with the reason in ``error``.

    ``version`` is that of its registration where it did not answer; None where neither has it. ``other_configuration``
    is the URL of its configuration store if that is another one than its metadata store.
    """

    name: str
    version: str | None
    settings: Mapping[str, str] | None = None
    error: str | None = None
    other_configuration: str | None = None


def read_registered_brokers(store: MetadataStore, connection: PulsarConnection) -> list[RegisteredBroker]:
    """Ask each broker that is registered in this metadata store, one after the other."""
    return [_ask(name, data, connection) for name, data in _registrations(store)]


def read_broker_addresses(store: MetadataStore) -> dict[str, tuple[str, ...]]:
    """Return the addresses of Pulsar's protocol that each registered broker has, those of its listeners too."""
    store.sync()
    found = {}
    for name, data in _registrations(store):
        own = [data.get("pulsarServiceUrl"), data.get("pulsarServiceUrlTls")]
        for listener in (data.get("advertisedListeners") or {}).values():
            own += [listener.get("brokerServiceUrl"), listener.get("brokerServiceUrlTls")]
        found[name] = tuple(dict.fromkeys(str(url) for url in own if url))
    return found


def read_web_brokers(connection: PulsarConnection, url: str) -> frozenset[str]:
    """List the ids of the brokers of the cluster that a web address of the settings leads to.

    Raises PulsarError, ConfigError.
    """
    with closing(PulsarAdmin(connection.trusting(url).at(url), _TIMEOUT_S)) as admin:
        return frozenset(map(str, admin.get_json("/brokers")))


def read_loaded_topics(store: MetadataStore, connection: PulsarConnection) -> frozenset[str]:
    """Ask each registered broker for the persistent topics that it has loaded; loads none.

    Asks all; then raises SilentBrokerError where some do not answer, and PulsarError where none does. A topic that is
    just being loaded is not among them.
    """
    store.sync()
    found: set[str] = set()
    silent: PulsarError | None = None
    for name, data in _registrations(store):
        try:
            found.update(_loaded_topics(name, data, connection))
        except PulsarError as error:
            silent = silent or error
    if silent is not None and not found:
        raise silent
    if silent is not None:
        raise SilentBrokerError(str(silent), frozenset(found)) from silent
    return frozenset(found)


class LoadedTopics:
    """Tells which topics brokers have loaded, and loads none; a broker is asked once, where it may have one of them."""

    def __init__(self, store: MetadataStore, connection: PulsarConnection) -> None:
        self._store = store
        self._connection = connection
        self._found: dict[str, set[str]] = {}

    def has(self, topic: str) -> bool:
        """Return whether a broker has a partition, or a topic without, loaded. Raises PulsarError, StoreError."""
        owner = BundleOwnership(self._store).owner(topic)
        if owner is None:
            return False
        brokers = _registrations(self._store)
        urls = ("pulsarServiceUrl", "pulsarServiceUrlTls")
        owners = [(name, data) for name, data in brokers if owner in map(data.get, urls)]
        return any(topic in self._topics(name, data) for name, data in owners or brokers)

    def _topics(self, name: str, data: Mapping[str, Any]) -> set[str]:
        if name not in self._found:
            self._found[name] = _loaded_topics(name, data, self._connection)
        return self._found[name]


def _loaded_topics(name: str, data: Mapping[str, Any], connection: PulsarConnection) -> set[str]:
    url = _address(data, connection)
    if not url:
        raise PulsarError(f"the registration of broker {name} names no address of its REST: its topics are unknown")
    with closing(PulsarAdmin(connection.at(url), _TOPICS_TIMEOUT_S)) as admin:
        # By namespace; the one answer that has the topics of this moment (BookieClientStatsGenerator).
        by_namespace = admin.get_json("/broker-stats/bookieops")
        try:
            return {topic for topics in by_namespace.values() for topic in topics}
        except (AttributeError, TypeError) as error:
            raise PulsarError(f"broker {name} does not list its topics in a known form: {error}") from error


def read_deadlocked_brokers(store: MetadataStore, connection: PulsarConnection) -> tuple[str, ...]:
    """Ask each registered broker for its health; return those that found threads of their own deadlocked.

    A broker that does not answer, or is ill for another reason, is not among them. Raises StoreError.
    """
    store.sync()
    found = _registrations(store)

    def is_deadlocked(one: tuple[str, Mapping[str, Any]]) -> bool:
        url = _address(one[1], connection)
        with suppress(BookwardenError):
            if url:
                with closing(PulsarAdmin(connection.at(url), _TIMEOUT_S)) as admin:
                    answer = admin.request("GET", "/brokers/health", params={"topicVersion": "V2"}, ok=(200, 500))
                    return answer.status == 500 and _DEADLOCKED in answer.data
        return False

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="health") as pool:
        return tuple(name for (name, _), bad in zip(found, pool.map(is_deadlocked, found), strict=True) if bad)


def _registrations(store: MetadataStore) -> list[tuple[str, Mapping[str, Any]]]:
    names = store.list_many([_BROKERS_PATH])[0]
    nodes = store.get_many([f"{_BROKERS_PATH}/{name}" for name in names])
    return [(name, _registration(node)) for name, node in zip(names, nodes, strict=True) if node is not None]


def _address(data: Mapping[str, Any], connection: PulsarConnection) -> str:
    return str(data.get("webServiceUrlTls" if connection.admin_url.startswith("https:") else "webServiceUrl") or "")


def _ask(name: str, data: Mapping[str, Any], connection: PulsarConnection) -> RegisteredBroker:
    registered = data.get("brokerVersion") or data.get("brokerVersionString")
    version = str(registered) if registered else None
    url = _address(data, connection)
    if not url:
        return RegisteredBroker(name, version, error="its registration names no address of its REST")
    try:
        with closing(PulsarAdmin(connection.at(url), _TIMEOUT_S)) as admin:
            answered = admin.request("GET", "/brokers/version", ok=(200,)).data.decode("utf-8", "replace").strip('" \n')
            version = answered or version
            settings = admin.get_json("/brokers/configuration/runtime")
    except PulsarError as error:
        return RegisteredBroker(name, version, error=str(error))
    values = {str(key): str(value) for key, value in settings.items()}
    return RegisteredBroker(name, version, values, other_configuration=_other_configuration(values))


def _other_configuration(settings: Mapping[str, str]) -> str | None:
    own, other = (settings.get(name, "") for name in ("metadataStoreUrl", "configurationMetadataStoreUrl"))
    if not other or own == other:
        return None
    try:
        return None if split_chroot(own) == split_chroot(other) else other
    except ConfigError:
        return other


def _registration(node: Versioned) -> Mapping[str, Any]:
    try:
        data = json.loads(node.value)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
