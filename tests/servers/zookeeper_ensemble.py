"""Three ZooKeepers that are one store, and an observer of them, for tests that kill, pause and part them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from bookwarden_dev.devcluster.servers.readiness import zookeeper_mode
from servers.lone_zookeeper import LoneZooKeeper
from servers.waiting import eventually

_VOTERS = 3
_JAVA_OPTIONS = ("-Xmx144m", "-Dreadonlymode.enabled=true")


class ZooKeeperEnsemble:
    """``voters`` are three servers of which two make a quorum; ``observer`` has no vote and is started by who needs it,
    on a given port if need be.

    A server without a quorum soon answers reads alone, see `parted`. Each server is a `ServerProcess`
    and is killed and started by itself; data outlives that.
    """

    def __init__(self, home: Path, *, observer_port: int | None = None) -> None:
        ports = free_ports(2 * (_VOTERS + 1))
        members = ""
        for number in range(1, _VOTERS + 2):
            kind = "participant" if number <= _VOTERS else "observer"
            members += f"server.{number}={LOOPBACK}:{ports[2 * number - 2]}:{ports[2 * number - 1]}:{kind}\n"
        self.voters = [self._server(home / str(number), number, members) for number in range(1, _VOTERS + 1)]
        self.observer = self._server(home / str(_VOTERS + 1), _VOTERS + 1, members, observer_port)

    def _server(self, home: Path, number: int, members: str, port: int | None = None) -> LoneZooKeeper:
        data = home / "data"
        data.mkdir(parents=True)
        (data / "myid").write_text(f"{number}\n", encoding="ascii")
        role = "peerType=observer\n" if number > _VOTERS else ""
        settings = f"initLimit=40\nsyncLimit=20\n{role}{members}"
        return LoneZooKeeper(home, settings=settings, java_options=_JAVA_OPTIONS, port=port)

    @property
    def hosts(self) -> str:
        """The addresses of the voters."""
        return ",".join(server.hosts for server in self.voters)

    def start(self) -> None:
        """Start the voters that do not run, and return when all of them serve."""
        for server in self.voters:
            if not server.is_running():
                server.start(wait=False)
        for server in self.voters:
            server.wait_until_ready()
        # One that came first may have been ready as a server that answers reads alone.
        eventually(
            lambda: {zookeeper_mode(server.port) for server in self.voters} == {"leader", "follower"}, timeout=120
        )

    def kill(self) -> None:
        """Kill every server that runs."""
        for server in (*self.voters, self.observer):
            server.kill()

    @contextlib.contextmanager
    def parted(self, server: LoneZooKeeper) -> Iterator[None]:
        """Run one server, of which none must run, until it answers reads alone; it is down when the block ends.

        3.9 begins no session then but a local one, so for this time its sessions are.
        """
        config = server.spec.working_folder / "zoo.cfg"
        settings = config.read_text(encoding="utf-8")
        config.write_text(f"{settings}localSessionsEnabled=true\n", encoding="utf-8")
        try:
            server.start()
            eventually(lambda: zookeeper_mode(server.port) == "read-only")
            yield
        finally:
            server.kill()
            config.write_text(settings, encoding="utf-8")

    def leader(self) -> LoneZooKeeper:
        """Find the leader, which there is once `start` returned."""
        return next(server for server in self.voters if zookeeper_mode(server.port) == "leader")

    def followers(self) -> list[LoneZooKeeper]:
        """The two others."""
        leader = self.leader()
        return [server for server in self.voters if server is not leader]
