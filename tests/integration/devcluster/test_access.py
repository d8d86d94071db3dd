"""A development cluster with TLS, tokens and protected metadata."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import pulsar
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from servers.pool import Clusters

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

TOPIC = "persistent://public/default/guarded"


def test_tokens_tls_and_digest_are_asked_for_and_accepted(
    clusters: Clusters, make_namespace: Callable[[DevCluster], str]
) -> None:
    cluster = clusters.shared(ClusterOptions(auth="token", zookeeper_digest=True))
    assert cluster.service_url.startswith("pulsar+ssl://")
    assert cluster.admin_url.startswith("https://")
    make_namespace(cluster)
    send(cluster, superuser=True)
    with pytest.raises(pulsar.AuthorizationError):
        send(cluster, superuser=False)
    with pytest.raises(ssl.SSLCertVerificationError):
        ssl.get_server_certificate(("127.0.0.1", cluster.ports.web), ca_certs=ssl.get_default_verify_paths().cafile)
    cluster.protect_metadata()
    with pytest.raises(NoAuthError):
        read_ledgers(cluster, None)
    assert "INSTANCEID" in read_ledgers(cluster, cluster.zookeeper_digest)
    # The servers still work, and come back, inside the protected trees.
    cluster.bookie.kill()
    cluster.bookie.start()
    cluster.broker.restart()
    send(cluster, superuser=True)
    assert_no_secret_is_visible(cluster)


def send(cluster: DevCluster, *, superuser: bool) -> None:
    client = cluster.connection(superuser=superuser).client(operation_timeout_seconds=30)
    try:
        client.create_producer(TOPIC).send(b"x")
    finally:
        client.close()


def read_ledgers(cluster: DevCluster, digest: str | None) -> list[str]:
    login = [("digest", digest)] if digest else None
    client = KazooClient(cluster.store_url.removeprefix("zk:"), auth_data=login)
    client.start()
    try:
        children: list[str] = client.get_children("/ledgers")
        client.get("/ledgers/INSTANCEID")
        return children
    finally:
        client.stop()
        client.close()


def assert_no_secret_is_visible(cluster: DevCluster) -> None:
    assert cluster.zookeeper_digest
    secrets = [cluster.connection().current_token(), cluster.zookeeper_digest.partition(":")[2]]
    logs = [path.read_text(errors="replace") for path in (cluster.home / "logs").iterdir()]
    commands = [" ".join(server.spec.command()) for server in (cluster.zookeeper, cluster.broker)]
    for secret in secrets:
        assert not any(secret in text for text in logs + commands)
