"""Checks of what green has room for: limits of its namespaces, defaults of its brokers, disks of its bookies."""

from __future__ import annotations

from typing import Final

from bookwarden.blue_green.readiness.lines import Lines, good, stalls, warns
from bookwarden.blue_green.sides.values import NamespaceSeen, Observations, SideSeen
from bookwarden.disk_space import DisksTold, summed
from bookwarden.findings import some

#: Settings of brokers that decide what becomes of messages, with the namespace's policy that overrules each.
_DEFAULTS: Final = {
    "maxMessageSize": "",
    "delayedDeliveryEnabled": "delayed_delivery_policies",
    "brokerDeduplicationEnabled": "deduplicationEnabled",
    "defaultRetentionTimeInMinutes": "retention_policies",
    "defaultRetentionSizeInMB": "retention_policies",
    "ttlDurationDefaultInSeconds": "message_ttl_in_seconds",
    "backlogQuotaDefaultLimitBytes": "backlog_quota_map",
    "backlogQuotaDefaultLimitSecond": "backlog_quota_map",
    "backlogQuotaDefaultRetentionPolicy": "backlog_quota_map",
}
_QUORUM: Final = "managedLedgerDefaultWriteQuorum"
_GB: Final = 1e9


def room(seen: Observations) -> Lines:
    """Check that green's limits, its brokers' defaults and its bookies' disks have room for what comes."""
    disks = summed(seen.disks)
    found = []
    for ours, theirs in seen.pairs():
        if theirs is not None:
            found += [*_limits(seen.green, ours, theirs), *_defaults(seen, theirs)]
    found += _disks(seen, disks)
    yield from found or [
        good(
            "no limit of green is below what blue has, its brokers have blue's defaults, "
            f"and {disks.free / _GB:,.1f} GB are free on its bookies"
        )
    ]


def limit_of(green: SideSeen, namespace: NamespaceSeen, policy: str, setting: str) -> int:
    """Return a limit of a namespace: its own, else the smallest of the brokers' settings; 0 for none."""
    own = namespace.policies.get(policy)
    return int(own) if own is not None else min(green.numbers(setting), default=0)


def _limits(green: SideSeen, ours: NamespaceSeen, theirs: NamespaceSeen) -> Lines:
    topics, limit = len(ours.topics), limit_of(green, theirs, "max_topics_per_namespace", "maxTopicsPerNamespace")
    if limit and topics > limit:
        yield stalls(
            f"blue has {topics} topics and partitions, green allows {limit}",
            "`pulsar-admin namespaces set-max-topics-per-namespace` on green",
            ours.name,
        )
    limit = limit_of(green, theirs, "max_subscriptions_per_topic", "maxSubscriptionsPerTopic")
    crowded = [one.name for one in ours.topics.values() if limit and len(one.copied) > limit]
    if crowded:
        yield stalls(
            f"more subscriptions than the {limit} that green allows: {some(crowded)}",
            "`pulsar-admin namespaces set-max-subscriptions-per-topic` on green",
            ours.name,
            crowded,
        )


def _defaults(seen: Observations, theirs: NamespaceSeen) -> Lines:
    other = []
    for setting, policy in _DEFAULTS.items():
        blue, green = sorted(seen.blue.told(setting)), sorted(seen.green.told(setting))
        # A setting that one of both versions does not have is not told by it.
        if blue and green and blue != green and theirs.policies.get(policy) in (None, {}):
            other.append(f"{setting} is {' and '.join(blue)} on blue, {' and '.join(green)} on green")
    if other:
        yield warns(
            f"brokers' defaults differ, and it has no policy of its own: {some(other)}",
            "set the policy on the namespace, or blue's value in broker.conf of green",
            theirs.name,
            other,
        )


def _disks(seen: Observations, disks: DisksTold) -> Lines:
    look = "look at the disks of green's bookies yourself"
    if seen.disk_trouble:
        yield warns(f"the disks of green's bookies are not known: {seen.disk_trouble}", look)
    elif not seen.disks:
        yield stalls("green has no bookie that takes new ledgers", "start its bookies; see that their disks have room")
    if disks.silent:
        yield warns(f"the disks of green's bookies are not known: {some(disks.silent)}", look, evidence=disks.silent)
    if disks.full:
        yield warns(f"green's bookies are nearly full: {some(disks.full)}", "make room or add bookies", "", disks.full)
    kept = sum(_bytes_kept(seen, ours, theirs or ours) for ours, theirs in seen.pairs())
    if seen.disks and not disks.silent and kept > disks.free:
        yield warns(
            f"blue keeps {kept / _GB:,.1f} GB of it, counted with green's copies, and green's bookies have "
            f"{disks.free / _GB:,.1f} GB free",
            "it needs as much once its retention is full: add bookies",
        )


def _bytes_kept(seen: Observations, ours: NamespaceSeen, theirs: NamespaceSeen) -> int:
    """Count what blue keeps of a namespace, times the copies that green makes of each entry."""
    own = (theirs.policies.get("persistence") or {}).get("bookkeeperWriteQuorum")
    copies = int(own) if own else max(seen.green.numbers(_QUORUM), default=1)
    return copies * sum(topic.size for topic in ours.topics.values())
