"""Live references, over one and several metadata roots: a doubt never means that nothing is referenced."""

from __future__ import annotations

import pytest

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.errors import ConfigError, FormatError, LostRaceError, StoreError, StoreUnavailableError
from bookwarden.ledgers.kinds import CursorHolder, Holder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.live_references import LiveReferences, References, UnknownReferences
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.pb import managed_ledger_pb2, schema_locator_pb2

TOPIC = "tenant/ns/persistent/orders"
OLD_TOPIC = "tenant/cluster/ns/persistent/orders"
LEDGERS, CURSOR, SCHEMA = ManagedLedgerHolder(TOPIC), CursorHolder(TOPIC, "my+sub"), SchemaHolder("tenant/ns/orders")


def managed_ledger(*ids: int, offloaded: bool = False) -> bytes:
    message = managed_ledger_pb2.ManagedLedgerInfo()
    for ledger_id in ids:
        info = message.ledgerInfo.add(ledgerId=ledger_id)
        if offloaded:
            info.offloadContext.bookkeeperDeleted = 1
    return message.SerializeToString()


def cursor(ledger_id: int, bucket: int | None = None) -> bytes:
    message = managed_ledger_pb2.ManagedCursorInfo(cursorsLedgerId=ledger_id)
    if bucket is not None:
        message.cursorProperties.add(name="#pulsar.internal.delayed.bucket_1_2", value=str(bucket))
    return message.SerializeToString()


def schema(*ids: int) -> bytes:
    message = schema_locator_pb2.SchemaLocator()
    for version, ledger_id in enumerate(ids):
        entry = message.index.add(version=version, hash=b"h")
        entry.position.ledgerId, entry.position.entryId = ledger_id, 0
    message.info.CopyFrom(message.index[-1])
    return message.SerializeToString()


def metadata_root(nodes: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    for path, value in {"/managed-ledgers": b"", **nodes}.items():
        store.create(path, value, make_parents=True)
    return store


def whole_root() -> MemoryStore:
    return metadata_root(
        {
            f"/managed-ledgers/{TOPIC}": managed_ledger(1, 2),
            f"/managed-ledgers/{TOPIC}/my+sub": cursor(11, bucket=12),
            f"/managed-ledgers/{TOPIC}/idle": cursor(-1),
            f"/managed-ledgers/{OLD_TOPIC}": managed_ledger(5, offloaded=True),
            "/schemas/tenant/ns/orders": schema(21, 22),
        }
    )


def read(holder: Holder, *stores: MemoryStore) -> References:
    return MetadataReferences(stores).read([holder])[holder]


@pytest.mark.parametrize(
    ("holder", "ids"),
    [
        (LEDGERS, {1, 2}),
        (CURSOR, {1, 2, 11, 12}),
        (CursorHolder(TOPIC, "idle"), {1, 2}),
        (ManagedLedgerHolder(OLD_TOPIC), {5}),
        (SCHEMA, {21, 22}),
    ],
    ids=str,
)
def test_each_holder_names_its_ledgers(holder: Holder, ids: set[int]) -> None:
    found = read(holder, whole_root())
    assert isinstance(found, LiveReferences)
    assert (found.ledger_ids, found.exists, found.unnamed_use, found.shadows) == (ids, True, None, ())


@pytest.mark.parametrize(
    ("holder", "ids"),
    [(ManagedLedgerHolder("tenant/ns/persistent/none"), set()), (CursorHolder(TOPIC, "none"), {1, 2})],
    ids=str,
)
def test_a_holder_that_does_not_exist_says_so(holder: Holder, ids: set[int]) -> None:
    assert read(holder, whole_root()) == LiveReferences(frozenset(ids), exists=False)


def test_an_empty_node_is_a_managed_ledger_without_ledgers() -> None:
    root = metadata_root({f"/managed-ledgers/{TOPIC}": b""})
    assert read(LEDGERS, root) == LiveReferences(frozenset(), exists=True, names_nothing=True)


def test_an_emptied_node_is_a_doubt() -> None:
    root = metadata_root({f"/managed-ledgers/{TOPIC}": managed_ledger(3)})
    root.put(f"/managed-ledgers/{TOPIC}", b"", 0)
    found = read(LEDGERS, root)
    assert isinstance(found, UnknownReferences)
    assert not found.elsewhere


def test_all_roots_count() -> None:
    other = metadata_root({f"/managed-ledgers/{TOPIC}": managed_ledger(3)})
    assert read(LEDGERS, whole_root(), other) == LiveReferences(frozenset({1, 2, 3}), exists=True)
    empty = metadata_root({})
    assert read(SCHEMA, empty, whole_root()) == LiveReferences(frozenset({21, 22}), exists=True)


@pytest.mark.parametrize(
    ("holder", "path"),
    [
        (LEDGERS, f"/managed-ledgers/{TOPIC}"),
        (CURSOR, f"/managed-ledgers/{TOPIC}/my+sub"),
        (CURSOR, f"/managed-ledgers/{TOPIC}"),
        (SCHEMA, "/schemas/tenant/ns/orders"),
    ],
)
@pytest.mark.parametrize("raw", [b"\x0a\xff", b"\x47\x78\x00\x00\x00\x02\x08\x01broken"])
def test_a_node_that_cannot_be_read_in_any_root_is_a_doubt(holder: Holder, path: str, raw: bytes) -> None:
    broken = metadata_root({path: raw})
    found = read(holder, whole_root(), broken)
    assert isinstance(found, UnknownReferences)
    assert path in found.reason


def test_a_doubt_about_one_holder_is_none_about_another() -> None:
    root = whole_root()
    root.put(f"/managed-ledgers/{OLD_TOPIC}", b"\x0a\xff", 0)
    hostile = [ManagedLedgerHolder("a//b"), ManagedLedgerHolder("\ud800/n/persistent/t"), SchemaHolder("../x/y")]
    holders: list[Holder] = [LEDGERS, ManagedLedgerHolder(OLD_TOPIC), CursorHolder(TOPIC, ""), *hostile]
    found = MetadataReferences([root]).read(holders)
    assert found[LEDGERS] == LiveReferences(frozenset({1, 2}), exists=True)
    assert all(isinstance(found[holder], UnknownReferences) for holder in holders[1:])


def test_a_node_that_two_holders_take_for_different_things_is_a_doubt_about_both() -> None:
    path = "t/n/persistent/persistent"
    root = metadata_root({f"/managed-ledgers/{path}": managed_ledger(1), f"/managed-ledgers/{path}/s": cursor(11)})
    topic, sub = ManagedLedgerHolder(f"{path}/s"), CursorHolder(path, "s")
    assert read(sub, root) == LiveReferences(frozenset({1, 11}), exists=True)
    for both in ([topic, sub], [sub, topic]):
        found = MetadataReferences([root]).read([*both, ManagedLedgerHolder(path)])
        assert all(isinstance(found[holder], UnknownReferences) for holder in both)
        assert found[ManagedLedgerHolder(path)] == LiveReferences(frozenset({1}), exists=True)


def test_a_root_that_does_not_answer_is_an_error_and_no_absence_of_references() -> None:
    closed = whole_root()
    closed.close()
    with pytest.raises(StoreUnavailableError):
        MetadataReferences([whole_root(), closed]).read([LEDGERS, CURSOR, SCHEMA])


def test_a_store_that_is_no_pulsars_is_an_error_and_no_absence_of_references() -> None:
    with pytest.raises(StoreError, match="no Pulsar's"):
        MetadataReferences([whole_root(), MemoryStore()]).read([LEDGERS])


def test_no_root_at_all_is_refused() -> None:
    with pytest.raises(ConfigError):
        MetadataReferences([])


def test_ledgers_leave_the_list_in_one_update_of_what_was_read() -> None:
    store = whole_root()
    ledgers = ManagedLedgers(store)
    first = ledgers.read(TOPIC)
    assert first is not None
    ledgers.remove_ledgers(first, [1])
    assert read(LEDGERS, store) == LiveReferences(frozenset({2}), exists=True)
    with pytest.raises(LostRaceError):
        ledgers.remove_ledgers(first, [2])
    assert read(LEDGERS, store) == LiveReferences(frozenset({2}), exists=True)


def test_a_topic_is_deleted_cursors_first() -> None:
    store = whole_root()
    ledgers = ManagedLedgers(store)
    topic, cursors, locator = ledgers.read(TOPIC), ledgers.cursors(TOPIC), ledgers.schema("tenant/ns/orders")
    assert topic is not None
    assert locator is not None
    assert {name: found.info.cursors_ledger_id for name, found in cursors.items()} == {"my+sub": 11, "idle": None}
    with pytest.raises(LostRaceError, match="children"):
        ledgers.delete([topic])
    store.put(cursors["idle"].path, cursor(-1), 0)
    with pytest.raises(LostRaceError, match="idle"):
        ledgers.delete([*cursors.values()])
    ledgers.delete([*ledgers.cursors(TOPIC).values(), cursors["my+sub"]])
    ledgers.delete([topic])
    ledgers.delete([locator])
    assert ledgers.read(TOPIC) is None
    assert ledgers.cursors(TOPIC) == {}
    assert ledgers.schema("tenant/ns/orders") is None


def test_a_node_that_cannot_be_read_is_named() -> None:
    store = whole_root()
    store.put(f"/managed-ledgers/{TOPIC}/idle", b"\xff", 0)
    with pytest.raises(FormatError, match=f"{TOPIC}/idle"):
        ManagedLedgers(store).cursors(TOPIC)
