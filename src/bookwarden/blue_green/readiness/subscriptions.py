"""Checks of subscriptions: on green before the first message, drained by somebody, and replicated to the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bookwarden.blue_green.readiness.findings import Override
from bookwarden.blue_green.readiness.lines import Lines, loses, or_good, stalls, warns
from bookwarden.blue_green.sides.values import NamespaceSeen, Observations, SubscriptionSeen, TopicSeen
from bookwarden.findings import some

_PREPARE: Final = "`bookwarden cluster-migration prepare --execute`"


def on_green(seen: Observations) -> Lines:
    """Check that green has each durable subscription, from its first message on, with the same properties."""

    def found() -> Lines:
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

    yield from or_good(found(), "green has all durable subscriptions")


def _differences(ours: NamespaceSeen, theirs: NamespaceSeen) -> Lines:
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


def idle(seen: Observations) -> Lines:
    """Check that green has what nobody reads at the moment: blue deletes those, and with them what was sent since."""

    def found() -> Lines:
        for ours, theirs in seen.contents():
            lacking = [_said(topic, one) for topic, one in _missing(ours, theirs) if _is_idle(one)]
            if lacking:
                yield loses(
                    f"without consumer and without backlog, and not on green: {some(lacking)}",
                    _PREPARE,
                    ours.name,
                    lacking,
                )

    yield from or_good(found(), "green has all subscriptions that nobody reads")


def left_behind(seen: Observations) -> Lines:
    """Check that somebody drains each backlog: what is left stays on blue, and its topic with it."""

    def found() -> Lines:
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

    yield from or_good(found(), "each backlog has a consumer")


def remotes(seen: Observations) -> Lines:
    """Check that what is replicated to other clusters has arrived: producers are cut off until it has."""

    def found() -> Lines:
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
                    "goes; nobody may send there from then on until the statistics of its topics show "
                    f"{seen.green.cluster} as connected: what is replicated before is lost",
                    ours.name,
                    others,
                )

    yield from or_good(found(), "no replication is behind")


def _copied(namespace: NamespaceSeen) -> Iterator[tuple[TopicSeen, SubscriptionSeen]]:
    return ((topic, one) for topic in namespace.topics.values() for one in topic.copied)


def _missing(ours: NamespaceSeen, theirs: NamespaceSeen) -> Iterator[tuple[TopicSeen, SubscriptionSeen]]:
    for topic, one in _copied(ours):
        there = theirs.topics.get(topic.name)
        if there is None or one.name not in {each.name for each in there.subscriptions}:
            yield topic, one


def _is_idle(subscription: SubscriptionSeen) -> bool:
    return not subscription.consumers and not subscription.backlog


def _said(topic: TopicSeen, subscription: SubscriptionSeen) -> str:
    return f"{subscription.name} of {topic.name}"
