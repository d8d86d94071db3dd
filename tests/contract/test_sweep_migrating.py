"""A sweep, its lock and phase one on a real ZooKeeper that is moved to a real Oxia, and we as the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from uuid import uuid4

import pytest

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.config import Settings, load_settings
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.phase_one.operation import OperationResult
from bookwarden.deletion.phase_one.trimming import StoreTrim
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.errors import RefusedError, StoreMovedError
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.metastore.following.phases import ParticipantState
from bookwarden.metastore.following.store import MigratingStore
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.lock import StoreLock
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.stores import open_metadata_store
from bookwarden_dev.devcluster.servers.oxia import OxiaServer
from contract.conftest import OxiaStoreMaker, StoreMaker
from servers.lone_zookeeper import LoneZooKeeper
from servers.metadata_tree import remove_tree
from servers.migration.coordinator import Coordinator, copy_all
from servers.population import Population
from servers.sweep_parts import sweep_with
from servers.waiting import eventually
from unit.deletion.test_mark import Sender
from unit.deletion.test_mark_operations import NODE, TOPIC, managed_ledger
from unit.deletion.test_sweeping import NOW, POLICY, Recorder, mark

LEDGERS = 2000
LEDGER_IDS = "/ledgers/idgen"


class Migration:
    """A source of a test's own, with the coordinator of its migration, and the target."""

    def __init__(self, hosts: str, source: MetadataStore, target: OxiaStore, target_url: str, chroot: str) -> None:
        self.source, self.target = source, target
        self.coordinator = Coordinator(source, target_url)
        self.coordinator.offer()
        # Of few ledgers, so that a migration comes in the middle of a batch.
        self.settings = load_settings(
            overrides={
                "metadata_store.urls": f"['zk:{hosts}{chroot}']",
                "metadata_store.batch_size": "5",
                "metadata_store.batches_in_flight": "2",
            }
        )

    def prepare(self) -> None:
        """Begin, and wait until nobody takes part any more."""
        self.coordinator.set_phase("PREPARATION")
        eventually(lambda: self.coordinator.participants() == [])

    def copy(self) -> None:
        self.coordinator.set_phase("COPYING")
        copy_all(self.source, self.target)


@pytest.fixture
def migration(
    lone_zookeeper: LoneZooKeeper, connect: StoreMaker, oxia_server: OxiaServer, connect_oxia: OxiaStoreMaker
) -> Iterator[Migration]:
    chroot = f"/t-{uuid4().hex}"
    connect().create(chroot, b"")
    target = connect_oxia()
    yield Migration(lone_zookeeper.hosts, connect(chroot=chroot), target, oxia_server.url, chroot)
    for path in ("/ledgers", "/managed-ledgers", "/schemas", "/pulsar", "/bookwarden"):
        remove_tree(target, path)


class Task:
    """What a task of a sweep has."""

    def __init__(self, settings: Settings, *, one_of_many: bool) -> None:
        self.opened = Cluster(settings, one_of_many=one_of_many)
        self.recorder = Recorder()
        self.sweep = sweep_with(
            self.opened.bookkeeper.catalog,
            MetadataReferences(list(self.opened.stores.values())),
            self.recorder,
            self.recorder,
            POLICY,
            SweepLimits(200, max_unreachable=30),
            migrations=self.opened.migrations,
            ids=self.opened.bookkeeper.ids,
            clock=lambda: NOW,
        )

    def run(self, marks: list[ReceivedMark]) -> list[Outcome]:
        return [row.outcome for rows in self.sweep.process(marks, "q/0") for row in rows]


@pytest.fixture
def task(migration: Migration) -> Iterator[Callable[..., Task]]:
    made: list[Task] = []

    def make(*, one_of_many: bool) -> Task:
        made.append(Task(migration.settings, one_of_many=one_of_many))
        return made[-1]

    yield make
    for each in made:
        each.opened.close()


class UnderWay:
    """Two tasks that sweep 2,000 ledgers of two topics, one of which still names one."""

    def __init__(self, migration: Migration, task: Callable[..., Task], pool: ThreadPoolExecutor) -> None:
        holders = [ManagedLedgerHolder(f"t/n/persistent/{name}") for name in ("one", "two")]
        population = Population(migration.source)
        self.kept = population.ledger(LEDGERS + 1, holders[0])
        population.names(holders[0], [LEDGERS + 1])
        migration.source.create(LEDGER_IDS, b"")
        numbers = range(1, LEDGERS + 1)
        with ThreadPoolExecutor(8) as makers:
            made = makers.map(lambda number: population.ledger(number, holders[number % 2]), numbers)
            self.paths = list(made)
        marks = [mark(number, holders[number % 2]) for number in numbers]
        self.marks = [[mark(LEDGERS + 1, holders[0]), *marks[1::2]], marks[0::2]]
        self.tasks = [task(one_of_many=True) for _ in self.marks]
        self.work: list[Future[list[Outcome]]] = [
            pool.submit(each.run, share) for each, share in zip(self.tasks, self.marks, strict=True)
        ]
        self._source = migration.source
        # Both are under way; two nodes are read, not all: on a busy machine no task must end before they are here.
        eventually(lambda: migration.source.get_many(self.paths[:2]) == [None, None], pause=0.01)

    def left_in(self, store: MetadataStore) -> int:
        return sum(node is not None for node in store.get_many(self.paths))

    def validate(self) -> None:
        for each in self.tasks:
            assert (each.recorder.retried, each.recorder.given_up) == ([], [])


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def test_a_sweep_waits_while_the_metadata_is_moved_and_one_task_finishes_it_in_oxia(
    migration: Migration, task: Callable[..., Task], pool: ThreadPoolExecutor
) -> None:
    going_on = UnderWay(migration, task, pool)
    migration.prepare()
    left = going_on.left_in(migration.source)
    assert 0 < left < LEDGERS
    migration.copy()
    assert [work.done() for work in going_on.work] == [False, False]
    assert going_on.left_in(migration.source) == left
    migration.coordinator.set_phase("COMPLETED")
    for work in going_on.work:
        with pytest.raises(StoreMovedError, match="takes one writer"):
            work.result(60)
    assert going_on.left_in(migration.target) == left
    alone = task(one_of_many=False)
    marks = [one for share in going_on.marks for one in share]
    assert alone.run(marks).count(Outcome.WAITING) == left
    assert "metadata-migration counters --execute" in alone.recorder.waiting[0][1]
    assert going_on.left_in(migration.target) == left
    migration.target.count_up(LEDGER_IDS, LEDGERS + 2)
    outcomes = alone.run(marks)
    # The batch is replayed: what the tasks had deleted is gone.
    assert outcomes.count(Outcome.DELETED) == left
    assert outcomes.count(Outcome.ALREADY_GONE) == LEDGERS - left
    assert outcomes.count(Outcome.STILL_REFERENCED) == 1
    assert going_on.left_in(migration.target) == 0
    assert migration.target.get(going_on.kept) is not None
    assert going_on.left_in(migration.source) == left
    assert alone.recorder.retried == []
    going_on.validate()


def test_a_sweep_goes_on_where_it_was_when_the_migration_failed(
    migration: Migration, task: Callable[..., Task], pool: ThreadPoolExecutor
) -> None:
    going_on = UnderWay(migration, task, pool)
    migration.prepare()
    left = going_on.left_in(migration.source)
    migration.coordinator.set_phase("COPYING")
    assert going_on.left_in(migration.source) == left
    migration.coordinator.set_phase("FAILED")
    outcomes = [outcome for work in going_on.work for outcome in work.result(120)]
    assert outcomes.count(Outcome.DELETED) == LEDGERS
    assert outcomes.count(Outcome.STILL_REFERENCED) == 1
    assert going_on.left_in(migration.source) == 0
    assert len(migration.coordinator.participants()) == 2
    going_on.validate()


@pytest.fixture
def open_store(migration: Migration) -> Iterator[Callable[..., MigratingStore]]:
    made: list[MigratingStore] = []

    def make(**settings: str) -> MigratingStore:
        store = migration.settings.metadata_store.model_copy(update=settings)
        opened = open_metadata_store(store, store.urls[0])
        assert isinstance(opened, MigratingStore)
        made.append(opened)
        return opened

    yield make
    for store in made:
        store.close()


LOCK = "/bookwarden/sweeps/one"


@pytest.mark.parametrize("end", ["COMPLETED", "FAILED"])
def test_no_second_sweep_gets_the_lock_while_or_after_the_metadata_is_moved(
    migration: Migration, open_store: Callable[..., MigratingStore], end: str
) -> None:
    first = open_store()
    lock = StoreLock(first, LOCK, look_s=0.1)
    lock.acquire(0)

    def require_held() -> None:
        with closing(open_store()) as other, pytest.raises(RefusedError, match="another sweep runs"):
            StoreLock(other, LOCK).acquire(0)

    with lock.kept(lambda: pytest.fail("the lock was lost")):
        require_held()
        migration.prepare()
        require_held()
        # It is there before we leave, so that whoever comes after the copy finds it.
        assert len(migration.target.list_children(LOCK)) == 1
        migration.copy()
        require_held()
        migration.coordinator.set_phase(end)
        require_held()
        place, other_place = (migration.target, migration.source)[:: 1 if end == "COMPLETED" else -1]
        eventually(
            lambda: (
                first.state
                in (ParticipantState.SERVING_TARGET, ParticipantState.SERVING_SOURCE, ParticipantState.READING)
            )
        )
        eventually(lambda: other_place.list_children(LOCK) == [])
        assert len(place.list_children(LOCK)) == 1
        require_held()
    first.close()
    StoreLock(open_store(), LOCK).acquire(30)


class Nobody:
    """No broker has a topic."""

    def owner(self, topic: str) -> str | None:
        return None


def listed_in(store: MetadataStore) -> list[int]:
    read = ManagedLedgers(store).read("t/n/persistent/a")
    assert read is not None
    return [ledger.ledger_id for ledger in read.info.ledgers]


def test_a_trim_in_the_store_waits_for_the_end_or_fails_at_once(
    migration: Migration, open_store: Callable[..., MigratingStore], pool: ThreadPoolExecutor
) -> None:
    population = Population(migration.source)
    for ledger_id in (1, 2, 3):
        population.ledger(ledger_id, ManagedLedgerHolder("t/n/persistent/a"))
    migration.source.create(NODE, managed_ledger([1, 2, 3]).SerializeToString(), make_parents=True)
    patient, hurried = Sender(), Sender()
    migration.prepare()

    def trim(store: MigratingStore, sender: Sender) -> OperationResult:
        return (
            StoreTrim(Marker(sender), ManagedLedgers(store), Nobody(), BookKeeperCatalog(store)).plan(TOPIC).carry_out()
        )

    failed = trim(open_store(migration_write_wait_seconds=0.0), hurried)
    assert [one.ledger_id for one in hurried.sent] == [1, 2]
    assert "marked, but not removed; the ledgers stay readable: the metadata is being moved" in failed.problem
    work = pool.submit(trim, open_store(), patient)
    eventually(lambda: patient.sent)
    migration.copy()
    assert not work.done()
    migration.coordinator.set_phase("COMPLETED")
    result = work.result(60)
    assert (result.done, result.removed) == (True, (1, 2)), result.problem
    assert listed_in(migration.target) == [3]
    assert listed_in(migration.source) == [1, 2, 3]
