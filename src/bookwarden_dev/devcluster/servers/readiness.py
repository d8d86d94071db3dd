"""Readiness of the development cluster's servers, and requests to ZooKeeper."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator

import kazoo.exceptions
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl

from bookwarden_dev.devcluster.ports import LOOPBACK

_PROBE_SECONDS = 2.0


def zookeeper_serves(port: int) -> bool:
    """Return whether a ZooKeeper serves requests."""
    return zookeeper_mode(port) is not None


def zookeeper_mode(port: int) -> str | None:
    """Return the mode of a ZooKeeper, such as leader or standalone: its `srvr` command has it only while it serves."""
    try:
        answer = zookeeper_says(port, "srvr")
    except OSError:
        return None
    _, named, rest = answer.partition("Mode: ")
    return rest.partition("\n")[0] if named else None


def zookeeper_says(port: int, word: str) -> str:
    """Return the answer of a ZooKeeper to a word of four letters; raise OSError if it does not answer."""
    with socket.create_connection((LOOPBACK, port), timeout=_PROBE_SECONDS) as connection:
        connection.settimeout(_PROBE_SECONDS)
        connection.sendall(word.encode())
        answer = b""
        while block := connection.recv(4096):
            answer += block
    return answer.decode()


def listens(port: int) -> bool:
    """Return whether anything takes connections on a port of 127.0.0.1."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=_PROBE_SECONDS):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def zookeeper_client(port: int, digest: str | None = None) -> Iterator[KazooClient]:
    """Yield a client that does not wait for an absent ZooKeeper."""
    login = [("digest", digest)] if digest else None
    client = KazooClient(f"{LOOPBACK}:{port}", timeout=4.0, connection_retry={"max_tries": 0}, auth_data=login)
    try:
        client.start(timeout=_PROBE_SECONDS)
        yield client
    finally:
        # kazoo has no socket to write to yet where a signal interrupts its start.
        with contextlib.suppress(AttributeError):
            client.stop()
        client.close()


def protect(zookeeper_port: int, digest: str, trees: Iterable[str]) -> None:
    """Restrict whole trees to the servers and the digest's user."""
    user, _, password = digest.partition(":")
    allowed = [make_digest_acl(user, password, all=True), make_acl("sasl", "pulsar", all=True)]
    with zookeeper_client(zookeeper_port, digest) as client:
        waiting = [tree for tree in trees if client.exists(tree)]
        while waiting:
            path = waiting.pop()
            # A node that the servers have removed meanwhile needs no protection.
            with contextlib.suppress(kazoo.exceptions.NoNodeError):
                waiting.extend(f"{path}/{child}" for child in client.get_children(path))
                client.set_acls(path, allowed)
