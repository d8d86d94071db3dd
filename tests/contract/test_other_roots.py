"""Metadata roots of other Pulsar clusters are found, and what they name tells whether they share our BookKeeper."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import closing

import pytest

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.roots.proof import SampleLookup, roots_on, shared_ledger
from bookwarden.clusters.pulsar.roots.sample import RootSample, sample_root
from bookwarden.errors import StoreError
from bookwarden.ledgers.kinds import CursorHolder, Holder, ManagedLedgerHolder, SchemaHolder
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from bookwarden.wire.pb import managed_ledger_pb2
from servers.population import Population

Connect = Callable[..., MetadataStore]

ORDERS = ManagedLedgerHolder("shop/orders/persistent/t")
OTHER = ManagedLedgerHolder("shop/orders/persistent/u")
CURSOR = CursorHolder(ORDERS.name, "s")
SCHEMA = SchemaHolder("shop/orders/t")


@pytest.fixture(params=["memory", "zookeeper"])
def ensemble(request: pytest.FixtureRequest) -> MetadataStore:
    if request.param == "memory":
        return MemoryStore()
    connect: Callable[..., ZooKeeperStore] = request.getfixturevalue("connect")
    place = f"/ensemble-{secrets.token_hex(4)}"
    connect().create(place, b"")
    return connect(chroot=place)


@pytest.fixture(params=["memory", "zookeeper"])
def make_root(request: pytest.FixtureRequest) -> Callable[[], MetadataStore]:
    """Make an empty metadata root."""

    def make() -> MetadataStore:
        if request.param == "memory":
            return MemoryStore()
        connect: Callable[..., ZooKeeperStore] = request.getfixturevalue("connect")
        place = f"/root-{secrets.token_hex(4)}"
        connect().create(place, b"")
        return connect(chroot=place)

    return make


def test_every_chroot_with_managed_ledgers_is_found(ensemble: MetadataStore) -> None:
    before = roots_on(ensemble)
    for path in (
        "/blue/managed-ledgers/t",
        "/pulsar/managed-ledgers",
        "/company/green/managed-ledgers",
        "/not-a-pulsar/ledgers/00",
        # In a topic's place, and too deep for a chroot.
        "/admin/policies/managed-ledgers",
        "/one/two/three/managed-ledgers",
    ):
        ensemble.create(path, b"", make_parents=True)
    assert before == []
    assert roots_on(ensemble) == ["/blue", "/company/green", "/pulsar"]
    ensemble.create("/managed-ledgers", b"")
    assert roots_on(ensemble)[0] == ""


def test_a_chroot_with_a_bookkeeper_that_nobody_uses_is_another_root_all_the_same(ensemble: MetadataStore) -> None:
    for path in ("/a/managed-ledgers", "/b/managed-ledgers", "/b/ledgers/INSTANCEID", "/b/ledgers/LAYOUT"):
        ensemble.create(path, b"", make_parents=True)
    assert roots_on(ensemble) == ["/a", "/b"]


def test_an_ensemble_that_does_not_answer_has_no_answer() -> None:
    store = MemoryStore()
    store.close()
    with pytest.raises(StoreError):
        roots_on(store)


def compare(theirs: MetadataStore, ours: MetadataStore) -> tuple[SampleLookup, Holder | None]:
    looked_up, evidence = shared_ledger(sample_root(theirs).ledgers, BookKeeperCatalog(ours), {"ours": ours})
    return looked_up, None if evidence is None else evidence.holder


@pytest.mark.parametrize("holder", [ORDERS, CURSOR, SCHEMA], ids=str)
def test_a_ledger_that_only_they_name_and_that_is_here_proves_that_they_share_our_bookkeeper(
    make_root: Callable[[], MetadataStore], holder: Holder
) -> None:
    theirs, ours = make_root(), make_root()
    Population(theirs).names(ORDERS, [])
    Population(theirs).names(holder, [7])
    Population(ours).ledger(7, holder)
    assert compare(theirs, ours)[1] == holder


def test_twins_with_bookkeepers_of_their_own_share_nothing(make_root: Callable[[], MetadataStore]) -> None:
    theirs, ours = make_root(), make_root()
    # The same ledgers of the same topics in both, as two clusters have them that began alike.
    for population in (Population(theirs), Population(ours)):
        population.names(ORDERS, [1, 2])
        population.names(CURSOR, [3])
        population.names(SCHEMA, [4])
        for ledger_id, holder in ((1, ORDERS), (2, ORDERS), (3, CURSOR), (4, SCHEMA)):
            population.ledger(ledger_id, holder)
    looked_up, evidence = compare(theirs, ours)
    assert (looked_up.ledgers, len(looked_up.found), evidence) == (4, 4, None)
    # Until they name one that is here and that we do not name.
    Population(theirs).names(OTHER, [5])
    Population(ours).ledger(5, OTHER)
    assert compare(theirs, ours)[1] == OTHER


def test_a_ledger_of_the_same_id_is_another_one_by_its_holder_or_its_size(
    make_root: Callable[[], MetadataStore],
) -> None:
    theirs, ours = make_root(), make_root()
    Population(ours).ledger(7, OTHER)
    Population(theirs).names(ORDERS, [7])
    assert compare(theirs, ours) == (SampleLookup(1, ()), None)
    Population(ours).ledger(8, ORDERS)
    info = managed_ledger_pb2.ManagedLedgerInfo()
    info.ledgerInfo.add(ledgerId=8, entries=10, size=1001, timestamp=1)
    theirs.create(f"/managed-ledgers/{OTHER.name}-2", b"", make_parents=True)
    theirs.put(f"/managed-ledgers/{ORDERS.name}", info.SerializeToString(), 0)
    assert compare(theirs, ours) == (SampleLookup(1, ()), None)
    info.ledgerInfo[0].size = 1000
    theirs.put(f"/managed-ledgers/{ORDERS.name}", info.SerializeToString(), 1)
    assert compare(theirs, ours)[1] == ORDERS


def test_a_root_that_names_nothing_is_told_from_one_that_could_not_be_understood(
    make_root: Callable[[], MetadataStore],
) -> None:
    root = make_root()
    population = Population(root)
    assert sample_root(root) == RootSample((), whole=True)
    population.names(ORDERS, [])
    assert sample_root(root) == RootSample((), whole=True)
    root.create(f"/managed-ledgers/{OTHER.name}", b"\xff\xff\xff", make_parents=True)
    assert sample_root(root) == RootSample((), whole=False)


def test_what_need_not_be_in_bookkeeper_is_no_part_of_the_sample(make_root: Callable[[], MetadataStore]) -> None:
    root = make_root()
    Population(root).names(ORDERS, [])
    offloaded = managed_ledger_pb2.ManagedLedgerInfo()
    offloaded.ledgerInfo.add(ledgerId=1, entries=1, size=1).offloadContext.bookkeeperDeleted = 1
    offloaded.ledgerInfo.add(ledgerId=2, entries=1, size=1)
    root.create(f"/managed-ledgers/{OTHER.name}", offloaded.SerializeToString(), make_parents=True)
    assert [named.ledger_id for named in sample_root(root).ledgers] == [2]


@pytest.mark.parametrize(
    ("shadow", "holders"),
    [
        ("shadow", {"shop/orders/persistent/t"}),
        ("shadow-partition-1", {"shop/orders/persistent/t", "shop/orders/persistent/t-partition-1"}),
    ],
)
def test_what_a_shadow_topic_lists_is_its_sources(
    make_root: Callable[[], MetadataStore], shadow: str, holders: set[str]
) -> None:
    root = make_root()
    listed = managed_ledger_pb2.ManagedLedgerInfo()
    listed.ledgerInfo.add(ledgerId=3, entries=1, size=1)
    listed.properties.add(key="PULSAR.SHADOW_SOURCE", value="persistent://shop/orders/t")
    root.create(f"/managed-ledgers/shop/orders/persistent/{shadow}", listed.SerializeToString(), make_parents=True)
    sample = sample_root(root)
    assert sample.whole
    assert {(named.ledger_id, str(named.holder)) for named in sample.ledgers} == {(3, name) for name in holders}


def test_a_shadow_topic_of_no_topic_is_not_understood(make_root: Callable[[], MetadataStore]) -> None:
    root = make_root()
    listed = managed_ledger_pb2.ManagedLedgerInfo()
    listed.ledgerInfo.add(ledgerId=3, entries=1, size=1)
    listed.properties.add(key="PULSAR.SHADOW_SOURCE", value="persistent://a")
    root.create("/managed-ledgers/shop/orders/persistent/s", listed.SerializeToString(), make_parents=True)
    assert sample_root(root) == RootSample((), whole=False)


def test_a_sample_of_a_root_of_any_size_has_some_hundred_ledgers_with_the_newest_among_them() -> None:
    with closing(MemoryStore()) as store:
        population = Population(store)
        for namespace in range(40):
            for topic in range(60):
                first = (namespace * 60 + topic) * 10
                holder = ManagedLedgerHolder(f"t/n{namespace:02}/persistent/topic{topic:02}")
                population.names(holder, range(first, first + 10), closed=True)
        asked: list[str] = []
        listed = store.list_children
        store.list_children = lambda path: asked.append(path) or listed(path)  # type: ignore[method-assign,func-returns-value]
        sample = sample_root(store).ledgers
    assert len(sample) == 300
    assert len({named.holder for named in sample}) == 75
    assert {named.ledger_id % 10 for named in sample} >= {9}
    assert len(asked) < 200
