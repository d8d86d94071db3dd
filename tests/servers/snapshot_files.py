"""Snapshots of a small tree, written to a folder, and what is read of them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from benchmarks.zookeeper_files import node, record, write_log, write_snapshot

from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.snapshot.file import SnapshotFile
from bookwarden.metastore.snapshot.store import SnapshotStore

Tree = dict[str, tuple[bytes, int, int, int]]

LEDGERS = [0, 7, 9_999, 10_000, 2**31 - 2]
VALUES: dict[str, bytes | None] = {
    "": None,
    "/zookeeper": b"",
    "/zookeeper/quota": b"",
    "/managed-ledgers": b"",
    "/managed-ledgers/t": b"",
    "/managed-ledgers/t/n": b"",
    "/managed-ledgers/t/n/persistent": b"",
    "/managed-ledgers/t/n/persistent/orders": b"info",
    "/managed-ledgers/t/n/persistent/orders/grüße": b"cursor",
    "/managed-ledgers/t/n/persistent/orders/話題": None,
    "/managed-ledgers/t/n/persistent/orders-2": b"more",
    "/managed-ledgers/t/n2": b"",
    "/ledgers": b"",
    "/ledgers/LAYOUT": b"2\nx:1",
    "/ledgers/available": b"",
    "/ledgers/available/readonly": b"",
    "/ledgers/L0000000001": b"flat",
    "/ledgers/00": b"",
    "/ledgers/00/0000": b"",
    "/ledgers/00/0000/L0000": b"zero",
    "/ledgers/00/0000/L0007": b"seven",
    "/ledgers/00/0001": b"",
    "/ledgers/00/0001/L0000": b"ten thousand",
    "/ledgers/L0000000002": b"flat too",
    "/ledgers/000": b"",
    "/ledgers/000/0000": b"",
    "/ledgers/000/0000/0214": b"",
    "/ledgers/000/0000/0214/7483": b"",
    "/ledgers/000/0000/0214/7483/L0647": b"long",
    "/loadbalance": b"",
    "/loadbalance/brokers": b"",
    "/schemas": b"",
}


def written(folder: Path, values: dict[str, bytes | None] = VALUES, *, begun: int = 0x10, **options: object) -> Path:
    """Write a snapshot of these nodes that was finished at the transaction at which it was begun."""
    file = folder / f"snapshot.{begun:x}"
    nodes = [
        node(path, value, zxid=3, created_ms=1_000 + number, modified_ms=2_000 + number, version=number % 5)
        for number, (path, value) in enumerate(values.items())
    ]
    arguments = {"last_zxid": begun, "digest_zxid": begun, **options}
    write_snapshot(file, nodes, **arguments)  # type: ignore[arg-type]  # free-form test options
    return file


def everything(store: MetadataStore, path: str = "/") -> Tree:
    """Read all nodes by walking down."""
    (node,) = store.get_many([path])
    assert node is not None
    found = {path: (node.value, node.version, node.created_ms, node.modified_ms)}
    for child in store.list_children(path):
        found |= everything(store, f"{path.rstrip('/')}/{child}")
    return found


def read(file: Path, **options: object) -> Tree:
    with closing(SnapshotStore(SnapshotFile(str(file), **options))) as store:  # type: ignore[arg-type]  # test options
        return everything(store)


def expected(values: dict[str, bytes | None] = VALUES) -> Tree:
    return {
        path or "/": (value or b"", number % 5, 1_000 + number, 2_000 + number)
        for number, (path, value) in enumerate(values.items())
    }


def values_of(tree: Tree) -> dict[str, bytes]:
    return {path: value for path, (value, *_) in tree.items()}


def with_log(folder: Path, *operations: tuple[int, bytes], **options: object) -> Path:
    """Write a snapshot begun at 0x10, and the transactions from 0x11 on."""
    file = written(folder, **options)  # type: ignore[arg-type]  # free-form test options
    records = [record(0x11 + number, operation, time_ms=9_000 + number) for number, operation in enumerate(operations)]
    write_log(folder / "log.11", records)
    return file
