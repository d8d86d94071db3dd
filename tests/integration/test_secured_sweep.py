"""The whole job where everything wants credentials: tokens and TLS at the broker, digest ACLs in ZooKeeper."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster import DevCluster
from integration.test_cli import Line
from servers.deletion_site import DeletionSite
from servers.operator import Operator
from servers.pool import SECURED, Clusters
from servers.population import Population

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def ledger_id() -> int:
    """An id that no counter gives a ledger."""
    return 1_000_000_000 + secrets.randbelow(1_000_000_000)


@pytest.fixture
def cluster(clusters: Clusters) -> DevCluster:
    made = clusters.shared(SECURED)
    made.protect_metadata()
    return made


@pytest.fixture
def secrets_of(cluster: DevCluster) -> tuple[str, str]:
    assert cluster.zookeeper_digest is not None
    return cluster.connection().current_token(), cluster.zookeeper_digest.partition(":")[2]


@pytest.fixture
def operator(cluster: DevCluster, secrets_of: tuple[str, str], tmp_path: Path) -> Operator:
    assert cluster.zookeeper_digest is not None
    connection = cluster.connection()
    settings = {
        "pulsar": {
            "service_url": cluster.service_url,
            "admin_url": cluster.admin_url,
            "auth": "token",
            "tls_trust_certs_file": connection.tls_trust_certs_file,
        },
        "metadata_store": {"urls": [cluster.store_url], "digest_user": cluster.zookeeper_digest.partition(":")[0]},
        "deletion": {"unlisted_grace_seconds": 0},
    }
    token, password = secrets_of
    environment = {"BOOKWARDEN_PULSAR__TOKEN": token, "BOOKWARDEN_METADATA_STORE__DIGEST_PASSWORD": password}
    return Operator(tmp_path, settings, environment)


@pytest.fixture
def store(cluster: DevCluster) -> Iterator[MetadataStore]:
    assert cluster.zookeeper_digest is not None
    user, _, password = cluster.zookeeper_digest.partition(":")
    opened = open_store(cluster.store_url, digest=(user, password), acl="creator")
    yield opened
    opened.close()


def test_the_whole_job_works_with_credentials_and_tells_none(
    operator: Operator, store: MetadataStore, secrets_of: tuple[str, str], ledger_id: int
) -> None:
    operator.run("init")
    population = Population(store)
    holder = ManagedLedgerHolder("public/default/persistent/orders")
    population.ledger(ledger_id, holder)
    assert "orders" in operator.run("ledger", "explain", str(ledger_id))
    operator.run("mark", "ledger", str(ledger_id), "--yes")
    operator.run("inflight")
    operator.run("sweep", "--dry-run")
    assert store.get(ledger_path("/ledgers", ledger_id)) is not None
    operator.run("sweep", "--once")
    assert store.get(ledger_path("/ledgers", ledger_id)) is None

    operator.run("inflight", expected=9, BOOKWARDEN_PULSAR__TOKEN="eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.wrong")
    operator.run("ledger", "explain", "1", expected=9, BOOKWARDEN_METADATA_STORE__DIGEST_PASSWORD="wrong")
    assert operator.telltales(secrets_of) == []


def test_no_rights(cluster: DevCluster, tmp_path: Path) -> None:
    line = Line(DeletionSite.of(cluster, "public/default", tmp_path))
    ordinary = cluster.connection(superuser=False)
    trusted = ("--set", f"pulsar.tls_trust_certs_file={ordinary.tls_trust_certs_file}")
    role = ("--set", "pulsar.auth=token", "--set", f"pulsar.token_file={ordinary.token_file}")
    for command in (("init",), ("inflight",), ("sweep", "--once"), ("dlq", "list")):
        line.fails(9, "pulsar.auth", *trusted, *command)
        line.fails(9, "rights", *trusted, *role, *command)
