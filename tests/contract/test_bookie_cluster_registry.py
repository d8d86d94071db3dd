"""Bookie clusters are registered, shown, deprecated and unregistered on a real ZooKeeper and a real Oxia."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.errors import RefusedError, StoreUnavailableError
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden_dev.devcluster.servers.oxia import OxiaServer
from servers.lone_zookeeper import LoneZooKeeper
from servers.metadata_tree import remove_tree
from servers.switching.ledgers_roots import initialise

pytestmark = pytest.mark.servers


def metadata(owner: str) -> bytes:
    custom = {"application": b"pulsar", "bookwarden.owner": owner.encode()}
    segments = (Segment(0, ("b:3181",)),)
    return encode_ledger_metadata(
        LedgerMetadata(3, LedgerState.CLOSED, 1, 1, 1, segments, 7, 0, "CRC32C", 5, custom=custom)
    )


class Site:
    """Pulsar's own store with bookie cluster a in it, and a ZooKeeper for others."""

    def __init__(self, pulsar: MetadataStore, pulsar_url: str, zookeeper: MetadataStore, hosts: str) -> None:
        self.pulsar, self.pulsar_url = pulsar, pulsar_url
        self.zookeeper, self.hosts = zookeeper, hosts
        self.other = f"/t-{uuid4().hex}/bookies-b"
        initialise(pulsar, "/ledgers", "a")
        initialise(zookeeper, self.other, "b")

    @property
    def other_uri(self) -> str:
        return f"zk+hierarchical://{self.hosts}{self.other}"

    def run(self, *arguments: str, patience_s: int = 30) -> Result:
        urls = json.dumps([self.pulsar_url])
        settings = [
            "--set",
            f"metadata_store.urls={urls}",
            "--set",
            f"metadata_store.operation_timeout_seconds={patience_s}",
        ]
        return CliRunner().invoke(cli, [*settings, "bookie-clusters", *arguments])

    def done(self, *arguments: str) -> Any:
        result = self.run(*arguments, "-o", "json")
        assert result.exit_code == 0, (arguments, result.stderr)
        return json.loads(result.stdout)

    def register(self, name: str, uri: str, *more: str) -> Any:
        return self.done("register", "--name", name, "--metadata-service-uri", uri, *more)

    def refused(self, arguments: Sequence[str], reason: str) -> None:
        result = self.run(*arguments)
        assert result.exit_code == RefusedError.exit_code, result.stderr
        assert reason in result.stderr

    def statuses(self) -> dict[str, str]:
        return {one["name"]: one["status"] for one in self.done("list")["clusters"]}


@pytest.fixture
def site(zookeeper: LoneZooKeeper) -> Iterator[Site]:
    """With Pulsar's own store below a chroot."""
    chroot = f"/t-{uuid4().hex}"
    with ExitStack() as stores:
        plain = stores.enter_context(closing(open_store(f"zk:{zookeeper.hosts}")))
        plain.create(chroot, b"")
        url = f"zk:{zookeeper.hosts}{chroot}"
        yield Site(stores.enter_context(closing(open_store(url))), url, plain, zookeeper.hosts)


@pytest.fixture
def site_on_oxia(zookeeper: LoneZooKeeper, oxia_server: OxiaServer) -> Iterator[Site]:
    with ExitStack() as stores:
        plain = stores.enter_context(closing(open_store(f"zk:{zookeeper.hosts}")))
        url = f"oxia://{oxia_server.address}/default"
        pulsar = stores.enter_context(closing(open_store(url)))
        yield Site(pulsar, url, plain, zookeeper.hosts)
        for path in ("/ledgers", "/bookwarden"):
            remove_tree(pulsar, path)


def test_clusters_come_and_go(site: Site) -> None:
    chroot = site.pulsar_url.removeprefix(f"zk:{site.hosts}")
    LedgerIds(site.pulsar, "/ledgers").raise_to(5)
    LedgerIds(site.zookeeper, site.other).raise_to(2_500)
    # Pulsar's own store by another name of its host, and with the chroot in the root's path.
    port = site.hosts.rpartition(":")[2]
    elsewhere = ("--name", "a", "--metadata-service-uri", f"zk+hierarchical://localhost:{port}{chroot}/ledgers")
    assert not site.done("register", "--bootstrap", "--dry-run", *elsewhere)["registered"]
    assert site.statuses() == {}
    first = site.done("register", "--bootstrap", *elsewhere)
    assert (first["cluster"]["storeUrl"], first["cluster"]["ledgersRoot"], first["idRoot"]) == (
        None,
        *("/ledgers", "/ledgers"),
    )
    again = ("register", "--name", "b", "--metadata-service-uri")
    site.refused([*again, f"metadata-store:{site.pulsar_url}"], "it is registered as 'a'")
    site.refused([*again, site.other_uri], "Raise the next ledger id from 5 to 2500")
    second = site.register("b", site.other_uri, "--yes")
    assert second["cluster"]["storeUrl"] == f"zk:{site.hosts}"
    assert second["cluster"]["ledgersRoot"] == site.other
    assert (second["epoch"], second["raisedBy"], second["nextLedgerId"]) == (2, 2_495, 2_500)
    assert site.pulsar.ephemeral_sequential("/ledgers/idgen/ID-", b"").endswith("-0000002500")
    # The counter that b has itself, for brokers without the jar.
    ids = LedgerIds(site.pulsar, "/ledgers")
    assert [ids.take(), ids.take()] == [2_501, 2_502]
    planned = site.done("raise-ids", "--name", "b", "--dry-run")
    assert (planned["nextLedgerId"], planned["firstFreeLedgerId"], planned["raised"]) == (2_500, 2_503, 3)
    site.refused(["raise-ids", "--name", "b"], "Raise the next ledger id of b from 2500 to 2503?")
    broker = "/loadbalance/brokers/br1"
    site.pulsar.create(broker, b"{}", make_parents=True)
    site.refused(["raise-ids", "--name", "b", "--yes"], "stop all of them first")
    node = site.pulsar.get(broker)
    assert node is not None
    site.pulsar.delete_many([(broker, node.version)])
    assert site.done("raise-ids", "--name", "b", "--yes")["nextLedgerId"] == 2_503
    assert (LedgerIds(site.zookeeper, site.other).next_id(), ids.next_id()) == (2_503, 2_503)
    assert site.done("raise-ids", "--name", "b", "--yes")["raised"] == 0
    # A root inside that of b, by a chroot that b's own root is not below.
    inside = f"{site.other}/inside"
    initialise(site.zookeeper, f"{inside}/ledgers", "d")
    site.refused(
        ["register", "--name", "d", "--metadata-service-uri", f"metadata-store:zk:localhost:{port}{inside}"],
        f"its root {inside}/ledgers and the root {site.other} of 'b' are in one store",
    )
    # And one that Pulsar's chroot, with the root of a, is inside of.
    initialise(site.pulsar, "", "e")
    site.refused(
        ["register", "--name", "e", "--metadata-service-uri", f"zk+null://{site.hosts}{chroot}"],
        f"its root {chroot} and the root {chroot}/ledgers of 'a' are in one store",
    )
    # A third one below Pulsar's chroot is in Pulsar's own store, and its root a path there.
    initialise(site.pulsar, "/ledgers-c", "c")
    initialise(site.pulsar, "/bookies-c", "c2")
    site.refused(
        ["register", "--name", "c", "--metadata-service-uri", f"zk+null://{site.hosts}{chroot}/ledgers-c"],
        "its root /ledgers-c and the root /ledgers of 'a' are in one store",
    )
    third = site.register("c", f"zk+null://{site.hosts}{chroot}/bookies-c")
    assert (third["cluster"]["storeUrl"], third["cluster"]["ledgersRoot"]) == (None, "/bookies-c")
    site.done("deprecate", "c")
    assert site.statuses() == {"a": "ACTIVE", "b": "STANDBY", "c": "DEPRECATED"}
    site.done("deprecate", "c", "--undo")
    assert site.done("get", "c")["status"] == "STANDBY"
    ledger = ledger_path(site.other, 2_600)
    site.zookeeper.create(ledger, metadata(site.done("list")["owner"]), make_parents=True)
    site.refused(["unregister", "b", "--yes"], "1 of them are in no other registered cluster")
    node = site.zookeeper.get(ledger)
    assert node is not None
    site.zookeeper.delete_many([(ledger, node.version)])
    site.refused(["unregister", "b"], "Unregister bookie cluster b?")
    assert [one["name"] for one in site.done("unregister", "b", "--yes")["clusters"]] == ["a", "c"]
    site.refused(["unregister", "a", "--yes"], "is active: switch to another first")
    assert site.done("list")["epoch"] == 6


def test_a_store_that_nobody_serves_is_told(site: Site) -> None:
    uri = "zk+hierarchical://127.0.0.1:1/ledgers"
    result = site.run("register", "--bootstrap", "--name", "a", "--metadata-service-uri", uri, patience_s=3)
    assert result.exit_code == StoreUnavailableError.exit_code, result.stderr
    assert "bookie cluster 'a', /ledgers in zk:127.0.0.1:1: " in result.stderr
    assert site.statuses() == {}


def test_ids_in_oxia_pass_those_of_a_cluster_on_zookeeper(site_on_oxia: Site) -> None:
    site = site_on_oxia
    first = site.register("a", f"metadata-store:{site.pulsar_url}", "--bootstrap")
    assert (first["cluster"]["storeUrl"], first["idRoot"]) == (None, "/ledgers")
    site.zookeeper.create(ledger_path(site.other, 70), metadata("0badc0de"), make_parents=True)
    arguments = ["register", "--name", "b", "--metadata-service-uri", site.other_uri, "--yes"]
    site.refused(arguments, "1 ledgers are there that this Pulsar cluster did not make")
    second = site.done(*arguments, "--shared")
    assert (second["foreignLedgers"], second["aboveItsLedgers"]) == (1, 71)
    ids = LedgerIds(site.pulsar, "/ledgers")
    following = ids.next_id()
    assert following == second["nextLedgerId"] >= 71
    assert [ids.take(), ids.take()] == [following, following + 1]
    assert ids.next_id() == following + 2
    raised = site.done("raise-ids", "--name", "b", "--yes")
    # In steps of 2**32: that of Oxia had to leap already.
    assert raised["nextLedgerId"] >= following + 2
    assert LedgerIds(site.zookeeper, site.other).take() == raised["nextLedgerId"]
    assert site.statuses() == {"a": "ACTIVE", "b": "STANDBY"}
    assert set(site.done("unregister", "b", "--yes")["switchTarget"] or ()) == set()
