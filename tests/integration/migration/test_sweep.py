"""The sweep while a real Pulsar 4.2 moves its metadata from ZooKeeper to Oxia, by its own request.

Each ledger is accounted for in both stores, and ZooKeeper's log tells who wrote what, and when.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pulsar
import pytest
from click.testing import CliRunner
from pulsar.schema import StringSchema

from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.exit_codes import NOT_DONE
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.metastore.interface import MetadataStore
from bookwarden_dev.devcluster import ClusterOptions, DevCluster, ServerProcess
from servers.deletion_site import DeletionSite
from servers.marked_load import FIRST_IDS, Load, sweep_process
from servers.migration.site import SHARDS, FrozenJob, Migration, slowed
from servers.population import Population
from servers.short_lived import running_until_killed
from servers.sweeping_site import SweepingSite
from servers.topic_contents import retain
from servers.waiting import eventually

# The first start of an Oxia on a machine builds it.
pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(1800)]

LEDGERS = 12_000
# So many deleted ones show that the sweep works.
A_START = 1_000
# Sessions that outlast an Oxia that stands still for a while.
OPTIONS = ClusterOptions(pulsar="4.2.4", oxia=True, oxia_shards=SHARDS, session_seconds=60)
SETTINGS = {
    # A killed process is among the participants until its session ends.
    "metadata_store.session_timeout_seconds": "6",
    # Slow enough that the migration comes in the middle.
    "metadata_store.max_requests_per_second": "3000",
    "sweep.backoff_seconds": "0.5",
    "sweep.max_backoff_seconds": "2",
    "sweep.max_failures": "50",
    # What waits for the counters is to have rows, as long as its batch can end.
    "sweep.max_waiting_marks": "100000",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    """A cluster of the test's own: its metadata moves once and for all."""
    with running_until_killed(DevCluster(tmp_path / "pulsar", OPTIONS)) as made:
        yield made


@pytest.fixture
def migration(cluster: DevCluster) -> Iterator[Migration]:
    with closing(Migration(cluster)) as made:
        yield made


@pytest.fixture
def target(cluster: DevCluster, migration: Migration) -> Iterator[MetadataStore]:
    with closing(migration.target()) as made:
        yield made


@pytest.fixture
def load(
    cluster: DevCluster,
    migration: Migration,
    make_namespace: Callable[[DevCluster], str],
    tmp_path: Path,
) -> Load:
    site = DeletionSite.of(cluster, make_namespace(cluster), tmp_path, SETTINGS)
    site.create_topics()
    with closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin:
        # A trim right after the switch would let a deletion topic take a ledger before the counters are raised.
        retain(admin, site.namespace)
    first_id = next(FIRST_IDS)
    made = Load(site, migration.source, range(first_id, first_id + LEDGERS))
    made.populate()
    return made


@pytest.fixture
def sweep(load: Load, tmp_path: Path) -> Iterator[ServerProcess]:
    process = sweep_process(load.site, tmp_path)
    yield process
    if process.is_running():
        process.kill()


@dataclass
class Conversation:
    """A topic with a schema and a subscription, which has to survive all of it."""

    connection: PulsarConnection
    client: pulsar.Client
    topic: str
    sent: int = 0

    def send(self, count: int) -> None:
        producer = self.client.create_producer(self.topic, schema=StringSchema(), send_timeout_millis=60_000)
        with closing(producer):
            for _ in range(count):
                producer.send(str(self.sent))
                self.sent += 1

    def consumer(self) -> pulsar.Consumer:
        earliest = pulsar.InitialPosition.Earliest
        return self.client.subscribe(self.topic, "reader", schema=StringSchema(), initial_position=earliest)

    def assert_goes_on(self) -> None:
        """Load the topic anew, which gives it another ledger, and receive what was sent from the beginning."""
        with closing(PulsarAdmin(self.connection, timeout_s=60)) as admin:
            admin.put(f"{topic_path(self.topic)}/unload")
        self.send(10)
        with closing(self.consumer()) as consumer:
            assert [consumer.receive(60_000).value() for _ in range(self.sent)] == [str(n) for n in range(self.sent)]


@pytest.fixture
def conversation(cluster: DevCluster, load: Load) -> Iterator[Conversation]:
    with closing(cluster.connection().client(operation_timeout_seconds=60)) as client:
        made = Conversation(cluster.connection(), client, f"persistent://{load.site.namespace}/conversation")
        made.consumer().close()
        made.send(10)
        yield made


def begun(load: Load, sweep: ServerProcess) -> None:
    """Start the sweep, and return when it has deleted a thousand ledgers."""
    sweep.start()
    deleting(load)


def deleting(load: Load) -> None:
    """Wait until a thousand more of the ledgers are gone."""
    enough = len(load.present()) - A_START
    eventually(lambda: len(load.present()) < enough, 300, 0.2)


def waits_for_the_end(sweep: ServerProcess) -> bool:
    """Say whether a sweep that was started during the migration is through with its start, and waits."""
    assert sweep.is_running(), sweep.log_tail()
    # The command looks first, and once Spark runs its driver does.
    return sweep.log_since_start().count("now waiting") > 1


def assert_moved(load: Load, sweep: ServerProcess, migration: Migration, target: MetadataStore) -> None:
    """Let the sweep end its work in the target, and account for each ledger, in both stores."""
    # What the copy has: nobody deletes here any more.
    left = load.present()
    assert load.kept < left, "nothing was left to be deleted after the switch"
    load.store = target
    assert_waits_for_the_counters(load, left)
    migration.raise_counters()
    load.settle(sweep)
    # The move starts the query again with other tasks, which may come in the middle of a batch.
    assert load.told_more_than_once() == set()
    load.store = migration.source
    assert load.present() == left
    load.store = target
    history = migration.history()
    history.validate(set(load.paths.values()))
    assert history.late() == set()
    # Brokers delete former ledgers of their own topics there as well.
    missing = missing_in_target(migration)
    assert missing & set(load.paths.values()) == {load.paths[ledger] for ledger in left - load.kept}


def assert_waits_for_the_counters(load: Load, left: set[int]) -> None:
    """Let the sweep find out that ids come again: it tells what to do, and deletes none of what is left."""

    def reason() -> str:
        waiting = (row["reason"] for row in load.site.outcomes() if row["outcome"] == "waiting")
        return next(waiting, "")

    eventually(reason, 300, 0.5)
    assert "`bookwarden metadata-migration counters --execute`" in reason()
    assert load.present() == left


def missing_in_target(migration: Migration) -> set[str]:
    """Verify the copy; anything else than nodes that were deleted since is a fault."""
    arguments = ["metadata-migration", "verify", "--source", migration.cluster.store_url, "--show", str(LEDGERS)]
    result = CliRunner().invoke(cli, ["-o", "json", *arguments])
    assert result.exit_code == NOT_DONE, result.output
    report = json.loads(result.stdout)
    assert {row["class"] for row in report["first"]} <= {"missing", "changed after the switch"}
    return {row["path"] for row in report["first"] if row["class"] == "missing"}


def start_as_operator(migration: Migration, folder: Path) -> None:
    """Have the command begin it, which first looks for what would let it fail; the folder has the sweep's settings."""
    command = ["--config", str(folder / "bookwarden.yaml"), "metadata-migration", "start"]
    result = CliRunner().invoke(cli, [*command, "--target", migration.cluster.oxia_url, "--yes", "--no-watch"])
    assert result.exit_code == 0, result.output


def test_under_load_everything_pending_is_deleted_in_the_target_and_nothing_comes_back(
    load: Load,
    sweep: ServerProcess,
    migration: Migration,
    target: MetadataStore,
    conversation: Conversation,
    tmp_path: Path,
) -> None:
    load.mark(load.ids)
    begun(load, sweep)
    start_as_operator(migration, tmp_path)
    assert migration.wait_for("COMPLETED", "FAILED") == "COMPLETED"
    assert_moved(load, sweep, migration, target)
    conversation.assert_goes_on()

    # Whoever still has the former URL follows from the start.
    holder, ledger = ManagedLedgerHolder(f"{load.site.namespace}/persistent/late"), load.ids.stop
    path = Population(target).ledger(ledger, holder)
    with SweepingSite(load.site.settings) as late:
        assert late.exists(ledger)
        assert late.outcome(ledger, holder).outcome is Outcome.DELETED
    assert target.get(path) is None
    assert migration.history().late() == set()


def test_killed_in_each_phase_and_started_again_it_goes_on_where_the_metadata_is(
    cluster: DevCluster,
    load: Load,
    sweep: ServerProcess,
    migration: Migration,
    target: MetadataStore,
    conversation: Conversation,
) -> None:
    load.mark(load.ids)
    begun(load, sweep)
    with migration.held_in_preparation():
        # It can not leave before it is killed.
        job = FrozenJob(sweep)
        migration.start()
        migration.wait_for("PREPARATION")
        assert migration.our_participants()
        job.kill()
        sweep.start()
        eventually(lambda: waits_for_the_end(sweep), 60)
        migration.wait_until_left()
    with slowed(cluster.oxia):
        migration.wait_for("COPYING")
        FrozenJob(sweep).kill()
        sweep.start()
        eventually(lambda: waits_for_the_end(sweep), 60)
        assert migration.phase() == "COPYING"
        job = FrozenJob(sweep)
    assert migration.wait_for("COMPLETED", "FAILED") == "COMPLETED"
    job.kill()
    sweep.start()
    assert_moved(load, sweep, migration, target)
    conversation.assert_goes_on()


@pytest.mark.storm
def test_a_target_that_is_down_fails_the_migration_and_the_next_try_is_good(
    cluster: DevCluster,
    load: Load,
    sweep: ServerProcess,
    migration: Migration,
    conversation: Conversation,
) -> None:
    load.mark(load.ids[: LEDGERS // 2])
    begun(load, sweep)
    with migration.held_in_preparation():
        migration.start()
        migration.wait_for("PREPARATION")
        migration.wait_until_left()
        cluster.oxia.kill()
    assert migration.wait_for("COMPLETED", "FAILED") == "FAILED"
    deleting(load)
    conversation.send(10)

    # As in the runbook: until they are restarted none of them takes part, and all keep what they had of the target.
    cluster.bookie.restart()
    cluster.broker.restart()
    migration.empty_target()
    cluster.oxia.start()
    migration.remove_flag()
    load.mark(load.ids[LEDGERS // 2 :])
    deleting(load)
    # The broker loads all of them now. Behind the move that takes a ledger, whose id may be taken until the counter is
    # ahead, or is smaller than those that a topic has, so that nobody reads what is in it.
    load.site.backlog()
    assert load.site.backlog_of_dlq() == 0
    migration.start()
    assert migration.wait_for("COMPLETED", "FAILED") == "COMPLETED"
    with closing(migration.target()) as target:
        assert_moved(load, sweep, migration, target)
    conversation.assert_goes_on()
