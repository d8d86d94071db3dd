"""The settings of the development cluster's servers: the released ones, adapted to one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bookwarden.errors import ConfigError
from bookwarden_dev.devcluster.credentials import SUPERUSER, BrokerCredentials
from bookwarden_dev.devcluster.ports import LOOPBACK
from bookwarden_dev.devcluster.releases.versions import (
    OFFLOADERS,
    PULSAR,
    can_batch_nothing,
    offloads,
)
from bookwarden_dev.devcluster.servers.oxia import oxia_url

CLUSTER_NAME = "dev"
# The versions of demos and tests, the default first; those that a development cluster can run are in the table PULSAR.
PULSAR_VERSIONS = ("4.0.8", "4.2.4")
# Where a cluster can keep its metadata, the default first.
METADATA_STORES = ("zookeeper", "oxia")
# The root that a Pulsar sets up for its ledgers.
PULSARS_LEDGERS_ROOT = "/ledgers"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Options in which development clusters may differ."""

    pulsar: str = PULSAR_VERSIONS[0]  #: One of the table PULSAR.
    cluster_name: str = CLUSTER_NAME  #: The name that its brokers and its metadata have for it.
    metadata: str = METADATA_STORES[0]  #: Server of the broker's and the bookie's metadata, one of METADATA_STORES.
    oxia: bool = False  #: Run an Oxia server even if the metadata is elsewhere.
    oxia_shards: int = 1  #: Number of shards of its namespace.
    oxia_program: str | None = None  #: The program of another Oxia than the one that is built.
    max_entries_per_ledger: int = 50_000  #: Ledgers roll over at it.
    session_seconds: int = 10  #: Metadata session timeout of the bookie and the broker.
    auth: str = "none"  #: "none", "token" (tokens and TLS) or "tls" (TLS with client certificates).
    zookeeper_digest: bool = False  #: ZooKeeper knows its users: see DevCluster.protect_metadata.
    #: For benchmarks: more memory, a slower start and batched requests to ZooKeeper, to serve faster; and what is
    #: written is synced to the disk. Without, it outlives any kill of a server, but no crash of the machine.
    throughput: bool = False
    #: Only with a version that OFFLOADERS has: gives the broker the offloader for object stores. Driver and place go
    #: into its settings, the credentials into its environment.
    offload: bool = False
    broker_settings: Mapping[str, str] = field(default_factory=dict)  #: Override any setting of the broker.
    broker_environment: Mapping[str, str] = field(default_factory=dict)  #: Added to the broker's environment.
    broker_jar: str | None = None  #: A file on the broker's class path in addition to those of the release.
    broker_properties: Mapping[str, str] = field(default_factory=dict)  #: Override Java properties of the broker.
    bookie_settings: Mapping[str, str] = field(default_factory=dict)  #: Override any setting of the bookie.
    #: Root of the bookie's metadata.
    ledgers_root: str = PULSARS_LEDGERS_ROOT
    log_level: str = "info"  #: log4j's, as info.

    def __post_init__(self) -> None:
        if self.pulsar not in PULSAR:
            raise ConfigError(f"a development cluster runs no Pulsar {self.pulsar!r}; expected {', '.join(PULSAR)}")
        if self.offload and not offloads(self.pulsar):
            raise ConfigError(
                f"a development cluster with Pulsar {self.pulsar} cannot offload: use {' or '.join(OFFLOADERS)}"
            )
        if self.auth not in ("none", "token", "tls"):
            raise ConfigError(f"auth of a development cluster is {self.auth!r}; expected none, token or tls")
        if self.metadata not in METADATA_STORES:
            raise ConfigError(
                f"a development cluster keeps no metadata in {self.metadata!r}; expected {' or '.join(METADATA_STORES)}"
            )
        if self.ledgers_root != PULSARS_LEDGERS_ROOT and self.metadata != "zookeeper":
            raise ConfigError(f"on {self.metadata}, a development cluster has its ledgers below {PULSARS_LEDGERS_ROOT}")
        if self.zookeeper_digest and self.metadata != "zookeeper":
            raise ConfigError(f"a development cluster on {self.metadata} has no ZooKeeper that could know its users")

    @property
    def stores(self) -> tuple[str, ...]:
        """The names of the servers that can keep metadata: the one that does, then any other."""
        return (self.metadata, "oxia") if self.oxia and self.metadata != "oxia" else (self.metadata,)

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of all servers, in the order in which they start."""
        return (*self.stores, "bookie", "broker")


@dataclass(frozen=True, slots=True)
class ClusterPorts:
    """The TCP ports of the servers, all on 127.0.0.1."""

    zookeeper: int  #: For clients.
    bookie: int  #: For clients.
    broker: int  #: Pulsar's protocol, with TLS when auth is on.
    web: int  #: Admin REST, with TLS when auth is on.
    oxia: int = 0  #: For clients; 0 in a cluster without Oxia.
    oxia_metrics: int = 0  #: Also says when Oxia is ready; 0 without Oxia.
    zookeeper_tls: int = 0  #: For clients with TLS, which all servers are then; 0 where ZooKeeper has none.


def store_url(ports: ClusterPorts, options: ClusterOptions) -> str:
    """Return the metadata store of the broker and the bookie, as Pulsar writes it."""
    return oxia_url(ports.oxia) if options.metadata == "oxia" else f"zk:{_zookeeper_address(ports)}"


def bookkeeper_uri(ports: ClusterPorts, options: ClusterOptions) -> str:
    """Return where the bookie keeps its metadata, as bookkeeper.conf has it.

    Pulsar's driver batches requests to ZooKeeper by a timer of 5 ms, which costs an idle bookie a second of processor
    time a minute. That can be turned off from 4.2 on; before there is BookKeeper's own driver, its default.
    """
    url = f"metadata-store:{store_url(ports, options)}"
    if options.metadata != "zookeeper":
        return url
    if options.ledgers_root == PULSARS_LEDGERS_ROOT and options.throughput:
        return url
    if options.ledgers_root == PULSARS_LEDGERS_ROOT and can_batch_nothing(options.pulsar):
        return f"{url}?batchingEnabled=false"
    # With a path in it, the other kind of URI would mean a chroot.
    return f"zk+hierarchical://{_zookeeper_address(ports)}{options.ledgers_root}"


def _zookeeper_address(ports: ClusterPorts) -> str:
    return f"{LOOPBACK}:{ports.zookeeper_tls or ports.zookeeper}"


def zookeeper_settings(port: int, data: Path, *, synced: bool) -> dict[str, str]:
    """Return the settings of the one ZooKeeper; one that is not ``synced`` may lose what the machine's crash does."""
    return {
        "tickTime": "1000",
        "dataDir": str(data),
        "clientPort": str(port),
        "clientPortAddress": LOOPBACK,
        "maxClientCnxns": "0",
        "maxSessionTimeout": "60000",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "*",
        "forceSync": "yes" if synced else "no",
    }


def zookeeper_tls_settings(port: int, key_store: Path) -> dict[str, str]:
    """Return what gives the ZooKeeper a port for TLS, with key and certificate of a PEM file; it asks for none."""
    return {
        "secureClientPort": str(port),
        "secureClientPortAddress": LOOPBACK,
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(key_store),
        "ssl.clientAuth": "none",
    }


def zookeeper_tls_properties(authority: Path) -> dict[str, str]:
    """Return the Java properties by which all of a process's ZooKeeper clients use TLS, and trust a PEM file."""
    return {
        "zookeeper.client.secure": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.trustStore.location": str(authority),
    }


def bookie_settings(
    released: Mapping[str, str], ports: ClusterPorts, data: Path, options: ClusterOptions
) -> dict[str, str]:
    """Return the settings of the one bookie, over those that its release comes with, if it does."""
    return {
        **released,
        "bookiePort": str(ports.bookie),
        "advertisedAddress": LOOPBACK,
        "allowLoopback": "true",
        "metadataServiceUri": bookkeeper_uri(ports, options),
        "zkTimeout": str(options.session_seconds * 1000),
        "journalDirectory": str(data / "journal"),
        "ledgerDirectories": str(data / "ledgers"),
        "journalSyncData": str(options.throughput).lower(),
        "journalMaxSizeMB": "64",
        "journalPreAllocSizeMB": "4",
        # A developer's disk may be nearly full: only a disk without any space makes the bookie read-only.
        "diskUsageThreshold": "0.999",
        "diskUsageWarnThreshold": "0.998",
        "diskUsageLwmThreshold": "0.998",
        "minUsableSizeForIndexFileCreation": "1048576",
        "minUsableSizeForEntryLogCreation": "1048576",
        "logSizeLimit": "67108864",
        # Pulsar's choice, not BookKeeper's default.
        "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
        "dbStorage_writeCacheMaxSizeMb": "32",
        "dbStorage_readAheadCacheMaxSizeMb": "16",
        "dbStorage_rocksDB_blockCacheSize": "16777216",
        "dbStorage_rocksDB_writeBufferSizeMB": "8",
        "numReadWorkerThreads": "2",
        "numHighPriorityWorkerThreads": "2",
        "numJournalCallbackThreads": "2",
        # One bookie has no other to replicate to.
        "autoRecoveryDaemonEnabled": "false",
        # Pulsar's opens a metadata store in each client of a bookie, whose timer costs 2 % of a processor.
        "reppDnsResolverClass": "org.apache.bookkeeper.net.ScriptBasedMapping",
        "httpServerEnabled": "false",
        "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
        "statsProviderClass": "org.apache.bookkeeper.stats.NullStatsProvider",
        **options.bookie_settings,
    }


def broker_settings(released: Mapping[str, str], ports: ClusterPorts, options: ClusterOptions) -> dict[str, str]:
    """Return the settings of the one broker, over the released ones, without those of authentication."""
    metadata = store_url(ports, options)
    return {
        **released,
        "clusterName": options.cluster_name,
        "metadataStoreUrl": metadata,
        "configurationMetadataStoreUrl": metadata,
        "metadataStoreSessionTimeoutMillis": str(options.session_seconds * 1000),
        # By a timer of 5 ms, see bookkeeper_uri; with Oxia 4.0.8 does not start without it.
        "metadataStoreBatchingEnabled": str(options.throughput or options.metadata != "zookeeper").lower(),
        "bindAddress": LOOPBACK,
        "advertisedAddress": LOOPBACK,
        "brokerServicePort": str(ports.broker),
        "webServicePort": str(ports.web),
        "managedLedgerDefaultEnsembleSize": "1",
        "managedLedgerDefaultWriteQuorum": "1",
        "managedLedgerDefaultAckQuorum": "1",
        "managedLedgerMaxEntriesPerLedger": str(options.max_entries_per_ledger),
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        "managedLedgerCacheSizeMB": "32",
        # Every 10 ms by default, which keeps an idle broker busy too.
        "managedLedgerCacheEvictionIntervalMs": "1000",
        "bookkeeperNumberOfChannelsPerBookie": "2",
        "numIOThreads": "2",
        "numHttpServerThreads": "8",
        "numOrderedExecutorThreads": "2",
        "defaultNumberOfNamespaceBundles": "4",
        "brokerDeleteInactiveTopicsEnabled": "false",
        "forceDeleteTenantAllowed": "true",
        "forceDeleteNamespaceAllowed": "true",
        "loadBalancerEnabled": "false",
        "functionsWorkerEnabled": "false",
        "webSocketServiceEnabled": "false",
        "transactionCoordinatorEnabled": "false",
        "brokerShutdownTimeoutMs": "10000",
        "webServiceTlsProvider": "SunJSSE",
        **options.broker_settings,
    }


def access_settings(ports: ClusterPorts, credentials: BrokerCredentials, auth: str) -> dict[str, str]:
    """Return the broker's settings of TLS, rights and this kind of auth; files are named, secrets are not in here."""
    return {
        "brokerServicePort": "",
        "webServicePort": "",
        "brokerServicePortTls": str(ports.broker),
        "webServicePortTls": str(ports.web),
        "tlsCertificateFilePath": str(credentials.certificate),
        "tlsKeyFilePath": str(credentials.private_key),
        "tlsTrustCertsFilePath": str(credentials.certificate),
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "superUserRoles": SUPERUSER,
        "brokerClientTlsEnabled": "true",
        "brokerClientTrustCertsFilePath": str(credentials.certificate),
        **(_certificate_settings(credentials) if auth == "tls" else _token_settings(credentials)),
    }


def _token_settings(credentials: BrokerCredentials) -> dict[str, str]:
    return {
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSecretKey": credentials.token_key.as_uri(),
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": credentials.superuser_token.as_uri(),
    }


def _certificate_settings(credentials: BrokerCredentials) -> dict[str, str]:
    own = credentials.superuser_certificate
    return {
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderTls",
        "tlsRequireTrustedClientCertOnConnect": "true",
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationTls",
        "brokerClientAuthenticationParameters": f"tlsCertFile:{own.certificate},tlsKeyFile:{own.private_key}",
    }


def offload_settings(offloaders: Path, unpacked: Path) -> dict[str, str]:
    """Return the settings by which the broker finds its offloaders, and unpacks them in a folder of its own."""
    return {"offloadersDirectory": str(offloaders), "narExtractionDirectory": str(unpacked)}


def read_settings(path: Path) -> dict[str, str]:
    """Read a settings file of the release: name=value lines, # comments."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def write_settings(path: Path, settings: Mapping[str, str]) -> None:
    """Write a settings file that only its owner reads: it may name credentials."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
