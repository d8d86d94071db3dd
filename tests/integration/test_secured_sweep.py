"""The whole job where everything wants credentials: tokens and TLS at the broker, digest ACLs in ZooKeeper."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.devcluster import ClusterOptions, DevCluster
from bookwarden.ledgers.holders import ManagedLedgerHolder
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from servers.population import Population

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

LEDGER = 1_234_567_890


@dataclass
class Operator:
    """Somebody at a terminal, with a settings file and secrets in the environment."""

    file: Path
    folder: Path
    environment: dict[str, str]

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bookwarden.cli", "--config", str(self.file), "--debug", *arguments]
        return subprocess.run(
            command,
            env={**self.environment, **more},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture
def cluster(make_cluster: Callable[..., DevCluster]) -> DevCluster:
    made = make_cluster(ClusterOptions(auth="token", zookeeper_digest=True))
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
        "sweep": {name: str(tmp_path / name) for name in ("checkpoint", "outcomes", "journal")},
    }
    file = tmp_path / "bookwarden.yaml"
    file.write_text(yaml.safe_dump(settings))
    token, password = secrets_of
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BOOKWARDEN_")}
    environment["BOOKWARDEN_PULSAR__TOKEN"] = token
    environment["BOOKWARDEN_METADATA_STORE__DIGEST_PASSWORD"] = password
    return Operator(file, tmp_path, environment)


@pytest.fixture
def store(cluster: DevCluster) -> Iterator[MetadataStore]:
    assert cluster.zookeeper_digest is not None
    user, _, password = cluster.zookeeper_digest.partition(":")
    opened = open_store(cluster.store_url, digest=(user, password), acl="creator")
    yield opened
    opened.close()


def test_the_whole_job_works_with_credentials_and_tells_none(
    operator: Operator, store: MetadataStore, secrets_of: tuple[str, str], tmp_path: Path
) -> None:
    said: list[tuple[str, str]] = []

    def run(*arguments: str, expected: int = 0, **more: str) -> str:
        ended = operator.run(*arguments, **more)
        text = ended.stdout + ended.stderr
        said.append((" ".join(arguments), text))
        assert ended.returncode == expected, text[-3000:]
        return text

    run("init")
    population = Population(store)
    holder = ManagedLedgerHolder("public/default/persistent/orders")
    population.ledger(LEDGER, holder)
    assert "orders" in run("ledger", "explain", str(LEDGER))
    run("mark", "ledger", str(LEDGER), "--yes")
    run("inflight")
    run("sweep", "--dry-run")
    assert store.get(ledger_path("/ledgers", LEDGER)) is not None
    run("sweep", "--once")
    assert store.get(ledger_path("/ledgers", LEDGER)) is None

    run("inflight", expected=9, BOOKWARDEN_PULSAR__TOKEN="eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.wrong")
    run("ledger", "explain", "1", expected=9, BOOKWARDEN_METADATA_STORE__DIGEST_PASSWORD="wrong")

    written = [
        (path.name, path.read_bytes().decode(errors="replace")) for path in tmp_path.rglob("*") if path.is_file()
    ]
    told = [
        (where, line[:60])
        for where, text in said + written
        for line in text.splitlines()
        if any(secret in line for secret in secrets_of)
    ]
    assert told == []
