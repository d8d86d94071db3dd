"""The transactions after a snapshot began are replayed as the server does it, or told as missing or damaged."""

from __future__ import annotations

import contextlib
from contextlib import closing
from pathlib import Path

import pytest
from benchmarks.zookeeper_files import (
    check,
    close_session,
    create,
    create2,
    create_container,
    create_ttl,
    delete,
    failed,
    multi,
    node,
    open_session,
    record,
    set_acl,
    set_data,
    write_log,
    write_snapshot,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from bookwarden.errors import (
    FormatError,
    RefusedError,
)
from bookwarden.metastore.snapshot.file import SnapshotFile
from bookwarden.metastore.snapshot.store import SnapshotStore
from bookwarden.metastore.urls import open_store
from servers.snapshot_files import expected, read, values_of, with_log, written


def test_transactions_of_each_kind_are_replayed(tmp_path: Path) -> None:
    orders = "/managed-ledgers/t/n/persistent/orders"
    file = with_log(
        tmp_path,
        open_session(),
        create("/ledgers/00/0000/L0008", b"eight"),
        create2("/managed-ledgers/t/n3", b""),
        create("/managed-ledgers/t/n3/persistent", b""),
        create_ttl("/managed-ledgers/t/n3/persistent/new", b"new"),
        create_container("/box", b""),
        set_data(orders, b"changed", 9),
        delete(f"{orders}/grüße"),
        delete("/ledgers/00/0001/L0000"),
        delete("/ledgers/L0000000001"),
        failed(),
        set_acl("/ledgers"),
        multi(set_data("/schemas", b"s", 4), check("/ledgers"), create("/schemas/t", b"x"), delete("/box")),
        multi(failed(), delete("/schemas")),
        set_data("/", b"top", 1),
    )
    tree = read(file)
    gone = {f"{orders}/grüße", "/ledgers/00/0001/L0000", "/ledgers/L0000000001"}
    new = {
        "/": b"top",
        "/ledgers/00/0000/L0008": b"eight",
        "/managed-ledgers/t/n3": b"",
        "/managed-ledgers/t/n3/persistent": b"",
        "/managed-ledgers/t/n3/persistent/new": b"new",
        orders: b"changed",
        "/schemas": b"s",
        "/schemas/t": b"x",
    }
    before = {path: value for path, value in values_of(expected()).items() if path not in gone}
    assert values_of(tree) == before | new
    _, version, created_ms, modified_ms = tree[orders]
    assert (version, modified_ms) == (9, 9_006)
    assert created_ms == expected()[orders][2]
    assert tree["/schemas/t"][1:] == (0, 9_012, 9_012)
    with closing(SnapshotStore(SnapshotFile(str(file)))) as store:
        assert (store.index.zxid, store.index.latest_ms) == (0x1F, 9_014)


def test_a_transaction_that_the_snapshot_has_already_does_no_harm(tmp_path: Path) -> None:
    ledger, gone = "/ledgers/00/0000/L0007", "/ledgers/00/0000/L0009"
    file = with_log(
        tmp_path,
        create(ledger, b"when it was made"),
        set_data(ledger, b"seven", 1),
        set_data(gone, b"x", 1),
        delete(gone),
        create("/schemas/t", b"1"),
        delete("/schemas/t"),
        create("/schemas/t", b"2"),
    )
    tree = read(file)
    found = values_of(tree)
    assert tree[ledger] == (b"seven", 1, expected()[ledger][2], 9_001)
    assert gone not in found
    assert found["/schemas/t"] == b"2"


@pytest.mark.parametrize("end", [close_session(["/loadbalance/brokers/b"]), close_session()], ids=["named", "unnamed"])
def test_the_nodes_of_a_session_end_with_it(tmp_path: Path, end: tuple[int, bytes]) -> None:
    file = tmp_path / "snapshot.10"
    owned = node("/loadbalance/brokers/a", b"", owner=0x1001)
    other = node("/loadbalance/brokers/c", b"", owner=0x1002)
    paths = ["", "/loadbalance", "/loadbalance/brokers"]
    write_snapshot(file, [*map(node, paths), owned, other], last_zxid=0x10)
    write_log(
        tmp_path / "log.11", [record(0x11, create("/loadbalance/brokers/b", b"", ephemeral=True)), record(0x12, end)]
    )
    assert set(read(file)) == {"/", "/loadbalance", "/loadbalance/brokers", "/loadbalance/brokers/c"}


def test_a_snapshot_written_during_changes_needs_the_logs_up_to_its_end(tmp_path: Path) -> None:
    file = written(tmp_path, last_zxid=0x12)
    with pytest.raises(RefusedError, match=r"0x10 to 0x12.*are not there.*log\.\*"):
        read(file)
    write_log(tmp_path / "log.11", [record(0x11, set_data("/schemas", b"a", 1))])
    with pytest.raises(RefusedError, match="end at 0x11"):
        read(file)
    with closing(open_store(f"zk-snapshot:{file}?fuzzy=yes")) as store:
        assert isinstance(store, SnapshotStore)
        assert store.index.fuzzy is not None
    write_log(tmp_path / "log.12", [record(0x12, set_data("/schemas", b"b", 2))])
    assert values_of(read(file))["/schemas"] == b"b"


@pytest.mark.parametrize("young", [node("/a", zxid=0x13), node("/a", children_zxid=0x13)], ids=["itself", "children"])
def test_a_node_younger_than_the_logs_is_seen(tmp_path: Path, young: bytes) -> None:
    file = tmp_path / "snapshot.10"
    write_snapshot(file, [node(""), young], last_zxid=0x12)
    write_log(tmp_path / "log.11", [record(zxid, failed()) for zxid in (0x11, 0x12)])
    with pytest.raises(RefusedError, match="0x10 to 0x13"):
        read(file)


def test_a_renamed_snapshot_is_only_read_as_fuzzy(tmp_path: Path) -> None:
    file = written(tmp_path).rename(tmp_path / "backup")
    with pytest.raises(RefusedError, match="its name"):
        read(file)
    assert read(file, allow_fuzzy=True) == expected()


def test_logs_in_another_folder_are_found(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    write_log(logs / "log.5", [record(zxid, failed()) for zxid in range(5, 0x11)])
    write_log(logs / "log.11", [record(0x11, create("/new", b""))])
    write_log(logs / "log.1", [record(1, create("/old", b""))])
    file = written(tmp_path)
    with closing(open_store(f"zk-snapshot:{file}?logs={logs}")) as store:
        assert "new" in store.list_children("/")
        assert store.get("/old") is None


def test_a_gap_between_logs_is_seen(tmp_path: Path) -> None:
    file = written(tmp_path)
    write_log(tmp_path / "log.11", [record(0x11, failed())])
    write_log(tmp_path / "log.13", [record(0x13, failed())])
    with pytest.raises(FormatError, match=r"log\.13.*0x13 comes where 0x12 is due"):
        read(file)


def test_a_later_epoch_is_left_out(tmp_path: Path) -> None:
    file = written(tmp_path)
    write_log(tmp_path / "log.11", [record(0x11, create("/new", b"")), record(1 << 32 | 1, delete("/schemas"))])
    found = read(file)
    assert "/new" in found
    assert "/schemas" in found


def test_a_half_written_last_transaction_is_left_out_and_any_other_damage_is_seen(tmp_path: Path) -> None:
    records = [
        record(0x11, create("/one", b"")),
        record(0x12, create("/two", b"22")),
        record(0x13, create("/three", b"")),
    ]
    file, log = written(tmp_path), tmp_path / "log.11"
    write_log(log, records, padding=64)
    whole = log.read_bytes()
    states = [{"/one", "/two", "/three"}, {"/one", "/two"}, {"/one"}, set()]
    plain = set(expected())
    assert set(read(file)) - plain == states[0]
    seen = set()
    for size in range(len(whole)):
        log.write_bytes(whole[:size])
        try:
            found = set(read(file)) - plain
        except FormatError:
            continue
        assert found in states
        seen.add(len(found))
    assert seen == {0, 1, 2, 3}
    last = 16 + len(records[0]) + len(records[1])
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        log.write_bytes(damaged)
        try:
            found = set(read(file)) - plain
        except FormatError:
            continue
        # The database's id and what stands behind the last record are nobody's concern; a last record with a larger
        # length looks like one not yet finished.
        assert found == states[0] if place not in range(last + 8, last + 12) else found == states[1], place


def test_damage_in_a_log_that_is_not_the_last_is_seen(tmp_path: Path) -> None:
    file = written(tmp_path)
    write_log(tmp_path / "log.11", [record(0x11, failed())[:-1]])
    write_log(tmp_path / "log.12", [record(0x12, failed())])
    with pytest.raises(FormatError, match=r"log\.11"):
        read(file)


def test_a_log_that_was_begun_before_the_snapshot_is_read_from_there(tmp_path: Path) -> None:
    file = written(tmp_path)
    write_log(tmp_path / "log.f", [record(0xF + number, create(f"/new-{number}", b"")) for number in range(4)])
    assert set(read(file)) - set(expected()) == {"/new-2", "/new-3"}


def test_zeros_between_records_are_seen(tmp_path: Path) -> None:
    file = written(tmp_path)
    write_log(tmp_path / "log.11", [record(0x11, failed()), bytes(64), record(0x12, failed())])
    with pytest.raises(FormatError, match="zeros"):
        read(file)


@pytest.mark.parametrize(
    ("operation", "problem"),
    [
        ((99, delete("/schemas")[1]), "type 99"),
        ((2, delete("/schemas")[1] + b"more"), "16 bytes too many"),
        (multi((2, delete("/schemas")[1] + b"more")), "4 bytes too many"),
    ],
    ids=["type", "behind", "behind a part"],
)
def test_an_unknown_transaction_is_no_guess(tmp_path: Path, operation: tuple[int, bytes], problem: str) -> None:
    file = written(tmp_path)
    write_log(tmp_path / "log.11", [record(0x11, operation)])
    with pytest.raises(FormatError, match=problem):
        read(file)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(-2, 30))
def test_arbitrary_transactions_are_read_or_a_format_error(
    tmp_path_factory: pytest.TempPathFactory, body: bytes, kind: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    write_snapshot(folder / "snapshot.1", [node("")], last_zxid=1)
    write_log(folder / "log.2", [record(2, (kind, body))])
    with contextlib.suppress(FormatError):
        read(folder / "snapshot.1")
