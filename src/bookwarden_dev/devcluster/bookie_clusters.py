"""A Pulsar on this machine with several bookie clusters, and brokers that see them as one through bookwarden's jar."""

from __future__ import annotations

import dataclasses
import functools
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot, authority_of
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.errors import ConfigError
from bookwarden_dev.devcluster import access
from bookwarden_dev.devcluster.credentials import broker_credentials, zookeeper_credentials
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from bookwarden_dev.devcluster.processes.process import ServerProcess
from bookwarden_dev.devcluster.releases.cache import Progress
from bookwarden_dev.devcluster.servers import readiness, settings
from bookwarden_dev.devcluster.servers.readiness import PatientStart
from bookwarden_dev.devcluster.servers.settings import (
    METADATA_STORES,
    PULSAR_VERSIONS,
    PULSARS_LEDGERS_ROOT,
    ClusterOptions,
    ClusterPorts,
)
from bookwarden_dev.devcluster.servers.specs import Runtime, ServerFactory, load_runtime

_SETUP_SECONDS: Final = 180.0
_ENTRIES_PER_LEDGER: Final = 100
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
_PROTECTED_TREES: Final = ("/admin", "/loadbalance", "/managed-ledgers", "/schemas")
#: Java properties by which a BookKeeper client finds the driver of the jar.
DRIVER_PROPERTIES: Final = {
    "bookkeeper.metadata.client.drivers": (
        "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver:bookwarden.broker.BookieClustersDriver"
    )
}


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A bookie cluster to be run."""

    name: str
    ledgers_root: str
    bookies: int = 2  #: At least the two of an ensemble.
    own_zookeeper: bool = False  #: Its metadata is not in Pulsar's store, but in a ZooKeeper of its own.
    own_oxia: bool = False  #: Likewise, in an Oxia of its own: one has room for one cluster, below /ledgers.

    @property
    def has_own_store(self) -> bool:
        """Whether its metadata is not in Pulsar's store."""
        return self.own_zookeeper or self.own_oxia


#: The first is the one that Pulsar sets up.
TWO_CLUSTERS: Final = (ClusterPlan("a", PULSARS_LEDGERS_ROOT), ClusterPlan("b", "/bookies-b"))


class RunBookies:
    """The bookies of one cluster, and where their metadata is."""

    def __init__(self, plan: ClusterPlan, factories: Sequence[ServerFactory]) -> None:
        """Make a handle on a cluster; its bookies start by their processes."""
        first = factories[0]
        self.name = plan.name
        self.ledgers_root = plan.ledgers_root
        self.ports = first.ports
        #: Its bookies, by id.
        self.bookies = {f"{LOOPBACK}:{factory.ports.bookie}": ServerProcess(factory.bookie()) for factory in factories}
        self.ids = frozenset(self.bookies)
        self.processes = tuple(self.bookies.values())
        #: Its metadata store, as Pulsar writes it.
        self.store_url = settings.store_url(first.ports, first.options)
        #: The ZooKeeper, if it has one of its own.
        self.zookeeper = ServerProcess(first.zookeeper()) if plan.own_zookeeper else None
        #: The Oxia, likewise.
        self.oxia = ServerProcess(first.oxia()) if plan.own_oxia else None
        is_set_up = plan.ledgers_root == PULSARS_LEDGERS_ROOT and not plan.has_own_store
        #: Writes its first nodes; None for the one that Pulsar sets up.
        self.setup = None if is_set_up else ServerProcess(first.new_bookkeeper())

    @property
    def metadata_service_uri(self) -> str:
        """The place of its metadata, as an operator registers it."""
        if self.store_url.startswith("oxia:"):
            return f"metadata-store:{self.store_url}"
        return f"zk+hierarchical://{self.store_url.removeprefix('zk:')}{self.ledgers_root}"

    @property
    def own_store(self) -> ServerProcess | None:
        """The server of its metadata, if it has one of its own."""
        return self.zookeeper or self.oxia

    @property
    def servers(self) -> tuple[ServerProcess, ...]:
        """Its servers, in the order in which they start."""
        return (*([self.own_store] if self.own_store else []), *self.processes)


class SiteBroker:
    """One of the brokers."""

    def __init__(self, factory: ServerFactory, settings: dict[str, str]) -> None:
        """Make a handle; it starts by its `process`."""
        self.version = factory.options.pulsar
        #: Its own, which override those of all brokers from its next start on.
        self.settings = settings
        self.service_url = access.service_url(factory.ports, "none")
        self.admin_url = access.admin_url(factory.ports, "none")
        #: Its name among the live brokers.
        self.broker_id = f"{LOOPBACK}:{factory.ports.web}"
        self.process = ServerProcess(factory.broker(lambda: access.broker_is_ready(self.connection())))

    def connection(self) -> PulsarConnection:
        """Return the connection to this broker."""
        return PulsarConnection(self.service_url, self.admin_url)


class SwitchablePulsar:
    """A metadata store, bookie clusters and brokers, each broker of a version; killed when a with statement ends.

    ``jar`` is bookwarden's jar for brokers; without one they are stock brokers, on the first cluster alone. With one
    they start only once the registry of bookie clusters is there: start the bookies, write it, start the brokers.
    ``metadata`` names the kind of Pulsar's store. ``secured``: each ZooKeeper knows its users, and all use TLS.
    """

    def __init__(
        self,
        home: Path,
        jar: Path | None,
        *,
        clusters: Sequence[ClusterPlan] = TWO_CLUSTERS,
        brokers: Sequence[str] = PULSAR_VERSIONS[:1],
        metadata: str = METADATA_STORES[0],
        secured: bool = False,
        broker_settings: Mapping[str, str] | None = None,
        bookie_settings: Mapping[str, str] | None = None,
        offload_environment: Mapping[str, str] | None = None,
        throughput: bool = False,
        make_broker: Callable[[ServerFactory, dict[str, str]], SiteBroker] = SiteBroker,
        progress: Progress = lambda _line: None,
    ) -> None:
        """Make a handle on servers in a home; settings and ``throughput`` are those of ClusterOptions.

        ``offload_environment`` gives brokers the offloader, and its credentials. ``make_broker`` may start brokers in
        another way.
        """
        self._home = home
        self._options = ClusterOptions(
            pulsar=brokers[0],
            metadata=metadata,
            # A client has a session in each.
            oxia_shards=2,
            zookeeper_digest=secured,
            throughput=throughput,
            bookie_settings={**_BOOKIE_SETTINGS, **(bookie_settings or {})},
            broker_settings=broker_settings or {},
            offload=offload_environment is not None,
            broker_environment=offload_environment or {},
        )
        self._jar = jar
        self._progress = progress
        self._secured = secured
        self._ports = self._store_ports(metadata)
        self._store_factory = self._factory(metadata, self._ports, self._options)
        factory = self._store_factory
        #: The server of Pulsar's metadata.
        self.store = ServerProcess(factory.oxia() if metadata == "oxia" else factory.zookeeper())
        #: By name.
        self.clusters = {plan.name: self._bookies(plan) for plan in clusters}
        self._make_broker = make_broker
        self.brokers = tuple(self._broker(number, version) for number, version in enumerate(brokers, start=1))

    @property
    def store_url(self) -> str:
        """Pulsar's metadata store, as Pulsar writes it."""
        return settings.store_url(self._ports, self._options)

    @property
    def servers(self) -> tuple[ServerProcess, ...]:
        """All servers, in the order in which they start."""
        bookies = [server for cluster in self.clusters.values() for server in cluster.servers]
        return (self.store, *bookies, *(broker.process for broker in self.brokers))

    @property
    def zookeeper(self) -> ServerProcess:
        """Pulsar's ZooKeeper; raise ConfigError if its metadata is elsewhere."""
        if self._options.metadata != "zookeeper":
            raise ConfigError(f"the metadata of this Pulsar is in {self._options.metadata}")
        return self.store

    @property
    def store_settings(self) -> dict[str, Any]:
        """Settings of bookwarden's section ``metadata_store`` by which it is let in."""
        if not self._secured:
            return {}
        user, _, password = self._digest.partition(":")
        trusted = str(broker_credentials(self._credentials).certificate)
        return {"digest_user": user, "digest_password": password, "tls": True, "tls_trust_certs_file": trusted}

    @property
    def driver_uri(self) -> str:
        """The URI by which a BookKeeper client with the jar sees all clusters."""
        return f"bookwarden://{authority_of(LedgersRoot(self.store_url, PULSARS_LEDGERS_ROOT))}"

    def protect_metadata(self) -> None:
        """Shut clients without credentials out of the secured ZooKeepers' trees, as DevCluster does."""
        for cluster in self.clusters.values():
            readiness.protect(cluster.ports.zookeeper, self._digest, (cluster.ledgers_root, *_PROTECTED_TREES))

    def connection(self) -> PulsarConnection:
        """Return the connection to all brokers; requests to the admin REST go to the first, who may send them on."""
        addresses = ",".join(broker.service_url.removeprefix("pulsar://") for broker in self.brokers)
        return PulsarConnection(f"pulsar://{addresses}", self.brokers[0].admin_url)

    def start_bookies(self) -> None:
        """Start each metadata store, write the first metadata, and start all bookies."""
        self._progress(f"starting {self.store.name} on {self.store_url}")
        self.store.start()
        patient = PatientStart(self.store.is_running, self._progress)
        setup = self._store_factory.metadata_setup(self.brokers[0].service_url, self.brokers[0].admin_url)
        patient.run(ServerProcess(setup), _SETUP_SECONDS)
        for cluster in self.clusters.values():
            if cluster.own_store is not None:
                cluster.own_store.start()
            if cluster.setup is not None:
                patient.run(cluster.setup, _SETUP_SECONDS)
            self._progress(f"starting {len(cluster.processes)} bookies of cluster {cluster.name}")
            for bookie in cluster.processes:
                bookie.start(wait=False)
                if self._options.bookie_settings.get("autoRecoveryDaemonEnabled") == "true":
                    # Of several that make the nodes of what is to be replicated at once, one ends.
                    patient.wait_until_ready(bookie)
        for cluster in self.clusters.values():
            for bookie in cluster.processes:
                patient.wait_until_ready(bookie)

    def start_brokers(self) -> None:
        """Start the brokers that do not run, and wait until all serve."""
        patient = PatientStart(self.store.is_running, self._progress)
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
        """Make one more broker, without the jar, as an operator may forget one; it is not started."""
        return self._broker(0, self.brokers[0].version, stock=True)

    def _bookies(self, plan: ClusterPlan) -> RunBookies:
        metadata = "oxia" if plan.own_oxia else "zookeeper" if plan.own_zookeeper else self._options.metadata
        options = dataclasses.replace(self._options, metadata=metadata, ledgers_root=plan.ledgers_root)
        store = self._store_ports(metadata) if plan.has_own_store else self._ports
        factories = [
            self._factory(f"bookie-{plan.name}-{number}", dataclasses.replace(store, bookie=port), options)
            for number, port in enumerate(free_ports(plan.bookies), start=1)
        ]
        return RunBookies(plan, factories)

    def _store_ports(self, metadata: str) -> ClusterPorts:
        if metadata == "oxia":
            oxia, metrics = free_ports(2)
            return ClusterPorts(0, 0, 0, 0, oxia, metrics)
        zookeeper, *secure = free_ports(2 if self._secured else 1)
        return ClusterPorts(zookeeper, 0, 0, 0, zookeeper_tls=secure[0] if secure else 0)

    def _broker(self, number: int, version: str, *, stock: bool = False) -> SiteBroker:
        common, own = {**_BROKER_SETTINGS, **self._options.broker_settings}, dict[str, str]()
        options = dataclasses.replace(self._options, pulsar=version, max_entries_per_ledger=_ENTRIES_PER_LEDGER)
        if self._jar is not None and not stock:
            common["bookkeeperMetadataServiceUri"] = self.driver_uri
            options = dataclasses.replace(options, broker_jar=str(self._jar), broker_properties=DRIVER_PROPERTIES)
        options = dataclasses.replace(options, broker_settings=ChainMap(own, common))
        broker, web = free_ports(2)
        ports = dataclasses.replace(self._ports, broker=broker, web=web)
        return self._make_broker(self._factory(f"broker-{number}", ports, options), own)

    def _factory(self, folder: str, ports: ClusterPorts, options: ClusterOptions) -> ServerFactory:
        runtime = functools.partial(_runtime, options.pulsar)
        return ServerFactory(self._home / folder, ports, options, runtime, credentials=self._credentials)

    @property
    def _credentials(self) -> Path:
        return self._home / "credentials"

    @property
    def _digest(self) -> str:
        return zookeeper_credentials(self._credentials).digest

    def __enter__(self) -> SwitchablePulsar:
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()


@functools.cache
def _runtime(version: str) -> Runtime:
    return load_runtime(version)
