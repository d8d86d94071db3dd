"""Would a migration of clients lose anything, or stand still? Judged from observations, before anything is begun.

What each check guards against was measured on released brokers; the remedy for each is in docs/cluster-migration.md,
under its name.
"""

from __future__ import annotations

from typing import Final

from bookwarden.blue_green.readiness import clients, clusters, limits, namespaces, redirect, subscriptions, topics
from bookwarden.blue_green.readiness.findings import Judged
from bookwarden.blue_green.readiness.lines import Check
from bookwarden.blue_green.sides.values import Observations

#: By name, in the order of their numbers.
CHECKS: Final[dict[str, Check]] = {
    "broker versions": clusters.versions,
    "check interval": clusters.intervals,
    "cluster names": clusters.names,
    "green's addresses": redirect.urls,
    "flags": clusters.flags,
    "namespaces on green": namespaces.present,
    "replication between both": namespaces.replication,
    "topics on green": topics.shapes,
    "subscriptions on green": subscriptions.on_green,
    "schemas": topics.schemas,
    "policies": namespaces.alike,
    "topics loaded": topics.loaded,
    "readers and compaction": topics.unread,
    "backlogs": subscriptions.left_behind,
    "idle subscriptions": subscriptions.idle,
    "replication elsewhere": subscriptions.remotes,
    "transactions": clients.transactions,
    "client versions": clients.versions,
    "load balancer": clusters.balancing,
    "deletion held": namespaces.held,
    "odd topics": topics.oddities,
    "limits of green": limits.room,
    "new topics": namespaces.growing,
    "own topics": namespaces.own_topics,
}


def judge(seen: Observations) -> tuple[Judged, ...]:
    """List all lines of all checks."""
    return tuple(
        Judged(number, name, line.severity, line.seen, line.advice, line.namespace, line.evidence, line.override)
        for number, (name, check) in enumerate(CHECKS.items(), 1)
        for line in check(seen)
    )
