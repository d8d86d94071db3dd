"""The registry of bookie clusters: one node, so that each change of it is one compare-and-set.

Format: JSON of our own, read by the jar in the brokers (broker/, RegistryFormat) as well; both are tested with the
files of tests/data/bookie_cluster_registry. What PIP-477 keeps in a node for each cluster and one for the order to
switch, which cannot change together, is derived from this one: exactly one cluster is ACTIVE by its very form.

The one rule of which ledgers are ours is here too (`is_ours`): by their owner mark, or where they are and by their id.
The jar has the same rule (ClusterView.isOurs of broker/). It decides what brokers read, and so what is copied, counted
and kept from being unregistered. What may be deleted is less: a mark of an owner that the registry does not name is a
doubt then, whatever this rule says.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import Field

from bookwarden.errors import FormatError, RefusedError
from bookwarden.ledgers.custom_metadata import OWNER_KEY, TRIAL_KEY
from bookwarden.records import RECORD, Text, Whole, record_fields, record_of

REGISTRY_PATH: Final = "/bookwarden/bookie-clusters"
#: Below it each broker has an ephemeral node that says what it follows.
FOLLOWERS_PATH: Final = "/bookwarden/bookie-clusters-seen"
FORMAT: Final = 1

# What ledgers are counted as that have no kind of Pulsar's.
#: Of another application, or without custom metadata.
OTHER: Final = "other"
#: Their metadata cannot be understood.
UNREADABLE: Final = "unreadable"
#: Brokers do not take them for ours, where no other Pulsar cluster should write.
NOT_OURS: Final = "not ours"
#: Copies that are not proven, or of which a builder was stopped: brokers read none of them.
UNFINISHED: Final = "unfinished copy"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_OWNER: Final = re.compile(r"[0-9a-f]{8}")
# Of a cluster in the node: a default is for a cluster that is made, and none for one that is read.
_FLAGS: Final = frozenset({"bootstrap", "deprecated", "shared"})
_Root = Annotated[str, Field(pattern=r"^(/[^/]+)+$")]


class OtherFormatError(FormatError):
    """A registry of a format that another release of bookwarden wrote."""


class Status(enum.Enum):
    """The status of a bookie cluster, in the words of PIP-477."""

    ACTIVE = "ACTIVE"  #: New ledgers go there.
    STANDBY = "STANDBY"  #: Its ledgers are read; it may become active.
    DEPRECATED = "DEPRECATED"  #: Its ledgers are read; it must not become active again.


@dataclass(frozen=True, slots=True)
class BookieCluster:
    """A registered bookie cluster."""

    __pydantic_config__ = RECORD

    name: str  #: Letters, digits and ``._-``, at most 63.
    metadata_service_uri: Text  #: As the operator wrote it, such as zk+hierarchical://host:2181/ledgers-b.
    store_url: Text | None  #: Where its metadata is, such as zk:host:2181; None: in Pulsar's own metadata store.
    ledgers_root: _Root  #: The path of its metadata there, such as /ledgers.
    instance: Text  #: What its INSTANCEID node says; a store that says something else is not this cluster.
    since: Whole  #: The epoch of its registration; a later cluster of the same name has another.
    bootstrap: bool = False  #: It was there before the registry was.
    deprecated: bool = False  #: It must not become active again.
    #: Pulsar clusters with ledger ids of their own write there too: only ledgers with our owner mark are ours.
    shared: bool = False
    #: Ledgers without an owner mark are ours if their id is below this one; None: all of them. Nothing if it is shared.
    unmarked_below: Whole | None = None


@dataclass(frozen=True, slots=True)
class Directive:
    """The newest order to switch."""

    source: Text  #: Name of the cluster that was active before.
    target: Text  #: Name of the cluster that is active now.
    origin: Text  #: The process that gave the order, and so carries it through.
    epoch: Whole  #: Of the registry that the order made.
    time_ms: Annotated[Whole, Field(alias="time")]  #: By the clock of its origin.


@dataclass(frozen=True, slots=True)
class Registry:
    """All bookie clusters of a Pulsar cluster, and which of them takes new ledgers."""

    __pydantic_config__ = RECORD

    epoch: Whole  #: Grows by one with each change.
    owner: (
        Text  #: Eight hexadecimal digits of this Pulsar cluster, in the custom metadata of the ledgers that it makes.
    )
    id_root: _Root  #: Root in Pulsar's own store below which ledger ids are allocated, one sequence for all clusters.
    active: Text  #: Name of the cluster that new ledgers go to.
    clusters: Mapping[str, BookieCluster]  #: By name.
    directive: Directive | None = None  #: None until the first switch.
    #: Owners of earlier registries, and of a move without the jar, whose ledgers are ours too.
    former_owners: tuple[str, ...] = ()

    def status_of(self, name: str) -> Status:
        """Return the status of the cluster of this name."""
        if name == self.active:
            return Status.ACTIVE
        return Status.DEPRECATED if self.cluster(name).deprecated else Status.STANDBY

    def cluster(self, name: str) -> BookieCluster:
        """Return the cluster of this name; RefusedError if none is registered by it."""
        found = self.clusters.get(name)
        if found is None:
            raise RefusedError(
                f"no bookie cluster {name!r} is registered; there are {', '.join(sorted(self.clusters))}"
            )
        return found

    def in_reading_order(self) -> list[BookieCluster]:
        """List the clusters as brokers ask them for a ledger: the active one, then the newest first."""
        return sorted(self.clusters.values(), key=lambda each: (each.name != self.active, -each.since, each.name))

    def with_cluster(self, added: BookieCluster) -> Registry:
        """Return the next registry, with one cluster more, whose ``since`` is the next epoch."""
        if added.name in self.clusters:
            raise RefusedError(f"a bookie cluster {added.name!r} is registered already")
        clusters = {**self.clusters, added.name: replace(added, since=self.epoch + 1)}
        return replace(self, epoch=self.epoch + 1, clusters=clusters)

    def without_cluster(self, name: str) -> Registry:
        """Return the next registry without this cluster; the active one cannot go."""
        self.cluster(name)
        if name == self.active:
            raise RefusedError(f"bookie cluster {name!r} is active: switch to another first")
        clusters = {each: cluster for each, cluster in self.clusters.items() if each != name}
        if len(clusters) == 1:
            # No other cluster has a ledger of the same id then, and brokers without the jar may make some.
            clusters = {each: replace(cluster, unmarked_below=None) for each, cluster in clusters.items()}
        return replace(self, epoch=self.epoch + 1, clusters=clusters)

    def open_ranges(self) -> list[BookieCluster]:
        """List the clusters of which every ledger without a mark is ours, although ids are not counted there."""
        return [
            each
            for _, each in sorted(self.clusters.items())
            if not each.shared and each.unmarked_below is None and not self.counts_ids_in(each)
        ]

    def counts_ids_in(self, cluster: BookieCluster) -> bool:
        """Return whether the cluster's own counter of ids is the one of all clusters."""
        return cluster.store_url is None and cluster.ledgers_root == self.id_root

    def with_ranges_closed(self, below: int) -> Registry:
        """Return this registry, of the same epoch, with all open ranges of ledgers without a mark ended at this id."""
        closed = {each.name: replace(each, unmarked_below=below) for each in self.open_ranges()}
        return replace(self, clusters={**self.clusters, **closed})

    def with_deprecated(self, name: str, deprecated: bool) -> Registry:
        """Return the next registry in which this cluster must not, or may again, become active."""
        if name == self.active and deprecated:
            raise RefusedError(f"bookie cluster {name!r} is active: switch to another first")
        clusters = {**self.clusters, name: replace(self.cluster(name), deprecated=deprecated)}
        return replace(self, epoch=self.epoch + 1, clusters=clusters)

    def switched(self, target: str, origin: str, time_ms: int) -> Registry:
        """Return the next registry, in which ``target`` is active."""
        if self.cluster(target).deprecated:
            raise RefusedError(f"bookie cluster {target!r} is DEPRECATED: it takes no new ledgers")
        if target == self.active:
            raise RefusedError(f"bookie cluster {target!r} is active already")
        directive = Directive(self.active, target, origin, self.epoch + 1, time_ms)
        return replace(self, epoch=self.epoch + 1, active=target, directive=directive)


def is_cluster_name(text: str) -> bool:
    """Return whether a bookie cluster may have this name: a letter or digit, then up to 62 of those and ``._-``."""
    return _NAME.fullmatch(text) is not None


def is_owner(text: str) -> bool:
    """Return whether this may be the owner mark of a Pulsar cluster: eight hexadecimal digits."""
    return _OWNER.fullmatch(text) is not None


def serialize_registry(registry: Registry) -> bytes:
    """Return the value of the registry's node."""
    fields = {"format": FORMAT, **record_fields(registry)}
    fields["clusters"] = {name: _without_name(fields["clusters"][name]) for name in sorted(registry.clusters)}
    return json.dumps(fields, indent=1).encode()


def _without_name(cluster: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in cluster.items() if name != "name"}


def parse_registry(value: bytes) -> Registry:
    """Parse the value of the registry's node; FormatError if anything in it is not as it must be.

    OtherFormatError if it has another format.
    Fields that this release does not know are left alone only in a node of its own format.
    """
    try:
        fields = json.loads(value, object_pairs_hook=_each_once)
        if not isinstance(fields, dict) or type(fields.get("format")) is not int:
            raise FormatError("it is no JSON object with a format")
        if fields["format"] != FORMAT:
            raise OtherFormatError(f"format {fields['format']} is not {FORMAT}: use the bookwarden that wrote it")
        clusters = fields.get("clusters")
        if not isinstance(clusters, dict):
            raise FormatError("clusters is no JSON object")
        registry = record_of(Registry, {**fields, "clusters": dict(map(_named, clusters.items()))})
        _check(registry)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError, FormatError) as error:
        kind = OtherFormatError if isinstance(error, OtherFormatError) else FormatError
        raise kind(f"no registry of bookie clusters: {error}") from error
    return registry


def _named(cluster: tuple[str, object]) -> tuple[str, object]:
    name, fields = cluster
    if not is_cluster_name(name):
        raise FormatError(f"{name!r} is no name of a bookie cluster")
    if not isinstance(fields, dict) or not fields.keys() >= _FLAGS:
        raise FormatError(f"cluster {name!r} has not all of {', '.join(sorted(_FLAGS))}")
    return name, {**fields, "name": name}


def _check(registry: Registry) -> None:
    for owner in (registry.owner, *registry.former_owners):
        if not is_owner(owner):
            raise FormatError(f"owner {owner!r} is not eight hexadecimal digits")
    if registry.active not in registry.clusters:
        raise FormatError(f"the active cluster {registry.active!r} is not among the clusters")
    if registry.clusters[registry.active].deprecated:
        raise FormatError(f"the active cluster {registry.active!r} is deprecated")
    if registry.directive is not None and registry.directive.target != registry.active:
        raise FormatError(f"the newest order made {registry.directive.target!r} active, not {registry.active!r}")
    places: dict[tuple[str | None, str], str] = {}
    for name, each in registry.clusters.items():
        if each.since > registry.epoch:
            raise FormatError(f"cluster {name!r} was registered in epoch {each.since}, after {registry.epoch}")
        other = places.setdefault((each.store_url, each.ledgers_root), name)
        if other != name:
            raise FormatError(f"clusters {other!r} and {name!r} have the same ledgers root {each.ledgers_root}")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise FormatError("a field is there twice")
    return fields


def is_marked(custom: Mapping[str, bytes] | None, owner: str) -> bool:
    """Return whether a ledger with this custom metadata has the mark of this owner; None is that of a damaged one."""
    return custom is not None and custom.get(OWNER_KEY) == owner.encode()


def is_marked_as_ours(registry: Registry, custom: Mapping[str, bytes] | None) -> bool:
    """Return whether a ledger has the mark of the registry's owner, or of a former one."""
    return any(is_marked(custom, owner) for owner in (registry.owner, *registry.former_owners))


def is_trial(registry: Registry, custom: Mapping[str, bytes] | None) -> bool:
    """Return whether it is a trial ledger that a precheck of ours left, which nothing names."""
    return custom is not None and TRIAL_KEY in custom and is_marked_as_ours(registry, custom)


def owner_in(custom: Mapping[str, bytes] | None) -> str | None:
    """Return the owner mark of a ledger, for people; None for one without any, and for a damaged one."""
    if custom is None or OWNER_KEY not in custom:
        return None
    return custom[OWNER_KEY].decode(errors="backslashreplace")


def unknown_owner(registry: Registry, custom: Mapping[str, bytes]) -> str | None:
    """Return the owner mark of a ledger if the registry does not name it, for people; None for one without any."""
    return None if is_marked_as_ours(registry, custom) else owner_in(custom)


def is_ours(registry: Registry, cluster: BookieCluster, ledger_id: int, custom: Mapping[str, bytes] | None) -> bool:
    """Return whether brokers take a ledger of this cluster for one of this Pulsar cluster.

    One whose metadata cannot be understood, ``custom`` None, may be ours where no other Pulsar cluster writes.
    """
    if is_marked_as_ours(registry, custom):
        return True
    if cluster.shared:
        return False
    below = cluster.unmarked_below
    if custom is None or below is None:
        return True
    return cluster.bootstrap if OWNER_KEY in custom else ledger_id < below


def can_have_others(cluster: BookieCluster) -> bool:
    """Return whether `is_ours` may say no of a ledger there."""
    return cluster.shared or cluster.unmarked_below is not None


def registry_data(url: str, registry: Registry | None) -> dict[str, Any]:
    """Return the registry of the store at ``url``; without one, epoch 0 and no clusters."""
    if registry is None:
        return {
            "registry": url,
            "epoch": 0,
            "owner": None,
            "idRoot": None,
            "active": None,
            "clusters": [],
            "switchTarget": None,
        }
    return {
        "registry": url,
        "epoch": registry.epoch,
        "owner": registry.owner,
        "idRoot": registry.id_root,
        "active": registry.active,
        "clusters": [cluster_data(registry, cluster.name) for cluster in registry.in_reading_order()],
        "switchTarget": None if registry.directive is None else _directive_data(registry.directive),
    }


def cluster_data(registry: Registry, name: str) -> dict[str, Any]:
    """Return one cluster."""
    cluster = registry.cluster(name)
    return {
        "name": name,
        "metadataServiceUri": cluster.metadata_service_uri,
        "status": registry.status_of(name).value,
        "bootstrap": cluster.bootstrap,
        "shared": cluster.shared,
        "storeUrl": cluster.store_url,
        "ledgersRoot": cluster.ledgers_root,
        "instance": cluster.instance,
        "since": cluster.since,
    }


def _directive_data(directive: Directive) -> dict[str, Any]:
    return {
        "source": directive.source,
        "target": directive.target,
        "origin": directive.origin,
        "epoch": directive.epoch,
        "time": directive.time_ms,
    }
