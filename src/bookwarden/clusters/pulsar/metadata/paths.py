"""Paths of Pulsar's nodes below a metadata root.

Source: mledger.impl.MetaStoreImpl, BookkeeperSchemaStorage, and NamespaceResources of Pulsar 4.0. The policies of
namespaces and the nodes of partitioned topics are in the configuration store, mostly the metadata store itself.
"""

from __future__ import annotations

from typing import Final

MANAGED_LEDGERS_ROOT: Final = "/managed-ledgers"
SCHEMAS_ROOT: Final = "/schemas"
# Namespaces of DistributedLog: functions, packages, and the table service (WorkerUtils, StorageConstants).
LOG_ROOTS: Final = ("/pulsar/functions", "/pulsar/packages", "/stream/storage")


def namespace_policies_path(namespace: str) -> str:
    """Return the path of a namespace's policies."""
    return f"/admin/policies/{namespace}"


def local_policies_path(namespace: str) -> str:
    """Return the path of the policies that a namespace has in one cluster."""
    return f"/admin/local-policies/{namespace}"


def partitioned_topic_path(managed_ledger: str) -> str:
    """Return the path of the node of a partitioned topic, named as a managed ledger of it would be."""
    return f"/admin/partitioned-topics/{managed_ledger}"


def managed_ledger_path(name: str) -> str:
    """Return the path of a managed ledger's node."""
    return f"{MANAGED_LEDGERS_ROOT}/{name}"


def cursor_path(managed_ledger: str, cursor: str) -> str:
    """Return the path of a cursor's node, whose name is encoded."""
    return f"{MANAGED_LEDGERS_ROOT}/{managed_ledger}/{cursor}"


def schema_path(schema_id: str) -> str:
    """Return the path of a schema's node."""
    return f"{SCHEMAS_ROOT}/{schema_id}"
