"""Registered brokers, with the answers of their own REST.

Formats: the nodes of ``/loadbalance/brokers``, LocalBrokerData or, with the extensible load manager, BrokerLookupData;
``/brokers/version`` and ``/brokers/configuration/runtime`` of Pulsar 4.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.errors import PulsarError
from bookwarden.metastore.interface import MetadataStore, Versioned

_BROKERS_PATH: Final = "/loadbalance/brokers"
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A broker by its id. ``settings`` are those it runs with; without an answer None, with the reason in ``trouble``.

    ``version`` is that of its registration where it did not answer; None where neither has it.
    """

    name: str
    version: str | None
    settings: Mapping[str, str] | None = None
    trouble: str | None = None


def read_registered_brokers(store: MetadataStore, connection: PulsarConnection) -> list[RegisteredBroker]:
    """Ask each broker that is registered in this metadata store, one after the other."""
    names = store.list_many([_BROKERS_PATH])[0]
    nodes = store.get_many([f"{_BROKERS_PATH}/{name}" for name in names])
    return [_ask(name, node, connection) for name, node in zip(names, nodes, strict=True) if node is not None]


def _ask(name: str, node: Versioned, connection: PulsarConnection) -> RegisteredBroker:
    data = _registration(node)
    told = data.get("brokerVersion") or data.get("brokerVersionString")
    version = str(told) if told else None
    url = data.get("webServiceUrlTls" if connection.admin_url.startswith("https:") else "webServiceUrl")
    if not url:
        return RegisteredBroker(name, version, trouble="its registration names no address of its REST")
    try:
        with closing(PulsarAdmin(dataclasses.replace(connection, admin_url=str(url)), _TIMEOUT_S)) as admin:
            answered = admin.request("GET", "/brokers/version", ok=(200,)).data.decode("utf-8", "replace").strip('" \n')
            version = answered or version
            settings = admin.get_json("/brokers/configuration/runtime")
    except PulsarError as error:
        return RegisteredBroker(name, version, trouble=str(error))
    return RegisteredBroker(name, version, {str(key): str(value) for key, value in settings.items()})


def _registration(node: Versioned) -> Mapping[str, Any]:
    try:
        data = json.loads(node.value)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
