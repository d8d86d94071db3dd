"""The source `pulsar-metadata`: the rows of nodes, and the plan of batches over a store in memory."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.clusters.pulsar.references.node_snapshots import followed_node, kind_of, read_nodes, snapshot_of
from bookwarden.clusters.pulsar.references.nodes import managed_ledger_node
from bookwarden.clusters.pulsar.references.pieces import TOPICS as KIND_OF_TOPICS
from bookwarden.clusters.pulsar.references.pieces import ReferencePiece, ReferencePieces
from bookwarden.config import Settings, load_settings
from bookwarden.errors import ConfigError, StoreAccessError, StoreUnavailableError
from bookwarden.follow.table import FollowedNodes, NodeNow
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.naming import unpack
from bookwarden.metastore.changes import ChangedNodes
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from bookwarden.pipelines.metadata_source.columns import node_batches, nodes_in, now_of, snapshot_batch
from bookwarden.pipelines.metadata_source.planner import Offset, PlanLimits, Planner
from bookwarden.pipelines.metadata_source.reading import ListingEnd, PathShare, PieceShare, read_share
from bookwarden.pipelines.metadata_source.source import MetadataDataSource, MetadataStreamReader, bound_source
from bookwarden.wire.pb import managed_ledger_pb2
from servers.follow.step_by_step import StepByStep

URL = "memory:followed"
TOPICS = "/managed-ledgers/t/n/persistent"


def listed(*ids: int, copied: Sequence[int] = (), only_copied: Sequence[int] = (), shadow: bool = False) -> bytes:
    """Make the value of a topic's node."""
    info = managed_ledger_pb2.ManagedLedgerInfo()
    for ledger_id in ids:
        ledger = info.ledgerInfo.add(ledgerId=ledger_id, entries=1, size=1)
        if ledger_id in copied or ledger_id in only_copied:
            ledger.offloadContext.uidMsb = 7
            ledger.offloadContext.uidLsb = ledger_id
            ledger.offloadContext.complete = True
            if ledger_id in only_copied:
                ledger.offloadContext.bookkeeperDeleted = 1
            ledger.offloadContext.driverMetadata.name = "S3"
    if shadow:
        info.properties.add(key="PULSAR.SHADOW_SOURCE", value="persistent://t/n/source")
    return info.SerializeToString()


def cursor(ledger: int, **properties: int) -> bytes:
    info = managed_ledger_pb2.ManagedCursorInfo(cursorsLedgerId=ledger)
    for name, value in properties.items():
        info.properties.add(name=name, value=value)
    return info.SerializeToString()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (f"{TOPICS}/orders", "topic"),
        (f"{TOPICS}/orders/billing", "cursor"),
        ("/managed-ledgers/t/c/n/persistent/orders", "topic"),
        ("/managed-ledgers/t/c/n/persistent/orders/billing", "cursor"),
        ("/schemas/t/n/orders", "schema"),
        ("/schemas/t/n", None),
        (TOPICS, None),
        ("/managed-ledgers/t", None),
        ("/managed-ledgers", None),
        ("/ledgers/00/0000/L0001", None),
        (f"{TOPICS}/orders/billing/deeper", None),
    ],
)
def test_a_path_tells_the_kind_of_its_node(path: str, kind: str | None) -> None:
    node = followed_node(path)
    assert (node and kind_of(node), node and node.path) == (kind, kind and path)


def said(value: bytes, path: str = f"{TOPICS}/orders") -> NodeNow:
    node = followed_node(path)
    assert node is not None
    return now_of(snapshot_of(node, Versioned(value, 3, 5, 6), URL), URL)


def test_a_topic_names_what_bookkeeper_should_have_and_its_copies() -> None:
    row = said(listed(1, 2, 3, copied=[2], only_copied=[1]))
    assert row.naming is not None
    naming = unpack(row.naming)
    assert naming.places == {2: PlaceKind.MANAGED_LEDGER, 3: PlaceKind.MANAGED_LEDGER}
    assert [copy.ledger_id for copy in naming.copies] == [1, 2]
    assert naming.copies[0].context.driver_name == "S3"


def test_a_cursor_names_its_ledger_and_the_compacted_one() -> None:
    row = said(cursor(9, CompactedTopicLedger=4), f"{TOPICS}/orders/__compaction")
    assert row.naming is not None
    assert unpack(row.naming).places == {4: PlaceKind.COMPACTED, 9: PlaceKind.CURSOR}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (b"\xff\xff", f"{TOPICS}/orders"),
        (b"", f"{TOPICS}/orders"),
        (cursor(9), "/managed-ledgers/t/n/persistent/persistent/orders"),
    ],
    ids=["damaged", "emptied", "topic or cursor"],
)
def test_what_cannot_be_understood_says_nothing(value: bytes, path: str) -> None:
    row = said(value, path)
    assert row.problem
    assert row.naming is None


values = st.one_of(
    st.lists(st.integers(0, 2**63 - 1), max_size=8, unique=True).map(lambda ids: listed(*ids)),
    st.just(listed(1, 2, copied=[2])),
    st.just(listed(4, shadow=True)),
    st.just(b""),
    st.binary(max_size=12),
)


@given(st.lists(st.tuples(values, st.integers(0, 3)), max_size=6), st.sampled_from([None, 7]))
def test_whole_columns_say_the_same_as_single_nodes(found: list[tuple[bytes, int]], listing: int | None) -> None:
    nodes = [
        (managed_ledger_node(f"t/n/persistent/{number}"), Versioned(value, version, 5, 6))
        for number, (value, version) in enumerate(found)
    ]
    fast = [row for batch in node_batches(nodes, URL, listing) for row in batch.to_pylist()]
    slow = snapshot_batch([snapshot_of(node, value, URL) for node, value in nodes], URL, listing).to_pylist()
    assert sorted(fast, key=lambda row: row["path"]) == sorted(slow, key=lambda row: row["path"])


@given(st.lists(values, max_size=5))
def test_rows_are_read_back_as_what_the_nodes_say(found: list[bytes]) -> None:
    nodes = [
        (managed_ledger_node(f"t/n/persistent/{number}"), Versioned(value, 0, 5, 6))
        for number, value in enumerate(found)
    ]
    expected = {node.path: now_of(snapshot_of(node, value, URL), URL) for node, value in nodes}
    batches = list(node_batches(nodes, URL, None))
    rows = [row for batch in batches for row in nodes_in(pa.Table.from_batches([batch.slice(0)]))]
    assert {row.path: row for row in rows} == expected


@pytest.fixture
def name() -> str:
    return f"followed-{uuid4().hex}"


@pytest.fixture
def store(name: str) -> Iterator[MemoryStore]:
    # One of its own for each test: a process keeps the stores that it read.
    made = shared_memory_store(name)
    for topic in ("orders", "clicks"):
        made.create(f"{TOPICS}/{topic}", listed(1, 2), make_parents=True)
    made.create(f"{TOPICS}/orders/billing", cursor(9))
    made.create("/schemas/t/n/orders", b"", make_parents=True)
    yield made
    made.close()


@pytest.fixture
def settings(store: MemoryStore, name: str) -> Settings:
    return load_settings(overrides={"metadata_store.urls": f"['memory:{name}']"})


ALL = sorted([f"{TOPICS}/clicks", f"{TOPICS}/orders", f"{TOPICS}/orders/billing", "/schemas/t/n/orders"])


def test_all_nodes_come_first_and_then_each_that_changes(settings: Settings, store: MemoryStore) -> None:
    following = StepByStep(settings)
    rows = following.drained()
    assert sorted(row.path for row in rows if isinstance(row, NodeNow)) == ALL
    assert {row.listing for row in rows if isinstance(row, NodeNow)} == {rows[-1]}
    store.put(f"{TOPICS}/orders", listed(2), 0)
    store.create(f"{TOPICS}/late", listed(5))
    store.delete_many([(f"{TOPICS}/orders/billing", 0)])
    found = {row.path: row for row in following.drained() if isinstance(row, NodeNow)}
    assert sorted(found) == sorted([f"{TOPICS}/orders", f"{TOPICS}/late", f"{TOPICS}/orders/billing"])
    assert all(row.listing is None for row in found.values())
    assert found[f"{TOPICS}/orders/billing"].naming is None
    assert following.batch() is None


def test_what_changes_during_the_comparison_comes_too(settings: Settings, store: MemoryStore) -> None:
    following = StepByStep(settings)
    first = following.batch()
    assert first
    store.put(f"{TOPICS}/clicks", listed(2), 0)
    rows = following.drained()
    assert any(isinstance(row, NodeNow) and row.path == f"{TOPICS}/clicks" and row.listing is None for row in rows)
    assert isinstance(rows[-1], int)


def test_changes_are_cut_into_batches(settings: Settings, store: MemoryStore) -> None:
    following = StepByStep(settings, PlanLimits(nodes=3, tick_s=0))
    following.drained()
    for number in range(8):
        store.create(f"{TOPICS}/new-{number}", listed(number))
    sizes = []
    while (rows := following.batch()) is not None:
        sizes.append(len(rows))
    assert sizes == [3, 3, 2]


def test_a_comparison_ends_although_there_is_always_a_change(settings: Settings, store: MemoryStore) -> None:
    following = StepByStep(settings)
    ended = False
    for number in range(20):
        store.create(f"{TOPICS}/new-{number}", listed(number))
        rows = following.batch() or []
        ended |= any(isinstance(row, int) for row in rows)
    assert ended


def test_a_root_that_does_not_answer_at_the_beginning_is_asked_again(
    settings: Settings, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = StepByStep(settings)
    pieces, failures = ReferencePieces.pieces, iter([StoreUnavailableError("no answer")])

    def failing_once(self: ReferencePieces) -> list[ReferencePiece]:
        error = next(failures, None)
        if error is not None:
            raise error
        return pieces(self)

    monkeypatch.setattr(ReferencePieces, "pieces", failing_once)
    assert following.batch() is None
    assert following.paths() == ALL


def test_an_empty_batch_comes_now_and_then(settings: Settings) -> None:
    following = StepByStep(settings)
    following.drained()
    following.now_s += 4
    assert following.batch() is None
    following.now_s += 1
    assert following.batch() == []
    assert following.batch() is None


def test_a_gap_brings_all_nodes_again(settings: Settings, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    following = StepByStep(settings)
    following.drained()
    (root,) = following.planner._roots.values()
    assert root.feed is not None
    gaps = iter(["the connection broke"])
    take = root.feed.take
    monkeypatch.setattr(root.feed, "take", lambda: ChangedNodes(take().paths, next(gaps, "")))
    rows = following.drained()
    assert sorted(row.path for row in rows if isinstance(row, NodeNow)) == ALL
    assert following.batch() is None


def test_a_store_without_changes_is_compared_from_time_to_time(
    settings: Settings, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = StepByStep(settings, PlanLimits(tick_s=0, compare_s=60))
    following.planner.latest(following.at)
    (root,) = following.planner._roots.values()
    assert root.feed is not None
    monkeypatch.setattr(root.feed, "take", lambda: ChangedNodes(frozenset(), "older than 3.6", unwatched=True))
    assert following.paths() == ALL
    following.now_s += 59
    assert following.batch() is None
    following.now_s += 1
    assert following.paths() == ALL


def test_all_nodes_are_read_again_once_a_day(settings: Settings) -> None:
    following = StepByStep(settings, PlanLimits(tick_s=0))
    following.drained()
    following.now_s += 24 * 3600 - 1
    assert following.batch() is None
    following.now_s += 1
    assert following.paths() == ALL


def test_a_run_that_ends_has_one_comparison_and_no_empty_batches(settings: Settings, store: MemoryStore) -> None:
    following = StepByStep(settings)
    following.planner.freeze()
    assert following.paths() == ALL
    following.now_s += 1e6
    assert following.batch() is None


def test_a_batch_of_an_earlier_run_has_no_tasks(settings: Settings) -> None:
    first, second = Planner(settings, PlanLimits()), Planner(settings, PlanLimits())
    begin = first.initial()
    end = first.latest(begin)
    assert first.partitions(begin, end)
    assert second.partitions(begin, end) == []
    # From there it goes on with a comparison of its own.
    later = second.latest(end)
    assert later.run != end.run
    assert [type(share) for share in second.partitions(end, later)] == [
        type(share) for share in first.partitions(begin, end)
    ]


def test_a_planned_batch_is_planned_once(settings: Settings) -> None:
    planner = Planner(settings, PlanLimits())
    begin = planner.initial()
    end = planner.latest(begin)
    assert planner.latest(begin) == end
    assert planner.partitions(begin, end) == planner.partitions(begin, end)


def test_a_silent_store_is_asked_again_for_a_while(
    settings: Settings, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = StepByStep(settings, PlanLimits(unreachable_s=10))
    following.drained()
    (root,) = following.planner._roots.values()

    def silent() -> ChangedNodes:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(root.feed, "take", silent)
    assert following.batch() is None
    following.now_s += 10
    assert following.batch() is None
    following.now_s += 1
    with pytest.raises(StoreUnavailableError):
        following.batch()


def test_a_refused_namespace_closes_what_is_below_it(settings: Settings) -> None:
    share = PieceShare((ReferencePiece(URL, KIND_OF_TOPICS, "t/n", problem="no right"),), 7)
    rows = [row for batch in read_share(share, settings) for row in nodes_in(pa.Table.from_batches([batch]))]
    assert [(row.path, row.problem, row.listing) for row in rows] == [("/managed-ledgers/t/n", "no right", 7)]


@pytest.mark.parametrize("what", ["topic", "cursor", "names of cursors"])
def test_one_refused_node_closes_itself_and_what_is_below_it(
    settings: Settings, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    topic, billing, clicks = f"{TOPICS}/orders", f"{TOPICS}/orders/billing", f"{TOPICS}/clicks"
    nodes, (url,) = FollowedNodes(0), settings.metadata_store.urls
    piece = ReferencePiece(url, KIND_OF_TOPICS, "t/n/persistent")

    def compare(listing: int) -> list[NodeNow]:
        batches = read_share(PieceShare((piece,), listing), settings)
        rows = [row for batch in batches for row in nodes_in(pa.Table.from_batches([batch]))]
        nodes.take(rows, 0)
        return rows

    compare(1)
    nodes.end_listing(1)
    get_many, list_children = MemoryStore.get_many, MemoryStore.list_children

    def refusing_values(self: MemoryStore, paths: Sequence[str]) -> list[Versioned | None]:
        if {"topic": topic, "cursor": billing}.get(what) in paths:
            raise StoreAccessError("not for us")
        return get_many(self, paths)

    def refusing_names(self: MemoryStore, path: str) -> list[str]:
        if what == "names of cursors" and path == topic:
            raise StoreAccessError("not for us")
        return list_children(self, path)

    monkeypatch.setattr(MemoryStore, "get_many", refusing_values)
    monkeypatch.setattr(MemoryStore, "list_children", refusing_names)
    store.put(clicks, listed(2), 0)
    rows = compare(2)
    assert [row.path for row in rows if row.problem] == [billing if what == "cursor" else topic]
    # Of the others everything is seen, and of the refused one nothing counts as gone.
    assert [key for key, _ in nodes.timers.items()] == [1]
    assert nodes.unlisted(2) == {url: []}


def test_offsets_are_kept_as_text() -> None:
    assert Offset.load(Offset("run", 12).dump()) == Offset("run", 12)
    assert all(isinstance(value, str) for value in Offset("run", 12).dump().values())


def test_options_are_numbers(settings: Settings) -> None:
    source = bound_source(settings)({"tickSeconds": "2", "maxNodesPerTrigger": "7"})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, MetadataStreamReader)
    assert (reader._limits.tick_s, reader._limits.nodes) == (2.0, 7)
    with pytest.raises(ConfigError, match="tickSeconds"):
        bound_source(settings)({"tickSeconds": "soon"})


def test_no_setting_is_among_the_options_of_a_bound_source(settings: Settings) -> None:
    bound = bound_source(settings)
    assert bound.settings is settings
    assert MetadataDataSource.settings is None


def test_a_node_that_went_is_read_as_gone(store: MemoryStore) -> None:
    (row,) = read_nodes(store, URL, [f"{TOPICS}/none", TOPICS])
    assert (row.path, row.version, row.problem) == (f"{TOPICS}/none", None, "")


def test_shares_are_picklable(settings: Settings) -> None:
    for share in (PathShare(URL, ("/a",)), ListingEnd(3)):
        assert pickle.loads(pickle.dumps(share)) == share
