"""What a real ZooKeeper writes into its data folder says the same, node by node, as the server itself."""

from __future__ import annotations

import contextlib
import logging
import threading
from contextlib import closing
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from bookwarden.errors import FormatError
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.snapshot.file import SnapshotFile
from bookwarden.metastore.snapshot.store import SnapshotStore
from bookwarden.metastore.zookeeper.session import ZooKeeperConnection
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from servers.lone_zookeeper import LoneZooKeeper
from servers.waiting import eventually

WRITERS, ROUNDS = 4, 60


def everything(store: MetadataStore) -> dict[str, Versioned]:
    """Read all nodes by walking down, level by level."""
    found: dict[str, Versioned] = {}
    level = ["/"]
    while level:
        for path, node in zip(level, store.get_many(level), strict=True):
            assert node is not None, path
            # How many children there are is told by some stores only.
            found[path] = node._replace(children=None)
        level = [f"{path.rstrip('/')}/{child}" for path in level for child in store.list_children(path)]
    return found


def write(hosts: str, writer: int) -> None:
    """Make changes of every kind, some of which fail, in a session that ends, and in one that does not."""
    client, passing = KazooClient(hosts, timeout=30), KazooClient(hosts, timeout=30)
    root = f"/ledgers/0{writer}"
    try:
        client.start()
        client.ensure_path(f"{root}/0000")
        client.ensure_path(f"/managed-ledgers/t{writer}/n/persistent")
        for number in range(ROUNDS):
            ledger, topic = f"{root}/0000/L{number:04d}", f"/managed-ledgers/t{writer}/n/persistent/thé-{number}"
            client.create(ledger, b"ledger %d" % number)
            client.create(topic, b"x" * number, include_data=True)
            client.set(topic, b"y" * number)
            with contextlib.suppress(KazooException):
                client.create(ledger, b"again")
            both = client.transaction()
            both.create(f"{topic}/cursor", b"at %d" % number)
            both.set_data(ledger, b"ledger %d, closed" % number)
            assert not any(isinstance(result, Exception) for result in both.commit())
            neither = client.transaction()
            neither.create(f"{topic}/never", b"")
            neither.delete(f"{topic}/none")
            neither.commit()
            if number % 3 == 0:
                client.delete(ledger)
            if number % 7 == 0:
                client.delete(topic, recursive=True)
            if number % 20 == 0:
                passing.start()
                passing.create(f"/short-{writer}-{number}", b"", ephemeral=True)
                passing.stop()
        client.create(f"/ledgers/available/{writer}", b"", ephemeral=True, makepath=True)
        client.create(f"{root}/seq-", b"", sequence=True)
    finally:
        passing.close()
    HELD.append(client)


HELD: list[KazooClient] = []


@pytest.mark.parametrize("method", ["", "gz", "snappy"], ids=["plain", "gz", "snappy"])
def test_every_snapshot_with_its_logs_is_what_the_server_says(
    zookeeper_home: Path, tmp_path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "kazoo")
    options = (
        "-Dzookeeper.snapCount=300",
        "-Dzookeeper.preAllocSize=64",
        f"-Dzookeeper.snapshot.compression.method={method}",
    )
    server = LoneZooKeeper(zookeeper_home, java_options=options)
    data = zookeeper_home / "data/version-2"
    work = tmp_path / "work"

    def store_of(file: Path) -> SnapshotStore:
        return SnapshotStore(SnapshotFile(str(file), work_folder=str(work)))

    def are_whole() -> bool:
        for file in data.glob("snapshot.*"):
            with closing(SnapshotStore(SnapshotFile(str(file), allow_fuzzy=True, work_folder=str(work)))) as store:
                try:
                    store.sync()
                except FormatError:
                    return False
        return True

    try:
        server.start()
        writers = [threading.Thread(target=write, args=(server.hosts, number)) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert len(HELD) == WRITERS
        with closing(ZooKeeperStore(ZooKeeperConnection(hosts=server.hosts))) as live:
            live.sync()
            said = everything(live)
        eventually(are_whole)
    finally:
        server.kill()
        for client in HELD:
            client.stop()
            client.close()
        HELD.clear()
    assert sum("/L" in path for path in said) == WRITERS * (ROUNDS - ROUNDS // 3)
    assert sum(path.startswith("/ledgers/available/") for path in said) == WRITERS
    files = sorted(data.glob("snapshot.*"))
    assert len(files) > 2
    for file in files:
        with closing(store_of(file)) as store:
            assert everything(store) == said, file
            assert store.index.fuzzy is None
            assert store.index.latest_ms >= max(node.modified_ms for node in said.values())
