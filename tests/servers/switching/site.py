"""Brokers over two bookie clusters, with the registry that they follow: changed, awaited and looked at by tests."""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3
from click.testing import CliRunner, Result

from bookwarden.bookie_clusters.brokers import read_brokers, read_followers
from bookwarden.bookie_clusters.registry import (
    REGISTRY_PATH,
    Registry,
    parse_registry,
    serialize_registry,
)
from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.listing import LedgerListing
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.config import MetadataStoreSettings
from bookwarden.errors import PulsarUnavailableError
from bookwarden.ledgers.metadata import LedgerMetadata
from bookwarden.ledgers.names import TopicName
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.wire.ledger_metadata import decode_ledger_metadata
from bookwarden.wiring.stores import open_single_store
from bookwarden_dev.demo.ledger_places import ClusterLedgers, LedgerPlaces, find_places
from bookwarden_dev.devcluster.bookie_clusters import TWO_CLUSTERS, ClusterPlan, SiteBroker, SwitchablePulsar
from bookwarden_dev.devcluster.servers.settings import METADATA_STORES
from servers.switching.broker_jar import broker_jar
from servers.waiting import eventually

_BUNDLES = 8
_REFUSED = 5
_FOLLOW_SECONDS = 60
# An unload or a compaction may wait for many others on two busy cores.
_ADMIN_SECONDS = 180


class SwitchingSite:
    """The servers, and the store in which the registry is."""

    def __init__(self, servers: SwitchablePulsar) -> None:
        self.servers = servers
        urls = {servers.store_url, *(cluster.store_url for cluster in servers.clusters.values())}
        access = MetadataStoreSettings(urls=[servers.store_url], **servers.store_settings)
        #: Metadata stores, by URL.
        self.stores = {url: open_single_store(access, url) for url in urls}
        #: Pulsar's.
        self.store = self.stores[servers.store_url]
        self.connection = servers.connection()
        self.admin = PulsarAdmin(self.connection, timeout_s=_ADMIN_SECONDS)

    @property
    def brokers(self) -> tuple[SiteBroker, ...]:
        return self.servers.brokers

    @property
    def options(self) -> list[str]:
        """The options by which a command finds the servers."""
        settings = {
            "metadata_store.urls": f"['{self.servers.store_url}']",
            **{f"metadata_store.{name}": str(value) for name, value in self.servers.store_settings.items()},
            "pulsar.service_url": self.connection.service_url,
            "pulsar.admin_url": self.connection.admin_url,
        }
        first = next(iter(self.servers.clusters.values()))
        if first.store_url != self.servers.store_url:
            settings["metadata_store.bookkeeper_url"] = first.metadata_service_uri
        return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]

    def command(self, *words: str, exit_code: int = 0) -> Any:
        """Run a command below `bookie-clusters` that has to end so; return what it prints."""
        ended = self.ended(*words)
        assert ended.exit_code == exit_code, ended.output
        return json.loads(ended.stdout)

    def ended(self, *words: str) -> Result:
        """Run a command below `bookie-clusters`; return how it ended."""
        return _invoked(["-o", "json", *self.options, "bookie-clusters", *words])

    def refusal(self, *words: str) -> str:
        """Run a command below `bookie-clusters` that has to be refused; return what it says."""
        ended = _invoked([*self.options, "bookie-clusters", *words])
        assert ended.exit_code == _REFUSED, ended.output
        return ended.output

    def words(self, home: Path, *words: str) -> list[str]:
        """Complete the words of a command; what the sweep keeps is in this folder."""
        places = [f"sweep.{name}={home / name}" for name in ("checkpoint", "outcomes", "journal")]
        sets = [word for setting in ("spark.master=local[2]", *places) for word in ("--set", setting)]
        return ["-o", "json", *self.options, *sets, *words]

    def run(self, home: Path, *words: str, exit_codes: Sequence[int] = (0,)) -> Any:
        """Run any command that has to end so, on the Spark of this process if it has one; return what it prints."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(home)
            ended = _invoked(self.words(home, *words))
        assert ended.exit_code in exit_codes, ended.output
        return json.loads(ended.stdout)

    def register(self, name: str, *options: str) -> None:
        """Register a bookie cluster."""
        uri = self.servers.clusters[name].metadata_service_uri
        self.command("register", "--name", name, "--metadata-service-uri", uri, "--yes", *options)

    def registry(self) -> Registry:
        return parse_registry(self._node().value)

    def change(self, next_of: Callable[[Registry], Registry]) -> float:
        """Replace the registry by its successor; wait until all brokers follow; return how many seconds they took."""
        node = self._node()
        changed = next_of(parse_registry(node.value))
        begin = time.monotonic()
        self.store.put(REGISTRY_PATH, serialize_registry(changed), node.version)
        self.wait_until_followed(changed)
        return time.monotonic() - begin

    def ensure(self, active: str, names: Collection[str] | None = None) -> None:
        """Bring the registry to where these clusters, by default all, are registered, and this one is active, as a test
        begins.
        """
        wanted = set(self.servers.clusters) if names is None else set(names)
        for name in sorted(wanted - self.registry().clusters.keys()):
            self.register(name)
            self.wait_until_followed()
        if self.registry().active != active:
            self.switch(active)
        for name in sorted(self.registry().clusters.keys() - wanted):
            self.change(lambda registry, name=name: registry.without_cluster(name))

    def switch(self, target: str) -> float:
        """Make another cluster active; return how many seconds it took until all brokers followed."""
        return self.change(lambda registry: registry.switched(target, "test", int(time.time() * 1000)))

    def write_raw(self, value: bytes) -> None:
        """Put anything into the registry's node."""
        self.store.put(REGISTRY_PATH, value, self._node().version)

    def remove_registry(self) -> None:
        self.store.delete_many([(REGISTRY_PATH, self._node().version)])

    def restore(self, good: Registry) -> None:
        """Put a registry back, whatever is in its place."""
        self.store.sync()
        if self.store.get(REGISTRY_PATH) is None:
            self.store.create(REGISTRY_PATH, serialize_registry(good))
        else:
            self.write_raw(serialize_registry(good))

    def followed_epochs(self) -> set[int | None]:
        """The epochs that brokers follow."""
        return {follower.epoch for follower in read_followers(self.store)}

    def brokers_without_jar(self) -> list[str]:
        """The names of the brokers that follow no registry."""
        return [broker.name for broker in read_brokers(self.store) if broker.follower is None]

    def metric(self, name: str) -> list[float]:
        """Sum, for each broker, a metric of the jar over its labels, as the broker's own endpoint tells it."""
        return [_summed(broker.admin_url, f"bookwarden_bookie_clusters_{name}") for broker in self.brokers]

    def wait_until_followed(self, registry: Registry | None = None) -> None:
        """Wait until each broker follows the registry as it is now."""
        epoch = (registry or self.registry()).epoch

        def followed() -> bool:
            found = read_followers(self.store)
            return len(found) == len(self.brokers) and {follower.epoch for follower in found} == {epoch}

        eventually(followed, _FOLLOW_SECONDS)

    def places(self) -> LedgerPlaces:
        """List the ledgers of all clusters, never older than this call."""
        return find_places(
            {
                name: ClusterLedgers(self.store_of(name), bookies.ledgers_root, bookies.ids)
                for name, bookies in self.servers.clusters.items()
            }
        )

    def ledgers_of(self, name: str) -> dict[int, LedgerMetadata]:
        """Read the metadata of each ledger of a cluster, never older than this call."""
        bookies = self.servers.clusters[name]
        listing = LedgerListing(self.store_of(name), bookies.ledgers_root)
        pieces = [listing.read(piece) for piece in listing.pieces()]
        return {
            ledger_id: decode_ledger_metadata(node.value)
            for piece in pieces
            for ledger_id, node in zip(piece.ids, piece.nodes, strict=True)
        }

    def store_of(self, name: str) -> MetadataStore:
        """The store that has the metadata of a cluster."""
        return self.stores[self.servers.clusters[name].store_url]

    def writable_bookies(self, name: str) -> list[str]:
        """List the bookies of a cluster that are registered now."""
        bookies = self.servers.clusters[name]
        available = f"{bookies.ledgers_root}/available"
        return [bookie for bookie in self.store_of(name).children_of(available) if bookie in bookies.ids]

    def end_registration(self, name: str, bookie: str) -> None:
        """End the registration of a bookie of a cluster that was killed, as the end of its session would."""
        store, path = self.store_of(name), f"{self.servers.clusters[name].ledgers_root}/available/{bookie}"
        node = store.get(path)
        assert node is not None
        store.delete_many([(path, node.version)])

    def new_topics(self, count: int) -> list[str]:
        """Make a namespace that keeps all messages, and topics in it that all brokers share."""
        tenant = f"t-{secrets.token_hex(4)}"
        self.admin.put(f"/tenants/{tenant}", {"allowedClusters": ["dev"]})
        namespace = f"{tenant}/n"
        self.admin.put(f"/namespaces/{namespace}", {"bundles": {"numBundles": _BUNDLES}})
        keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        self.admin.post(f"/namespaces/{namespace}/retention", keep)
        names = (f"persistent://{namespace}/topic-{number}" for number in itertools.count())
        topics = list(itertools.islice(names, min(count, 1)))
        while len(topics) < count:
            topic = next(names)
            # Topics of one bundle would all be one broker's.
            if len(topics) > 1 or self._bundle(topic) != self._bundle(topics[0]):
                topics.append(topic)
        for topic in topics:
            self.admin.put(topic_path(topic))
        if len(self.brokers) > 1:
            self.spread(topics)
        return topics

    def spread(self, topics: Sequence[str], shift: int = 0, broker: SiteBroker | None = None) -> None:
        """Give the bundles of the topics to the brokers in turn, from the one of number ``shift`` on, or all to one."""
        bundles = {(_namespace(topic), self._bundle(topic)): topic for topic in topics}
        for number, (namespace, bundle) in enumerate(sorted(bundles), start=shift):
            target = broker or self.brokers[number % len(self.brokers)]
            # Only a bundle that somebody owns can be sent elsewhere.
            self.owner(bundles[namespace, bundle])
            self.admin.put(f"/namespaces/{namespace}/{bundle}/unload", params={"destinationBroker": target.broker_id})
        self.wait_until_served(topics)

    def wait_until_served(self, topics: Iterable[str]) -> None:
        """Wait until brokers have loaded the topics: a client asks ever less often, and gives up after 30 s."""

        def served(topic: str) -> bool:
            try:
                self.admin.get_json(f"{topic_path(topic)}/internalStats")
            except PulsarUnavailableError:
                return False
            return True

        for topic in topics:
            eventually(lambda topic=topic: served(topic), _ADMIN_SECONDS, pause=0.1)

    def owner(self, topic: str) -> str:
        """Return the broker's service URL, after one was made the owner if nobody was."""
        return str(self.admin.get_json(f"/lookup/v2/topic{topic_path(topic)}")["brokerUrl"])

    def kill_brokers(self, topics: Iterable[str] = ()) -> None:
        """Kill all brokers with SIGKILL, start them again, and wait until they serve these topics."""
        for broker in self.brokers:
            broker.process.kill()
        self.servers.start_brokers()
        self.wait_until_followed()
        self.wait_until_served(topics)

    def close(self) -> None:
        self.admin.close()
        for store in self.stores.values():
            store.close()

    def _bundle(self, topic: str) -> str:
        answer = self.admin.request("GET", f"/lookup/v2/topic{topic_path(topic)}/bundle", ok=(200,))
        return answer.data.decode().strip('"')

    def _node(self) -> Versioned:
        self.store.sync()
        node = self.store.get(REGISTRY_PATH)
        assert node is not None
        return node


def _invoked(words: Sequence[str]) -> Result:
    """Run a command in this process; it logs to a standard error that ends with it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        return CliRunner().invoke(cli, words, catch_exceptions=False)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def _summed(admin_url: str, name: str) -> float:
    with urllib3.PoolManager(timeout=30.0) as pool:
        lines = pool.request("GET", f"{admin_url}/metrics/").data.decode().splitlines()
    # One with labels has no line before it was counted; this one has none.
    assert any(line.startswith("bookwarden_bookie_clusters_epoch") for line in lines)
    return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


def _namespace(topic: str) -> str:
    name = TopicName.parse(topic)
    return f"{name.tenant}/{name.namespace}"


@contextmanager
def switching_site(
    home: Path,
    brokers: Sequence[str],
    clusters: Sequence[ClusterPlan] = TWO_CLUSTERS,
    broker_settings: Mapping[str, str] | None = None,
    bookie_settings: Mapping[str, str] | None = None,
    offload_environment: Mapping[str, str] | None = None,
    *,
    metadata: str = METADATA_STORES[0],
    secured: bool = False,
) -> Iterator[SwitchingSite]:
    """Run the servers for the block, with brokers of these versions and the first cluster alone in the registry."""
    with SwitchablePulsar(
        home,
        broker_jar(),
        clusters=clusters,
        brokers=brokers,
        broker_settings=broker_settings,
        bookie_settings=bookie_settings,
        offload_environment=offload_environment,
        metadata=metadata,
        secured=secured,
    ) as servers:
        servers.start_bookies()
        if secured:
            servers.protect_metadata()
        with closing(SwitchingSite(servers)) as site:
            site.register(next(iter(servers.clusters)), "--bootstrap")
            servers.start_brokers()
            site.wait_until_followed()
            yield site
