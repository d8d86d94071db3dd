"""A Pulsar on this machine with two bookie clusters, and brokers that see them as one through bookwarden's jar."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.devcluster import access
from bookwarden.devcluster.ports import LOOPBACK, free_ports
from bookwarden.devcluster.processes.process import ServerProcess
from bookwarden.devcluster.releases.cache import Progress
from bookwarden.devcluster.servers import settings
from bookwarden.devcluster.servers.settings import PULSAR_VERSIONS, PULSARS_LEDGERS_ROOT, ClusterOptions, ClusterPorts
from bookwarden.devcluster.servers.specs import Runtime, ServerFactory, load_runtime
from bookwarden.devcluster.servers.starting import PatientStart

#: The ledgers roots of the bookie clusters, by name: a is the one that Pulsar sets up.
LEDGERS_ROOTS: Final[Mapping[str, str]] = {"a": PULSARS_LEDGERS_ROOT, "b": "/bookies-b"}
_SETUP_SECONDS: Final = 180.0
_ENTRIES_PER_LEDGER: Final = 200
_BOOKIE_SETTINGS: Final = {
    # Two of a kind share the disk with each other.
    "journalSyncData": "false",
    "journalMaxSizeMB": "16",
    "logSizeLimit": "16777216",
    "dbStorage_writeCacheMaxSizeMb": "16",
}
_BROKER_SETTINGS: Final = {
    "managedLedgerDefaultEnsembleSize": "2",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
    # Without it two brokers do not part the bundles; nothing moves by itself.
    "loadBalancerEnabled": "true",
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerAutoBundleSplitEnabled": "false",
}
#: Java properties by which a BookKeeper client finds the driver of the jar.
DRIVER_PROPERTIES: Final = {
    "bookkeeper.metadata.client.drivers": (
        "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver:bookwarden.broker.BookieClustersDriver"
    )
}


class SiteBroker:
    """One of the brokers."""

    def __init__(self, factory: ServerFactory) -> None:
        """Make a handle; it starts by its `process`."""
        self.version = factory.options.pulsar
        self.service_url = access.service_url(factory.ports, "none")
        self.admin_url = access.admin_url(factory.ports, "none")
        #: Its name among the live brokers.
        self.broker_id = f"{LOOPBACK}:{factory.ports.web}"
        self.process = ServerProcess(factory.broker(lambda: access.broker_is_ready(self.connection())))

    def connection(self) -> PulsarConnection:
        """Return the connection to this broker."""
        return PulsarConnection(self.service_url, self.admin_url)


class TwoBookieClusters:
    """A ZooKeeper, bookie clusters a and b, and brokers, each of a version; killed when a with statement ends.

    ``jar`` is bookwarden's jar for brokers; without one they are stock brokers, on a alone. With one they start only
    once the registry of bookie clusters is there: start the bookies, write it, start the brokers.
    """

    def __init__(
        self,
        home: Path,
        jar: Path | None,
        *,
        brokers: Sequence[str] = PULSAR_VERSIONS[:1],
        bookies: int = 2,
        throughput: bool = False,
        runtime: Callable[[str], Runtime] = load_runtime,
        progress: Progress = lambda _line: None,
    ) -> None:
        """Make a handle on servers in a home; ``bookies`` are those of each cluster, at least the two of an ensemble.

        ``throughput`` is that of ClusterOptions.
        """
        self._home = home
        self._throughput = throughput
        self._jar = jar
        self._runtime = runtime
        self._progress = progress
        zookeeper, *ports = free_ports(1 + len(LEDGERS_ROOTS) * bookies + 2 * len(brokers))
        self._ports = ClusterPorts(zookeeper, 0, 0, 0)
        factory = self._factory("zookeeper", self._ports, ClusterOptions(pulsar=brokers[0]))
        self.zookeeper = ServerProcess(factory.zookeeper())
        self._new_bookkeepers: list[ServerProcess] = []
        #: By the cluster's name.
        self.bookies: dict[str, tuple[ServerProcess, ...]] = {}
        #: Ids of the bookies, by the cluster's name.
        self.bookie_ids: dict[str, frozenset[str]] = {}
        for name, root in LEDGERS_ROOTS.items():
            own, ports = ports[:bookies], ports[bookies:]
            options = ClusterOptions(
                pulsar=brokers[0], bookie_settings=_BOOKIE_SETTINGS, ledgers_root=root, throughput=throughput
            )
            self._add_bookies(name, own, options)
        self.brokers = tuple(
            SiteBroker(self._broker_factory(number, version, *ports[2 * number - 2 : 2 * number]))
            for number, version in enumerate(brokers, start=1)
        )

    @property
    def store_url(self) -> str:
        """Pulsar's metadata store, as Pulsar writes it."""
        return settings.store_url(self._ports, ClusterOptions())

    @property
    def servers(self) -> tuple[ServerProcess, ...]:
        """All servers, in the order in which they start."""
        bookies = [bookie for cluster in self.bookies.values() for bookie in cluster]
        return (self.zookeeper, *bookies, *(broker.process for broker in self.brokers))

    def metadata_service_uri(self, name: str) -> str:
        """Return where the bookies of a cluster keep their metadata, as an operator registers it."""
        return f"zk+hierarchical://{LOOPBACK}:{self._ports.zookeeper}{LEDGERS_ROOTS[name]}"

    @property
    def driver_uri(self) -> str:
        """The URI by which a BookKeeper client with the jar sees all clusters."""
        return f"bookwarden://{LOOPBACK}:{self._ports.zookeeper}{PULSARS_LEDGERS_ROOT}"

    def connection(self) -> PulsarConnection:
        """Return the connection to all brokers; requests to the admin REST go to the first, who may send them on."""
        addresses = ",".join(broker.service_url.removeprefix("pulsar://") for broker in self.brokers)
        return PulsarConnection(f"pulsar://{addresses}", self.brokers[0].admin_url)

    def start_bookies(self) -> None:
        """Start the ZooKeeper, write the first metadata, and start all bookies."""
        self._progress(f"starting ZooKeeper on {self.store_url}")
        self.zookeeper.start()
        patient = PatientStart(self.zookeeper.is_running, self._progress)
        first = self.brokers[0]
        setup = self._factory("zookeeper", self._ports, ClusterOptions(pulsar=first.version))
        patient.run(ServerProcess(setup.metadata_setup(first.service_url, first.admin_url)), _SETUP_SECONDS)
        for program in self._new_bookkeepers:
            patient.run(program, _SETUP_SECONDS)
        for name, bookies in self.bookies.items():
            self._progress(f"starting {len(bookies)} bookies of cluster {name}")
            for bookie in bookies:
                bookie.start(wait=False)
        for bookies in self.bookies.values():
            for bookie in bookies:
                patient.wait_until_ready(bookie)

    def start_brokers(self) -> None:
        """Start the brokers that do not run, and wait until all serve."""
        patient = PatientStart(self.zookeeper.is_running, self._progress)
        for broker in self.brokers:
            if not broker.process.is_running():
                self._progress(f"starting a broker of Pulsar {broker.version} on {broker.service_url}")
                broker.process.start(wait=False)
        for broker in self.brokers:
            patient.wait_until_ready(broker.process)

    def kill(self) -> None:
        """Kill all servers at once."""
        for server in reversed(self.servers):
            server.kill()

    def stock_broker(self) -> SiteBroker:
        """Make one more broker, without the jar and on a alone, as an operator may forget one; it is not started."""
        return SiteBroker(self._broker_factory(0, self.brokers[0].version, *free_ports(2), stock=True))

    def _add_bookies(self, name: str, ports: Sequence[int], options: ClusterOptions) -> None:
        factories = [
            self._factory(f"bookie-{name}-{number}", dataclasses.replace(self._ports, bookie=port), options)
            for number, port in enumerate(ports, start=1)
        ]
        if options.ledgers_root != PULSARS_LEDGERS_ROOT:
            self._new_bookkeepers.append(ServerProcess(factories[0].new_bookkeeper()))
        self.bookies[name] = tuple(ServerProcess(factory.bookie()) for factory in factories)
        self.bookie_ids[name] = frozenset(f"{LOOPBACK}:{port}" for port in ports)

    def _broker_factory(
        self, number: int, version: str, broker: int, web: int, *, stock: bool = False
    ) -> ServerFactory:
        options = ClusterOptions(
            pulsar=version,
            max_entries_per_ledger=_ENTRIES_PER_LEDGER,
            broker_settings=_BROKER_SETTINGS,
            throughput=self._throughput,
        )
        if self._jar is not None and not stock:
            options = dataclasses.replace(
                options,
                broker_settings={**_BROKER_SETTINGS, "bookkeeperMetadataServiceUri": self.driver_uri},
                broker_jar=str(self._jar),
                broker_properties=DRIVER_PROPERTIES,
            )
        ports = dataclasses.replace(self._ports, broker=broker, web=web)
        return self._factory(f"broker-{number}", ports, options)

    def _factory(self, folder: str, ports: ClusterPorts, options: ClusterOptions) -> ServerFactory:
        return ServerFactory(self._home / folder, ports, options, functools.partial(self._runtime, options.pulsar))

    def __enter__(self) -> TwoBookieClusters:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()
