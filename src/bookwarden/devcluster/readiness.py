"""How each server of the development cluster shows that it serves."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator

import kazoo.exceptions
import urllib3
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import make_acl, make_digest_acl

from bookwarden.devcluster.ports import LOOPBACK
from bookwarden.errors import ServerError

_PROBE_SECONDS = 2.0


def zookeeper_serves(port: int) -> bool:
    """Say whether a ZooKeeper serves requests: its `srvr` command names a mode only then."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=_PROBE_SECONDS) as connection:
            connection.settimeout(_PROBE_SECONDS)
            connection.sendall(b"srvr")
            answer = b""
            while block := connection.recv(4096):
                answer += block
    except OSError:
        return False
    return b"Mode: " in answer


def bookie_is_registered(zookeeper_port: int, bookie_port: int, started_at: float) -> bool:
    """Say whether the bookie that was started then is among the available ones.

    It listens before it registers. The registration of a bookie that was killed is older than ``started_at``.
    """
    if not zookeeper_serves(zookeeper_port):
        return False
    try:
        with _zookeeper_client(zookeeper_port) as client:
            stat = client.exists(_registration(bookie_port))
    except (kazoo.exceptions.KazooException, KazooTimeoutError):
        return False
    return stat is not None and stat.ctime / 1000 >= started_at


def remove_registration(zookeeper_port: int, bookie_port: int, digest: str | None = None) -> None:
    """Remove what a bookie that no longer runs left; raise ServerError if ZooKeeper does not let us.

    A bookie that was killed stays registered until its session ends, and one that starts meanwhile finds the
    place taken: it logs that it shuts down, and stays, deaf (PulsarRegistrationManager, LockBusyException).
    """
    try:
        with _zookeeper_client(zookeeper_port, digest) as client, contextlib.suppress(kazoo.exceptions.NoNodeError):
            client.delete(_registration(bookie_port))
    except (kazoo.exceptions.KazooException, KazooTimeoutError) as error:
        raise ServerError(f"the bookie cannot start without ZooKeeper: start zookeeper first ({error!r})") from error


@contextlib.contextmanager
def _zookeeper_client(port: int, digest: str | None = None) -> Iterator[KazooClient]:
    login = [("digest", digest)] if digest else None
    client = KazooClient(f"{LOOPBACK}:{port}", timeout=4.0, connection_retry={"max_tries": 0}, auth_data=login)
    try:
        client.start(timeout=_PROBE_SECONDS)
        yield client
    finally:
        client.stop()
        client.close()


def _registration(bookie_port: int) -> str:
    return f"/ledgers/available/{LOOPBACK}:{bookie_port}"


def protect(zookeeper_port: int, digest: str, trees: Iterable[str]) -> None:
    """Give whole trees to the servers and to the digest's user, and shut everybody else out."""
    user, _, password = digest.partition(":")
    allowed = [make_digest_acl(user, password, all=True), make_acl("sasl", "pulsar", all=True)]
    with _zookeeper_client(zookeeper_port, digest) as client:
        waiting = [tree for tree in trees if client.exists(tree)]
        while waiting:
            path = waiting.pop()
            # A node that the servers remove meanwhile needs no protection.
            with contextlib.suppress(kazoo.exceptions.NoNodeError):
                waiting.extend(f"{path}/{child}" for child in client.get_children(path))
                client.set_acls(path, allowed)


def broker_is_ready(http: urllib3.PoolManager, admin_url: str, headers: dict[str, str]) -> bool:
    """Say whether the broker answers its readiness request with success."""
    try:
        answer = http.request(
            "GET", f"{admin_url}/admin/v2/brokers/ready", headers=headers, timeout=_PROBE_SECONDS, retries=False
        )
    except urllib3.exceptions.HTTPError:
        return False
    return answer.status == 200
