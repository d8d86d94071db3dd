"""All checks of the pre-flight, by name: would a migration of clients lose anything, or stall?

What each check guards against was measured on released brokers; the remedy for each is in docs/cluster-migration.md,
under its name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bookwarden.cluster_migration.readiness import clients, clusters, namespaces, topics
from bookwarden.cluster_migration.readiness.findings import Check, CheckResult
from bookwarden.cluster_migration.sides.values import Observations

#: By name, in the order of their numbers.
CHECKS: Final[dict[str, Check]] = {
    "broker versions": clusters.versions,
    "check interval": clusters.intervals,
    "cluster names": clusters.names,
    "green's addresses": clients.addresses,
    "flags": clusters.flags,
    "namespaces on green": namespaces.present,
    "replication between both": namespaces.replication,
    "topics on green": topics.shapes,
    "subscriptions on green": topics.on_green,
    "schemas": topics.schemas,
    "policies": namespaces.alike,
    "topics loaded": topics.loaded,
    "readers and compaction": topics.unread,
    "backlogs": topics.left_behind,
    "idle subscriptions": topics.idle,
    "replication elsewhere": topics.remotes,
    "transactions": clients.transactions,
    "client versions": clients.versions,
    "load balancer": clusters.balancing,
    "deletion held": namespaces.held,
    "odd topics": topics.oddities,
    "limits of green": namespaces.room,
    "new topics": namespaces.growing,
    "own topics": namespaces.own_topics,
}


def evaluate(seen: Observations) -> tuple[CheckResult, ...]:
    """List all lines of all checks."""
    return tuple(
        replace(line, number=number, check=name)
        for number, (name, check) in enumerate(CHECKS.items(), 1)
        for line in check(seen)
    )
