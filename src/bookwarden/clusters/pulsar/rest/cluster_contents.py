"""Contents of a cluster besides its topics' data: versions of schemas, and open transactions.

Formats: GetAllVersionsSchemaResponse and TransactionMetadata of Pulsar 4.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.errors import FormatError, NotFoundError, PulsarError
from bookwarden.ledgers.names import TopicName, encode_local_name

# All that have been open for longer than 0 ms.
_OPEN: Final = "/admin/v3/transactions/slowTransactions/0"
# A broker says so of coordinators that no client has asked for since they were last unloaded.
_NOT_LOADED: Final = "Transaction coordinator not found"
_SWITCHED_OFF: Final = ("transactionCoordinatorEnabled", "is not enabled", "not enabled")

SchemaVersion = tuple[str, str, Mapping[str, str]]


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
        try:
            answer = self._admin.get_json(_OPEN)
        except PulsarError as error:
            if _NOT_LOADED in str(error) or any(said in str(error) for said in _SWITCHED_OFF):
                return {}
            raise
        try:
            return {
                str(name): frozenset({*(one.get("producedPartitions") or ()), *(one.get("ackedPartitions") or ())})
                for name, one in answer.items()
            }
        except (AttributeError, TypeError) as error:
            raise FormatError(f"GET {_OPEN}: the answer is not of transactions: {error}") from error


def schema_path(topic: str) -> str:
    """Return the admin path of a topic's schema; the broker decodes it twice, once as a URL and once by its Codec."""
    name = TopicName.parse(topic)
    local = quote(encode_local_name(name.base.local_name), safe="")
    return f"/schemas/{quote(name.tenant)}/{quote(name.namespace)}/{local}/schema"
