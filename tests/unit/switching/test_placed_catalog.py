"""A ledger's place is the set of registered clusters that have it; what is not known of one is known of none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bookwarden.bookie_clusters.bookie_clusters import MultiClusterCatalog
from bookwarden.errors import RefusedError, StoreUnavailableError
from bookwarden.ledgers.custom_metadata import COPY_KEY, OWNER_KEY, HolderChange
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.metadata import (
    AbsentLedger,
    Condition,
    DeleteResult,
    LedgerState,
    StoredLedger,
    UnreadableLedger,
)
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.memory import MemoryStore
from unit.switching.two_bookie_clusters import COPY, DATA, OWNER, TwoBookieClusters

DELETED, LOST = DeleteResult.DELETED, DeleteResult.LOST_RACE


class Distant(MemoryStore):
    """A store that may not answer; writes down what is deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = False

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        if self.silent:
            raise StoreUnavailableError("no answer")
        return super().get_many(paths)


@pytest.fixture
def site() -> TwoBookieClusters:
    made = TwoBookieClusters(MemoryStore())
    made.register()
    return made


def stored(site: TwoBookieClusters, ledger_id: int) -> StoredLedger:
    (reading,) = site.catalog.read_many([ledger_id])
    assert isinstance(reading, StoredLedger)
    return reading


def names(ledger: StoredLedger) -> list[str]:
    return [place.bookie_cluster for place in ledger.places]


def test_a_ledger_is_found_in_each_cluster_and_is_absent_only_where_none_has_it(site: TwoBookieClusters) -> None:
    site.ledger("a", 1)
    site.ledger("b", 2)
    site.ledger("a", 3)
    site.ledger("b", 3, **COPY)
    assert names(stored(site, 1)) == ["a"]
    assert names(stored(site, 2)) == ["b"]
    # As brokers read it: from the active cluster.
    assert names(stored(site, 3)) == ["b", "a"]
    assert stored(site, 3).path.startswith("/bookies-b/")
    readings = site.catalog.read_many([9, 3, 1, 3])
    assert [reading.ledger_id for reading in readings] == [9, 3, 1, 3]
    assert readings[0] == AbsentLedger(9)
    site.register(replace(site.registry, active="a", epoch=4))
    assert names(stored(site, 3)) == ["a", "b"]


@pytest.mark.parametrize(
    ("state", "last", "length", "stated"),
    [
        (LedgerState.OPEN, None, 0, b"9:1000"),
        (LedgerState.IN_RECOVERY, None, 0, b"9:1000"),
        (LedgerState.CLOSED, 4, 500, b"9:1000"),
        (LedgerState.CLOSED, 9, 999, b"9:1000"),
        (LedgerState.CLOSED, 9, 1000, b"9: 1000"),
        (LedgerState.CLOSED, 9, 1000, b""),
    ],
)
def test_an_unfinished_copy_is_never_the_ledger(
    site: TwoBookieClusters, state: LedgerState, last: int | None, length: int, stated: bytes
) -> None:
    site.ledger("b", 1, state=state, last=last, length=length, **{COPY_KEY: stated})
    (absent,) = site.catalog.read_many([1])
    assert isinstance(absent, AbsentLedger)
    assert [copy.bookie_cluster for copy in absent.unfinished] == ["b"]
    site.ledger("a", 1)
    assert names(stored(site, 1)) == ["a", "b"]


def test_in_a_shared_cluster_only_ledgers_with_our_mark_are_there(site: TwoBookieClusters) -> None:
    ours = {OWNER_KEY: OWNER.encode()}
    site.ledger("b", 1)
    site.ledger("b", 2, **{OWNER_KEY: b"00000000"})
    site.ledger("b", 3, **ours)
    site.ledger("a", 4)
    # Another Pulsar cluster's, which happens to have the id.
    site.ledger("b", 4, holder=ManagedLedgerHolder("other/ns/persistent/t"))
    site.register(site.changed("b", shared=True))
    assert site.catalog.read_many([1, 2]) == [AbsentLedger(1), AbsentLedger(2)]
    assert [names(stored(site, ledger_id)) for ledger_id in (3, 4)] == [["b"], ["a"]]
    site.register()
    first, second, fourth = site.catalog.read_many([1, 2, 4])
    assert isinstance(first, StoredLedger)
    assert isinstance(second, StoredLedger)
    assert isinstance(fourth, UnreadableLedger)


def test_in_a_further_cluster_a_ledger_without_our_mark_is_not_there(site: TwoBookieClusters) -> None:
    site.ledger("b", 1)
    site.ledger("b", 2, **{OWNER_KEY: b"00000000"})
    site.ledger("b", 3, **{OWNER_KEY: b"0badc0de"})
    site.ledger("a", 4)
    site.ledger("b", 4, holder=ManagedLedgerHolder("other/ns/persistent/t"))
    site.ledger("a", 5, **{OWNER_KEY: b"00000000"})
    site.register(replace(site.changed("b", unmarked_below=0), former_owners=("0badc0de",)))
    assert site.catalog.read_many([1, 2]) == [AbsentLedger(1), AbsentLedger(2)]
    assert [names(stored(site, ledger_id)) for ledger_id in (3, 4, 5)] == [["b"], ["a"], ["a"]]
    site.register(replace(site.changed("b", unmarked_below=2), former_owners=("0badc0de",)))
    assert names(stored(site, 1)) == ["b"]
    assert names(stored(site, 4)) == ["a"]


def test_for_a_deletion_an_owner_mark_that_the_registry_does_not_name_is_a_doubt(site: TwoBookieClusters) -> None:
    deleting = MultiClusterCatalog(site.alone("a"), site.clusters, for_deletion=True)
    site.ledger("a", 1, **{OWNER_KEY: b"00000000"})
    site.ledger("b", 1, **{OWNER_KEY: OWNER.encode(), **COPY})
    site.ledger("b", 2, **{OWNER_KEY: b"00000000"})
    site.ledger("a", 3, **{OWNER_KEY: b"0badc0de"})
    site.ledger("a", 4)
    site.register(replace(site.changed("b", unmarked_below=0), former_owners=("0badc0de",)))
    assert names(stored(site, 1)) == ["b", "a"]
    first, second, third, fourth = deleting.read_many([1, 2, 3, 4])
    for reading, name in ((first, "a"), (second, "b")):
        assert isinstance(reading, UnreadableLedger)
        assert f"its owner mark in bookie cluster {name} is '00000000', which the registry does not name" in (
            reading.reason
        )
    assert isinstance(third, StoredLedger)
    assert isinstance(fourth, StoredLedger)
    site.register(site.changed("b", shared=True))
    assert isinstance(deleting.read_many([2])[0], AbsentLedger)


def test_what_is_not_one_ledger_and_its_copies_is_a_doubt(site: TwoBookieClusters) -> None:
    site.ledger("a", 1)
    site.ledger("b", 1)
    site.ledger("a", 2)
    site.ledger("b", 2, holder=ManagedLedgerHolder("t/ns/persistent/other"), **COPY)
    site.ledger("a", 3, last=8, length=900)
    site.ledger("b", 3, **COPY)
    site.ledger("a", 4, state=LedgerState.OPEN, last=None, length=0)
    site.ledger("b", 4, **COPY)
    path = site.ledger("a", 5)
    site.store.put(path, b"what", 0)
    site.ledger("b", 5, **COPY)
    reasons = [
        reading.reason for reading in site.catalog.read_many([1, 2, 3, 4, 5]) if isinstance(reading, UnreadableLedger)
    ]
    assert [reason.partition(":")[0] for reason in reasons] == [
        "bookie cluster b and bookie cluster a each have a ledger of this id that is no copy",
        "bookie cluster b and bookie cluster a have ledgers of this id with other custom metadata",
        "bookie cluster b and bookie cluster a have it with another end",
        "bookie cluster b and bookie cluster a have it with another end",
        "in bookie cluster a",
    ]


def test_while_a_cluster_does_not_answer_nothing_is_known_of_any_ledger() -> None:
    distant = Distant()
    site = TwoBookieClusters(MemoryStore(), distant)
    site.register()
    site.ledger("a", 1)
    site.ledger("b", 2)
    assert names(stored(site, 2)) == ["b"]
    distant.silent = True
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            site.catalog.read_many([1])
        site.clusters.invalidate()
    distant.silent = False
    assert names(stored(site, 1)) == ["a"]


def test_a_place_with_another_cluster_or_settings_of_none_are_refused(site: TwoBookieClusters) -> None:
    site.register(site.changed("b", instance="instance-c"))
    with pytest.raises(RefusedError, match=r"b is registered with the instance 'instance-c'.* is 'instance-b'"):
        site.catalog.read_many([1])
    site.register(site.changed("b", ledgers_root="/elsewhere"))
    with pytest.raises(RefusedError, match=r"/elsewhere/INSTANCEID .* is missing"):
        site.catalog.read_many([1])
    site.register(replace(site.registry, clusters={"b": site.registry.clusters["b"]}))
    with pytest.raises(RefusedError, match="the settings name the bookie cluster at /ledgers"):
        site.catalog.read_many([1])
    assert names(next(iter(seen_from_b(site, 1)))) == ["b"]


def seen_from_b(site: TwoBookieClusters, ledger_id: int) -> list[StoredLedger]:
    site.ledger("b", ledger_id)
    clusters = site.seen_from("b")
    placed = clusters.registered()
    assert placed is not None
    # The first one left.
    assert placed.bootstrap is None
    site.catalog = type(site.catalog)(site.alone("b"), clusters)
    return [stored(site, ledger_id)]


def test_a_registry_that_cannot_be_parsed_is_no_registry_of_none(site: TwoBookieClusters) -> None:
    site.ledger("b", 1)
    site.register(b"{}")
    with pytest.raises(StoreUnavailableError, match="where ledgers are is not known"):
        site.catalog.read_many([1])


def test_the_registry_counts_as_it_was_read_until_the_next_look(site: TwoBookieClusters) -> None:
    site.ledger("b", 1)
    assert names(stored(site, 1)) == ["b"]
    looked = site.clusters.invalidate
    site.clusters.invalidate = lambda: None  # type: ignore[method-assign]  # the batch goes on
    site.register(b"{}")
    assert names(stored(site, 1)) == ["b"]
    looked()
    with pytest.raises(StoreUnavailableError):
        site.catalog.read_many([1])


def test_a_ledger_goes_from_the_unfinished_copy_and_then_from_the_oldest_registration_on(
    site: TwoBookieClusters,
) -> None:
    site.ledger("a", 1)
    site.ledger("b", 1, **COPY)
    site.ledger("a", 2)
    site.ledger("b", 2, state=LedgerState.OPEN, last=None, length=0, **COPY)
    order: list[str] = []
    original = site.store.delete_many

    def deleting(expected: Sequence[tuple[str, int]], **options: object) -> list[DeleteResult]:
        order.extend(path for path, _ in expected)
        return original(expected, **options)  # type: ignore[arg-type]  # as they came

    site.store.delete_many = deleting  # type: ignore[method-assign, assignment]  # a look at what is deleted
    for ledger_id in (1, 2):
        places = stored(site, ledger_id).places
        assert site.catalog.delete_many(places) == [DELETED, DELETED]
        assert site.places_of(ledger_id) == ""
    assert [path.split("/")[1] for path in order] == ["ledgers", "bookies-b", "bookies-b", "ledgers"]


def test_what_could_not_go_from_one_place_stays_in_the_later_ones(site: TwoBookieClusters) -> None:
    path = site.ledger("a", 1)
    site.ledger("b", 1, **COPY)
    site.ledger("a", 2)
    places = (*stored(site, 1).places, *stored(site, 2).places)
    node = site.store.get(path)
    assert node is not None
    site.store.put(path, node.value, node.version)
    assert site.catalog.delete_many(places) == [LOST, LOST, DELETED]
    assert (site.places_of(1), site.places_of(2)) == ("ab", "")


def test_nodes_of_the_settings_store_are_demanded_of_that_store_alone() -> None:
    site = TwoBookieClusters(MemoryStore(), MemoryStore())
    site.register()
    site.ledger("a", 1)
    site.ledger("b", 2)
    ledgers = [stored(site, 1), stored(site, 2)]
    demanded = [Condition("/managed-ledgers/t/ns/persistent/orders", 7)]
    assert site.catalog.delete_many(ledgers, [demanded, demanded]) == [LOST, DELETED]


def test_a_ledger_and_its_copies_get_another_holder_also_where_one_place_has_it_already(
    site: TwoBookieClusters,
) -> None:
    change = HolderChange(DATA, ManagedLedgerHolder("t/ns/persistent/renamed"))
    for name, more in (("a", {}), ("b", COPY)):
        for ledger_id in (1, 2):
            site.ledger(name, ledger_id, **more)
    site.ledger("a", 3, holder=ManagedLedgerHolder("t/ns/persistent/other"))
    # A change that was killed.
    assert site.alone("a").change_holders({1: change}) == []
    assert isinstance(site.catalog.read_many([1])[0], UnreadableLedger)
    assert site.catalog.change_holders(dict.fromkeys((1, 2, 3, 4), change)) == []
    for ledger_id in (1, 2):
        places = stored(site, ledger_id).places
        assert [place.bookie_cluster for place in places] == ["b", "a"]
        assert {place.metadata.custom["pulsar/managed-ledger"] for place in places} == {change.holder.name.encode()}
        assert COPY_KEY in places[0].metadata.custom
    assert stored(site, 3).metadata.custom["pulsar/managed-ledger"] == b"t/ns/persistent/other"
