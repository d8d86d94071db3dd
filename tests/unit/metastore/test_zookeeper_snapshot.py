"""A snapshot says what its nodes say, or that it is not whole: never a part of them for all."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path

import cramjam
import pytest
from benchmarks.zookeeper_files import (
    create,
    delete,
    node,
    record,
    set_data,
    write_log,
    write_snapshot,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from bookwarden.clusters.bookkeeper.ledger_paths import LedgerLayout, ledger_path
from bookwarden.clusters.bookkeeper.listing import LedgerListing
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.errors import (
    ConfigError,
    FormatError,
    NotFoundError,
    RefusedError,
    StoreUnavailableError,
)
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.snapshot import file as zookeeper_snapshot
from bookwarden.metastore.snapshot import store as zookeeper_snapshot_store
from bookwarden.metastore.snapshot import walk as zookeeper_snapshot_index
from bookwarden.metastore.snapshot.file import SnapshotFile
from bookwarden.metastore.snapshot.store import SnapshotStore
from bookwarden.metastore.snapshot.walk import read_node, read_values, walk
from bookwarden.metastore.urls import open_store
from bookwarden.metastore.zookeeper.jute import Bytes, is_of_session
from servers.snapshot_files import LEDGERS, VALUES, everything, expected, read, values_of, with_log, written


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SnapshotStore]:
    with closing(SnapshotStore(SnapshotFile(str(written(tmp_path))))) as store:
        yield store


def test_every_node_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read(written(tmp_path)) == expected()


def test_nodes_are_given_in_the_order_asked_and_none_where_there_is_none(store: SnapshotStore) -> None:
    asked = [
        *("/ledgers/00/0000/L0007", "/ledgers/L0000000002", "/none", "/managed-ledgers/t/n/persistent/orders/none"),
        *("/ledgers/L0000000003", "/", "/ledgers/00/0000/L0007", "/ledgers/L0000000001", "/managed-ledgers/t/n2/x"),
    ]
    found = [node and node.value for node in store.get_many(asked)]
    assert found == [b"seven", b"flat too", None, None, None, b"", b"seven", b"flat", None]
    assert store.get_many([]) == []


encoded_nodes = st.lists(
    st.builds(
        lambda value, created_ms, version, owner: node(
            "/x", value, created_ms=created_ms, version=version, owner=owner
        ),
        *(st.none() | st.binary(max_size=5), st.integers(0, 2**40), st.integers(-1, 2**31 - 1)),
        st.sampled_from([0, -(2**63), -(2**56) + 1000, 0x100123456789ABC, -(2**57)]),
    )
)


@given(encoded_nodes)
def test_many_nodes_are_read_as_each_is_by_itself(encoded: list[bytes]) -> None:
    # A value stands behind the path, and that behind its length.
    ends = accumulate(map(len, encoded))
    places = [end - len(one) + 6 for end, one in zip(ends, encoded, strict=True)]
    data, found = b"".join(encoded), [read_node(one, 6) for one in encoded]
    sessions = [one.owner if is_of_session(one.owner) else None for one in found]
    expected = [
        Versioned(*one[:4], ephemeral=session is not None, session=session)
        for one, session in zip(found, sessions, strict=True)
    ]
    assert read_values(data, [None, *places]) == [None, *expected]


@pytest.mark.parametrize("path", ["/none", "/ledgers/00/0000/L0001", "/managed-ledgers/t/n2/x", "/ledgers/99/0000"])
def test_children_of_what_is_not_there_are_not_found(store: SnapshotStore, path: str) -> None:
    with pytest.raises(NotFoundError, match=path):
        store.list_children(path)


def test_what_is_no_path_is_refused(store: SnapshotStore) -> None:
    with pytest.raises(FormatError, match="no path"):
        store.get_many(["/ledgers", "ledgers"])
    with pytest.raises(FormatError, match="no path"):
        store.list_children("/a/../b")


def test_nodes_that_end_with_a_session_are_told_from_others(tmp_path: Path) -> None:
    # A container's owner is no session.
    owners = {"": 0, "/a": 0, "/a/broker": 0x1000, "/b": -(2**63)}
    file = tmp_path / "snapshot.10"
    write_snapshot(file, [node(path, owner=owner) for path, owner in owners.items()], last_zxid=0x10, digest_zxid=0x10)
    write_log(tmp_path / "log.11", [record(0x11, create("/b/new", b"", ephemeral=True), time_ms=9)])
    with closing(SnapshotStore(SnapshotFile(str(file)))) as store:
        found = store.get_many(["/a", "/a/broker", "/b", "/b/new"])
        assert store.parents_among(["/a", "/a/broker", "/b"]) == {"/a", "/b"}
    assert [one and one.ephemeral for one in found] == [False, True, False, True]


def test_nothing_is_written_or_watched(store: SnapshotStore) -> None:
    attempts = [
        lambda: store.put("/ledgers", b"", 0),
        lambda: store.create("/new", b""),
        lambda: store.delete_many([("/schemas", 0)]),
        lambda: store.watch("/schemas", lambda _: None),
        lambda: store.ephemeral_sequential("/schemas/x", b""),
    ]
    for attempt in attempts:
        with pytest.raises(RefusedError, match="snapshot"):
            attempt()
    store.sync()


def test_a_closed_store_says_so(store: SnapshotStore) -> None:
    store.sync()
    store.close()
    with pytest.raises(StoreUnavailableError):
        store.get("/ledgers")


def test_the_index_tells_how_old_the_snapshot_is(store: SnapshotStore) -> None:
    index = store.index
    assert (index.zxid, index.fuzzy, index.nodes) == (0x10, None, len(VALUES))
    assert index.latest_ms == 2_000 + len(VALUES) - 1


@pytest.mark.parametrize("layout", list(LedgerLayout), ids=lambda layout: layout.value)
def test_ledgers_of_each_layout_are_listed(tmp_path: Path, layout: LedgerLayout) -> None:
    values: dict[str, bytes | None] = {"": b"", "/ledgers": b""}
    for ledger_id in LEDGERS:
        path = ledger_path("/ledgers", ledger_id, layout)
        for above in [path[:end] for end, sign in enumerate(path) if sign == "/" and end]:
            values.setdefault(above, b"")
        values[path] = b"%d" % ledger_id
    # Nodes below another follow it, as a server writes them; the order of siblings is any.
    ordered = dict(sorted(values.items(), key=lambda entry: entry[0].split("/")))
    file = written(tmp_path, ordered)
    with closing(SnapshotStore(SnapshotFile(str(file)))) as store:
        listing = LedgerListing(store)
        found = {id_: path for piece in listing.pieces() for id_, path in zip(*listing.read(piece)[:2], strict=True)}
    assert found == {ledger_id: ledger_path("/ledgers", ledger_id, layout) for ledger_id in LEDGERS}


def test_a_scan_of_recorded_nodes_finds_in_a_snapshot_what_it_finds_in_a_store(tmp_path: Path) -> None:
    samples = json.loads((Path(__file__).parents[2] / "data/pulsar_4_0_8_nodes.json").read_text())["samples"]
    recorded = {path: base64.b64decode(value) for sample in samples for path, value in sample["nodes"].items()}
    memory = MemoryStore()
    for path, value in recorded.items():
        above = memory.get(path)
        if above is None:
            memory.create(path, value, make_parents=True)
        else:
            memory.put(path, value, above.version)
    values: dict[str, bytes | None] = {
        "" if path == "/" else path: node for path, node in values_of(everything(memory)).items()
    }
    file = written(tmp_path, dict(sorted(values.items(), key=lambda entry: entry[0].split("/"))))

    def found(store: MetadataStore) -> tuple[object, ...]:
        references, ledgers = ReferencePieces({"root": store}), LedgerListing(store)
        rows = [references.read(piece) for piece in references.pieces()]
        listed = [ledgers.read(piece) for piece in ledgers.pieces()]
        return rows, [(piece.ids, piece.paths, [node.value for node in piece.nodes]) for piece in listed]

    with closing(SnapshotStore(SnapshotFile(str(file)))) as store:
        (references, ledgers) = found(store)
    assert (references, ledgers) == found(memory)
    assert references
    assert ledgers


def test_a_chroot_hides_all_beside_it(tmp_path: Path) -> None:
    outside: dict[str, bytes | None] = {"": b"", "/other": b"", "/other/a": b"", "/other/a/b/c/d": b"", "/pulsar": b"p"}
    del outside["/other/a/b/c/d"]
    below = {f"/pulsar{path}": value for path, value in VALUES.items() if path}
    behind: dict[str, bytes | None] = {"/pulsar-2": b"", "/pulsar-2/ledgers": b"", "/pulsar-2/ledgers/x": b""}
    file = written(tmp_path, {**outside, **below, **behind})
    with closing(open_store(f"zk-snapshot:{file}#/pulsar")) as store:
        found = values_of(everything(store))
    assert found == {path or "/": value or b"" for path, value in VALUES.items()} | {"/": b"p"}


def test_a_chroot_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        closing(open_store(f"zk-snapshot:{written(tmp_path)}#/pulsar")) as store,
        pytest.raises(ConfigError, match="/pulsar"),
    ):
        store.sync()


@pytest.mark.parametrize(
    "url", ["zk-snapshot:", "zk-snapshot:/a?x=1", "zk-snapshot:/a?fuzzy=maybe", "zk-snapshot:/a#chroot"]
)
def test_a_url_that_makes_no_sense_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="zk-snapshot:/path/snapshot"):
        open_store(url)


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    for name in ("snapshot.1", "."):
        with closing(open_store(f"zk-snapshot:{tmp_path / name}")) as store, pytest.raises(NotFoundError):
            store.sync()


def test_logs_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    file = written(tmp_path)
    with (
        closing(open_store(f"zk-snapshot:{file}?logs=/no/folder")) as store,
        pytest.raises(NotFoundError, match="/no/"),
    ):
        store.sync()
    (tmp_path / "log.11").mkdir()
    with pytest.raises(NotFoundError, match=r"log\.11"):
        read(file)


def test_what_was_found_is_kept_for_other_processes_as_long_as_the_files_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_snapshot_index, "_SETTLED_SECONDS", 0.0)
    work = str(tmp_path / "work")
    file = with_log(tmp_path, create("/new", b"\xff"), set_data("/schemas", b"s", 1), delete("/ledgers/00/0000/L0007"))
    found = read(file, work_folder=work)
    passes = []
    monkeypatch.setattr(zookeeper_snapshot, "walk", lambda *arguments: passes.append(walk(*arguments)) or passes[-1])
    assert read(file, work_folder=work) == found
    assert not passes
    assert set(read(file, chroot="/ledgers", ledgers_root="", work_folder=work)) < {"/", *(p[8:] for p in found)}
    assert len(passes) == 1
    write_log(tmp_path / "log.14", [record(0x14, delete("/new"))])
    assert set(found) - set(read(file, work_folder=work)) == {"/new"}
    assert len(passes) == 2
    for kept in (tmp_path / "work").iterdir():
        kept.write_bytes(kept.read_bytes()[:-9])
    assert set(found) - set(read(file, work_folder=work)) == {"/new"}
    assert len(passes) == 3
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    with pytest.raises(FormatError):
        read(file, work_folder=work)


def test_files_that_change_now_are_read_anew(tmp_path: Path) -> None:
    file, work = written(tmp_path), tmp_path / "work"
    assert read(file, work_folder=str(work)) == expected()
    assert list(work.iterdir()) == []


def test_few_paths_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_snapshot_store, "_REMEMBERED_PATHS", 1)
    assert read(written(tmp_path)) == expected()


def test_what_is_below_the_largest_node_is_read_once_whatever_is_read_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = {name: [f"/managed-ledgers/t/{name}/persistent/{number}" for number in range(20)] for name in "abc"}
    topics["large"] = [f"/managed-ledgers/t/large/persistent/{number}" for number in range(100)]
    named = [path for paths in topics.values() for path in paths]
    above = {path[:end] for path in named for end, letter in enumerate(path) if letter == "/"}
    file = tmp_path / "snapshot.10"
    write_snapshot(file, map(node, sorted({*named, *above})), last_zxid=0x10, digest_zxid=0x10)
    # Two of the small ones.
    monkeypatch.setattr(zookeeper_snapshot_store, "_REMEMBERED_PATHS", 45)
    reads: list[str] = []

    def paths_between(data: Bytes, start: int, end: int) -> Iterator[tuple[str, int]]:
        found = list(zookeeper_snapshot_index.paths_between(data, start, end))
        reads.append(found[-1][0].split("/")[3])
        return iter(found)

    monkeypatch.setattr(zookeeper_snapshot_store, "paths_between", paths_between)
    with closing(SnapshotStore(SnapshotFile(str(file)))) as store:
        for name in ("a", "large", "b", "a", "c", "large", "b", "a"):
            assert all(store.get_many(topics[name]))
    assert reads == ["a", "large", "b", "c", "b", "a"]


def test_every_cut_is_seen(tmp_path: Path) -> None:
    whole = written(tmp_path).read_bytes()
    file = tmp_path / "cut/snapshot.10"
    file.parent.mkdir()
    # Of the two ends that later versions append, one is enough; without both it does not say when it was finished.
    without_last, without_both = len(whole) - 21, len(whole) - 21 - 33
    for size in set(range(len(whole))) - {without_last, without_both}:
        file.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"snapshot\.10 is damaged or cut off: at byte [\d,]+ .*copy it again"):
            read(file, allow_fuzzy=True)
    file.write_bytes(whole[:without_last])
    assert read(file) == expected()
    file.write_bytes(whole[:without_both])
    with pytest.raises(RefusedError, match="does not say"):
        read(file)
    assert read(file, allow_fuzzy=True) == expected()


def test_every_flipped_bit_is_seen(tmp_path: Path) -> None:
    whole = written(tmp_path).read_bytes()
    file = tmp_path / "flipped/snapshot.10"
    file.parent.mkdir()
    for place in range(len(whole)):
        for bit in (1, 128):
            damaged = bytearray(whole)
            damaged[place] ^= bit
            file.write_bytes(damaged)
            with pytest.raises(
                FormatError, match=r"snapshot\.10 is damaged or cut off: at byte [\d,]+ .*copy it again"
            ):
                read(file, allow_fuzzy=True)


def test_bytes_behind_the_end_are_seen(tmp_path: Path) -> None:
    file = written(tmp_path)
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(FormatError):
        read(file)


@pytest.mark.parametrize(
    "paths",
    [
        *([], ["/a"], ["", "/a", "/a"], ["", "/a/b"], ["", "a"], ["", "/a/b/c/d"]),
        *(["", "/a", "/a/b", "/a/b/c", "/a/b/c/d/e"], ["", "/a", "/a/b", "/a/b/c", "/x/b/c/d"]),
    ],
    ids=str,
)
def test_nodes_that_no_tree_has_are_seen(tmp_path: Path, paths: Sequence[str]) -> None:
    write_snapshot(tmp_path / "snapshot.10", [node(path) for path in paths], last_zxid=0x10)
    with pytest.raises(FormatError):
        read(tmp_path / "snapshot.10")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.sampled_from([b"", b"ZKSN\0\0\0\2" + bytes(8), b"ZKSN\0\0\0\2" + bytes(16)]))
def test_arbitrary_bytes_are_a_format_error(tmp_path_factory: pytest.TempPathFactory, data: bytes, head: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "snapshot.1"
    file.write_bytes(head + data)
    with pytest.raises(FormatError):
        read(file, allow_fuzzy=True)


def snappy(data: bytes, block: int = 1_000) -> bytes:
    head = b"\x82SNAPPY\0" + bytes([0, 0, 0, 1, 0, 0, 0, 1])
    blocks = [bytes(cramjam.snappy.compress_raw(data[at : at + block])) for at in range(0, len(data), block)]
    encoded = [len(block).to_bytes(4, "big") + block for block in blocks]
    # Streams may follow each other.
    return head + encoded[0] + head + b"".join(encoded[1:])


@pytest.mark.parametrize("suffix", ["gz", "snappy"])
def test_a_compressed_snapshot_is_unpacked_once_and_checked(tmp_path: Path, suffix: str) -> None:
    plain = written(tmp_path)
    packed = {"gz": gzip.compress, "snappy": snappy}[suffix](plain.read_bytes())
    file, work = tmp_path / f"snapshot.10.{suffix}", tmp_path / "work"
    file.write_bytes(packed)
    assert read(file, work_folder=str(work)) == expected()
    assert read(file, work_folder=str(work)) == expected()
    (unpacked,) = work.iterdir()
    assert unpacked.read_bytes() == plain.read_bytes()
    for size in range(len(packed)):
        file.write_bytes(packed[:size])
        with pytest.raises(FormatError, match="damaged or cut off"):
            read(file, work_folder=str(tmp_path / "cut"))
