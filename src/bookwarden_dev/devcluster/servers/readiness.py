"""Readiness of the development cluster's servers, their first starts on a busy machine, and requests to ZooKeeper."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import kazoo.exceptions
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl

from bookwarden.errors import ServerError
from bookwarden.processes import ProcessIdentity
from bookwarden_dev.devcluster.ports import LOOPBACK
from bookwarden_dev.devcluster.processes.process import ServerProcess, ServerSpec
from bookwarden_dev.devcluster.releases.cache import Progress

# Logged by programs of Pulsar, ZooKeeper's client and bookies when ZooKeeper did not answer for too long. Neither
# `zookeeperSessionExpiredPolicy`, which a broker logs at each start, nor `SessionExpiredException`, which a client
# names whenever a socket closes. The last one: a broker looked who leads while the node of a killed one went.
_LOST_ZOOKEEPER = re.compile(
    r"ConnectionLoss|SESSIONEXPIRED|[Ss]ession expired|(?:event|Current status): SessionLost|is expired from"
    r"|NoNode for /loadbalance/leader"
)

_ATTEMPTS: Final = 3
_PROBE_SECONDS = 2.0


class PatientStart:
    """Runs and awaits programs that need a ZooKeeper, with a few starts each.

    ``pause`` (seconds) lies between two starts. A server that ends within ``at_once`` (seconds) of two starts in a
    row has another reason than a busy machine.
    """

    def __init__(
        self,
        zookeeper_runs: Callable[[], bool],
        progress: Progress,
        *,
        pause: float = 2.0,
        at_once: float = 10.0,
    ) -> None:
        self._zookeeper_runs = zookeeper_runs
        self._progress = progress
        self._pause = pause
        self._at_once = at_once

    def run(self, program: ServerProcess, seconds: float) -> None:
        """Run a program that may be run again to its end; all its runs together take at most these seconds.

        Raises the last run's ServerError if none succeeds.
        """
        deadline = time.monotonic() + seconds
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                program.run(max(0.0, deadline - time.monotonic()))
                return
            except ServerError:
                late = time.monotonic() + self._pause >= deadline
                if attempt == _ATTEMPTS or late or not self._zookeeper_runs():
                    raise
            self._say_again(program, attempt)

    def wait_until_ready(self, server: ServerProcess) -> None:
        """Wait until a started server serves; start it again if it ends because it lost its ZooKeeper session.

        Raises ServerError, with its log, if it ends for any other reason, or too often, or is not ready in time.
        """
        ended_at_once = False
        for attempt in range(1, _ATTEMPTS + 1):
            begin = time.monotonic()
            try:
                server.wait_until_ready()
                return
            except ServerError:
                before, ended_at_once = ended_at_once, time.monotonic() - begin < self._at_once
                if attempt == _ATTEMPTS or (before and ended_at_once) or not self._lost_zookeeper(server):
                    raise
            self._say_again(server, attempt)
            server.start(wait=False)

    def _lost_zookeeper(self, server: ServerProcess) -> bool:
        if server.is_running() or not self._zookeeper_runs():
            return False
        return _LOST_ZOOKEEPER.search(server.log_since_start()) is not None

    def _say_again(self, program: ServerProcess, attempt: int) -> None:
        self._progress(f"{program.name} ended too early; starting it again ({attempt + 1} of {_ATTEMPTS})")
        time.sleep(self._pause)


class PatientServer(ServerProcess):
    """A server that each start which waits starts again, where it ended because it lost its ZooKeeper session."""

    def __init__(
        self,
        patient: PatientStart,
        spec: ServerSpec,
        identity: ProcessIdentity | None = None,
        started_at: float = 0.0,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a handle as of a ServerProcess."""
        super().__init__(spec, identity, started_at, on_start)
        self._patient = patient

    def start(self, *, wait: bool = True) -> None:
        """Start it as any other; raise ServerError if that fails."""
        super().start(wait=False)
        if wait:
            self._patient.wait_until_ready(self)


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
