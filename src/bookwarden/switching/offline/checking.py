"""Checks of all that a move without the jar depends on, before anything is done and while brokers run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from bookwarden.errors import ConfigError, RefusedError
from bookwarden.findings import Finding, Found, fails, ok, some, warns
from bookwarden.switching.checks.observations import BrokerSettings, Observations
from bookwarden.switching.checks.observing import Sources, observe
from bookwarden.switching.checks.precheck import judge_bookies
from bookwarden.switching.offline.sides import Side, Sides, instance_at, refused
from bookwarden.switching.ports import OpensCluster, Place
from bookwarden.switching.registry import BookieCluster, Registry
from bookwarden.switching.registry_node import RegistryNode

_URI: Final = "bookkeeperMetadataServiceUri"
_OF_THE_JAR: Final = "bookwarden:"
_OWN_STORE: Final = "metadata-store:"
_DEFAULT_ROOT: Final = "/ledgers"


@dataclass(frozen=True)
class MoveChecks:
    """Looks at brokers, bookies and settings."""

    sources: Sources  #: Of what is observed.
    registry: RegistryNode  #: That there must not be.
    open_cluster: OpensCluster  #: Opens a place.
    parse_uri: Callable[[str], Place]  #: Parses a metadataServiceUri; ConfigError or RefusedError if it is none.
    roots: int  #: How many metadata roots the settings name.

    def require_no_registry(self) -> None:
        """Raise RefusedError where bookie clusters are registered, or other Pulsar clusters may share the source."""
        found = self.registry.read()
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
        seen = observe(self.sources, registry, "target")
        own = [Finding("brokers", *found) for found in self._brokers(seen, sides)]
        if in_logs:
            own.append(Finding("functions", *_of_logs(in_logs)))
        return (*own, *judge_bookies(seen))

    def _brokers(self, seen: Observations, sides: Sides) -> Iterator[Found]:
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
                unknown.append(f"{broker.name} ({broker.trouble})")
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
        uri = (broker.settings or {}).get(_URI, "").strip()
        if not uri or uri.startswith(_OWN_STORE):
            # Whatever host it names: the broker hands its own store to the driver.
            return instance_at(self.open_cluster, Place(self.registry.url, _DEFAULT_ROOT))
        try:
            return instance_at(self.open_cluster, self.parse_uri(uri))
        except (ConfigError, RefusedError):
            return None


def _cluster(name: str, side: Side) -> BookieCluster:
    return BookieCluster(name, "", side.place.url, side.place.ledgers_root, side.instance, since=1)


def _of_logs(count: int) -> Found:
    return warns(
        f"{count:,} ledgers are of Functions or packages, whose namespaces name their own bookie cluster",
        "they are not moved: keep the source running as long as Functions or packages are used",
    )
