"""Every ledger of a metadata store is listed once, in all layouts, on every store."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Sequence
from uuid import uuid4

import pytest

from bookwarden.clusters.bookkeeper import listing as listing_module
from bookwarden.clusters.bookkeeper.ledger_paths import LedgerLayout, ledger_path
from bookwarden.clusters.bookkeeper.listing import LedgerListing, ListingPiece, digest_of
from bookwarden.errors import StoreAccessError, StoreError, StoreUnavailableError
from bookwarden.ledgers.listing import ListedLedger
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.memory import MemoryStore
from bookwarden.pipelines.columns.ledgers import ledger_table
from bookwarden.wire.ledger_metadata import decode_segments, encode_ledger_metadata

FLAT, LEGACY, HYBRID, LONG = (
    LedgerLayout.FLAT,
    LedgerLayout.LEGACY_HIERARCHICAL,
    LedgerLayout.HIERARCHICAL,
    LedgerLayout.LONG_HIERARCHICAL,
)
# Both sides of Java's largest int, in several directories, and the largest id there can be.
IDS = {
    FLAT: [0, 7, 12_345, 2**31, 2**40],
    LEGACY: [0, 9_999, 10_000, 123_456_789, 2**31 + 5],
    HYBRID: [0, 3, 10_000, 2**31 - 2, 2**31 - 1, 2**32 + 1, 2**63 - 1],
    LONG: [0, 3, 10_000, 2**31, 2**50, 2**63 - 1],
}
VALUE = encode_ledger_metadata(
    LedgerMetadata(
        *(3, LedgerState.CLOSED, 1, 1, 1, (Segment(0, ("a:1",)),), 77, 3, "CRC32C", 5),
        custom={
            "application": b"pulsar",
            "component": b"managed-ledger",
            "pulsar/managed-ledger": b"t/n/persistent/x",
        },
    )
)


def memory(_: pytest.FixtureRequest) -> MetadataStore:
    return MemoryStore()


def zookeeper(request: pytest.FixtureRequest) -> MetadataStore:
    store: MetadataStore = request.getfixturevalue("connect")(batch_size=3)
    return store


FACTORIES: list[Callable[[pytest.FixtureRequest], MetadataStore]] = [memory, zookeeper]


@pytest.fixture(params=FACTORIES, ids=lambda factory: factory.__name__)
def store(request: pytest.FixtureRequest) -> MetadataStore:
    made: MetadataStore = request.param(request)
    return made


@pytest.fixture
def root(store: MetadataStore) -> str:
    path = f"/t-{uuid4().hex}/ledgers"
    for name in ("LAYOUT", "INSTANCEID", "available/bk-1", "cookies", "underreplication/ledgers/0000", "idgen/ID-7"):
        store.create(f"{path}/{name}", b"special", make_parents=True)
    store.create(f"{path}/ID-0000000007", b"")
    return path


def fill(store: MetadataStore, root: str, layout: LedgerLayout, ids: Sequence[int], value: bytes = VALUE) -> None:
    for ledger_id in ids:
        store.create(ledger_path(root, ledger_id, layout), value, make_parents=True)


def rows_of(listing: LedgerListing, pieces: Sequence[ListingPiece] | None = None) -> list[ListedLedger]:
    chosen = listing.pieces() if pieces is None else pieces
    tables = [ledger_table(listing.read(piece)) for piece in chosen]
    return sorted(ListedLedger(**row) for table in tables for row in table.to_pylist())


class Hiding(MetadataStore):
    """A store that does not tell of some names, or that fails to list a directory."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.hidden: set[str] = set()
        self.failing: dict[str, Exception] = {}

    def list_children(self, path: str) -> list[str]:
        if path in self.failing:
            raise self.failing[path]
        return [name for name in self._store.list_children(path) if f"{path}/{name}" not in self.hidden]

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        return self._store.get_many(paths)

    def sync(self) -> None:
        self._store.sync()

    def close(self) -> None:
        self._store.close()

    def _never(self, *_: object, **__: object) -> None:
        raise AssertionError("a listing changes nothing")

    delete_many = put = create = watch = ephemeral_sequential = _never  # type: ignore[assignment]  # they all raise


@pytest.mark.parametrize("layout", list(LedgerLayout))
def test_every_ledger_of_a_layout_is_listed_with_what_it_says(
    store: MetadataStore, root: str, layout: LedgerLayout
) -> None:
    fill(store, root, layout, IDS[layout])
    rows = rows_of(LedgerListing(store, root + "/"))
    assert [row.ledger_id for row in rows] == IDS[layout]
    for row in rows:
        assert row.path == ledger_path(root, row.ledger_id, layout)
        node = store.get(row.path)
        assert node is not None
        assert row[2:-3] == (0, node.created_ms, 5, "CLOSED", 77, "MANAGED_LEDGER", "t/n/persistent/x", None, None)
        assert (row.entries, row.disk_bytes) == (4, 77 + 4 * 40)
        assert decode_segments(row.segments or b"") == (Segment(0, ("a:1",)),)


def test_all_layouts_side_by_side_are_listed_whatever_the_layout_node_says(store: MetadataStore, root: str) -> None:
    fill(store, root, FLAT, [1, 2])
    fill(store, root, HYBRID, [3, 4, 2**31])
    fill(store, root, LONG, [5])
    assert [row.ledger_id for row in rows_of(LedgerListing(store, root))] == [1, 2, 3, 4, 5, 2**31]


def test_what_is_no_ledger_is_none_and_names_of_no_layout_are_named(store: MetadataStore, root: str) -> None:
    fill(store, root, HYBRID, [7, 2**31])
    strange = [
        "L7",
        "LAYOUT2",
        "000/abcd",
        "00/0000/L00001",
        "00/0000/L123",
        "00/00000",
        "0",
        "922/3372/0368/5477/L5808",
    ]
    for name in strange:
        store.create(f"{root}/{name}", VALUE, make_parents=True)
    for name in ("01", "02/0000", "004/0000", "005/0000/0000/0000"):
        store.create(f"{root}/{name}", b"", make_parents=True)
    listing = LedgerListing(store, root)
    pieces = [listing.read(piece) for piece in listing.pieces()]
    assert sorted(ledger_id for piece in pieces for ledger_id in piece.ids) == [7, 2**31]
    assert sum(piece.names for piece in pieces) == 2
    assert sorted(path for piece in pieces for path in piece.unparsable) == sorted(f"{root}/{name}" for name in strange)
    assert listing.pieces(besides=listing.pieces()) == []


def test_ids_are_in_their_order_whatever_that_of_their_names_is(store: MetadataStore, root: str) -> None:
    ids = [2 * 10**9, 10**10]
    fill(store, root, FLAT, ids)
    listing = LedgerListing(store, root)
    (piece,) = listing.pieces()
    again = listing.relist(piece)
    assert (again.ids, again.paths) == (ids, [ledger_path(root, ledger_id, FLAT) for ledger_id in ids])
    assert listing.read(piece).ids == ids


def test_metadata_that_cannot_be_understood_is_a_row_that_says_so(store: MetadataStore, root: str) -> None:
    fill(store, root, HYBRID, [7], b"garbage")
    fill(store, root, HYBRID, [8], b"")
    rows = rows_of(LedgerListing(store, root))
    assert [row.ledger_id for row in rows] == [7, 8]
    assert all(row.problem is not None and "without a header" in row.problem for row in rows)


def test_pieces_travel_and_together_cover_everything_once(
    store: MetadataStore, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing_module, "_FLAT_LEDGERS_IN_PIECE", 2)
    monkeypatch.setattr(listing_module, "_DIRECTORIES_IN_PIECE", 2)
    short = [number * 10_000 for number in range(5)]
    fill(store, root, HYBRID, short)
    fill(store, root, FLAT, [11, 12, 13, 14, 15])
    listing = LedgerListing(store, root)
    pieces = pickle.loads(pickle.dumps(listing.pieces()))
    assert [len(piece.directories) for piece in pieces] == [2, 2, 1, 1, 1, 1]
    listed = [sorted(listing.read(piece).ids) for piece in pieces]
    assert listed == [[0, 10_000], [20_000, 30_000], [40_000], [11, 12], [13, 14], [15]]


def test_a_piece_tells_how_many_names_it_had_and_their_digest(store: MetadataStore, root: str) -> None:
    fill(store, root, HYBRID, [300, 2])
    listing = LedgerListing(store, root)
    (piece,) = listing.pieces()
    read, again = listing.read(piece), listing.relist(piece)
    expected = hashlib.sha256(bytes([*[0] * 7, 2, *[0] * 6, 1, 44])).hexdigest()
    assert (read.names, read.digest) == (2, expected)
    assert (again.ids, again.digest) == ([2, 300], expected)
    assert again.paths == [ledger_path(root, ledger_id) for ledger_id in (2, 300)]
    assert digest_of([300, 2]) == expected


def test_a_ledger_that_was_deleted_between_listing_and_reading_has_no_row(store: MetadataStore, root: str) -> None:
    fill(store, root, HYBRID, [1, 2, 3])

    class Deleting(Hiding):
        def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
            store.delete_many([(ledger_path(root, 2), 0)])
            return super().get_many(paths)

    listing = LedgerListing(Deleting(store), root)
    (piece,) = listing.pieces()
    read = listing.read(piece)
    assert (read.ids, read.names) == ([1, 3], 3)


def test_a_directory_that_was_removed_meanwhile_is_empty(store: MetadataStore, root: str) -> None:
    fill(store, root, HYBRID, [1, 10_000])
    listing = LedgerListing(store, root)
    pieces = listing.pieces()
    for path in (ledger_path(root, 10_000), f"{root}/00/0001"):
        assert store.delete_many([(path, 0)])
    assert [row.ledger_id for row in rows_of(listing, pieces)] == [1]
    assert listing.relist(pieces[0]).ids == [1]


def test_a_truncated_listing_is_shown_by_the_second_pass(store: MetadataStore, root: str) -> None:
    fill(store, root, HYBRID, [1, 2, 3, 10_000])
    hiding = Hiding(store)
    hiding.hidden = {ledger_path(root, 2), f"{root}/00/0001"}
    listing = LedgerListing(hiding, root)
    pieces = listing.pieces()
    first = [listing.read(piece) for piece in pieces]
    hiding.hidden.clear()
    (second,) = [listing.relist(piece) for piece in pieces]
    assert second.digest != first[0].digest
    assert set(second.ids) - set(first[0].ids) == {2}
    # A whole directory that the first walk was not told of is a piece of its own.
    (later,) = listing.pieces(besides=pieces)
    assert listing.read(later).ids == [10_000]
    assert listing.pieces(besides=[*pieces, later]) == []


def test_flat_names_that_came_later_fall_into_a_piece_that_there_was(
    store: MetadataStore, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing_module, "_FLAT_LEDGERS_IN_PIECE", 2)
    fill(store, root, FLAT, [10, 20, 30])
    listing = LedgerListing(store, root)
    pieces = listing.pieces()
    fill(store, root, FLAT, [5, 15, 2**40])
    assert [listing.relist(piece).ids for piece in pieces] == [[5, 10, 15, 20], [30, 2**40]]
    assert listing.pieces(besides=pieces) == []


def test_single_ledgers_are_looked_at_by_their_paths(store: MetadataStore, root: str) -> None:
    fill(store, root, HYBRID, [4, 2**31])
    paths = [ledger_path(root, 2**31), ledger_path(root, 5), ledger_path(root, 4)]
    rows = LedgerListing(store, root).read_paths(paths)
    assert [(row.ledger_id, row.path) for row in rows] == [(2**31, paths[0]), (4, paths[2])]


def test_a_ledgers_root_that_does_not_exist_is_an_error(store: MetadataStore, root: str) -> None:
    with pytest.raises(StoreError, match=r"no ledgers root .*/none: check the setting ledgers_root"):
        LedgerListing(store, root + "/none").pieces()


@pytest.mark.parametrize("error", [StoreError("too large"), StoreUnavailableError("no answer within 30 s")], ids=repr)
def test_a_directory_that_cannot_be_listed_is_named(store: MetadataStore, root: str, error: StoreError) -> None:
    fill(store, root, HYBRID, [1])
    hiding = Hiding(store)
    listing = LedgerListing(hiding, root)
    (piece,) = listing.pieces()
    hiding.failing = {f"{root}/00/0000": error}
    with pytest.raises(type(error), match=rf"{root}/00/0000 cannot be listed: {error}.*jute\.maxbuffer"):
        listing.read(piece)


def test_credentials_that_are_refused_are_no_question_of_size(store: MetadataStore, root: str) -> None:
    hiding = Hiding(store)
    hiding.failing = {root: StoreAccessError("refused")}
    with pytest.raises(StoreAccessError, match=r"^refused$"):
        LedgerListing(hiding, root).pieces()
