"""Copies of namespaces' policies, kept up to date, and what they tell of a topic that was deleted; pure.

Brokers take the permissions of a topic out of its namespace's policies before anything else of it goes, and nothing
tells them from permissions that somebody took away. So the times decide: those of a deleted topic go with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.trash import LostPermissions, NamespaceCopy, Roles, TrashRecord
from bookwarden.metastore.interface import Versioned
from bookwarden.wire.namespace_policies import (
    before_the_delete,
    is_to_be_deleted,
    topic_permissions,
    with_topic_permissions,
)

#: A broker takes the permissions right before it deletes a topic.
_OF_TOPIC_MS: Final = 60_000
#: Of a partitioned topic it takes all of them first, and then deletes one partition after the other.
_OF_PARTITION_MS: Final = 600_000
#: Records of topics come later than their permissions go, by seconds as a rule.
_FORGET_MS: Final = 86_400_000


def copied(
    before: NamespaceCopy | None,
    namespace: str,
    policies: Versioned | None,
    local: Versioned | None,
    seen_ms: int,
    now_ms: int,
) -> NamespaceCopy | None:
    """Return the copy of a namespace whose nodes are these now; None of one that is not to be copied.

    ``before`` is the copy of its newest life, ``seen_ms`` when that was still right. FormatError for other policies.
    """
    if policies is None or not policies.value:
        return None if before is None else _gone(before, now_ms, seen_ms)
    same = before if before is not None and before.created_ms == policies.created_ms else None
    if is_to_be_deleted(policies.value):
        if same is not None and same.gone_ms:
            return same
        # As it is now, with the permissions of topics that are deleted already.
        last = before_the_delete(policies.value)
        if same is not None:
            last = with_topic_permissions(last, topic_permissions(same.policies))
        base = same or NamespaceCopy(namespace, policies.created_ms, last)
        base = replace(base, policies=last, local=base.local if local is None else local.value)
        return _gone(base, policies.modified_ms, policies.modified_ms)
    lost = () if same is None else tuple(_lost(same, policies, seen_ms))
    kept = () if same is None else tuple(one for one in same.permissions if one.gone_ms > now_ms - _FORGET_MS)
    value = None if local is None else local.value
    return NamespaceCopy(namespace, policies.created_ms, policies.value, value, permissions=(*kept, *lost))


def _gone(copy: NamespaceCopy, at_ms: int, alive_ms: int) -> NamespaceCopy:
    return copy if copy.gone_ms else replace(copy, gone_ms=at_ms, alive_ms=alive_ms)


def _lost(before: NamespaceCopy, policies: Versioned, seen_ms: int) -> Iterable[LostPermissions]:
    left = topic_permissions(policies.value)
    for topic, roles in topic_permissions(before.policies).items():
        if topic not in left:
            yield LostPermissions(topic, roles, seen_ms, policies.modified_ms)


def permissions_of(record: TrashRecord, copies: Iterable[NamespaceCopy]) -> dict[str, Roles] | None:
    """Return the permissions of a deleted topic, and of the one that it is a partition of, by name.

    ``copies`` are those of its namespace that were there before it was deleted; None: there was none.
    """
    name = TopicName.of_managed_ledger(record.managed_ledger)
    within_ms = _OF_TOPIC_MS if name.partition is None else _OF_PARTITION_MS
    at_ms, found = record.time_ms, None
    for copy in copies:
        if copy.created_ms > at_ms + _OF_TOPIC_MS or (copy.gone_ms and copy.gone_ms < record.created_ms):
            continue
        found = {} if found is None else found
        now: Mapping[str, Roles] = topic_permissions(copy.policies) if copy.gone_ms else {}
        for topic in dict.fromkeys((str(name), str(name.base))):
            lost = [
                one.roles
                for one in copy.permissions
                if one.topic == topic and one.seen_ms <= at_ms + _OF_TOPIC_MS and one.gone_ms >= at_ms - within_ms
            ]
            roles = lost[-1] if lost else now.get(topic)
            if roles:
                found[topic] = roles
    return found
