"""The topics of two-phase deletion: their requirements, their check and their creation.

Three topics: that of the pending deletions and its retry topic, partitioned alike, and the DLQ without partitions. The
topic of switch directives is a fourth; a directive that is lost costs nothing. Each has its subscription from the
beginning: without one a broker keeps no message longer than retention says.

Policies that could remove pending deletions, or the subscription that keeps them, are hazards, from the answers of the
admin REST of Pulsar 4.0. In ``pulsar/system`` every topic is a SystemTopic, which message TTL, backlog eviction and the
removal of inactive topics pass over (SystemTopic in Pulsar 4.0); the expiry of subscriptions is not among the
exceptions. Retention removes nothing that a subscription has not acknowledged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry, WriterSchema
from bookwarden.clusters.pulsar.rest.topic_positions import subscription_path, topic_path
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.errors import (
    ConfigError,
    NotFoundError,
    PulsarAccessError,
    PulsarConflictError,
    PulsarError,
    PulsarUnavailableError,
    RefusedError,
)
from bookwarden.ledgers.names import TopicName

SYSTEM_NAMESPACE = "pulsar/system"
_EVICTION = "consumer_backlog_eviction"
_CAUGHT_UP = "delete_when_subscriptions_caught_up"
_BEGINNING = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}


def namespace_hazards(namespace: str, policies: Mapping[str, Any], broker: Mapping[str, str] | None) -> list[str]:
    """List the policies of a namespace, or the brokers' defaults for them, that could lose pending deletions.

    ``broker`` is the brokers' running configuration; None when it may not be read: then only the namespace's own
    policies are judged.
    """
    defaults = broker or {}
    found = list(_subscription_expiry(namespace, policies, defaults))
    if namespace != SYSTEM_NAMESPACE:
        found += _message_ttl(namespace, policies, defaults)
        found += _backlog_eviction(namespace, policies, defaults)
        found += _inactive_topics(namespace, policies, defaults)
    return found


def topic_hazards(
    topic: str,
    ttl_seconds: int | None,
    backlog_quotas: Mapping[str, Mapping[str, Any]],
    inactive: Mapping[str, Any] | None,
) -> list[str]:
    """List a topic's own policies that could lose pending deletions; not for topics of `pulsar/system`."""
    found = []
    if ttl_seconds:
        found.append(f"topic {topic} has a message TTL of {ttl_seconds} s")
    if any(quota.get("policy") == _EVICTION for quota in backlog_quotas.values()):
        found.append(f"topic {topic} has a backlog quota with the policy {_EVICTION}")
    if inactive and inactive.get("deleteWhileInactive") and inactive.get("inactiveTopicDeleteMode") == _CAUGHT_UP:
        found.append(f"topic {topic} is deleted while inactive ({_CAUGHT_UP})")
    return found


def _message_ttl(namespace: str, policies: Mapping[str, Any], defaults: Mapping[str, str]) -> Iterator[str]:
    ttl = policies.get("message_ttl_in_seconds")
    if ttl is None and _number(defaults.get("ttlDurationDefaultInSeconds")) > 0:
        yield f"the brokers' ttlDurationDefaultInSeconds gives namespace {namespace} a message TTL"
    elif ttl:
        yield f"namespace {namespace} has a message TTL of {ttl} s"


def _backlog_eviction(namespace: str, policies: Mapping[str, Any], defaults: Mapping[str, str]) -> Iterator[str]:
    quotas = policies.get("backlog_quota_map") or {}
    for kind, quota in sorted(quotas.items()):
        if quota.get("policy") == _EVICTION:
            yield f"namespace {namespace} has a backlog quota ({kind}) with the policy {_EVICTION}"
    if defaults.get("backlogQuotaDefaultRetentionPolicy") == _EVICTION and _default_quota_has_limit(quotas, defaults):
        yield f"the brokers' backlogQuotaDefaultRetentionPolicy is {_EVICTION}, with a limit"


def _default_quota_has_limit(quotas: Mapping[str, Any], defaults: Mapping[str, str]) -> bool:
    bytes_names = ("backlogQuotaDefaultLimitBytes", "backlogQuotaDefaultLimitGB")
    by_size = "destination_storage" not in quotas and any(_number(defaults.get(name)) > 0 for name in bytes_names)
    by_age = "message_age" not in quotas and _number(defaults.get("backlogQuotaDefaultLimitSecond")) > 0
    return by_size or by_age


def _inactive_topics(namespace: str, policies: Mapping[str, Any], defaults: Mapping[str, str]) -> Iterator[str]:
    inactive = policies.get("inactive_topic_policies")
    if inactive:
        if inactive.get("deleteWhileInactive") and inactive.get("inactiveTopicDeleteMode") == _CAUGHT_UP:
            yield f"namespace {namespace} deletes inactive topics with their subscriptions ({_CAUGHT_UP})"
    elif (
        defaults.get("brokerDeleteInactiveTopicsEnabled") == "true"
        and defaults.get("brokerDeleteInactiveTopicsMode") == _CAUGHT_UP
    ):
        yield f"the brokers delete inactive topics with subscriptions (brokerDeleteInactiveTopicsMode={_CAUGHT_UP})"


def _subscription_expiry(namespace: str, policies: Mapping[str, Any], defaults: Mapping[str, str]) -> Iterator[str]:
    minutes = policies.get("subscription_expiration_time_minutes")
    if minutes is None and _number(defaults.get("subscriptionExpirationTimeMinutes")) > 0:
        yield f"the brokers' subscriptionExpirationTimeMinutes removes subscriptions of namespace {namespace}"
    elif minutes:
        yield f"namespace {namespace} removes subscriptions that were not used for {minutes} min"


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


@dataclass(frozen=True, slots=True)
class DeletionTopics:
    """The topics of two-phase deletion, as they must be."""

    topic: str  #: Full name of the deletion topic.
    retry_topic: str  #: Full name; partitioned like the deletion topic.
    dlq_topic: str  #: Full name; has no partitions.
    subscription: str  #: On all of the topics.
    partitions: int  #: Of the topic, and of its retry topic.
    schema: str  #: Of pending deletions, as Pulsar's registry keeps it (Avro).
    switch_topic: str  #: Full name of the topic of switch directives; usually without partitions.
    switch_schema: str  #: Of switch directives (Avro).

    def __post_init__(self) -> None:
        names = [str(TopicName.parse(name)) for name in (self.topic, self.retry_topic, self.dlq_topic)]
        if len(set(names)) != len(names):
            raise ConfigError("deletion.topic, deletion.retry_topic and deletion.dlq_topic must be three topics")
        if any(TopicName.parse(name).partition is not None for name in names):
            raise ConfigError("deletion topics are named without -partition-N")

    @property
    def all(self) -> tuple[tuple[str, int], ...]:
        """Each topic of marks with its number of partitions; 0 for the one without."""
        return (self.topic, self.partitions), (self.retry_topic, self.partitions), (self.dlq_topic, 0)

    def schema_of(self, topic: str) -> str:
        """Return the schema of a topic."""
        return self.switch_schema if topic == self.switch_topic else self.schema


@dataclass(frozen=True, slots=True)
class Provision:
    """A required part; ``state`` is "exists", "created", or in a dry run "would create"; of a node also "replaced".

    ``topic`` is that of a subscription or schema; ``detail`` has a topic's number of partitions.
    """

    kind: str
    name: str
    state: str
    topic: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ProvisionReport:
    """The parts that exist and those just created; ``warnings`` are failed checks and possible later hindrances."""

    provisions: tuple[Provision, ...]
    warnings: tuple[str, ...]
    dry_run: bool


class DeletionTopicsSetup:
    """Creates missing parts and checks existing ones; may run any number of times."""

    def __init__(self, admin: PulsarAdmin, wanted: DeletionTopics, *, dry_run: bool = False) -> None:
        self._admin = admin
        self._topics = Topics(admin)
        self._registry = SchemaRegistry(admin)
        self._wanted = wanted
        self._dry_run = dry_run
        self._warnings: list[str] = []
        self._absent: set[str] = set()

    def run(self) -> ProvisionReport:
        """Check all policies first, then create.

        Raises RefusedError when a policy could drop messages or a topic has the wrong partitions, PulsarAccessError
        when our role lacks a permission.
        """
        self._refuse_hazards()
        counts = {topic: self._existing_partitions(topic) for topic, _ in self._wanted.all}
        for topic, partitions in self._wanted.all:
            self._refuse_shape(topic, counts[topic], partitions)
        provisions = [part for namespace in self._namespace_names() for part in self._provide_namespace(namespace)]
        for topic, partitions in self._wanted.all:
            if counts[topic] is None:
                self._absent.add(topic)
            provisions += self._provide_topic(topic, partitions, counts[topic])
        provisions += self._provide_switch_topic()
        return ProvisionReport(tuple(provisions), tuple(self._warnings), self._dry_run)

    def _refuse_hazards(self) -> None:
        broker = self._broker_configuration()
        hazards = []
        for namespace in self._namespace_names():
            policies = self._policies(namespace)
            hazards += namespace_hazards(namespace, policies or {}, broker)
            if policies is not None and policies.get("is_allow_auto_update_schema") is False:
                self._warnings.append(
                    f"namespace {namespace} takes no new schemas: marks of other programs may not be sent on"
                )
        for topic, _ in self._wanted.all:
            hazards += self._topic_hazards(topic)
        if hazards:
            raise RefusedError(
                f"pending deletions could be lost: {'; '.join(hazards)}. "
                f"Change that, or keep the deletion topics in {SYSTEM_NAMESPACE}"
            )

    def _broker_configuration(self) -> Mapping[str, str] | None:
        try:
            found: Mapping[str, str] = self._admin.get_json("/brokers/configuration/runtime")
        except PulsarAccessError:
            self._warnings.append(
                "our role may not read the brokers' configuration, so their defaults were not checked: "
                "ttlDurationDefaultInSeconds, backlogQuotaDefault*, subscriptionExpirationTimeMinutes, "
                "brokerDeleteInactiveTopicsMode"
            )
            return None
        return found

    def _namespace_names(self) -> list[str]:
        return list(dict.fromkeys(TopicName.parse(topic).namespace_name for topic, _ in self._wanted.all))

    def _policies(self, namespace: str) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = self._admin.get_json(f"/namespaces/{quote(namespace)}")
        except NotFoundError:
            return None
        except PulsarAccessError as error:
            raise PulsarAccessError(
                f"our role may not read the policies of namespace {namespace}, which decide whether messages are kept: "
                f"run init as a superuser or an administrator of its tenant ({error})"
            ) from error
        return found

    def _topic_hazards(self, topic: str) -> list[str]:
        if TopicName.parse(topic).namespace_name == SYSTEM_NAMESPACE or self._existing_partitions(topic) is None:
            return []
        path = topic_path(topic)
        try:
            ttl = self._applied(f"{path}/messageTTL")
            quotas = self._applied(f"{path}/backlogQuotaMap")
            inactive = self._applied(f"{path}/inactiveTopicPolicies")
        except (PulsarUnavailableError, PulsarAccessError):
            raise
        except PulsarError as error:
            # 405: topicLevelPoliciesEnabled is off, so there is nothing to find.
            self._warnings.append(f"the policies of topic {topic} itself were not checked: {error}")
            return []
        return topic_hazards(topic, ttl, quotas or {}, inactive)

    def _applied(self, path: str) -> Any:
        answer = self._admin.request("GET", path, params={"applied": False})
        return answer.json() if answer.data else None

    def _existing_partitions(self, topic: str) -> int | None:
        """Count the partitions, 0 for a topic that has none; None if there is no such topic."""
        try:
            count = self._topics.partition_count(topic)
            if count == 0:
                self._topics.partitions(topic)
        except NotFoundError:
            return None
        return count

    def _refuse_shape(self, topic: str, existing: int | None, wanted: int) -> None:
        if existing is None or existing == wanted or (wanted and existing > wanted):
            return
        if wanted and not existing:
            remedy = "delete it once it is empty, or name another topic"
            raise RefusedError(f"topic {topic} exists without partitions, but {wanted} are wanted: {remedy}")
        if not wanted:
            raise RefusedError(f"topic {topic} exists with {existing} partitions, but the DLQ has none: name another")
        raise RefusedError(
            f"topic {topic} has {existing} partitions, fewer than the {wanted} of "
            "deletion.two_phase_deletion_ledger_deletion_parallelism: lower the setting, or add partitions with "
            f"pulsar-admin topics update-partitioned-topic {topic} --partitions {wanted}, and run init again"
        )

    def _refuse_conflict(self, topic: str) -> None:
        """Raise RefusedError unless the topic that the broker took for existing is there, as another init makes it.

        A broker refuses a partitioned topic for a single topic that is named like one of its partitions. It makes such
        a topic for any client that still uses the partition after the partitioned topic was deleted.
        """
        if self._existing_partitions(topic) is None:
            raise RefusedError(
                f"topic {topic} cannot be created, since topics exist that are named like its partitions: a client "
                f"that still uses them has made them. Stop it, delete each of them with pulsar-admin topics delete "
                f"{topic}-partition-N once it is empty, and run init again"
            )

    def _provide_switch_topic(self) -> list[Provision]:
        topic = self._wanted.switch_topic
        namespace = TopicName.parse(topic).namespace_name
        try:
            of_namespace = [] if namespace in self._namespace_names() else list(self._provide_namespace(namespace))
            # A broker may have created it, with partitions or without.
            existing = self._existing_partitions(topic)
            if existing is None:
                self._absent.add(topic)
            return of_namespace + list(self._provide_topic(topic, existing or 0, existing))
        except PulsarAccessError as error:
            self._warnings.append(
                f"our role may not create {topic}, so the sweep sees no switch directives; where bookie clusters are "
                f"registered, run init as a superuser ({error})"
            )
            return []

    def _provide_namespace(self, namespace: str) -> Iterator[Provision]:
        if self._policies(namespace) is not None:
            yield Provision("namespace", namespace, "exists")
            return
        tenant = namespace.partition("/")[0]
        if tenant not in self._tenants():
            body = {"allowedClusters": self._clusters(), "adminRoles": []}
            yield self._create("tenant", tenant, partial(self._admin.put, f"/tenants/{quote(tenant)}", body))
        path = f"/namespaces/{quote(namespace)}"
        yield self._create("namespace", namespace, partial(self._admin.put, path))

    def _tenants(self) -> list[str]:
        return [str(tenant) for tenant in self._admin.get_json("/tenants")]

    def _clusters(self) -> list[str]:
        return [str(cluster) for cluster in self._admin.get_json("/clusters") if cluster != "global"]

    def _provide_topic(self, topic: str, partitions: int, existing: int | None) -> Iterator[Provision]:
        shape = f"{existing or partitions} partitions" if partitions else "no partitions"
        if existing is None:
            made = self._create("topic", topic, partial(self._topics.create, topic, partitions), detail=shape)
            if made.state == "exists":
                self._refuse_conflict(topic)
            yield made
        else:
            yield Provision("topic", topic, "exists", detail=shape)
        yield self._provide_subscription(topic, existing or partitions)
        yield self._provide_schema(topic)

    def _provide_subscription(self, topic: str, partitions: int) -> Provision:
        name = self._wanted.subscription
        parsed = TopicName.parse(topic)
        parts = [str(parsed.partition_name(index)) for index in range(partitions)] or [topic]
        missing = [part for part in parts if topic in self._absent or name not in self._topics.subscriptions(part)]
        if not missing:
            return Provision("subscription", name, "exists", topic)
        return self._create("subscription", name, partial(self._subscribe, missing, name), topic)

    def _subscribe(self, parts: Sequence[str], name: str) -> None:
        for part in parts:
            try:
                self._admin.put(subscription_path(part, name), _BEGINNING)
            except PulsarConflictError:
                # Another init, or a sweep that just started, came first.
                continue

    def _provide_schema(self, topic: str) -> Provision:
        definition = self._wanted.schema_of(topic)
        name = str(json.loads(definition)["name"])
        if topic not in self._absent and self._current_schema(topic) is not None:
            return Provision("schema", name, "exists", topic)
        schema = WriterSchema("AVRO", definition)
        return self._create("schema", name, partial(self._registry.register, topic, schema), topic)

    def _current_schema(self, topic: str) -> WriterSchema | None:
        try:
            return self._registry.current(topic)
        except NotFoundError:
            return None

    def _create(
        self, kind: str, name: str, create: Callable[[], None], topic: str = "", *, detail: str = ""
    ) -> Provision:
        if self._dry_run:
            return Provision(kind, name, "would create", topic, detail)
        try:
            create()
        except PulsarConflictError:
            if kind == "schema":
                raise
            return Provision(kind, name, "exists", topic, detail)
        except PulsarAccessError as error:
            raise PulsarAccessError(
                f"our role may not create {kind} {name}: run init once as a superuser, or let one create it ({error})"
            ) from error
        return Provision(kind, name, "created", topic, detail)
