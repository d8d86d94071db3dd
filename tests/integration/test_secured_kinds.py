"""The whole job with client certificates and with OAuth2, on a broker that takes both, or certificates only."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.sql import SparkSession

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.config import load_settings
from bookwarden.deletion.phase_one.named_ledgers import marks_of_ids
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.metastore.urls import open_store
from bookwarden.pipelines.sweep.driver import run_sweep
from bookwarden.wire.broker_marks import TWO_PHASE
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import PhaseOne
from bookwarden.wiring.pulsar import connection_of
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from bookwarden_dev.devcluster.credentials import broker_credentials
from servers.marking_brokers import MARKS as MARKING_STORAGE
from servers.operator import Operator
from servers.population import Population
from servers.switching.broker_jar import broker_jar
from servers.token_issuer import TokenIssuer
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

AUDIENCE = "urn:bookwarden:test"
LIFE_S = 8
PROVIDERS = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
QUICK = {"brokerShutdownTimeoutMs": "1000"}
MARKS = {"managedLedgerStorageClassName": MARKING_STORAGE, "bookwardenMarks": TWO_PHASE}
TOPIC = "persistent://public/default/renewed"
DROPPED = "persistent://public/default/dropped"


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenIssuer]:
    with TokenIssuer({"admin": secrets.token_hex(16), "ordinary": secrets.token_hex(16)}, LIFE_S) as started:
        yield started


@pytest.fixture(scope="module")
def cluster(issuer: TokenIssuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A broker that takes certificates and the issuer's tokens."""
    home = tmp_path_factory.mktemp("pulsar")
    both = {
        "authenticationProviders": f"{PROVIDERS}Token,{PROVIDERS}Tls",
        "authenticationRefreshCheckSeconds": "1",
        "tlsRequireTrustedClientCertOnConnect": "false",
        "tokenPublicKey": issuer.write_public_key(home / "issuer.der").as_uri(),
        "tokenAudienceClaim": "aud",
        "tokenAudience": AUDIENCE,
    }
    started = DevCluster(home, ClusterOptions(auth="tls", broker_settings={**QUICK, **both}))
    try:
        started.up()
        yield started
    finally:
        started.kill()


@pytest.fixture
def open_cluster(cluster: DevCluster) -> DevCluster:
    """The cluster while its broker takes connections without a client certificate too."""
    if not cluster.broker.is_running():
        cluster.broker.start()
    return cluster


@pytest.fixture
def strict_cluster(cluster: DevCluster) -> Iterator[DevCluster]:
    """The cluster while its broker takes certificates only, requires one of every connection, and marks."""
    cluster.broker.stop()
    options = ClusterOptions(auth="tls", broker_jar=str(broker_jar()), broker_settings={**QUICK, **MARKS})
    strict = DevCluster(cluster.home, options)
    try:
        strict.broker.start()
        yield strict
    finally:
        strict.broker.stop()


def settings_for(cluster: DevCluster, pulsar: Mapping[str, Any]) -> dict[str, Any]:
    reached = {"service_url": cluster.service_url, "admin_url": cluster.admin_url}
    trusted = {"tls_trust_certs_file": cluster.connection().tls_trust_certs_file}
    return {
        "pulsar": {**reached, **trusted, **pulsar},
        "metadata_store": {"urls": [cluster.store_url]},
        "deletion": {"unlisted_grace_seconds": 0, "two_phase_deletion_ledger_deletion_parallelism": 1},
        "spark": {"master": "local[2]", "conf": {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}},
    }


def leak(cluster: DevCluster, ledger_id: int) -> None:
    store = open_store(cluster.store_url)
    try:
        Population(store).ledger(ledger_id, ManagedLedgerHolder("public/default/persistent/orders"))
    finally:
        store.close()


def is_there(cluster: DevCluster, ledger_id: int) -> bool:
    store = open_store(cluster.store_url)
    try:
        return store.get(ledger_path("/ledgers", ledger_id)) is not None
    finally:
        store.close()


def mark_by_library(operator: Operator, ledger_id: int) -> None:
    with Cluster(load_settings(operator.file)) as opened:
        phase_one = PhaseOne(opened)
        report = phase_one.marker.mark(marks_of_ids(phase_one.cluster.bookkeeper.catalog, [ledger_id]))
    assert report.confirmed_ids() == {ledger_id}


def key_of(issuer: TokenIssuer, client: str, **changed: str) -> str:
    values = {"client_id": client, "client_secret": issuer.clients[client], **changed}
    return json.dumps(values)


def as_url(key: str) -> str:
    return f"data:application/json;base64,{base64.b64encode(key.encode()).decode()}"


def oauth2_operator(cluster: DevCluster, issuer: TokenIssuer, folder: Path, key_file: Path) -> Operator:
    key_file.write_text(key_of(issuer, "admin"))
    oauth2 = {"issuer_url": issuer.url, "private_key": str(key_file), "audience": AUDIENCE}
    return Operator(folder, settings_for(cluster, {"auth": "oauth2", "oauth2": oauth2}), {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "operator"
    made.mkdir()
    return made


def test_the_whole_job_works_with_oauth2_and_tells_no_secret(
    open_cluster: DevCluster, issuer: TokenIssuer, folder: Path, tmp_path: Path
) -> None:
    cluster = open_cluster
    operator = oauth2_operator(cluster, issuer, folder, tmp_path / "key.json")
    operator.run("init")
    leak(cluster, 1_000_000_001)
    mark_by_library(operator, 1_000_000_001)
    in_environment = as_url(key_of(issuer, "admin"))
    operator.run("inflight")
    operator.run("sweep", "--once", BOOKWARDEN_PULSAR__OAUTH2__PRIVATE_KEY=in_environment)
    assert not is_there(cluster, 1_000_000_001)

    assert issuer.refused == 0
    wrong = as_url(key_of(issuer, "admin", client_secret="not-the-secret"))
    operator.fails(9, "answered 401", "inflight", BOOKWARDEN_PULSAR__OAUTH2__PRIVATE_KEY=wrong)
    assert issuer.refused == 1
    ordinary = as_url(key_of(issuer, "ordinary"))
    operator.fails(9, "rights", "inflight", BOOKWARDEN_PULSAR__OAUTH2__PRIVATE_KEY=ordinary)
    operator.fails(9, "pulsar.auth", "inflight", BOOKWARDEN_PULSAR__OAUTH2__AUDIENCE="another")

    keys = [url.partition(",")[2] for url in (in_environment, wrong, ordinary)]
    told = [*issuer.clients.values(), *issuer.issued, *keys, "not-the-secret"]
    assert operator.telltales(told, cluster.home / "logs") == []


def test_an_oauth2_token_that_ends_is_replaced_without_an_error(
    open_cluster: DevCluster, issuer: TokenIssuer, folder: Path, tmp_path: Path
) -> None:
    operator = oauth2_operator(open_cluster, issuer, folder, tmp_path / "key.json")
    connection = connection_of(load_settings(operator.file).pulsar)
    admin, client = PulsarAdmin(connection), connection.client()
    try:
        producer = client.create_producer(TOPIC)
        before = issuer.asked_by.copy()

        def both_renewed() -> bool:
            producer.send(b"x")
            admin.get_json("/clusters")
            askers = issuer.asked_by - before
            return len(askers) == 2 and min(askers.values()) >= 2

        eventually(both_renewed, timeout=120)
    finally:
        client.close()
        admin.close()


def test_the_whole_job_works_with_client_certificates(
    strict_cluster: DevCluster, folder: Path, tmp_path: Path, spark: SparkSession
) -> None:
    cluster, own = strict_cluster, strict_cluster.connection()
    files = {name: getattr(own, name) for name in ("tls_certificate_file", "tls_private_key_file")}
    operator = Operator(folder, settings_for(cluster, {"auth": "tls", **files}), {})
    operator.run("init")
    leak(cluster, 1_000_000_002)
    mark_by_library(operator, 1_000_000_002)
    dropped = drop_topic(own)
    settings = load_settings(operator.file)
    with Cluster(settings) as opened:
        topics = opened.deletion_topics
        # The broker sends its own mark, by its own certificate; it may do so twice.
        eventually(lambda: any(dropped in request for request in topics.requests_in_flight()), 60)
    assert is_there(cluster, dropped)
    operator.run("inflight")
    run_sweep(spark, settings, once=True)
    assert not is_there(cluster, 1_000_000_002)
    assert not is_there(cluster, dropped)

    ordinary = cluster.connection(superuser=False)
    operator.fails(9, "rights", "inflight", **certificate(ordinary.tls_certificate_file, ordinary.tls_private_key_file))
    stranger = broker_credentials(tmp_path / "stranger").superuser_certificate
    unknown = certificate(str(stranger.certificate), str(stranger.private_key))
    absent = {"BOOKWARDEN_PULSAR__AUTH": "none"}
    for wrong in (unknown, absent):
        operator.fails(9, "pulsar.tls_certificate_file", "inflight", **wrong)
    for refused in (
        replace(own, tls_certificate_file=str(stranger.certificate), tls_private_key_file=str(stranger.private_key)),
        replace(own, auth="none"),
    ):
        client = refused.client(operation_timeout_seconds=3)
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(TOPIC)
        client.close()
    operator.fails(3, "pulsar.tls_certificate_file", "inflight", **certificate("/no/such/file", "/no/such/file"))
    assert operator.telltales(secret_lines(Path(files["tls_private_key_file"]))) == []


def drop_topic(connection: PulsarConnection) -> int:
    """Make a topic, and delete it; return its ledger."""
    with closing(connection.client()) as client:
        client.create_producer(DROPPED).send(b"x")
    with closing(PulsarAdmin(connection)) as admin:
        (ledger,) = admin.get_json(f"{topic_path(DROPPED)}/internalStats")["ledgers"]
        admin.delete(topic_path(DROPPED), params={"force": True})
    return int(ledger["ledgerId"])


def certificate(certificate_file: str | None, private_key_file: str | None) -> dict[str, str]:
    assert certificate_file
    assert private_key_file
    return {
        "BOOKWARDEN_PULSAR__TLS_CERTIFICATE_FILE": certificate_file,
        "BOOKWARDEN_PULSAR__TLS_PRIVATE_KEY_FILE": private_key_file,
    }


def secret_lines(key: Path) -> list[str]:
    return [line for line in key.read_text().splitlines() if "PRIVATE KEY" not in line]
