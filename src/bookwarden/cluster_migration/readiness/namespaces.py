"""Checks of namespaces: on both sides, alike, not replicated between them, kept from deleting and growing; and limits.

Limits are those of green's namespaces, the defaults of its brokers, and the disks of its bookies.
"""

from __future__ import annotations

from typing import Final

from bookwarden.cluster_migration.readiness.findings import Override, Results, good, loses, or_good, stalls, warns
from bookwarden.cluster_migration.sides.policies import (
    AUTO_CREATION,
    INACTIVE,
    REPLICATION,
    creates_topics,
    deletes_inactive,
    differing,
    grants,
    namespace_settings,
    not_copied,
    topic_not_copied,
    topic_settings,
)
from bookwarden.cluster_migration.sides.values import ClusterInfo, NamespaceInfo, Observations
from bookwarden.disk_space import DisksTold, summed
from bookwarden.findings import some

# Between the preparation and the first client of a topic.
_SOON_MINUTES: Final = 24 * 60
_PREPARE: Final = "`bookwarden cluster-migration prepare --execute`"
_DELETING: Final = "brokerDeleteInactiveTopicsEnabled"
_CREATING: Final = "allowAutoTopicCreation"


@or_good(lambda seen: f"green has all {len(seen.scope)} of the scope, with their tenants")
def present(seen: Observations) -> Results:
    """Check that green has tenant and namespace, and may have them."""
    for name in seen.scope:
        if name not in seen.blue.namespaces:
            yield stalls("blue has no such namespace", "name one that it has", name)
            continue
        yield from _in_tenant(seen, name)
        green = seen.green.namespaces.get(name)
        if green is None:
            yield stalls("green has no such namespace: clients would close for good", _PREPARE, name)
        elif seen.green.cluster not in green.clusters:
            yield stalls(
                f"on green its clusters are {some(sorted(green.clusters)) or 'none'}, and not green itself",
                f"`pulsar-admin namespaces set-clusters --clusters {seen.green.cluster} {name}` on green",
                name,
            )


def _in_tenant(seen: Observations, name: str) -> Results:
    tenant = name.partition("/")[0]
    info = seen.green.tenants.get(tenant)
    if info is None:
        yield stalls(f"green has no tenant {tenant}: clients would close for good", _PREPARE, name)
    elif seen.green.cluster not in (info.get("allowedClusters") or ()):
        yield stalls(f"tenant {tenant} is not allowed in {seen.green.cluster}, on green", _PREPARE, name)


@or_good("nothing is replicated between both")
def replication(seen: Observations) -> Results:
    """Check that nothing is replicated between blue and green: green would get each message twice."""
    blue, green = seen.blue.cluster, seen.green.cluster
    if seen.shared_configuration:
        yield loses(
            f"both clusters use the configuration store {seen.shared_configuration}, and with it the same "
            "policies: none of them are right for both",
            "give green a configuration store of its own",
        )
    if blue == green:
        return
    for ours, theirs in seen.pairs():
        ways = [f"{blue} to {green}"] if green in ours.clusters else []
        ways += [f"{green} to {blue}"] if theirs is not None and blue in theirs.clusters else []
        if ways:
            yield loses(
                f"replicated from {' and '.join(ways)}: green would get every message twice",
                f"take {blue} out of the namespace's clusters on green, and {green} on blue: "
                "`pulsar-admin namespaces set-clusters`",
                ours.name,
                override=Override.TWO_WAY_REPLICATION,
            )
        topics = _replicated_topics(ours, green) + _replicated_topics(theirs, blue)
        if topics:
            yield loses(
                f"topics with replication of their own between both: {some(topics)}",
                "`pulsar-admin topicPolicies set-replication-clusters` without the other one",
                ours.name,
                topics,
                Override.TWO_WAY_REPLICATION,
            )


def _replicated_topics(seen: NamespaceInfo | None, other: str) -> list[str]:
    policies = {} if seen is None else seen.topic_policies
    return sorted(topic for topic, own in policies.items() if other in (topic_settings(own).get(REPLICATION) or ()))


@or_good("policies and rights, as far as they are copied, are the same on both")
def alike(seen: Observations) -> Results:
    """Check that policies and rights are the same on both, but for lists of clusters."""
    for ours, theirs in seen.pairs():
        for error in (*ours.policy_errors, *(theirs.policy_errors if theirs else ())):
            yield stalls(f"policies of topics are not known: {error}", "try again; check our role", ours.name)
        if theirs is None:
            continue
        other = differing(
            namespace_settings(ours.policies, seen.blue.cluster),
            namespace_settings(theirs.policies, seen.green.cluster),
        )
        if other:
            yield warns(f"policies differ: {some(other)}", _AS_WANTED, ours.name, other)
        lacking = [
            f"{one.role} on {one.where or ours.name}"
            for one in grants(ours.policies)
            if one not in set(grants(theirs.policies))
        ]
        if lacking:
            yield warns(f"rights that green lacks: {some(lacking)}", _AS_WANTED, ours.name, lacking)
        yield from _of_topics(seen, ours, theirs)
        kept = not_copied(ours.policies)
        if kept:
            yield warns(f"not copied: {some(kept)}", "set them on green as they are to be there", ours.name, kept)


def _of_topics(seen: Observations, ours: NamespaceInfo, theirs: NamespaceInfo) -> Results:
    other, kept = [], []
    for topic, own in sorted(ours.topic_policies.items()):
        wanted = topic_settings(own, seen.blue.cluster, seen.green.cluster)
        there = topic_settings(theirs.topic_policies.get(topic, {}))
        other += [f"{topic}: {what}" for what in differing(wanted, there)]
        kept += [f"{topic}: {name}" for name in topic_not_copied(own)]
    if other:
        yield warns(f"policies of topics differ: {some(other)}", _AS_WANTED, ours.name, other)
    if kept:
        yield warns(f"policies of topics not copied: {some(kept)}", "set them on green", ours.name, kept)


_AS_WANTED: Final = f"what green lacks: {_PREPARE}; what it has otherwise is left: change it there if it is not meant"


@or_good("neither cluster deletes inactive topics of the scope")
def held(seen: Observations) -> Results:
    """Check that neither cluster deletes inactive topics: blue what was moved, green what is not in use yet."""
    for ours, theirs in seen.pairs():
        yield from _deleting(seen.blue, ours, "blue deletes topics as soon as they are empty: no way back")
        if theirs is not None:
            yield from _deleting(
                seen.green, theirs, "green deletes topics without a subscription before their clients come"
            )
            yield from _expiring(seen.green, theirs)


def _expiring(green: ClusterInfo, namespace: NamespaceInfo) -> Results:
    """Judge whether green removes subscriptions before their consumers come."""
    minutes = limit_of(green, namespace, "subscription_expiration_time_minutes", "subscriptionExpirationTimeMinutes")
    if minutes > 0:
        yield (loses if minutes < _SOON_MINUTES else warns)(
            f"green removes subscriptions that were not used for {minutes} min: those that were prepared among them",
            "`pulsar-admin namespaces set-subscription-expiration-time --time 0` on green until the clients are there",
            namespace.name,
        )


def _deleting(side: ClusterInfo, namespace: NamespaceInfo, seen: str) -> Results:
    brokers = not side.all_have(_DELETING, "false")
    own = namespace_settings(namespace.policies, side.cluster).get(INACTIVE)
    if deletes_inactive(own, brokers_delete=brokers):
        yield loses(seen, _PREPARE, namespace.name)
    topics = sorted(
        topic
        for topic, policies in namespace.topic_policies.items()
        if deletes_inactive(topic_settings(policies).get(INACTIVE), brokers_delete=False)
    )
    if topics:
        yield loses(f"{seen}: by policies of their own {some(topics)}", _PREPARE, namespace.name, topics)


@or_good("no topic is created on blue by asking for it")
def growing(seen: Observations) -> Results:
    """Check that no topic is created on blue from now on when a client asks for one."""
    brokers = not seen.blue.all_have(_CREATING, "false")
    for ours, _ in seen.pairs():
        own = namespace_settings(ours.policies, seen.blue.cluster).get(AUTO_CREATION)
        if creates_topics(own, brokers_create=brokers):
            yield warns(
                "topics are created on blue when a client asks for one: green will lack them", _PREPARE, ours.name
            )


def own_topics(seen: Observations) -> Results:
    """Check that bookwarden's own topics stay where they are, and the brokers' too."""
    inside = sorted(seen.kept_out.intersection(seen.scope))
    for name in inside:
        yield stalls(
            "the topics of two-phase deletion, or the brokers' own, are in it: they would be gated with the rest",
            "leave it out; run bookwarden's topics on another cluster, or in a namespace of their own",
            name,
        )
    if not inside:
        yield good("bookwarden's topics and the brokers' own are not in the scope")


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


def room(seen: Observations) -> Results:
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


def limit_of(green: ClusterInfo, namespace: NamespaceInfo, policy: str, setting: str) -> int:
    """Return a limit of a namespace: its own, else the smallest of the brokers' settings; 0 for none."""
    own = namespace.policies.get(policy)
    return int(own) if own is not None else min(green.numbers(setting), default=0)


def _limits(green: ClusterInfo, ours: NamespaceInfo, theirs: NamespaceInfo) -> Results:
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


def _defaults(seen: Observations, theirs: NamespaceInfo) -> Results:
    other = []
    for setting, policy in _DEFAULTS.items():
        blue, green = sorted(seen.blue.values_of(setting)), sorted(seen.green.values_of(setting))
        # A setting that one of both versions does not have is not reported by it.
        if blue and green and blue != green and theirs.policies.get(policy) in (None, {}):
            other.append(f"{setting} is {' and '.join(blue)} on blue, {' and '.join(green)} on green")
    if other:
        yield warns(
            f"brokers' defaults differ, and it has no policy of its own: {some(other)}",
            "set the policy on the namespace, or blue's value in broker.conf of green",
            theirs.name,
            other,
        )


def _disks(seen: Observations, disks: DisksTold) -> Results:
    advice = "look at the disks of green's bookies yourself"
    if seen.disk_error:
        yield warns(f"the disks of green's bookies are not known: {seen.disk_error}", advice)
    elif not seen.disks:
        yield stalls("green has no bookie that takes new ledgers", "start its bookies; see that their disks have room")
    if disks.silent:
        yield warns(f"the disks of green's bookies are not known: {some(disks.silent)}", advice, evidence=disks.silent)
    if disks.full:
        yield warns(f"green's bookies are nearly full: {some(disks.full)}", "make room or add bookies", "", disks.full)
    kept = sum(_bytes_kept(seen, ours, theirs or ours) for ours, theirs in seen.pairs())
    if seen.disks and not disks.silent and kept > disks.free:
        yield warns(
            f"blue keeps {kept / _GB:,.1f} GB of it, counted with green's copies, and green's bookies have "
            f"{disks.free / _GB:,.1f} GB free",
            "it needs as much once its retention is full: add bookies",
        )


def _bytes_kept(seen: Observations, ours: NamespaceInfo, theirs: NamespaceInfo) -> int:
    """Count what blue keeps of a namespace, times the copies that green makes of each entry."""
    own = (theirs.policies.get("persistence") or {}).get("bookkeeperWriteQuorum")
    copies = int(own) if own else max(seen.green.numbers(_QUORUM), default=1)
    return copies * sum(topic.size for topic in ours.topics.values())
