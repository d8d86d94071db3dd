"""Contents of a cluster besides its topics' data: read, and written one by one.

Formats: GetAllVersionsSchemaResponse, TransactionMetadata, and the resources Tenants, Namespaces, PersistentTopics and
Schemas of Pulsar 4.0. Policies are named by the last
part of the path that sets them, as ``retention`` or ``backlogQuota/message_age``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from bookwarden.clusters.pulsar.rest.admin import Params, PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import subscription_path, topic_path
from bookwarden.errors import FormatError, NotFoundError, PulsarConflictError, PulsarError
from bookwarden.ledgers.names import TopicName, encode_local_name

# All that have been open for longer than 0 ms.
_OPEN: Final = "/admin/v3/transactions/slowTransactions/0"
# A broker says so of coordinators that no client has asked for since they were last unloaded.
_NOT_LOADED: Final = "Transaction coordinator not found"
_SWITCHED_OFF: Final = ("transactionCoordinatorEnabled", "is not enabled", "not enabled")

SchemaVersion = tuple[str, str, Mapping[str, str]]
_PUTS: Final = frozenset({"compactionThreshold", "schemaCompatibilityStrategy", "properties"})
_TOPIC_PUTS: Final = frozenset({"schemaCompatibilityStrategy"})
_SWITCH: Final = "dispatcherPauseOnAckStatePersistent"
_BEGINNING: Final = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
# A partitioned topic may have very many partitions, each of which is created.
_CREATE_TIMEOUT_S: Final = 120.0


class ClusterContents:
    """Reads them from the brokers. Errors are those of `PulsarAdmin`, and FormatError."""

    def __init__(self, admin: PulsarAdmin) -> None:
        self._admin = admin

    def schemas(self, topic: str) -> list[SchemaVersion]:
        """List all versions of a topic's schema, oldest first: kind, definition, properties; none if it has none."""
        path = f"{schema_path(topic)}s"
        try:
            answer = self._admin.get_json(path)
        except NotFoundError:
            return []
        found = answer.get("getSchemaResponses") if isinstance(answer, Mapping) else None
        if not isinstance(found, list):
            raise FormatError(f"GET {path}: the answer is no list of schemas")
        return [(str(one["type"]), str(one.get("data") or ""), dict(one.get("properties") or {})) for one in found]

    def non_persistent(self, namespace: str) -> list[str]:
        """List the partitioned topics that are not persistent."""
        found = self._admin.get_json(f"/non-persistent/{namespace}/partitioned")
        if not isinstance(found, list):
            raise FormatError(f"GET /non-persistent/{namespace}/partitioned: the answer is no list")
        return sorted(map(str, found))

    def open_transactions(self) -> dict[str, frozenset[str]]:
        """Return by id the transactions that are open at all coordinators, with the topics that each has touched."""
        answer = self.slow_transactions()
        try:
            return {
                str(name): frozenset({*(one.get("producedPartitions") or ()), *(one.get("ackedPartitions") or ())})
                for name, one in answer.items()
            }
        except (AttributeError, TypeError) as error:
            raise FormatError(f"GET {_OPEN}: the answer is not of transactions: {error}") from error

    def slow_transactions(self) -> Mapping[str, Any]:
        """Return the TransactionMetadata of the transactions that are open at all coordinators, by id."""
        try:
            answer: Mapping[str, Any] = self._admin.get_json(_OPEN)
            return answer
        except PulsarError as error:
            if _NOT_LOADED in str(error) or any(said in str(error) for said in _SWITCHED_OFF):
                return {}
            raise


def schema_path(topic: str) -> str:
    """Return the admin path of a topic's schema; the broker decodes it twice, once as a URL and once by its Codec."""
    name = TopicName.parse(topic)
    local = quote(encode_local_name(name.base.local_name), safe="")
    return f"/schemas/{quote(name.tenant)}/{quote(name.namespace)}/{local}/schema"


class ClusterWriter:
    """Writes to the cluster that an admin REST reaches. Errors are those of `PulsarAdmin`."""

    def __init__(self, admin: PulsarAdmin) -> None:
        self._admin = admin

    def create_tenant(self, tenant: str, info: Mapping[str, Any]) -> None:
        """Create a tenant; one that exists is left as it is."""
        with suppress(PulsarConflictError):
            self._admin.put(f"/tenants/{quote(tenant)}", dict(info))

    def change_tenant(self, tenant: str, info: Mapping[str, Any]) -> None:
        """Replace a tenant's roles and clusters."""
        self._admin.post(f"/tenants/{quote(tenant)}", dict(info))

    def create_namespace(self, namespace: str, policies: Mapping[str, Any]) -> None:
        """Create a namespace with all of these policies; PulsarConflictError if it exists, or cannot be as they say."""
        self._admin.put(f"/namespaces/{namespace}", dict(policies))

    def set_policy(self, namespace: str, key: str, value: Any) -> None:
        """Set a policy of a namespace."""
        name, _, part = key.partition("/")
        path = f"/namespaces/{namespace}/{name}"
        if name == "properties":
            value = {part: value}
        method = "PUT" if name in _PUTS else "POST"
        self._admin.request(method, path, body=None if name == _SWITCH else value, params=_quota(name, part))

    def remove_policy(self, namespace: str, key: str) -> None:
        """Remove a policy of a namespace: the brokers' settings hold then."""
        self._admin.delete(f"/namespaces/{namespace}/{key.partition('/')[0]}")

    def set_topic_policy(self, topic: str, key: str, value: Any) -> None:
        """Set a policy of a topic."""
        name, _, part = key.partition("/")
        if name == "subscription":
            self._admin.post(f"{topic_path(topic)}/{quote(encode_local_name(part), safe='')}/dispatchRate", value)
        elif name == "messageTTL":
            self._admin.request("POST", f"{topic_path(topic)}/messageTTL", params={"messageTTL": value})
        else:
            method = "PUT" if name in _TOPIC_PUTS else "POST"
            body = None if name == _SWITCH else value
            self._admin.request(method, f"{topic_path(topic)}/{name}", body=body, params=_quota(name, part))

    def remove_topic_policy(self, topic: str, key: str) -> None:
        """Remove a policy of a topic: its namespace's holds then."""
        self._admin.delete(f"{topic_path(topic)}/{key.partition('/')[0]}")

    def grant(self, namespace: str, kind: str, where: str, role: str, actions: Sequence[str]) -> None:
        """Grant a role rights on a namespace or a topic."""
        path = topic_path(where) if kind == "topic" else f"/namespaces/{namespace}"
        self._admin.post(f"{path}/permissions/{quote(role, safe='')}", list(actions))

    def grant_subscription(self, namespace: str, subscription: str, roles: Sequence[str]) -> None:
        """Set the roles that may use a subscription; the broker replaces all of them."""
        self._admin.post(
            f"/namespaces/{namespace}/permissions/subscription/{quote(subscription, safe='')}", list(roles)
        )

    def create_topic(self, topic: str, partitions: int | None) -> None:
        """Create a topic, partitioned unless ``partitions`` is None, on this cluster alone; what exists is left."""
        path = topic_path(topic)
        try:
            if partitions is None:
                self._admin.request("PUT", path, timeout_s=_CREATE_TIMEOUT_S)
            else:
                self._admin.request(
                    "PUT",
                    f"{path}/partitions",
                    body=partitions,
                    params={"createLocalTopicOnly": True},
                    timeout_s=_CREATE_TIMEOUT_S,
                )
        except PulsarConflictError:
            # Partitions that are missing of one that is there.
            if partitions is None:
                return
            self._admin.request("POST", f"{path}/createMissedPartitions", timeout_s=_CREATE_TIMEOUT_S)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise the number of partitions of a topic, on this cluster alone."""
        params = {"updateLocalTopicOnly": True}
        path = f"{topic_path(topic)}/partitions"
        self._admin.request("POST", path, body=partitions, params=params, timeout_s=_CREATE_TIMEOUT_S)

    def add_schema(self, topic: str, kind: str, definition: str, properties: Mapping[str, str]) -> None:
        """Add a version of a topic's schema unless it has it already; PulsarConflictError if it is incompatible."""
        body = {"type": kind, "schema": definition, "properties": dict(properties)}
        try:
            self._admin.post(schema_path(topic), body)
        except PulsarConflictError as error:
            raise PulsarConflictError(
                f"{error}; a version from before the strategy was tightened: set the namespace's "
                "schemaCompatibilityStrategy to ALWAYS_COMPATIBLE there, prepare again, and set it back"
            ) from error

    def subscribe(self, partition: str, subscription: str, properties: Mapping[str, str], *, replicated: bool) -> bool:
        """Create a durable subscription from the first message on; return False for one that exists, which stays."""
        body = {**_BEGINNING, "properties": dict(properties)}
        params: Params = {"replicated": replicated}
        try:
            self._admin.put(subscription_path(partition, subscription), body, params=params)
        except PulsarConflictError:
            return False
        return True


def _quota(name: str, kind: str) -> Params | None:
    return {"backlogQuotaType": kind} if name == "backlogQuota" else None
