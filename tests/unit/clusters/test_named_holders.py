"""The holder of a ledger that does not say whose it is: the only one that names it, and nobody in doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from bookwarden.clusters.pulsar.references.pieces import NamedHolders, PieceOfReferences, ReferencePieces
from bookwarden.ledgers.kinds import BucketHolder, CursorHolder, Holder, ManagedLedgerHolder, PlaceKind, SchemaHolder
from bookwarden.ledgers.listing import ListedReference
from bookwarden.ledgers.references import Doubt
from bookwarden.metastore.memory import MemoryStore
from servers.population import Population

DATA = ManagedLedgerHolder("t/ns/persistent/orders")
OTHER = ManagedLedgerHolder("t/ns/persistent/other")


def row(place: PlaceKind, holder: Holder | str, *, gone: bool = False) -> ListedReference:
    return ListedReference(7, place.value, str(holder), None, "/path", "memory:", gone=gone)


def found(rows: list[ListedReference], doubts: Iterable[Doubt] = ()) -> Holder | None:
    piece = PieceOfReferences(rows, [], list(doubts), len(rows), "")
    return NamedHolders(lambda: [piece]).holder_of(7)


@pytest.mark.parametrize(
    ("rows", "holder"),
    [
        ([], None),
        ([row(PlaceKind.MANAGED_LEDGER, DATA)], DATA),
        ([row(PlaceKind.MANAGED_LEDGER, DATA), row(PlaceKind.MANAGED_LEDGER, DATA)], DATA),
        ([row(PlaceKind.MANAGED_LEDGER, DATA), row(PlaceKind.MANAGED_LEDGER, OTHER)], None),
        ([row(PlaceKind.MANAGED_LEDGER, DATA), row(PlaceKind.CURSOR, CursorHolder(DATA.topic, "sub"))], None),
        # A shadow topic lists the ledgers of its source.
        ([row(PlaceKind.MANAGED_LEDGER, DATA), row(PlaceKind.SHADOW_TOPIC, OTHER)], DATA),
        ([row(PlaceKind.MANAGED_LEDGER, DATA, gone=True)], None),
        ([row(PlaceKind.LOG_SEGMENT, "/pulsar/functions/log")], None),
        ([row(PlaceKind.MANAGED_LEDGER, DATA), row(PlaceKind.LOG_SEGMENT, "/pulsar/functions/log")], None),
    ],
)
def test_only_one_holder_counts(rows: list[ListedReference], holder: Holder | None) -> None:
    assert found(rows) == holder


def test_where_anything_cannot_be_read_nobody_is_told() -> None:
    assert found([row(PlaceKind.MANAGED_LEDGER, DATA)], [Doubt("/managed-ledgers/x", "memory:", "damaged")]) is None


def test_every_kind_is_told_by_the_metadata_itself_in_one_look() -> None:
    store = MemoryStore()
    population = Population(store)
    holders = (DATA, CursorHolder(DATA.topic, "sub"), SchemaHolder("t/ns/orders"), BucketHolder(OTHER.topic, "late"))
    for number, holder in enumerate(holders, 1):
        population.names(holder, [number])
    looks = 0

    def read() -> Iterator[PieceOfReferences]:
        nonlocal looks
        looks += 1
        yield from ReferencePieces({"memory:": store}).read_all()

    holder_of: Callable[[int], Holder | None] = NamedHolders(read).holder_of
    assert looks == 0
    assert [holder_of(number) for number in range(6)] == [None, *holders, None]
    assert looks == 1
