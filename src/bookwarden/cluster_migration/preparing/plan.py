"""The plan of `prepare`: what green lacks against blue, and what keeps both from deleting. Pure, from observations.

What green has otherwise is left as it is. The order is that in which things need each other; blue comes last, so that
green is made after blue as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from bookwarden.cluster_migration.readiness.topics import absent_partitions, single_partitions
from bookwarden.cluster_migration.sides.policies import (
    AUTO_CREATION,
    INACTIVE,
    NO_AUTO_CREATION,
    REPLICATION,
    Grant,
    creates_topics,
    deletes_inactive,
    for_green,
    grants,
    held,
    namespace_settings,
    rename,
    topic_settings,
    with_setting,
)
from bookwarden.cluster_migration.sides.values import ClusterInfo, NamespaceInfo, Observations, SubscriptionStats


class Side(Enum):
    """The cluster that a step changes."""

    BLUE = "blue"
    GREEN = "green"


class PreparationAction(Enum):
    """The kind of a step; each is without effect where it is done already."""

    TENANT = "tenant"
    TENANT_CLUSTERS = "clusters of tenant"
    NAMESPACE = "namespace"
    POLICY = "policy"
    TOPIC = "topic"
    PARTITIONS = "partitions"
    SCHEMA = "schema"
    TOPIC_POLICY = "policy of topic"
    GRANT = "rights"
    SUBSCRIPTION = "subscription"


#: Replace what is there, and are compared with it again right before.
REPLACING: Final = frozenset({PreparationAction.TENANT_CLUSTERS, PreparationAction.POLICY})


@dataclass(frozen=True, slots=True)
class PreparationStep:
    """A change of one thing on one side; ``before`` is its value until then, None where there was none."""

    side: Side  #: The cluster that is changed.
    action: PreparationAction  #: The kind.
    target: str  #: A tenant, a namespace, a topic or a partition.
    key: str = ""  #: Which policy, subscription, role or version.
    value: Any = None  #: To be there afterwards.
    before: Any = None  #: There until then.
    namespace: str = ""  #: "" for a tenant.

    @property
    def name(self) -> tuple[str, str, str, str]:
        """The thing that it changes; a later step of the same name changes the same thing."""
        return self.side.value, self.action.value, self.target, self.key

    def __str__(self) -> str:
        what = f"{self.action.value} {self.key} of {self.target}" if self.key else f"{self.action.value} {self.target}"
        return f"{self.side.value}: {what}"


@dataclass(frozen=True, slots=True)
class ManualStep:
    """Something that no step does: an operator has to."""

    seen: str
    advice: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class PreparationPlan:
    """All steps in their order, and what is left to an operator."""

    steps: tuple[PreparationStep, ...]
    manual: tuple[ManualStep, ...] = ()


#: Values that this program itself set on blue, as they were before: by target and key of the policy.
Originals = Mapping[tuple[str, str], Any]

_DELETING: Final = "brokerDeleteInactiveTopicsEnabled"
_CREATING: Final = "allowAutoTopicCreation"
_APART: Final = "take green out of its clusters on blue, then prepare again: else green gets messages twice"
_EMPTY: Final = NamespaceInfo("", {})


def plan(seen: Observations, originals: Originals) -> PreparationPlan:
    """Plan what is missing now; nothing where all is done."""
    steps: list[PreparationStep] = []
    by_hand = [
        ManualStep("blue has no such namespace", "name one that it has", name)
        for name in seen.scope
        if name not in seen.blue.namespaces
    ]
    tenants: set[str] = set()
    for ours, theirs in seen.pairs():
        unknown = sorted(_clusters(seen, ours) - seen.green.clusters)
        if unknown:
            advice = "`pulsar-admin clusters create` on green, with these clusters' addresses; then prepare again"
            by_hand.append(ManualStep(f"green does not know the clusters {', '.join(unknown)}", advice, ours.name))
            continue
        if theirs is None and seen.is_other(seen.green.cluster, ours.clusters):
            by_hand.append(
                ManualStep("it is replicated to green, which would begin with the namespace there", _APART, ours.name)
            )
            continue
        if ours.tenant not in tenants:
            tenants.add(ours.tenant)
            steps += _tenant(seen, ours.tenant)
        original = _original(ours, originals)
        steps += _namespace(seen, original, theirs)
        inside = _Topics(seen, original, theirs or _EMPTY, originals)
        steps += inside.steps()
        by_hand += inside.manual_steps()
    for ours, _ in seen.pairs():
        steps += _on_blue(seen.blue, ours)
    return PreparationPlan(tuple(steps), tuple(by_hand))


def _clusters(seen: Observations, ours: NamespaceInfo) -> frozenset[str]:
    return frozenset(rename(ours.clusters, seen.blue.cluster, seen.green.cluster)) | {seen.green.cluster}


def _original(ours: NamespaceInfo, originals: Originals) -> NamespaceInfo:
    """Return the namespace with its policies as they were before they were changed for the migration."""
    policies = dict(ours.policies)
    for key in (INACTIVE, AUTO_CREATION):
        if (ours.name, key) in originals:
            policies = with_setting(policies, key, originals[ours.name, key])
    return replace(ours, policies=policies)


def _tenant(seen: Observations, tenant: str) -> Iterator[PreparationStep]:
    ours, theirs = seen.blue.tenants.get(tenant) or {}, seen.green.tenants.get(tenant)
    wanted = set(rename(ours.get("allowedClusters") or (), seen.blue.cluster, seen.green.cluster))
    wanted = (wanted & seen.green.clusters) | {seen.green.cluster}
    if theirs is None:
        info = {"adminRoles": sorted(ours.get("adminRoles") or ()), "allowedClusters": sorted(wanted)}
        yield PreparationStep(Side.GREEN, PreparationAction.TENANT, tenant, value=info)
        return
    allowed = set(theirs.get("allowedClusters") or ())
    if not wanted <= allowed:
        info = {**theirs, "allowedClusters": sorted(allowed | wanted)}
        yield PreparationStep(Side.GREEN, PreparationAction.TENANT_CLUSTERS, tenant, value=info, before=dict(theirs))


def _namespace(seen: Observations, ours: NamespaceInfo, theirs: NamespaceInfo | None) -> Iterator[PreparationStep]:
    name, green = ours.name, seen.green
    wanted = namespace_settings(ours.policies, seen.blue.cluster)
    if theirs is None:
        made = for_green(ours.policies, seen.blue.cluster, green.cluster)
        yield PreparationStep(Side.GREEN, PreparationAction.NAMESPACE, name, value=made, namespace=name)
        found = wanted
    else:
        found = namespace_settings(theirs.policies, green.cluster)
        for key in sorted(wanted.keys() - found.keys()):
            yield PreparationStep(Side.GREEN, PreparationAction.POLICY, name, key, wanted[key], namespace=name)
    # In a step of its own, behind its value for later, so that the journal has that.
    before = found.get(INACTIVE, wanted.get(INACTIVE))
    if deletes_inactive(before, brokers_delete=not green.all_have(_DELETING, "false")):
        yield PreparationStep(Side.GREEN, PreparationAction.POLICY, name, INACTIVE, held(before), before, name)


class _Topics:
    """The contents of one namespace: blue's as wanted, and green's."""

    def __init__(self, seen: Observations, ours: NamespaceInfo, theirs: NamespaceInfo, originals: Originals) -> None:
        self._originals = originals
        self._blue, self._green = seen.blue.cluster, seen.green.cluster
        self._ours, self._theirs = ours, theirs
        self._other = [topic for topic in ours.whole_topics if self._is_other(topic)]
        self._replicated = [topic for topic in ours.whole_topics if self._is_replicated(seen, topic)]

    def steps(self) -> Iterator[PreparationStep]:
        """Return what is missing, by kind, in the order of need."""
        left = {*self._other, *self._replicated}
        topics = [topic for topic in self._ours.whole_topics if topic not in left]
        for make in (self._topic, self._schemas, self._policies):
            for topic in topics:
                yield from make(topic)
        yield from self._grants()
        for topic in topics:
            yield from self._subscriptions(topic)

    def manual_steps(self) -> Iterator[ManualStep]:
        """Return what cannot be made, since green has something else."""
        for topic in self._other:
            yield ManualStep(
                f"green has {topic} of another kind, or single topics that are named like its partitions",
                "delete them on green if what is in them is not needed, then prepare again",
                self._ours.name,
            )
        for topic in self._replicated:
            yield ManualStep(
                f"{topic} is replicated to green, which would begin with the topic there", _APART, self._ours.name
            )
        for topic in self._ours.schemas:
            if topic not in self._other and self._missing_schemas(topic) is None:
                yield ManualStep(
                    f"green has other schemas of {topic}, or in another order",
                    "delete the schema on green if it is not in use, then prepare again",
                    self._ours.name,
                )

    def _step(
        self, action: PreparationAction, target: str, key: str = "", value: Any = None, before: Any = None
    ) -> PreparationStep:
        return PreparationStep(Side.GREEN, action, target, key, value, before, self._ours.name)

    def _is_other(self, topic: str) -> bool:
        wanted, there = self._ours.partitioned.get(topic), self._theirs.partitioned.get(topic)
        if wanted is None:
            return there is not None
        return there is None and (topic in self._theirs.topics or bool(single_partitions(self._theirs, topic)))

    def _is_replicated(self, seen: Observations, topic: str) -> bool:
        own = topic_settings(self._ours.topic_policies.get(topic, {})).get(REPLICATION) or ()
        return topic not in self._theirs.whole_topics and seen.is_other(self._green, own)

    def _topic(self, topic: str) -> Iterator[PreparationStep]:
        wanted, there = self._ours.partitioned.get(topic), self._theirs.partitioned.get(topic)
        if wanted is None:
            if topic not in self._theirs.topics:
                yield self._step(PreparationAction.TOPIC, topic)
        elif there is None or absent_partitions(self._theirs, topic):
            yield self._step(PreparationAction.TOPIC, topic, value=wanted if there is None else there)
        if wanted is not None and there is not None and there < wanted:
            yield self._step(PreparationAction.PARTITIONS, topic, value=wanted, before=there)

    def _missing_schemas(self, topic: str) -> range | None:
        wanted = [one.identity for one in self._ours.schemas.get(topic, ())]
        there = [one.identity for one in self._theirs.schemas.get(topic, ())]
        if wanted == there[: len(wanted)]:
            return range(0)
        return range(len(there), len(wanted)) if there == wanted[: len(there)] else None

    def _schemas(self, topic: str) -> Iterator[PreparationStep]:
        for version in self._missing_schemas(topic) or ():
            one = self._ours.schemas[topic][version]
            value = {"type": one.kind, "schema": one.definition, "properties": dict(one.properties)}
            yield self._step(PreparationAction.SCHEMA, topic, str(version), value)

    def _policies(self, topic: str) -> Iterator[PreparationStep]:
        wanted = topic_settings(self._ours.topic_policies.get(topic, {}), self._blue, self._green)
        there = topic_settings(self._theirs.topic_policies.get(topic, {}))
        if (topic, INACTIVE) in self._originals:
            wanted[INACTIVE] = self._originals[topic, INACTIVE]
        for key in sorted(wanted.keys() - there.keys()):
            yield self._step(PreparationAction.TOPIC_POLICY, topic, key, wanted[key])
        inactive = there.get(INACTIVE, wanted.get(INACTIVE))
        if deletes_inactive(inactive, brokers_delete=False):
            yield self._step(PreparationAction.TOPIC_POLICY, topic, INACTIVE, held(inactive), inactive)

    def _grants(self) -> Iterator[PreparationStep]:
        if not self._theirs.name:
            return
        there = {(one.kind, one.where, one.role) for one in grants(self._theirs.policies)}
        taken = {one.where for one in grants(self._theirs.policies) if one.kind == "subscription"}
        roles: dict[str, list[str]] = {}
        for one in grants(self._ours.policies):
            if one.kind == "subscription":
                if one.where not in taken:
                    roles.setdefault(one.where, []).append(one.role)
            elif (one.kind, one.where, one.role) not in there:
                yield self._grant(one)
        for subscription, allowed in sorted(roles.items()):
            value = {"kind": "subscription", "roles": sorted(allowed)}
            yield self._step(PreparationAction.GRANT, self._ours.name, subscription, value)

    def _grant(self, one: Grant) -> PreparationStep:
        value = {"kind": one.kind, "actions": list(one.actions)}
        return self._step(PreparationAction.GRANT, one.where or self._ours.name, one.role, value)

    def _subscriptions(self, topic: str) -> Iterator[PreparationStep]:
        wanted: dict[str, SubscriptionStats] = {}
        for partition in self._ours.partitions_of(topic):
            seen = self._ours.topics.get(partition)
            for one in () if seen is None else seen.copied:
                wanted.setdefault(one.name, one)
        count = max(self._ours.partitioned.get(topic, 0), self._theirs.partitioned.get(topic, 0))
        spread = NamespaceInfo("", {}, {topic: count} if topic in self._ours.partitioned else {})
        for partition in spread.partitions_of(topic):
            there = self._theirs.topics.get(partition)
            known = set() if there is None else {one.name for one in there.subscriptions} | there.cursors
            for name, one in sorted(wanted.items()):
                if name not in known:
                    value = {"properties": dict(one.properties), "replicated": one.replicated}
                    yield self._step(PreparationAction.SUBSCRIPTION, partition, name, value)


def _on_blue(blue: ClusterInfo, ours: NamespaceInfo) -> Iterator[PreparationStep]:
    settings = namespace_settings(ours.policies, blue.cluster)
    inactive, creation = settings.get(INACTIVE), settings.get(AUTO_CREATION)
    if creates_topics(creation, brokers_create=not blue.all_have(_CREATING, "false")):
        yield PreparationStep(
            Side.BLUE, PreparationAction.POLICY, ours.name, AUTO_CREATION, dict(NO_AUTO_CREATION), creation, ours.name
        )
    if deletes_inactive(inactive, brokers_delete=not blue.all_have(_DELETING, "false")):
        yield PreparationStep(
            Side.BLUE, PreparationAction.POLICY, ours.name, INACTIVE, held(inactive), inactive, ours.name
        )
    for topic, policies in sorted(ours.topic_policies.items()):
        own = topic_settings(policies).get(INACTIVE)
        if deletes_inactive(own, brokers_delete=False):
            yield PreparationStep(Side.BLUE, PreparationAction.TOPIC_POLICY, topic, INACTIVE, held(own), own, ours.name)
