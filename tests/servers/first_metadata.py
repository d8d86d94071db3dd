"""The first metadata of a cluster without the Java program that writes it: recorded once, then written again.

Each cluster that is set up alike gets the same nodes, but for addresses and the instance id. What a program wrote into
an empty ZooKeeper is kept beside the releases; clusters with users or TLS, and those in Oxia, still run the program.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

from kazoo.client import KazooClient

from bookwarden_dev.devcluster.processes.process import ServerProcess
from bookwarden_dev.devcluster.releases.cache import ensure_entry
from bookwarden_dev.devcluster.servers.readiness import PatientStart

_FORMAT: Final = 2
_NODES: Final = "nodes.json"
_ADDRESS: Final = re.compile(rb"127\.0\.0\.1:(\d{5})")
_INSTANCE_ID: Final = "/INSTANCEID"


class QuickStart(PatientStart):
    """Starts servers as `PatientStart` does, and writes what a program for first metadata would."""

    def run(self, program: ServerProcess, seconds: float) -> None:
        if program.name not in ("metadata-setup", "initnewcluster"):
            super().run(program, seconds)
            return
        asked = _Asked(program.spec.command())
        if asked.zookeeper is None:
            super().run(program, seconds)
            return
        with _client(asked.zookeeper) as client:
            before = dict(_nodes(client))

            def record(folder: Path) -> Path:
                super(QuickStart, self).run(program, seconds)
                # A bookie of another cluster there may run, and add to that cluster's nodes.
                made = {path: value for path, value in _nodes(client, asked.root) if path not in before}
                entry = folder / "nodes"
                entry.mkdir()
                asked.write(entry / _NODES, made)
                return entry

            entry = ensure_entry(f"first-metadata-{asked.identity}", record)
            # Nothing is missing where it was recorded just now, nor where the cluster was set up before.
            for path, value in asked.read(entry / _NODES).items():
                if client.exists(path) is None:
                    client.create(path, value, makepath=True)


class _Asked:
    """A command for first metadata, with the addresses that the nodes will have."""

    def __init__(self, command: Sequence[str]) -> None:
        begin = next(number for number, word in enumerate(command) if word.startswith("org.apache."))
        words = list(command[begin:])
        if "-conf" in words:
            settings = Path(words.pop(words.index("-conf") + 1)).read_text(encoding="utf-8")
            words += [line for line in settings.splitlines() if line.startswith("metadataServiceUri=")]
        said = "\0".join(words).encode()
        self._addresses = list(dict.fromkeys(_ADDRESS.findall(said)))
        release = next(word for word in command if word.endswith("/lib/*") or "/lib/*:" in word)
        text = self._without_addresses(said) + release.encode()
        self.identity = hashlib.sha256(b"%d %s" % (_FORMAT, text)).hexdigest()[:12]
        secured = any("java.security.auth.login" in word or "zookeeper.client.secure" in word for word in command)
        of_zookeeper = re.search(rb"(?:zk:|zk\+hierarchical://)(127\.0\.0\.1:\d+)", said)
        #: The address of its ZooKeeper; None where the program itself has to run.
        self.zookeeper = of_zookeeper[1].decode() if of_zookeeper and not secured else None
        of_bookies = re.search(rb"metadataServiceUri=zk\+hierarchical://[^/]+(/[^\s\0]+)", said)
        #: The node below which all of the nodes are.
        self.root = of_bookies[1].decode() if of_bookies else "/"

    def write(self, file: Path, nodes: dict[str, bytes]) -> None:
        """Keep nodes, without the addresses."""
        kept = {path: base64.b64encode(self._without_addresses(value)).decode() for path, value in nodes.items()}
        file.write_text(json.dumps(kept, indent=1), encoding="utf-8")

    def read(self, file: Path) -> dict[str, bytes]:
        """Return the nodes that were kept, with these addresses, and with a new instance id."""
        kept = json.loads(file.read_text(encoding="utf-8"))
        nodes = {path: self._with_addresses(base64.b64decode(value)) for path, value in sorted(kept.items())}
        return {path: str(uuid4()).encode() if path.endswith(_INSTANCE_ID) else value for path, value in nodes.items()}

    def _without_addresses(self, value: bytes) -> bytes:
        # As long as what they stand for: some values count their bytes.
        for number, port in enumerate(self._addresses):
            value = value.replace(b"127.0.0.1:" + port, b"127.0.0.1:#%04d" % number)
        return value

    def _with_addresses(self, value: bytes) -> bytes:
        for number, port in enumerate(self._addresses):
            value = value.replace(b"127.0.0.1:#%04d" % number, b"127.0.0.1:" + port)
        return value


@contextlib.contextmanager
def _client(address: str) -> Iterator[KazooClient]:
    client = KazooClient(address)
    client.start()
    try:
        yield client
    finally:
        # It refuses to be closed before.
        client.stop()
        client.close()


def _nodes(client: KazooClient, root: str = "/") -> Iterator[tuple[str, bytes]]:
    """Yield each node from this one on and its value, parents first."""
    waiting = [root]
    while waiting:
        path = waiting.pop()
        if path != "/":
            yield path, client.get(path)[0] or b""
        waiting.extend(f"{path.rstrip('/')}/{name}" for name in client.get_children(path) if name != "zookeeper")
