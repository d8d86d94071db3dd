"""A ZooKeeper of its own, for tests that kill, pause or configure it."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

from bookwarden.devcluster.distribution import ensure_distribution
from bookwarden.devcluster.ports import LOOPBACK, free_ports
from bookwarden.devcluster.process import ServerProcess, ServerSpec, temporary_folder
from bookwarden.devcluster.readiness import zookeeper_serves
from servers.waiting import eventually


class LoneZooKeeper(ServerProcess):
    """One ZooKeeper server on a free port; its data outlives `kill` and `start`."""

    def __init__(self, home: Path, *, settings: str = "", java_options: tuple[str, ...] = ()) -> None:
        self.port, self.secure_port = free_ports(2)
        config = home / "zoo.cfg"
        config.write_text(
            f"tickTime=500\ndataDir={home / 'data'}\nclientPort={self.port}\nclientPortAddress={LOOPBACK}\n"
            f"admin.enableServer=false\nmaxClientCnxns=0\n{settings.format(secure_port=self.secure_port)}",
            encoding="utf-8",
        )
        jars = ensure_distribution() / "lib"
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1"]
        command += [f"-Djava.io.tmpdir={temporary_folder(home, 'zookeeper')}", *java_options, "-cp", f"{jars}/*"]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)]
        super().__init__(
            ServerSpec("zookeeper", lambda: command, home / "log", lambda _start: zookeeper_serves(self.port), home)
        )

    def pause(self) -> None:
        """Freeze the process, and return when all its threads have stopped."""
        super().pause()
        eventually(self._is_frozen)

    def end_session(self, session_id: int, password: bytes) -> None:
        """Let the server end a session, as it does with one that was silent for too long."""
        with socket.create_connection((LOOPBACK, self.port), timeout=30) as connection:
            connect = struct.pack("!iqiqi16sB", 0, 0, 10_000, session_id, 16, password, 0)
            close = struct.pack("!ii", 1, -11)
            for frame in (connect, close):
                connection.sendall(struct.pack("!i", len(frame)) + frame)
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(4096):
                    pass

    def _is_frozen(self) -> bool:
        stats = [task.read_text() for task in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    @property
    def hosts(self) -> str:
        return f"{LOOPBACK}:{self.port}"
