"""What is named and gone is looked at again: each node once, however many ledgers it names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bookwarden.clusters.pulsar.references.check import still_named
from bookwarden.ledgers.kinds import CursorHolder, Holder, ManagedLedgerHolder, PlaceKind, SchemaHolder
from bookwarden.ledgers.listing import ListedReference
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.memory import MemoryStore
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
