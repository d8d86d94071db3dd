"""Directories of a snapshot that are read as a whole say what their nodes say one by one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from benchmarks.zookeeper_files import create, delete, node, record, set_data, write_log, write_snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.bookkeeper.listing import LedgerListing, ListingPiece
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.snapshot.file import SnapshotFile
from bookwarden.metastore.snapshot.store import SnapshotStore
from bookwarden.pipelines.columns.ledgers import ListedTable, ledger_table
from bookwarden.pipelines.columns.snapshots import ledgers_of_snapshot
from bookwarden.wire.ledger_metadata import encode_ledger_metadata

BEGUN = 0x10


def value(length: int = 77, topic: str = "t/n/persistent/x", ctime_ms: int | None = 5) -> bytes:
    custom = {"application": b"pulsar", "component": b"managed-ledger", "pulsar/managed-ledger": topic.encode()}
    segments = (Segment(0, ("a:1",)),)
    fields = (3, LedgerState.CLOSED, 1, 1, 1, segments, length, 3, "CRC32C", ctime_ms)
    return encode_ledger_metadata(LedgerMetadata(*fields, custom=custom))


def snapshot(folder: Path, leaves: dict[str, bytes | None], chroot: str = "") -> Path:
    """Write a snapshot of these nodes and those above them; the order of siblings is any, as a server writes them."""
    folder.mkdir(exist_ok=True)
    values: dict[str, bytes | None] = {"": b"", f"{chroot}/ledgers": b""}
    for name, leaf in leaves.items():
        path = chroot + name
        for above in [path[:end] for end, sign in enumerate(path) if sign == "/"]:
            values.setdefault(above, b"")
        values[path] = leaf
    order = {path: number for number, path in enumerate(values)}

    def place(path: str) -> list[int]:
        return [order[path[:end]] for end, sign in enumerate(path + "/") if sign == "/"]

    nodes = [
        node(path, values[path], zxid=3, created_ms=1_000 + number, modified_ms=9_000, version=number % 5)
        for number, path in enumerate(sorted(values, key=place))
    ]
    file = folder / f"snapshot.{BEGUN:x}"
    write_snapshot(file, nodes, last_zxid=BEGUN, digest_zxid=BEGUN)
    return file


def read(file: Path, chroot: str = "", root: str = "/ledgers") -> dict[ListingPiece, ListedTable | None]:
    """Read each piece; what is read as a whole must be what is read node by node."""
    with closing(SnapshotStore(SnapshotFile(str(file), chroot))) as store:
        listing = LedgerListing(store, root)
        found = {piece: ledgers_of_snapshot(store, listing.root, piece) for piece in listing.pieces()}
        for piece, whole in found.items():
            single = listing.read(piece)
            if whole is not None:
                assert whole.table.equals(ledger_table(single))
                assert (whole.names, whole.digest, list(whole.unparsable)) == (single.names, single.digest, [])
    return found


def ledgers(ids: Sequence[int], leaf: bytes | None = None) -> dict[str, bytes | None]:
    return {ledger_path("/ledgers", ledger_id): value(ledger_id) if leaf is None else leaf for ledger_id in ids}


@pytest.mark.parametrize("chroot", ["", "/pulsar/grün"])
def test_directories_of_ledgers_are_read_as_a_whole(tmp_path: Path, chroot: str) -> None:
    ids = [10_007, 3, 9_999, 0, 19_999, 2**31 - 2]
    (first, second) = read(snapshot(tmp_path, ledgers(ids), chroot), chroot).values()
    assert first is not None
    assert second is not None
    assert first.table.column("ledger_id").to_pylist() == [0, 3, 9_999, 10_007, 19_999]
    assert first.table.column("length").to_pylist() == [0, 3, 9_999, 10_007, 19_999]
    assert first.table.column("path")[1].as_py() == "/ledgers/00/0000/L0003"
    assert second.table.column("ledger_id").to_pylist() == [2**31 - 2]


def test_ledgers_that_are_unusual_are_told_as_ever(tmp_path: Path) -> None:
    odd = {3: b"garbage", 4: b"", 5: value(topic="t/n/persistent/ü"), 6: value(ctime_ms=None), 7: value(2**62)}
    leaves: dict[str, bytes | None] = {ledger_path("/ledgers", ledger_id): leaf for ledger_id, leaf in odd.items()}
    leaves |= {"/ledgers/00/0000/L0008": None, **ledgers([1, 9])}
    (found,) = read(snapshot(tmp_path, leaves)).values()
    assert found is not None
    problems = [problem is not None for problem in found.table.column("problem").to_pylist()]
    assert problems == [False, True, True, False, False, False, True, False]


@pytest.mark.parametrize(
    "name",
    [
        *("L00030", "L003", "l0003", "L00x3", "L\u0660\u0661\u0662", "x", "L0003/below"),
        *("00003", "L0003\u00e9"),
    ],
)
def test_a_directory_with_anything_else_is_read_node_by_node(tmp_path: Path, name: str) -> None:
    leaves = {**ledgers([1, 2, 4]), f"/ledgers/00/0000/{name}": value()}
    assert list(read(snapshot(tmp_path, leaves)).values()) == [None]


def test_ids_beyond_the_largest_and_other_layouts_are_read_node_by_node(tmp_path: Path) -> None:
    names = ["L0000000001", "000/0000/0000/0000/L0003", "922/3372/0368/5477/L5808"]
    found = read(snapshot(tmp_path, {f"/ledgers/{name}": value() for name in names}))
    assert set(found.values()) == {None}
    # What is so far below the root that its directory's nodes lie together, but is no directory of ledgers.
    flat = snapshot(tmp_path / "flat", {"/a/b/ledgers/L0000000001": value(), "/a/b/ledgers/L0000000002": value()})
    assert set(read(flat, root="/a/b/ledgers").values()) == {None}


@pytest.mark.parametrize(
    "operation",
    [
        create("/ledgers/00/0000/L0003", value()),
        delete("/ledgers/00/0000/L0002"),
        set_data("/ledgers/00/0000/L0002", value(5), version=7),
    ],
    ids=["create", "delete", "set"],
)
def test_a_directory_that_transactions_changed_is_read_node_by_node(
    tmp_path: Path, operation: tuple[int, bytes]
) -> None:
    file = snapshot(tmp_path, ledgers([1, 2, 30_000]))
    write_log(tmp_path / f"log.{BEGUN + 1:x}", [record(BEGUN + 1, operation, time_ms=9_000)])
    found = read(file)
    assert list(found.values()) == [None]
    with closing(SnapshotStore(SnapshotFile(str(file)))) as store:
        beside = ledgers_of_snapshot(store, "/ledgers", ListingPiece(("/ledgers/00/0003",)))
    assert beside is not None
    assert beside.table.column("ledger_id").to_pylist() == [30_000]


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(
        st.sampled_from(["L0000", "L0001", "L9999", "L1", "K0001", "L00001", "L00\u00e9"]), min_size=1, unique=True
    ),
    sizes=st.lists(st.integers(0, 300), min_size=7, max_size=7),
)
def test_any_names_and_sizes_are_read_alike(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], sizes: list[int]
) -> None:
    leaves = {f"/ledgers/00/0000/{name}": bytes(size) for name, size in zip(names, sizes, strict=False)}
    (found,) = read(snapshot(tmp_path_factory.mktemp("zk"), leaves)).values()
    assert (found is not None) == all(name in ("L0000", "L0001", "L9999") for name in names)
