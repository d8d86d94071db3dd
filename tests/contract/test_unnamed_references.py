"""Compacted ledgers, buckets of delayed messages and shadow topics: in use though their holder's node is silent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.clusters.pulsar.metadata.ownership import bundle_hash
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.clusters.pulsar.references.shadows import ShadowTopics, read_shadows
from bookwarden.clusters.pulsar.references.unnamed_use import CLOCK_SKEW_MS
from bookwarden.clusters.pulsar.rest.brokers import TopicCompaction
from bookwarden.errors import BookieError, NotFoundError, PulsarAccessError, PulsarError, StoreUnavailableError
from bookwarden.ledgers.kinds import BucketHolder, CompactedHolder, Holder, ManagedLedgerHolder
from bookwarden.ledgers.live_references import LiveReferences, ShadowList, UnknownReferences
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.envelope import Compression, wrap
from bookwarden.wire.pb import managed_ledger_pb2

TOPIC, FULL_NAME = "tenant/ns/persistent/orders", "persistent://tenant/ns/orders"
COMPACTED, BUCKETS = CompactedHolder(TOPIC), BucketHolder(TOPIC, "my+sub")
NODE = f"/managed-ledgers/{TOPIC}"
STARTED = 1_700_000_000_000
BUNDLE = f"/namespace/tenant/ns/0x{bundle_hash(FULL_NAME):08x}_0xffffffff"


class Brokers:
    """What the owner of the topic says, and what it was asked; an error is raised instead."""

    def __init__(
        self,
        compaction: TopicCompaction | None = None,
        subscriptions: Sequence[str] = (),
        error: Exception | None = None,
    ) -> None:
        self._compaction = compaction
        self._subscriptions = frozenset(subscriptions)
        self._error = error
        self.asked: list[str] = []

    def compaction(self, topic: str) -> TopicCompaction:
        self._ask(topic)
        assert self._compaction is not None
        return self._compaction

    def subscriptions(self, topic: str) -> frozenset[str]:
        self._ask(topic)
        return self._subscriptions

    def _ask(self, topic: str) -> None:
        self.asked.append(topic)
        if self._error is not None:
            raise self._error


class Entries(DecodedEntries):
    """The last entry of the compaction cursor's ledger 90."""

    def __init__(
        self, compacted: int | None = None, error: Exception | None = None, open_ledgers: Sequence[int] = ()
    ) -> None:
        self._compacted = compacted
        self._error = error
        self.open = open_ledgers

    def records(self, ledger_id: int) -> bool:
        return self._compacted == ledger_id

    def may_be_written(self, ledger_id: int) -> bool:
        return ledger_id in self.open

    def last_entry(self, ledger_id: int) -> bytes:
        assert ledger_id == 90
        if self._error is not None:
            raise self._error
        entry = managed_ledger_pb2.PositionInfo(ledgerId=1, entryId=2)
        if self._compacted is not None:
            entry.properties.add(name="CompactedTopicLedger", value=self._compacted)
        return bytes(entry.SerializeToString())


def topic(*ids: int, shadow_of: str | None = None) -> bytes:
    message = managed_ledger_pb2.ManagedLedgerInfo()
    for ledger_id in ids:
        message.ledgerInfo.add(ledgerId=ledger_id)
    if shadow_of is not None:
        message.properties.add(key="PULSAR.SHADOW_SOURCE", value=shadow_of)
    return message.SerializeToString()


def cursor(ledger_id: int = -1, compacted: int | None = None, buckets: Sequence[int] = ()) -> bytes:
    message = managed_ledger_pb2.ManagedCursorInfo(cursorsLedgerId=ledger_id)
    if compacted is not None:
        message.properties.add(name="CompactedTopicLedger", value=compacted)
    for bucket in buckets:
        message.cursorProperties.add(name=f"#pulsar.internal.delayed.bucket_{bucket}_{bucket}", value=str(bucket))
    return message.SerializeToString()


def metadata_root(**nodes: bytes) -> MemoryStore:
    """Make a root with the topic; the others are its cursors."""
    store = MemoryStore()
    store.create(NODE, topic(1, 2), make_parents=True)
    for name, value in nodes.items():
        store.create(f"{NODE}/{name.replace('_sub', '+sub')}", value)
    return store


def live(holder: Holder, references: MetadataReferences) -> LiveReferences:
    found = references.read([holder])[holder]
    assert isinstance(found, LiveReferences)
    return found


def compacted(
    brokers: Brokers | None, entries: Entries | None = None, ledger_id: int = 90, recorded: int | None = 30
) -> LiveReferences:
    root = metadata_root(__compaction=cursor(ledger_id, recorded))
    return live(COMPACTED, MetadataReferences([root], brokers, entries))


def deletable(found: LiveReferences, ledger_id: int, created_ms: int = 0, *, unchanged: bool = True) -> bool:
    use = found.unnamed_use
    return not found.names(ledger_id) and (use is None or use.rules_out(ledger_id, created_ms, unchanged=unchanged))


AT_REST = TopicCompaction(running=False, subscribed=True, ledger_ids=frozenset({40}))


def test_the_compacted_ledger_of_a_topic_that_is_gone_is_in_use_no_more() -> None:
    root = MemoryStore()
    root.create("/managed-ledgers", b"")
    brokers = Brokers(AT_REST)
    found = live(COMPACTED, MetadataReferences([root], brokers))
    assert (found.exists, deletable(found, 40), brokers.asked) == (False, True, [])


def test_only_what_was_made_before_the_compacted_ledger_in_use_is_free() -> None:
    brokers = Brokers(AT_REST)
    found = compacted(brokers)
    assert brokers.asked == [FULL_NAME]
    assert found.exists
    assert {ledger for ledger in range(20, 60) if deletable(found, ledger)} == set(range(20, 40))


def test_an_outdated_value_of_the_node_is_no_reference_once_the_broker_names_another() -> None:
    assert deletable(compacted(Brokers(AT_REST)), 30)
    # Without a ledger of its own the cursor's node is up to date.
    assert compacted(Brokers(AT_REST), ledger_id=-1).names(30)


def test_what_the_bookies_have_recorded_is_in_use_too() -> None:
    found = compacted(Brokers(AT_REST), Entries(compacted=35))
    assert found.names(35)
    assert found.names(40)
    assert deletable(found, 34)
    assert not deletable(found, 36)
    assert deletable(compacted(Brokers(AT_REST), Entries(compacted=40)), 39)
    assert deletable(compacted(Brokers(AT_REST), Entries(compacted=None)), 39)


@pytest.mark.parametrize("error", [BookieError("away"), NotFoundError("no ledger 90")])
def test_bookies_that_do_not_say_what_is_recorded_leave_nothing_free(error: Exception) -> None:
    assert not any(deletable(compacted(Brokers(AT_REST), Entries(error=error)), ledger) for ledger in range(60))


def test_while_a_compaction_runs_nothing_is_free() -> None:
    found = compacted(Brokers(TopicCompaction(True, True, frozenset({40}))))
    assert not any(deletable(found, ledger) for ledger in range(60))
    assert found.unnamed_use is not None
    assert "under way" in found.unnamed_use.reason


@pytest.mark.parametrize(
    "brokers",
    [
        None,
        Brokers(error=PulsarAccessError("no right")),
        Brokers(error=NotFoundError("not here")),
        Brokers(error=PulsarError("?")),
        Brokers(TopicCompaction(False, True, frozenset())),
    ],
)
def test_without_a_brokers_word_nothing_is_free_and_the_nodes_word_counts(brokers: Brokers | None) -> None:
    found = compacted(brokers)
    assert found.names(30)
    assert not any(deletable(found, ledger) for ledger in range(60))


RESTS = TopicCompaction(running=False, subscribed=True, ledger_ids=frozenset(), recorded=True)


@pytest.mark.parametrize("ledger_id", [-1, 90])
def test_with_none_in_use_what_a_compaction_at_rest_left_behind_is_free_once_it_is_unchanged(ledger_id: int) -> None:
    # A first compaction that its broker's death ended; a truncation that lost the property does the same.
    found = compacted(Brokers(RESTS), Entries(compacted=None), ledger_id=ledger_id, recorded=None)
    assert found.exists
    assert deletable(found, 50)
    assert not deletable(found, 50, unchanged=False)


@pytest.mark.parametrize(
    "brokers",
    [
        Brokers(replace(RESTS, running=True)),
        Brokers(replace(RESTS, subscribed=False)),
        Brokers(replace(RESTS, recorded=False)),
        Brokers(error=PulsarError("?")),
    ],
    ids=["under way", "not subscribed", "not recorded yet", "unknown"],
)
def test_with_none_in_use_nothing_is_free_while_the_compaction_is_not_at_rest(brokers: Brokers) -> None:
    found = compacted(brokers, Entries(compacted=None), recorded=None)
    assert not any(deletable(found, ledger) for ledger in range(60))


@pytest.mark.parametrize("error", [BookieError("away"), NotFoundError("no ledger 90")])
def test_with_none_in_use_nothing_is_free_while_the_bookies_do_not_say_what_is_recorded(error: Exception) -> None:
    found = compacted(Brokers(RESTS), Entries(error=error), recorded=None)
    assert not any(deletable(found, ledger) for ledger in range(60))


def test_with_none_in_use_what_the_bookies_or_the_node_have_recorded_is_named() -> None:
    assert compacted(Brokers(RESTS), Entries(compacted=35), recorded=None).names(35)
    assert not deletable(compacted(Brokers(RESTS), Entries(compacted=35), recorded=None), 36)
    assert compacted(Brokers(RESTS), Entries(compacted=None), ledger_id=-1, recorded=30).names(30)


def test_without_a_subscription_nothing_is_compacted() -> None:
    idle = TopicCompaction(False, False, frozenset())
    assert deletable(live(COMPACTED, MetadataReferences([metadata_root()], Brokers(idle))), 50)
    subscribed = Brokers(TopicCompaction(False, True, frozenset()))
    assert not deletable(live(COMPACTED, MetadataReferences([metadata_root()], subscribed)), 50)


def test_a_topic_in_a_further_root_has_brokers_that_cannot_be_asked() -> None:
    brokers = Brokers(AT_REST)
    ours, theirs = metadata_root(__compaction=cursor(90, 30)), metadata_root(__compaction=cursor(-1, 31))
    found = live(COMPACTED, MetadataReferences([ours, theirs], brokers))
    assert found.names(30)
    assert found.names(31)
    assert not deletable(found, 20)
    empty = MemoryStore()
    empty.create("/managed-ledgers", b"")
    assert not deletable(live(COMPACTED, MetadataReferences([empty, theirs], brokers)), 20)
    assert deletable(live(COMPACTED, MetadataReferences([ours, empty], brokers)), 20)


@pytest.mark.parametrize("brokers", [None, Brokers(TopicCompaction(True, True, frozenset()))])
def test_what_was_replaced_is_in_doubt_and_not_named_where_bookies_have_recorded_another(
    brokers: Brokers | None,
) -> None:
    # A scan plans it, so a mark of it must not be dropped as that of a ledger that is named.
    for entries in (Entries(compacted=35), Entries(compacted=None)):
        found = compacted(brokers, entries)
        assert not found.names(30)
        assert found.names(35) == entries.records(35)
        assert not any(deletable(found, ledger) for ledger in range(60))
    for silent in (Entries(error=BookieError("away")), None):
        assert compacted(brokers, silent).names(30)
    assert compacted(brokers, Entries(compacted=35), ledger_id=-1).names(30)


def test_of_a_topic_in_a_further_root_the_bookies_tell_what_was_replaced() -> None:
    empty = MemoryStore()
    empty.create("/managed-ledgers", b"")
    theirs = metadata_root(__compaction=cursor(90, 30))
    found = live(COMPACTED, MetadataReferences([empty, theirs], Brokers(AT_REST), Entries(compacted=35)))
    assert (found.names(30), found.names(35)) == (False, True)
    assert not any(deletable(found, ledger) for ledger in range(60))
    # The other root's cursor is closed, and its node up to date.
    both = [metadata_root(__compaction=cursor(-1, 30)), theirs]
    assert live(COMPACTED, MetadataReferences(both, Brokers(AT_REST), Entries(compacted=35))).names(30)


def test_a_compaction_cursor_that_cannot_be_read_is_a_doubt() -> None:
    root = metadata_root(__compaction=b"\xff")
    found = MetadataReferences([root], Brokers(AT_REST)).read([COMPACTED])[COMPACTED]
    assert isinstance(found, UnknownReferences)


def buckets(root: MemoryStore, brokers: Brokers | None = None, *, owned: bool = True) -> LiveReferences:
    if owned:
        own(root)
    return live(BUCKETS, MetadataReferences([root], brokers))


def own(root: MemoryStore) -> None:
    """Let a broker own the topic that was started at STARTED."""
    root.create(BUNDLE, b'{"nativeUrl": "pulsar://b:6650"}', make_parents=True)
    broker = {"loadManagerClassName": "x", "pulsarServiceUrl": "pulsar://b:6650", "startTimestamp": STARTED}
    root.create("/loadbalance/brokers/b:8080", json.dumps(broker).encode(), make_parents=True)


def test_a_bucket_is_free_when_nobody_has_the_topic_loaded() -> None:
    found = buckets(metadata_root(my_sub=cursor(buckets=[12])), owned=False)
    assert found.names(12)
    assert deletable(found, 13, created_ms=2**60)


def test_a_bucket_of_a_topic_whose_owner_lost_its_session_may_be_in_use_from_memory() -> None:
    root = metadata_root(my_sub=cursor(buckets=[12]))
    # Whoever has the topic loaded has its last ledger open.
    found = live(BUCKETS, MetadataReferences([root], Brokers(), Entries(open_ledgers=[2])))
    assert found.names(12)
    assert not deletable(found, 13, created_ms=1)
    assert found.unnamed_use is not None
    assert "let a broker load and unload" in found.unnamed_use.reason
    assert not found.unnamed_use.lasting
    assert deletable(live(BUCKETS, MetadataReferences([root], Brokers(), Entries(open_ledgers=[1]))), 13, 2**60)


def test_a_bucket_made_since_the_topics_owner_started_may_be_in_use_from_memory() -> None:
    found = buckets(metadata_root(my_sub=cursor(buckets=[12])))
    assert not deletable(found, 13, created_ms=STARTED)
    assert not deletable(found, 13, created_ms=STARTED - CLOCK_SKEW_MS)
    assert deletable(found, 13, created_ms=STARTED - CLOCK_SKEW_MS - 1)


def test_a_bucket_of_a_subscription_that_nobody_knows_is_free() -> None:
    brokers = Brokers(subscriptions=["other"])
    assert deletable(buckets(metadata_root(), brokers), 13, created_ms=2**60)
    assert brokers.asked == [FULL_NAME]


@pytest.mark.parametrize("brokers", [None, Brokers(error=PulsarError("?")), Brokers(subscriptions=["my sub"])])
def test_a_subscription_without_a_node_may_be_one_that_is_not_durable(brokers: Brokers | None) -> None:
    found = buckets(metadata_root(), brokers)
    assert not found.exists
    assert not deletable(found, 13, created_ms=2**60)


def test_the_buckets_of_a_topic_that_is_gone_are_free() -> None:
    root = MemoryStore()
    root.create("/managed-ledgers", b"")
    assert deletable(buckets(root, Brokers(error=PulsarError("?"))), 13, created_ms=2**60)


def test_a_topic_loaded_in_a_further_root_counts_too() -> None:
    ours, theirs = metadata_root(my_sub=cursor()), metadata_root(my_sub=cursor(buckets=[14]))
    own(theirs)
    found = live(BUCKETS, MetadataReferences([ours, theirs], Brokers(subscriptions=[])))
    assert found.names(14)
    assert not deletable(found, 13, created_ms=2**60)


SOURCE = ManagedLedgerHolder(TOPIC)


def with_shadow(name: str = "tenant/other/persistent/shadow", source: str = FULL_NAME) -> MemoryStore:
    root = metadata_root()
    root.create(f"/managed-ledgers/{name}", topic(1, 9, shadow_of=source), make_parents=True)
    root.create("/managed-ledgers/tenant/other/persistent/unrelated", topic(5), make_parents=True)
    return root


def test_what_a_shadow_topic_lists_is_named_by_its_source() -> None:
    found = live(SOURCE, MetadataReferences([with_shadow()], shadow_refresh=60))
    assert found.ledger_ids == {1, 2}
    assert found.shadows == (ShadowList("tenant/other/persistent/shadow", frozenset({1, 9})),)
    assert found.naming_shadow(9) == "tenant/other/persistent/shadow"
    assert not found.names(5)


def test_shadows_are_not_looked_at_when_that_is_turned_off() -> None:
    assert not live(SOURCE, MetadataReferences([with_shadow()])).names(9)


def test_a_partition_is_the_source_of_its_shadows_partition() -> None:
    root = with_shadow("tenant/ns/persistent/copy-partition-3")
    assert set(read_shadows(root).by_source) == {TOPIC, f"{TOPIC}-partition-3"}


def test_a_shadow_in_any_root_and_of_any_name_counts() -> None:
    old = with_shadow("tenant/cluster/ns/persistent/shadow")
    tricky = with_shadow("tenant/persistent/persistent/persistent")
    for root in (old, tricky):
        assert live(SOURCE, MetadataReferences([metadata_root(), root], shadow_refresh=60)).names(9)


def test_a_known_shadow_is_read_anew_each_time_and_an_unknown_one_after_the_refresh() -> None:
    now = 0.0
    root = with_shadow()
    shadows = ShadowTopics(root, 60, clock=lambda: now)
    assert shadows.known().by_source == {TOPIC: ("tenant/other/persistent/shadow",)}
    root.create("/managed-ledgers/tenant/ns/persistent/later", topic(shadow_of=FULL_NAME), make_parents=True)
    now = 59.0
    assert len(shadows.known().by_source[TOPIC]) == 1
    now = 60.0
    assert len(shadows.known().by_source[TOPIC]) == 2
    references = MetadataReferences([root], shadow_refresh=60)
    assert not live(SOURCE, references).names(10)
    path = "/managed-ledgers/tenant/other/persistent/shadow"
    root.put(path, topic(10, shadow_of=FULL_NAME), 0)
    assert live(SOURCE, references).names(10)


@pytest.mark.parametrize(
    "broken",
    [
        b"\x47\x78\x00\x00\x00\x02\x08\x01broken",
        topic(shadow_of=FULL_NAME) + b"\x0a\xff",
        topic(shadow_of="?://"),
    ],
    ids=["envelope", "message", "name of the source"],
)
def test_a_node_that_may_be_a_shadow_and_cannot_be_read_is_a_doubt_about_every_topic(broken: bytes) -> None:
    root = metadata_root()
    root.create("/managed-ledgers/tenant/other/persistent/broken", broken, make_parents=True)
    found = MetadataReferences([root], shadow_refresh=60).read([SOURCE])[SOURCE]
    assert isinstance(found, UnknownReferences)
    assert "tenant/other/persistent/broken" in found.reason


def test_a_broken_node_may_list_any_ledger_and_is_a_doubt_about_others() -> None:
    root = metadata_root()
    root.create("/managed-ledgers/tenant/other/persistent/broken", b"\x0a\xff", make_parents=True)
    found = MetadataReferences([root], shadow_refresh=60).read([SOURCE])[SOURCE]
    assert isinstance(found, UnknownReferences)
    assert found.elsewhere


def test_an_emptied_node_may_have_listed_any_ledger_and_one_that_was_just_made_none() -> None:
    root = metadata_root()
    rescuer = "/managed-ledgers/tenant/ns/persistent/rescued"
    root.create(rescuer, b"", make_parents=True)
    references = MetadataReferences([root], shadow_refresh=1e-9)
    assert not live(SOURCE, references).names(99)
    root.put(rescuer, topic(99), 0)
    root.put(rescuer, b"", 1)
    found = references.read([SOURCE])[SOURCE]
    assert isinstance(found, UnknownReferences)
    assert found.elsewhere
    assert rescuer in found.reason
    root.put(rescuer, topic(99), 2)
    assert live(SOURCE, references).exists


def test_who_else_lists_a_ledger_that_is_asked_about_counts_as_a_shadow() -> None:
    roots = metadata_root(), metadata_root()
    for root, ids in zip(roots, ([5, 7], [5, 8]), strict=True):
        root.create("/managed-ledgers/tenant/other/persistent/rescued", topic(*ids), make_parents=True)
    references = MetadataReferences(roots, shadow_refresh=60)
    found = references.read([SOURCE], {SOURCE: [1, 5, 6]})[SOURCE]
    assert isinstance(found, LiveReferences)
    assert found.naming_shadow(5) == "tenant/other/persistent/rescued"
    assert found.naming_shadow(8) is not None
    assert not found.names(6)
    assert not live(SOURCE, references).names(5)


def test_a_compressed_shadow_is_found() -> None:
    root = metadata_root()
    value = wrap(topic(9, shadow_of=FULL_NAME), Compression.ZSTD)
    root.create("/managed-ledgers/tenant/other/persistent/shadow", value, make_parents=True)
    assert live(SOURCE, MetadataReferences([root], shadow_refresh=60)).names(9)


def test_a_root_that_does_not_answer_while_shadows_are_looked_for_is_an_error() -> None:
    root = with_shadow()
    root.close()
    with pytest.raises(StoreUnavailableError):
        MetadataReferences([metadata_root(), root], shadow_refresh=60).read([SOURCE])
