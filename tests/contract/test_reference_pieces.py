"""References in pieces, on every store: nothing is lost between them, and what cannot be read is a doubt."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import asdict
from uuid import UUID, uuid4

import pytest

from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.clusters.pulsar.metadata.namespaces import known_namespaces, known_tenants
from bookwarden.clusters.pulsar.references import pieces as reference_pieces
from bookwarden.clusters.pulsar.references.pieces import (
    TOPICS,
    PieceOfReferences,
    ReferencePiece,
    ReferencePieces,
    digest_of,
)
from bookwarden.errors import (
    BookieUnavailableError,
    FormatError,
    StoreAccessError,
    StoreError,
    StoreUnavailableError,
    TruncatedListingError,
)
from bookwarden.ledgers.kinds import CompactedHolder, CursorHolder, ManagedLedgerHolder, PlaceKind, SchemaHolder
from bookwarden.ledgers.listing import ListedCopy, ListedReference
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.pb import managed_ledger_pb2
from contract.test_reference_scan import NAMED, NODES, cursor, schema, topic
from servers.population import Population

ROOT = "zk:one"
ORDERS = "/managed-ledgers/t/n/persistent/orders"
FUTURE = 2**60


def memory(_: pytest.FixtureRequest) -> MetadataStore:
    return MemoryStore()


def zookeeper(request: pytest.FixtureRequest) -> MetadataStore:
    connect = request.getfixturevalue("connect")
    chroot = f"/t-{uuid4().hex}"
    connect().create(chroot, b"")
    store: MetadataStore = connect(chroot=chroot, batch_size=3)
    return store


FACTORIES: list[Callable[[pytest.FixtureRequest], MetadataStore]] = [memory, zookeeper]


@pytest.fixture(params=FACTORIES, ids=lambda factory: factory.__name__)
def store(request: pytest.FixtureRequest) -> MetadataStore:
    made: MetadataStore = request.param(request)
    return made


class Partial(MetadataStore):
    """A store that drops names from its listings, and refuses some subtrees."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.dropped: set[str] = set()
        self.refused: set[str] = set()
        self.error: Exception = StoreAccessError("no rights")

    def list_children(self, path: str) -> list[str]:
        self._check(path)
        return [name for name in self._store.list_children(path) if f"{path}/{name}" not in self.dropped]

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        for path in paths:
            self._check(path)
        return self._store.get_many(paths)

    def sync(self) -> None:
        self._store.sync()

    def close(self) -> None:
        self._store.close()

    def _check(self, path: str) -> None:
        if any(f"{path}/".startswith(f"{refused}/") for refused in self.refused):
            raise self.error

    def _never(self, *_: object, **__: object) -> None:
        raise AssertionError("a scan changes nothing")

    delete_many = put = create = watch = ephemeral_sequential = _never  # type: ignore[assignment]  # they all raise


class Recorded(DecodedEntries):
    """Last entries that name one compacted ledger each; bookies that are away where there is None."""

    def __init__(self, compacted: int | None) -> None:
        self._compacted = compacted
        self.asked: list[int] = []

    def last_entry(self, ledger_id: int) -> bytes | None:
        self.asked.append(ledger_id)
        if self._compacted is None:
            raise BookieUnavailableError("away")
        entry = managed_ledger_pb2.PositionInfo(ledgerId=1, entryId=2)
        entry.properties.add(name="CompactedTopicLedger", value=self._compacted)
        return bytes(entry.SerializeToString())


def fill(store: MetadataStore, nodes: dict[str, bytes]) -> None:
    for path, value in nodes.items():
        store.create(path, value, make_parents=True)


def read_all(pieces: ReferencePieces) -> list[PieceOfReferences]:
    return [pieces.read(piece) for piece in pieces.pieces()]


def ids_of(pieces: ReferencePieces) -> set[int | None]:
    return {row.ledger_id for found in read_all(pieces) for row in found.rows}


def piece_of(pieces: ReferencePieces, name: str, kind: str = TOPICS) -> ReferencePiece:
    (piece,) = (piece for piece in pieces.pieces() if piece.name == name and piece.kind == kind)
    return piece


def paths_of(found: PieceOfReferences) -> set[str]:
    return {row.path for row in found.rows} | {doubt.path for doubt in found.doubts}


def test_the_pieces_together_have_every_ledger_that_any_node_names(store: MetadataStore) -> None:
    fill(store, NODES)
    pieces = ReferencePieces({ROOT: store}, Recorded(18))
    assert ids_of(pieces) - {None} == NAMED | {18}
    found = {(piece.kind, piece.name) for piece in pieces.pieces()}
    assert {name for kind, name in found if kind == TOPICS} == {
        "t/n/persistent",
        "t/n/persistent/persistent",
        "t/cluster/n/persistent",
        "pulsar/127.0.0.1:8080/persistent",
        "pulsar/system/persistent",
        "v1/c/persistent",
        "v1/c/persistent/persistent",
    }
    assert {name for kind, name in found if kind != TOPICS} == {
        "t/n",
        "/pulsar/functions",
        "/pulsar/packages",
        "/stream/storage",
    }


def test_a_piece_travels_as_json_and_as_a_pickle() -> None:
    piece = ReferencePiece(ROOT, TOPICS, "t/n/persistent", 1, 3)
    assert pickle.loads(pickle.dumps(piece)) == piece
    assert ReferencePiece(**json.loads(json.dumps(asdict(piece)))) == piece


def test_each_topic_of_a_large_namespace_is_in_one_part(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_pieces, "_TOPICS_IN_PIECE", 10)
    monkeypatch.setattr(reference_pieces, "_READ_AT_ONCE", 4)
    fill(store, {f"{ORDERS}-{number}": topic(number) for number in range(35)})
    fill(store, {f"{ORDERS}-{number}/s": cursor(100 + number) for number in range(35)})
    pieces = ReferencePieces({ROOT: store})
    parts = [pieces.read(piece) for piece in pieces.pieces() if piece.kind == TOPICS]
    assert len(parts) == 4
    ids = [row.ledger_id for found in parts for row in found.rows]
    assert sorted(ids, key=str) == sorted([*range(35), *range(100, 135)], key=str)
    assert sum(found.names for found in parts) == 70
    assert all(found.names > 2 for found in parts)


def test_the_rows_say_whose_where_how_large_and_what_bookkeeper_has_no_more(store: MetadataStore) -> None:
    message = managed_ledger_pb2.ManagedLedgerInfo()
    message.ledgerInfo.add(ledgerId=1, size=77)
    message.ledgerInfo.add(ledgerId=2, size=78).offloadContext.bookkeeperDeleted = 1
    fill(store, {ORDERS: message.SerializeToString(), f"{ORDERS}/s": cursor(3), "/schemas/t/n/orders": schema(5)})
    pieces = ReferencePieces({ROOT: store})
    name = "t/n/persistent/orders"
    assert pieces.read(piece_of(pieces, "t/n/persistent")).rows == [
        ListedReference(1, "managed ledger", name, name, ORDERS, ROOT, 77),
        ListedReference(2, "managed ledger", name, name, ORDERS, ROOT, 78, gone=True),
        ListedReference(3, "cursor", f"{name}/s", name, f"{ORDERS}/s", ROOT),
    ]
    assert pieces.read(piece_of(pieces, "t/n", "schemas")).rows == [
        ListedReference(5, "schema", "schema:t/n/orders", None, "/schemas/t/n/orders", ROOT)
    ]


def test_what_exists_and_names_nothing_has_a_row_without_a_ledger(store: MetadataStore) -> None:
    fill(store, {ORDERS: b"", f"{ORDERS}/s": cursor(-1, bucket=7), f"{ORDERS}/t": cursor(-1)})
    fill(store, {"/schemas/t/n/orders": schema(-1), "/pulsar/functions/x/<default>/allocation": b""})
    rows = [row for found in read_all(ReferencePieces({ROOT: store})) for row in found.rows]
    name = "t/n/persistent/orders"
    assert {(row.ledger_id, row.place, row.holder) for row in rows} == {
        (None, "managed ledger", name),
        (None, "cursor", f"{name}/s"),
        (7, "bucket of delayed messages", f"buckets:{name}/s"),
        (None, "cursor", f"{name}/t"),
        (None, "schema", "schema:t/n/orders"),
        (None, "log allocation", "/pulsar/functions/x/<default>"),
    }


def test_segments_of_a_scalable_topic_are_referenced_although_no_mark_can_name_them(store: MetadataStore) -> None:
    # As Pulsar 5 names the node of segment://t/n/orders/0000-ffff-0, with a cursor below it.
    segment = "t/n/segment/orders/0000-ffff-0"
    Population(store).names(ManagedLedgerHolder(segment), [7, 8])
    Population(store).names(CursorHolder(segment, "s"), [9])
    pieces = ReferencePieces({ROOT: store})
    rows = [row for piece in pieces.pieces() for row in pieces.read(piece).rows]
    assert {(row.ledger_id, row.holder) for row in rows} == {(7, segment), (8, segment), (9, f"{segment}/s")}


def test_offloaded_copies_are_listed_with_legacy_segments_finished_or_not(store: MetadataStore) -> None:
    message = managed_ledger_pb2.ManagedLedgerInfo()
    context = message.ledgerInfo.add(ledgerId=1).offloadContext
    context.uidMsb, context.uidLsb, context.driverMetadata.name = 1, 2, "aws_s3"
    context.driverMetadata.properties.add(key="bucket", value="b1")
    message.ledgerInfo.add(ledgerId=2).offloadContext.timestamp = 5
    legacy = message.ledgerInfo.add(ledgerId=3).offloadContext.offloadSegment.add(uidMsb=-1, uidLsb=4, complete=False)
    legacy.driverMetadata.properties.add(key="managedLedgerOffloadDriver", value="S3")
    legacy.driverMetadata.properties.add(key="bucket", value="b2")
    fill(store, {ORDERS: message.SerializeToString()})
    pieces = ReferencePieces({ROOT: store})
    name = "t/n/persistent/orders"
    assert pieces.read(piece_of(pieces, "t/n/persistent")).copies == [
        ListedCopy(UUID(int=(1 << 64) + 2), 1, name, "aws-s3", "b1", ROOT),
        ListedCopy(UUID("ffffffff-ffff-ffff-0000-000000000004"), 3, name, "S3", "b2", ROOT),
    ]


def test_a_root_without_a_topic_names_nothing_and_one_that_is_no_pulsars_is_an_error(store: MetadataStore) -> None:
    pieces = ReferencePieces({ROOT: store})
    with pytest.raises(StoreError, match="no Pulsar's"):
        pieces.pieces()
    store.create("/managed-ledgers", b"")
    assert all(found == ([], [], [], 0, digest_of(())) for found in read_all(pieces))


def test_a_piece_of_another_root_is_refused(store: MetadataStore) -> None:
    with pytest.raises(StoreError, match="zk:two is none of the metadata roots"):
        ReferencePieces({ROOT: store}).read(ReferencePiece("zk:two", TOPICS, "t/n/persistent"))


def test_listing_again_gives_the_same_digest_while_nothing_changed(store: MetadataStore) -> None:
    fill(store, NODES)
    pieces = ReferencePieces({ROOT: store})
    for piece in pieces.pieces():
        found, names = pieces.read(piece), pieces.relist(piece)
        assert (found.digest, found.names, paths_of(found)) == (names.digest, len(names.paths), names.paths)
        assert pieces.read_new(piece, paths_of(found), names, FUTURE) == ([], [], [], 0, digest_of(()))
    assert pieces.pieces(besides=pieces.pieces()) == []


@pytest.mark.parametrize(
    ("name", "kind", "lost"),
    [
        ("t/n/persistent", TOPICS, "/managed-ledgers/t/n/persistent/a+b"),
        ("t/n/persistent", TOPICS, "/managed-ledgers/t/n/persistent/a+b/sub%2F1"),
        ("t/n", "schemas", "/schemas/t/n/a+b"),
        ("/pulsar/functions", "logs", "/pulsar/functions/x/<default>/allocation"),
    ],
)
def test_a_node_that_one_listing_lacks_and_that_was_there_before_tells_a_truncated_listing(
    store: MetadataStore, name: str, kind: str, lost: str
) -> None:
    fill(store, NODES)
    partial = Partial(store)
    pieces = ReferencePieces({ROOT: partial}, Recorded(18))
    piece = piece_of(pieces, name, kind)
    node = store.get(lost)
    assert node is not None
    whole, all_names = pieces.read(piece), pieces.relist(piece)
    partial.dropped.add(lost)
    first, few_names = pieces.read(piece), pieces.relist(piece)
    assert first.digest != all_names.digest
    shown = name.removesuffix("/persistent")
    with pytest.raises(TruncatedListingError, match=f"the first listing of the {kind} of {shown} .* lacks .*"):
        pieces.read_new(piece, paths_of(first), all_names, node.created_ms + 1)
    with pytest.raises(TruncatedListingError, match="the second listing"):
        pieces.read_new(piece, paths_of(whole), few_names, node.created_ms + 1)
    # It is new, not lost, if it came after the scan began.
    late = pieces.read_new(piece, paths_of(first), all_names, node.created_ms)
    assert lost in paths_of(late)
    assert paths_of(late) == paths_of(whole) - paths_of(first)


def test_topics_and_cursors_that_came_between_the_listings_are_read(store: MetadataStore) -> None:
    fill(store, {ORDERS: topic(1), f"{ORDERS}/s": cursor(2)})
    pieces = ReferencePieces({ROOT: store}, Recorded(18))
    piece = piece_of(pieces, "t/n/persistent")
    first = pieces.read(piece)
    fill(store, {f"{ORDERS}/__compaction": cursor(90), f"{ORDERS}-2": topic(4), f"{ORDERS}-2/s": cursor(5)})
    late = pieces.read_new(piece, paths_of(first), pieces.relist(piece), 0)
    assert {row.ledger_id for row in late.rows} == {90, 18, 4, 5}


def test_a_topic_that_was_deleted_between_the_listings_is_no_truncation(store: MetadataStore) -> None:
    fill(store, {ORDERS: topic(1), f"{ORDERS}-2": topic(2)})
    pieces = ReferencePieces({ROOT: store})
    piece = piece_of(pieces, "t/n/persistent")
    first = pieces.read(piece)
    node = store.get(ORDERS)
    assert node is not None
    store.delete_many([(ORDERS, node.version)])
    assert pieces.read_new(piece, paths_of(first), pieces.relist(piece), FUTURE).rows == []


def test_a_namespace_that_came_between_the_passes_is_read_and_one_that_was_not_listed_is_a_truncation(
    store: MetadataStore,
) -> None:
    fill(store, {ORDERS: topic(1)})
    partial = Partial(store)
    pieces = ReferencePieces({ROOT: partial})
    first = pieces.pieces()
    fill(store, {"/managed-ledgers/t/late/persistent/x": topic(2)})
    (late,) = pieces.pieces(besides=first)
    assert late == ReferencePiece(ROOT, TOPICS, "t/late/persistent")
    found = pieces.read_new(late, (), pieces.relist(late), 0)
    assert [row.ledger_id for row in found.rows] == [2]
    with pytest.raises(TruncatedListingError, match="t/late"):
        pieces.read_new(late, (), pieces.relist(late), FUTURE)


@pytest.mark.parametrize(
    ("refused", "holder"),
    [
        ("/managed-ledgers/t/n", ManagedLedgerHolder("t/n/persistent/a+b")),
        ("/managed-ledgers/t/n/persistent", CursorHolder("t/n/persistent/a+b", "sub%2F1")),
        ("/managed-ledgers/t/n/persistent/a+b", CompactedHolder("t/n/persistent/a+b")),
        ("/managed-ledgers/t/cluster/n", ManagedLedgerHolder("t/cluster/n/persistent/old")),
        ("/managed-ledgers/t", ManagedLedgerHolder("t/n/persistent/a+b")),
        ("/schemas/t/n", SchemaHolder("t/n/a+b")),
        ("/schemas/t", SchemaHolder("t/n/a+b")),
    ],
)
def test_a_namespace_that_cannot_be_read_is_a_doubt_about_it_and_about_no_other(
    store: MetadataStore, refused: str, holder: ManagedLedgerHolder
) -> None:
    fill(store, NODES)
    partial = Partial(store)
    partial.refused.add(refused)
    pieces = ReferencePieces({ROOT: partial}, Recorded(18))
    doubts = [doubt for found in read_all(pieces) for doubt in found.doubts if "no rights" in doubt.reason]
    assert [doubt.concerns(holder) for doubt in doubts] == [True]
    others = [ManagedLedgerHolder("pulsar/system/persistent/x"), CursorHolder("v1/n/persistent/x", "s")]
    assert not any(doubt.concerns(other) for doubt in doubts for other in [*others, SchemaHolder("t2/n/x")])
    # What could be read is there, and names of the refused part are no new ones when they may be read again.
    assert 34 in ids_of(pieces)
    first = pieces.pieces()
    read = [(piece, pieces.read(piece)) for piece in first]
    partial.refused.clear()
    assert pieces.pieces(besides=first) == []
    for piece, found in read:
        assert pieces.read_new(piece, paths_of(found), pieces.relist(piece), FUTURE).rows == []


def test_a_namespace_that_cannot_be_listed_again_is_a_doubt(store: MetadataStore) -> None:
    fill(store, NODES)
    partial = Partial(store)
    pieces = ReferencePieces({ROOT: partial})
    piece = piece_of(pieces, "t/n/persistent")
    found = pieces.read(piece)
    partial.refused.add("/managed-ledgers/t/n")
    again = pieces.read_new(piece, paths_of(found), pieces.relist(piece), FUTURE)
    assert [doubt.concerns(ManagedLedgerHolder("t/n/persistent/a+b")) for doubt in again.doubts] == [True]
    assert again.rows == []


def test_bookies_that_are_away_are_not_asked_for_every_topic(store: MetadataStore) -> None:
    fill(store, {f"{ORDERS}-{number}/__compaction": cursor(100 + number) for number in range(7)})
    entries = Recorded(None)
    pieces = ReferencePieces({ROOT: store}, entries)
    found = pieces.read(piece_of(pieces, "t/n/persistent"))
    assert len(entries.asked) == 3
    assert {doubt.about for doubt in found.doubts} == {
        (CompactedHolder(f"t/n/persistent/orders-{number}"),) for number in range(7)
    }
    assert {row.place for row in found.rows if row.ledger_id is not None} == {PlaceKind.CURSOR.value}


def test_tenants_and_namespaces_are_those_with_policies(store: MetadataStore) -> None:
    assert known_tenants(store) is None
    assert known_namespaces(store) is None
    fill(store, {"/admin/policies/t/n": b"{}", "/admin/policies/t/cluster/old": b"{}", "/admin/policies/idle": b"{}"})
    fill(store, {"/admin/policies/t/left": b""})
    assert known_tenants(store) == {"t", "idle"}
    assert known_namespaces(store) == {"t/n", "t/cluster/old"}


def test_a_node_with_a_name_that_no_path_can_have_leaves_its_namespace_open(store: MetadataStore) -> None:
    fill(store, NODES)
    partial = Partial(store)
    pieces = ReferencePieces({ROOT: partial}, Recorded(18))
    found = pieces.pieces()
    partial.refused, partial.error = {"/managed-ledgers/v1/c/persistent"}, FormatError("too long")
    doubts = [doubt for piece in found for doubt in pieces.read(piece).doubts if doubt.reason == "too long"]
    assert {doubt.path for doubt in doubts} == {
        f"/managed-ledgers/v1/c/persistent{part}" for part in ("", "/persistent")
    }
    assert all(doubt.concerns(ManagedLedgerHolder("v1/c/persistent/x")) for doubt in doubts)
    assert not any(doubt.concerns(ManagedLedgerHolder("v1/d/persistent/x")) for doubt in doubts)


def test_a_root_that_stops_answering_is_an_error_and_no_doubt(store: MetadataStore) -> None:
    fill(store, NODES)
    partial = Partial(store)
    pieces = ReferencePieces({ROOT: partial}, Recorded(18))
    piece = piece_of(pieces, "t/n/persistent")
    partial.refused, partial.error = {"/managed-ledgers/t/n/persistent/a+b"}, StoreUnavailableError("away")
    with pytest.raises(StoreUnavailableError):
        pieces.read(piece)
    with pytest.raises(StoreUnavailableError):
        pieces.relist(piece)
    partial.refused = {"/managed-ledgers/t"}
    with pytest.raises(StoreUnavailableError):
        pieces.pieces()
