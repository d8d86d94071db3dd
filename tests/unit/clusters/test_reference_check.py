"""What is named and gone is looked at again: each node once, however many ledgers it names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from bookwarden.clusters.pulsar.references.check import outdated_in, still_named
from bookwarden.ledgers.kinds import CursorHolder, Holder, ManagedLedgerHolder, PlaceKind, SchemaHolder
from bookwarden.ledgers.listing import ListedReference
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.pb import managed_ledger_pb2
from servers.population import Population

TOPIC = ManagedLedgerHolder("t/n/persistent/lost")


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        self.reads.update(paths)
        return super().get_many(paths)


def reference(
    ledger_id: int, path: str, holder: Holder = TOPIC, kind: PlaceKind = PlaceKind.MANAGED_LEDGER
) -> ListedReference:
    topic = holder.name if isinstance(holder, ManagedLedgerHolder) else getattr(holder, "managed_ledger", None)
    return ListedReference(ledger_id, kind.value, str(holder), topic, path, "zk:a")


def test_a_topic_of_many_missing_ledgers_is_read_once() -> None:
    store = CountingStore()
    path = Population(store).names(TOPIC, range(38_000))
    store.reads.clear()
    asked = [reference(ledger_id, path) for ledger_id in range(38_002)]
    assert [one.ledger_id for one in still_named(asked, store)] == list(range(38_000))
    assert store.reads == {path: 1}


def test_places_of_every_kind_are_looked_at_and_a_node_that_is_gone_names_nothing() -> None:
    store = CountingStore()
    population = Population(store)
    cursor, schema = CursorHolder(TOPIC.name, "s"), SchemaHolder("t/n/lost")
    paths = [population.names(TOPIC, [1]), population.names(cursor, [2]), population.names(schema, [3])]
    gone = ManagedLedgerHolder("t/n/persistent/gone")
    asked = [
        reference(1, paths[0]),
        reference(2, paths[1], cursor, PlaceKind.CURSOR),
        reference(1, paths[1], cursor, PlaceKind.CURSOR),
        reference(3, paths[2], schema, PlaceKind.SCHEMA),
        reference(4, f"/managed-ledgers/{gone.name}", gone),
    ]
    assert still_named(asked, store) == [asked[0], asked[1], asked[3]]


def test_a_place_that_cannot_be_parsed_still_names_its_ledgers() -> None:
    store = CountingStore()
    path = f"/managed-ledgers/{TOPIC.name}"
    store.create(path, b"\xff\xff\xff", make_parents=True)
    asked = [reference(1, path), reference(2, path)]
    assert still_named(asked, store) == asked


SHADOW, SOURCE = "t/n/persistent/shadow", "t/n/persistent/source"


def listing(ledgers: Mapping[int, int], shadow_of: str | None = None) -> bytes:
    """The node of a managed ledger: the entries of its ledgers by id."""
    message = managed_ledger_pb2.ManagedLedgerInfo()
    for ledger_id, entries in ledgers.items():
        message.ledgerInfo.add(ledgerId=ledger_id, entries=entries)
    if shadow_of is not None:
        message.properties.add(key="PULSAR.SHADOW_SOURCE", value=shadow_of)
    return message.SerializeToString()


def shadowed(source: bytes | None, *, name: str = SOURCE, shadow: str = SHADOW) -> CountingStore:
    store = CountingStore()
    ledgers = {10: 5, 20: 5, 21: 0, 22: 5, 30: 5}
    store.create(f"/managed-ledgers/{shadow}", listing(ledgers, "persistent://t/n/source"), make_parents=True)
    if source is not None:
        store.create(f"/managed-ledgers/{name}", source, make_parents=True)
    return store


def outdated(store: MemoryStore, place: PlaceKind = PlaceKind.SHADOW_TOPIC, shadow: str = SHADOW) -> list[int]:
    asked = [
        ListedReference(ledger_id, place.value, shadow, shadow, f"/managed-ledgers/{shadow}", "zk:a")
        for ledger_id in (10, 20, 21, 22, 30)
    ]
    found = outdated_in({"zk:a": store}, asked)
    return sorted(one.ledger_id for one in found if one.ledger_id is not None)


def test_what_a_shadow_lists_and_its_source_let_go_of_is_outdated() -> None:
    # 10 was trimmed, 21 is empty; 22, with entries and inside the source's list, is not what a broker lets go of.
    store = shadowed(listing({20: 5, 30: 5}))
    store.reads.clear()
    assert outdated(store) == [10, 21]
    assert set(store.reads.values()) == {1}
    assert outdated(store, PlaceKind.MANAGED_LEDGER) == []


def test_without_the_word_of_its_source_nothing_in_a_shadow_is_outdated() -> None:
    for source in (None, b"\xff\xff\xff", listing({10: 5, 20: 5, 21: 0, 22: 5, 30: 5})):
        assert outdated(shadowed(source)) == []
    # With entries and above all that the source lists, or of a source that lists nothing: that is no trim.
    assert outdated(shadowed(listing({9: 5}))) == [21]
    assert outdated(shadowed(listing({}))) == [21]


def test_the_source_of_a_shadows_partition_is_the_partition_of_the_source() -> None:
    shadow, source = f"{SHADOW}-partition-1", f"{SOURCE}-partition-1"
    store = shadowed(listing({20: 5, 30: 5}), name=source, shadow=shadow)
    assert outdated(store, shadow=shadow) == [10, 21]
    assert outdated(shadowed(listing({20: 5, 30: 5}), shadow=shadow), shadow=SHADOW) == []
