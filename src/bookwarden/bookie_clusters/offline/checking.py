"""The two bookie clusters of a move without the jar, and the checks of all that it depends on while brokers run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from bookwarden.bookie_clusters.checks.observing import Observer
from bookwarden.bookie_clusters.checks.precheck import BrokerSettings, PrecheckObservations, judge_bookies
from bookwarden.bookie_clusters.registering import looked, of_metadata, why_confused
from bookwarden.bookie_clusters.registry import BookieCluster, Registry, is_marked
from bookwarden.bookie_clusters.registry_node import ClusterRegistry
from bookwarden.clusters.bookkeeper.bookie_cluster import BookieClusterMetadata, ClusterStores
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot, authority_of, place_for_brokers
from bookwarden.errors import ConfigError, RefusedError, StoreError
from bookwarden.findings import Finding, Found, fails, ok, some, warns
from bookwarden.ledgers.custom_metadata import COPY_KEY
from bookwarden.ledgers.metadata import ClusterSeen

_SOURCE, _TARGET = "that the settings name", "of --target-uri"
_ALL_IN_ONE = "metadata-store:"
_SHOWN = 3


class TargetUri(NamedTuple):
    """The target as the operator names it."""

    uri: str  #: Its metadataServiceUri.
    place: LedgersRoot  #: Parsed from it.

    @classmethod
    def parse(cls, uri: str) -> TargetUri:
        """Parse an operator's metadataServiceUri; raises as `place_for_brokers`."""
        return cls(uri, place_for_brokers(uri))


@dataclass(frozen=True, slots=True)
class MoveSide:
    """One of the two bookie clusters."""

    place: LedgersRoot
    instance: str  #: What its INSTANCEID says.
    metadata: BookieClusterMetadata


@dataclass(frozen=True, slots=True)
class Sides:
    """The source and the target of a move."""

    source: MoveSide
    target: MoveSide
    broker_uri: str  #: The ``bookkeeperMetadataServiceUri`` by which stock brokers find the target.


def find_sides(registry: ClusterRegistry, source: LedgersRoot, target: TargetUri) -> Sides:
    """Look at both; RefusedError with all reasons where they are not two clusters that stock brokers can use.

    StoreError where one does not answer.
    """
    stores = registry.stores
    one, other = stores.cluster_at(source), stores.cluster_at(target.place)
    here, there = looked(one, _SOURCE), looked(other, _TARGET)
    reasons = [*of_metadata(source, here), *of_metadata(target.place, there)]
    if not reasons:
        reasons += _not_two(stores, (one, here), (other, there))
    uri = None if reasons else _broker_uri(stores.cluster_at(LedgersRoot(registry.url, _DEFAULT_ROOT)), there, target)
    if not reasons and uri is None:
        reasons.append(
            f"brokers without the jar take {_ALL_IN_ONE} for Pulsar's own store, whatever host it names, and would "
            f"never look into {target.place.url}: use a bookie cluster whose metadata is in a ZooKeeper, or the jar"
        )
    if reasons or uri is None:
        raise refused("; ".join(reasons))
    return Sides(
        MoveSide(source, here.instance or "", one),
        MoveSide(target.place, there.instance or "", other),
        uri,
    )


def require_no_foreign(target: MoveSide, owner: str) -> None:
    """Raise RefusedError where the target has a ledger that is no copy of this move."""
    foreign: list[str] = []
    count = 0
    for ledger_id, custom in target.metadata.custom_metadata():
        if custom is None or COPY_KEY not in custom or not is_marked(custom, owner):
            count += 1
            if len(foreign) < _SHOWN:
                foreign.append(str(ledger_id))
    if count:
        raise refused(
            f"{count:,} ledgers are below {target.place.ledgers_root} in {target.place.url} that this move did not "
            f"copy there, such as {', '.join(foreign)}: a ledger of the source with such an id could not be copied, "
            "and brokers would read the other one. Use an empty bookie cluster"
        )


def instance_at(stores: ClusterStores, place: LedgersRoot) -> str | None:
    """Return the INSTANCEID at a place; None where it has none, or is not reached from here."""
    try:
        return stores.cluster_at(place).look().instance
    except (StoreError, ConfigError):
        return None


def refused(reason: str) -> RefusedError:
    """Make the error of a move that does not begin, or does not go on."""
    return RefusedError(f"the ledgers are not moved: {reason}")


def _not_two(
    stores: ClusterStores,
    source: tuple[BookieClusterMetadata, ClusterSeen],
    target: tuple[BookieClusterMetadata, ClusterSeen],
) -> Iterator[str]:
    (one, here), (_, there) = source, target
    if here.instance == there.instance:
        yield (
            f"{one.ledgers_root} in {one.url}, which metadata_store.bookkeeper_url and ledgers_root name, and the "
            f"target both have the INSTANCEID {here.instance}: they are one cluster, or one is a copy of the other"
        )
        return
    yield from why_confused(stores, target, source)


def _broker_uri(own: BookieClusterMetadata, there: ClusterSeen, wanted: TargetUri) -> str | None:
    """Return the URI for broker.conf; None where there is none. ``own`` is what ``metadata-store:`` means to brokers.

    Source: AbstractMetadataDriver of pulsar-metadata 4.0: with ``metadata-store:`` a broker uses its own metadata
    store, of which the URI names nothing, and the ledgers root is ``/ledgers``.
    """
    if not wanted.uri.startswith(_ALL_IN_ONE):
        return wanted.uri
    if looked(own, "in Pulsar's own store").is_same(there):
        return wanted.uri
    return f"zk+hierarchical://{authority_of(wanted.place)}" if wanted.place.url.startswith("zk:") else None


_URI: Final = "bookkeeperMetadataServiceUri"
_OF_THE_JAR: Final = "bookwarden:"
_OWN_STORE: Final = "metadata-store:"
_DEFAULT_ROOT: Final = "/ledgers"


@dataclass(frozen=True)
class MoveChecks:
    """Looks at brokers, bookies and settings."""

    observer: Observer  #: Observes both clusters.
    roots: int  #: How many metadata roots the settings name.

    def require_no_registry(self) -> None:
        """Raise RefusedError where bookie clusters are registered, or other Pulsar clusters may share the source."""
        found = self.observer.registry.read()
        if found is not None and len(found.registry.clusters) > 1:
            raise refused(
                f"{len(found.registry.clusters)} bookie clusters are registered, so that brokers with the jar can be "
                "switched while they run: use `bookie-clusters switch`, and move the ledgers afterwards"
            )
        if found is not None:
            raise refused(
                "a bookie cluster is registered: register the target too, and switch. If no broker has the jar any "
                "more, save the registry (`bookie-clusters registry export FILE`), delete its node "
                "/bookwarden/bookie-clusters in Pulsar's own store, and repeat; a later registration needs --owner "
                f"{found.registry.owner}"
            )
        if self.roots > 1:
            raise refused(
                "metadata_store.urls has several roots: what they name cannot be moved by one list of brokers. Name "
                "one root, if no other Pulsar cluster uses this bookie cluster"
            )

    def judge(self, sides: Sides, in_logs: int) -> tuple[Finding, ...]:
        """Judge everything that brokers, bookies and settings tell now."""
        registry = Registry(
            1,
            "00000000",
            sides.source.place.ledgers_root,
            "source",
            {"source": _cluster("source", sides.source), "target": _cluster("target", sides.target)},
        )
        seen = self.observer.observe(registry, "target")
        own = [Finding("brokers", *found) for found in self._brokers(seen, sides)]
        if in_logs:
            own.append(Finding("functions", *_of_logs(in_logs)))
        return (*own, *judge_bookies(seen))

    def _brokers(self, seen: PrecheckObservations, sides: Sides) -> Iterator[Found]:
        if not seen.brokers:
            yield warns(
                "no broker lives",
                "nothing, if all are stopped; see that autoSkipNonRecoverableData is false in their broker.conf",
            )
            return
        strange, unknown = [], []
        on_target = []
        for broker in seen.settings:
            if broker.settings is None:
                unknown.append(f"{broker.name} ({broker.error})")
                continue
            uri = broker.settings.get(_URI, "")
            if uri.startswith(_OF_THE_JAR):
                yield fails(f"{broker.name} has the jar", "register the target, and switch, which stops no broker")
                return
            instance = self._instance(broker)
            if instance is None:
                unknown.append(f"{broker.name} ({_URI}={uri})")
            elif instance == sides.target.instance:
                on_target.append(broker.name)
            elif instance != sides.source.instance:
                strange.append(f"{broker.name} ({_URI}={uri})")
        if on_target:
            yield fails(
                f"{some(on_target)} uses the target already",
                "if all do, the move is over: let metadata_store.bookkeeper_url name it. If others use the source, "
                "stop all brokers at once",
            )
        if strange:
            yield fails(
                f"{some(strange)} uses another bookie cluster than metadata_store.bookkeeper_url names",
                "let the settings name the one that brokers use",
            )
        if unknown:
            yield warns(f"not known which bookie cluster {some(unknown)} uses", "see that it is the source")
        if not (on_target or strange or unknown):
            yield ok(f"{len(seen.brokers)} live, all on the source")

    def _instance(self, broker: BrokerSettings) -> str | None:
        """Return the INSTANCEID of the cluster that a broker uses; None where that is not known."""
        own, uri = self.observer.registry, (broker.settings or {}).get(_URI, "").strip()
        if not uri or uri.startswith(_OWN_STORE):
            # Whatever host it names: the broker hands its own store to the driver.
            return instance_at(own.stores, LedgersRoot(own.url, _DEFAULT_ROOT))
        try:
            return instance_at(own.stores, place_for_brokers(uri))
        except (ConfigError, RefusedError):
            return None


def _cluster(name: str, side: MoveSide) -> BookieCluster:
    return BookieCluster(name, "", side.place.url, side.place.ledgers_root, side.instance, since=1)


def _of_logs(count: int) -> Found:
    return warns(
        f"{count:,} ledgers are of Functions or packages, whose namespaces name their own bookie cluster",
        "they are not moved: keep the source running as long as Functions or packages are used",
    )
