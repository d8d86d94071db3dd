"""A ZooKeeper of its own, for tests that kill, pause or configure it."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from bookwarden_dev.devcluster.processes.process import ServerProcess, ServerSpec, temporary_folder
from bookwarden_dev.devcluster.releases.distribution import ensure_distribution
from bookwarden_dev.devcluster.servers.readiness import zookeeper_serves
from servers.class_archives import quick_zookeeper_options
from servers.waiting import eventually


class LoneZooKeeper(ServerProcess):
    """One ZooKeeper server on a free port, or a given one; its data outlives `kill` and `start`."""

    def __init__(
        self, home: Path, *, settings: str = "", java_options: tuple[str, ...] = (), port: int | None = None
    ) -> None:
        free, self.secure_port = free_ports(2)
        self.port = port or free
        #: Where it writes its log.
        self.log_folder = home / "data" / "version-2"
        config = home / "zoo.cfg"
        config.write_text(
            f"tickTime=500\ndataDir={home / 'data'}\nclientPort={self.port}\nclientPortAddress={LOOPBACK}\n"
            f"admin.enableServer=false\nmaxClientCnxns=0\nforceSync=no\n{settings.format(secure_port=self.secure_port)}",
            encoding="utf-8",
        )
        jars = ensure_distribution() / "lib"
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1"]
        command += quick_zookeeper_options()
        command += [f"-Djava.io.tmpdir={temporary_folder(home, 'zookeeper')}", *java_options, "-cp", f"{jars}/*"]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)]
        super().__init__(
            ServerSpec("zookeeper", lambda: command, home / "log", lambda _start: zookeeper_serves(self.port), home)
        )

    def serve(self) -> None:
        """Return when it serves, whatever a test did to it before."""
        if self.is_running():
            self.resume()
            self.wait_until_ready()
        else:
            self.start()

    def pause(self) -> None:
        """Freeze the process, and return when all its threads have stopped."""
        super().pause()
        eventually(self._is_frozen)

    def end_session(self, session_id: int, password: bytes) -> None:
        """Let the server end a session, as it does with one that was silent for too long."""
        # Its client may take the session back in between, and then it is not ours to close: until the server knows it
        # no more.
        for _ in range(100):
            with socket.create_connection((LOOPBACK, self.port), timeout=30) as connection:
                _send(connection, struct.pack("!iqiqi16sB", 0, 0, 10_000, session_id, 16, password, 0))
                # The answer: its size, version, and the session's timeout, which is 0 for one that ended.
                answer = connection.recv(12, socket.MSG_WAITALL)
                if len(answer) == 12 and struct.unpack("!8xi", answer) == (0,):
                    return
                with contextlib.suppress(ConnectionError):
                    _send(connection, struct.pack("!ii", 1, -11))
                    while connection.recv(4096):
                        pass
        raise AssertionError(f"session {session_id:x} does not end")

    def _is_frozen(self) -> bool:
        stats = [task.read_text() for task in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    @property
    def hosts(self) -> str:
        return f"{LOOPBACK}:{self.port}"


@contextlib.contextmanager
def running_zookeeper(home: Path, *, settings: str = "", java_options: tuple[str, ...] = ()) -> Iterator[LoneZooKeeper]:
    """Run one for the block."""
    server = LoneZooKeeper(home, settings=settings, java_options=java_options)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _send(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(struct.pack("!i", len(frame)) + frame)
