"""Checks of topics and subscriptions: on green as on blue, loaded, read by what moves along, and drained in the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from bookwarden.cluster_migration.readiness.findings import Override, Results, loses, or_good, stalls, warns
from bookwarden.cluster_migration.sides.values import (
    COMPACTION,
    NamespaceInfo,
    Observations,
    SubscriptionStats,
    TopicStats,
)
from bookwarden.findings import some
from bookwarden.ledgers.names import TopicName

_PREPARE: Final = "`bookwarden cluster-migration prepare --execute`"


@or_good("green has all topics, with as many partitions")
def shapes(seen: Observations) -> Results:
    """Check that green has each topic, with as many partitions."""
    for ours, theirs in seen.contents():
        yield from _shapes(ours, theirs)


def _shapes(ours: NamespaceInfo, theirs: NamespaceInfo) -> Results:
    for side, namespace in (("blue", ours), ("green", theirs)):
        twins = [topic for topic in namespace.partitioned if topic in namespace.topics]
        if twins:
            yield stalls(
                f"{side} has them with partitions and without: {some(twins)}; clients see one of both",
                f"read what is in the one without on {side}, and delete that one",
                ours.name,
                twins,
            )
    by_state: dict[str, list[str]] = defaultdict(list)
    for topic in ours.whole_topics:
        state, text = _shape(ours, theirs, topic)
        by_state[state].append(text)
    missing, fewer, more, other = (by_state[state] for state in ("missing", "fewer", "more", "other"))
    if missing:
        yield stalls(f"green lacks {some(missing)}: clients would close for good", _PREPARE, ours.name, missing)
    if fewer:
        yield stalls(f"green has fewer partitions: {some(fewer)}", _PREPARE, ours.name, fewer)
    if other:
        yield stalls(
            f"on green they are of another kind, or single topics named like partitions: {some(other)}",
            "delete them on green if what is in them is not needed, then prepare again",
            ours.name,
            other,
        )
    if more:
        yield warns(
            f"green has more partitions: {some(more)}",
            "clients that are moved use the first ones until they restart",
            ours.name,
            more,
        )


def _shape(ours: NamespaceInfo, theirs: NamespaceInfo, topic: str) -> tuple[str, str]:
    """Return in which way green's topic is not blue's, and its name for people."""
    wanted, there = ours.partitioned.get(topic), theirs.partitioned.get(topic)
    if wanted is None:
        return ("other" if there is not None else "" if topic in theirs.topics else "missing"), topic
    if there is None:
        return ("other" if topic in theirs.topics or single_partitions(theirs, topic) else "missing"), topic
    if there != wanted:
        return ("fewer" if there < wanted else "more"), f"{topic}: {there} instead of {wanted}"
    return ("missing", f"{topic}, some partitions") if absent_partitions(theirs, topic) else ("", topic)


def absent_partitions(namespace: NamespaceInfo, topic: str) -> list[str]:
    """List the partitions that are counted and do not exist; of a topic that is not persistent none is kept."""
    parts = () if topic.startswith("non-persistent:") else namespace.partitions_of(topic)
    return [part for part in parts if part not in namespace.topics]


def single_partitions(namespace: NamespaceInfo, topic: str) -> list[str]:
    """List the topics that are named like partitions of this one, which is not partitioned there."""
    return [name for name in namespace.topics if name != topic and str(TopicName.parse(name).base) == topic]


@or_good("green has the same versions of all schemas")
def schemas(seen: Observations) -> Results:
    """Check that green has each version of each schema, in the same order."""
    for ours, theirs in seen.contents():
        for error in (*ours.schema_errors, *theirs.schema_errors):
            yield stalls(f"schemas are not known: {error}", "try again; check our role", ours.name)
        yield from _schemas(ours, theirs)


def _schemas(ours: NamespaceInfo, theirs: NamespaceInfo) -> Results:
    missing, other = [], []
    for topic, versions in sorted(ours.schemas.items()):
        wanted = [one.identity for one in versions]
        there = [one.identity for one in theirs.schemas.get(topic, ())]
        if there != wanted[: len(there)] and wanted != there[: len(wanted)]:
            other.append(topic)
        elif len(there) < len(wanted):
            missing.append(f"{topic}: {len(there)} of {len(wanted)} versions")
    if missing:
        yield stalls(f"green lacks schemas: {some(missing)}", _PREPARE, ours.name, missing)
    if other:
        yield stalls(
            f"green has other schemas, or in another order: {some(other)}",
            "delete the schema on green if it is not in use, then prepare again",
            ours.name,
            other,
        )
    if ours.schemas and theirs.policies.get("is_allow_auto_update_schema") is False:
        yield warns(
            "green takes no new schemas from producers", "register new versions there by hand from now on", ours.name
        )


@or_good(
    lambda seen: f"all {sum(len(ours.topics) for ours, _ in seen.pairs())} topics and partitions of blue are loaded"
)
def loaded(seen: Observations) -> Results:
    """Check that each topic of blue is loaded: the statistics that were asked for load it; others never migrate."""
    for ours, _ in seen.pairs():
        silent = [f"{one.name}: {one.error}" for one in ours.topics.values() if one.error]
        if silent:
            yield loses(
                f"cannot be loaded on blue: {some(silent)}",
                "take a flag that is on off, and load them; or delete those that are not needed",
                ours.name,
                silent,
            )


@or_good("all data of blue is held by durable subscriptions")
def unread(seen: Observations) -> Results:
    """Check for data that no durable subscription holds, and for compacted topics: nothing of it goes to green."""
    for ours, _ in seen.pairs():
        alone = [one.name for one in ours.topics.values() if _is_alone(one)]
        read = [one.name for one in ours.topics.values() if any(not each.durable for each in one.subscriptions)]
        compacted = [one.name for one in ours.topics.values() if _is_compacted(one)]
        readers = sorted({*alone, *read} - set(compacted))
        if readers:
            yield loses(
                readers_text(readers),
                "let applications read to the end, or copy the data; it stays on blue",
                ours.name,
                readers,
                Override.READERS,
            )
        history = [one for one in ours.topics.values() if one.history[0]]
        if history:
            texts = [_history_text(one) for one in history]
            yield loses(
                f"history that only retention keeps: {some(texts)}",
                "copy what is needed to green, from the earliest message; `finish` removes it from blue for good",
                ours.name,
                texts,
                Override.HISTORY,
            )
        if compacted:
            yield loses(
                f"compacted: {some(compacted)}; their newest values are not copied",
                "write the values to green again, or let their table views be filled there first",
                ours.name,
                compacted,
                Override.COMPACTED_TOPICS,
            )


def _history_text(topic: TopicStats) -> str:
    entries, size = topic.history
    return f"{topic.name} ({entries:,} entries, {size:,} bytes)" if entries > 0 else f"{topic.name} (not known)"


def readers_text(topics: list[str]) -> str:
    """Return what is said of topics with data that no durable subscription holds, or with readers."""
    return f"data without a durable subscription, or with readers: {some(topics)}"


def _is_alone(topic: TopicStats) -> bool:
    return topic.size > 0 and not topic.copied


def _is_compacted(topic: TopicStats) -> bool:
    return any(one.name == COMPACTION for one in topic.subscriptions) or COMPACTION in topic.cursors


@or_good("no topic was terminated, no partition is missing")
def oddities(seen: Observations) -> Results:
    """Check for what a migration would trip over: terminated topics, missing partitions, deleted namespaces."""
    for ours, _ in seen.pairs():
        topics = ours.topics.values()
        for text, advice, names in (
            ("terminated by their users", "nothing: they are never drained by brokers", _terminated(ours)),
            (
                "migrated before",
                "`cluster-migration watch`",
                [one.name for one in topics if one.migrated],
            ),
            ("partitions that do not exist", "`pulsar-admin topics create-missed-partitions`", _absent(ours)),
        ):
            if names:
                yield warns(f"{text}: {some(names)}", advice, ours.name, names)
        unknown = [f"{one.name}: {one.metadata_error}" for one in topics if one.metadata_error]
        if unknown:
            yield stalls(f"metadata not known of {some(unknown)}", "try again", ours.name, unknown)
        if ours.policies.get("deleted"):
            yield stalls("it is being deleted", "finish that, and leave it out", ours.name)


def _terminated(namespace: NamespaceInfo) -> list[str]:
    return [one.name for one in namespace.topics.values() if one.terminated and not one.migrated]


def _absent(namespace: NamespaceInfo) -> list[str]:
    return sorted(part for topic in namespace.partitioned for part in absent_partitions(namespace, topic))


@or_good("green has all durable subscriptions")
def on_green(seen: Observations) -> Results:
    """Check that green has each durable subscription, from its first message on, with the same properties."""
    for ours, theirs in seen.contents():
        lacking = [_said(topic, one) for topic, one in _missing(ours, theirs) if not _is_idle(one)]
        if lacking:
            yield loses(
                f"green lacks {some(lacking)}: what is sent there first would not reach them",
                _PREPARE,
                ours.name,
                lacking,
            )
        yield from _differences(ours, theirs)


def _differences(ours: NamespaceInfo, theirs: NamespaceInfo) -> Results:
    other, late = [], []
    for topic in ours.topics.values():
        there = theirs.topics.get(topic.name)
        by_name = {} if there is None else {one.name: one for one in there.subscriptions}
        for one in topic.copied:
            green = by_name.get(one.name)
            if green is not None and dict(green.properties) != dict(one.properties):
                other.append(_said(topic, one))
            if green is not None and there is not None and green.backlog < there.entries_received:
                late.append(f"{_said(topic, one)} ({there.entries_received - green.backlog} acknowledged)")
    if other:
        yield warns(
            f"other properties on green: {some(other)}", "change them there if they are not meant", ours.name, other
        )
    if late:
        yield warns(
            f"not at the earliest on green: {some(late)}",
            "nothing if applications use them there already",
            ours.name,
            late,
        )


@or_good("green has all subscriptions without a consumer")
def idle(seen: Observations) -> Results:
    """Check that green has the subscriptions without a consumer: blue deletes them, with what was sent since."""
    for ours, theirs in seen.contents():
        lacking = [_said(topic, one) for topic, one in _missing(ours, theirs) if _is_idle(one)]
        if lacking:
            yield loses(
                f"without consumer and without backlog, and not on green: {some(lacking)}",
                _PREPARE,
                ours.name,
                lacking,
            )


@or_good("each backlog has a consumer")
def left_behind(seen: Observations) -> Results:
    """Check that each backlog has a consumer: what is left stays on blue, and its topic with it."""
    for ours, _ in seen.pairs():
        stuck = [
            f"{_said(topic, one)} ({one.backlog} entries)"
            for topic, one in _copied(ours)
            if one.backlog and not one.consumers
        ]
        if stuck:
            yield stalls(
                f"backlog without a consumer: {some(stuck)}",
                "start the consumers, or skip the backlog",
                ours.name,
                stuck,
                Override.IDLE_SUBSCRIPTIONS,
            )
        delayed = [f"{_said(topic, one)} ({one.delayed})" for topic, one in _copied(ours) if one.delayed]
        if delayed:
            yield warns(
                f"messages that are due later: {some(delayed)}",
                "nothing: blue keeps their consumers until the last one is due",
                ours.name,
                delayed,
            )


@or_good("no replication is behind")
def remotes(seen: Observations) -> Results:
    """Check that what is replicated to other clusters has arrived: producers are cut off until it has."""
    for ours, _ in seen.pairs():
        behind = [
            f"{topic.name} to {one.cluster} ({one.backlog} entries{'' if one.connected else ', not connected'})"
            for topic in ours.topics.values()
            for one in topic.remotes
            if one.backlog or not one.connected
        ]
        if behind:
            yield stalls(
                f"replication is behind: {some(behind)}; producers would be cut off until it is not",
                "wait for it; bring the remote cluster back",
                ours.name,
                behind,
            )
        others = sorted(ours.clusters - {seen.blue.cluster, seen.green.cluster})
        if others:
            yield warns(
                f"replicated to {some(others)}",
                f"name {seen.green.cluster} instead of {seen.blue.cluster} in its clusters there, before blue "
                "goes; no producer may send there from then on until the statistics of its topics show "
                f"{seen.green.cluster} as connected: what is replicated before is lost",
                ours.name,
                others,
            )


def _copied(namespace: NamespaceInfo) -> Iterator[tuple[TopicStats, SubscriptionStats]]:
    return ((topic, one) for topic in namespace.topics.values() for one in topic.copied)


def _missing(ours: NamespaceInfo, theirs: NamespaceInfo) -> Iterator[tuple[TopicStats, SubscriptionStats]]:
    for topic, one in _copied(ours):
        there = theirs.topics.get(topic.name)
        if there is None or one.name not in {each.name for each in there.subscriptions}:
            yield topic, one


def _is_idle(subscription: SubscriptionStats) -> bool:
    return not subscription.consumers and not subscription.backlog


def _said(topic: TopicStats, subscription: SubscriptionStats) -> str:
    return f"{subscription.name} of {topic.name}"
