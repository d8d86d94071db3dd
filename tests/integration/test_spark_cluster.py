"""The sweep and the orphan scan on a real Spark cluster, whose executors get the packaged archive and nothing else."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.config import Settings
from bookwarden.deletion.journal.reading import JournalFolder, JournalReader
from bookwarden.ledgers.kinds import CursorHolder, LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.metastore.urls import open_store
from bookwarden.pipelines import archive
from bookwarden.pipelines.scan.folder import plans_of, scan_ids
from bookwarden_dev.devcluster import DevCluster
from servers import executor_gates
from servers.deletion_site import PARTITIONS, DeletionSite
from servers.lone_zookeeper import LoneZooKeeper
from servers.population import Population
from servers.scanned_site import ScannedSite, broker_telling_the_time
from servers.spark_cluster import BARE_PYTHON, SparkCluster, bare_python_says
from servers.spark_gates import Gates
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

CHECKOUT = Path(__file__).parents[2]
# Enough that each partition has a task of its own: those with few messages share one.
HOLDERS, LEDGERS_EACH = 200, 4


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive as `make archive` builds it."""
    output = tmp_path_factory.mktemp("dist") / "bookwarden-env.tar.gz"
    assert archive.main(["--checkout", str(CHECKOUT), "--output", str(output)]) == 0
    return output


@pytest.fixture(scope="module")
def unpacked(packaged: Path) -> Path:
    """The archive unpacked beside the driver, as an operator does it."""
    folder = packaged.parent / "env"
    with tarfile.open(packaged) as members:
        members.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, unpacked: Path) -> Iterator[SparkCluster]:
    """Two workers with folders and Python environments of their own."""
    with SparkCluster(tmp_path_factory.mktemp("spark"), unpacked) as cluster:
        yield cluster


def test_the_archive_brings_its_own_packages_and_leaves_spark_to_the_cluster(packaged: Path, unpacked: Path) -> None:
    with tarfile.open(packaged) as members:
        tops = {name.split("/")[0] for name in members.getnames()}
    assert {"bookwarden", "pulsar", "kazoo", "fastavro", "google", "pyarrow", "pandas", "prometheus_client"} <= tops
    assert tops.isdisjoint({"pyspark", "py4j", "pytest", "bin"})
    assert (unpacked / "bookwarden" / "schemas" / "pending_ledger_deletion.avsc").is_file()


def test_two_workers_sweep_all_marks_with_only_the_archive_though_one_loses_its_executor(
    pulsar_cluster: DevCluster, namespace: str, tmp_path: Path, packaged: Path, unpacked: Path, workers: SparkCluster
) -> None:
    """The executor ends right after the journal: another one deletes what it wrote there, and undo finds all of it."""
    refused = bare_python_says("import bookwarden")
    assert "No module named 'bookwarden'" in refused.stderr
    site = DeletionSite.of(pulsar_cluster, namespace, tmp_path)
    # A cluster that is set up wrongly is to say so at once.
    site.overrides = {"sweep.max_failures": "2"}
    site.create_topics()
    doomed = populate_and_mark(site)
    events, gates = tmp_path / "events", Gates(tmp_path / "gates")
    events.mkdir()
    (gates.folder / "sitecustomize.py").write_bytes(Path(executor_gates.__file__).read_bytes())
    conf = {
        "spark.archives": f"{packaged}#env",
        "spark.executorEnv.PYTHONPATH": f"./env:{gates.folder}",
        "spark.pyspark.python": BARE_PYTHON,
        "spark.pyspark.driver.python": BARE_PYTHON,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        **gates.conf,
    }
    settings = settings_file(site.settings, tmp_path)
    script = CHECKOUT / "streaming" / "ledger_deletion.py"
    gates.set("journal", "kill")
    workers.submit(script, ["--config", str(settings), "--once"], conf, PYTHONPATH=str(unpacked))

    (killed,) = gates.taken()
    with closing(open_store(pulsar_cluster.store_url)) as store:
        assert [value for value in store.get_many(list(doomed.values())) if value is not None] == []
    assert site.counts() == {"deleted": len(doomed)}
    assert {row["ledger_id"] for row in site.outcomes()} == set(doomed)
    assert site.backlog() == 0
    assert killed["action"] == "kill"
    journaled = Counter(one.ledger_id for one in JournalReader(JournalFolder(tmp_path / "journal")))
    assert set(journaled) == set(doomed)
    # Of those that the killed executor had journaled.
    assert 0 < journaled.total() - len(doomed) < len(doomed)
    listed = CliRunner().invoke(cli, ["--config", str(settings), "-o", "json", "undo", "--list"])
    assert sum(run["ledgers"] for run in json.loads(listed.stdout)["runs"]) == journaled.total()
    assert_both_workers_ran_the_archive(workers, tasks_by_executor(events))


@pytest.mark.timeout(1800)
def test_a_journal_of_each_machine_is_written_where_that_is_allowed_and_undo_says_so(
    pulsar_cluster: DevCluster, namespace: str, tmp_path: Path, workers: SparkCluster
) -> None:
    """Machines of their own are played by working folders of their own, which this path means in each process.

    That it is refused otherwise is in test_sweep_endings.py.
    """
    own = {"sweep.journal": "/proc/self/cwd/journal", "sweep.journal_per_machine": "true"}
    site = DeletionSite.of(pulsar_cluster, namespace, tmp_path)
    site.overrides = {"sweep.max_failures": "1", **own}
    site.create_topics()
    doomed = populate_and_mark(site)
    settings = settings_file(site.settings, tmp_path)
    script = CHECKOUT / "streaming" / "ledger_deletion.py"

    def journals() -> set[Path]:
        return {folder for number in range(2) for folder in workers.work_folder(number).glob("app-*/*/journal")}

    before = journals()
    submission = workers.submission(script, ["--config", str(settings), "--once"], {})
    submission.start(wait=False)
    eventually(lambda: not submission.is_running(), 500)
    assert submission.exit_code == 0, submission.log_since_start()
    with closing(open_store(pulsar_cluster.store_url)) as store:
        assert [value for value in store.get_many(list(doomed.values())) if value is not None] == []
    # One of the workers may have done all of it.
    written = journals() - before
    assert written
    runs = 0
    for folder in written:
        options = ["--set", f"sweep.journal={folder}", "--set", "sweep.journal_per_machine=true"]
        listed = CliRunner().invoke(cli, [*options, "-o", "json", "undo", "--list"])
        found = json.loads(listed.stdout)
        assert "alone: what other machines deleted was not looked for" in found["unseen"][0]
        runs += sum(run["ledgers"] for run in found["runs"])
    assert runs == len(doomed)


def settings_file(settings: Settings, folder: Path) -> Path:
    file = folder / "bookwarden.yaml"
    file.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    return file


def populate_and_mark(site: DeletionSite) -> dict[int, str]:
    """Make ledgers that nobody names, mark them all; return their paths by id."""
    first = 1_400_000_000 + (hash(site.namespace) % 100_000) * 1000
    doomed, marks = {}, []
    with closing(open_store(site.store_url)) as store:
        population = Population(store)
        for number in range(HOLDERS * LEDGERS_EACH):
            holder = ManagedLedgerHolder(f"{site.namespace}/persistent/orders-{number % HOLDERS}")
            ledger_id = first + number
            doomed[ledger_id] = population.ledger(ledger_id, holder)
            marks.append(PendingDeletion(holder.name, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger_id))
    site.mark(*marks)
    return doomed


@pytest.fixture
def site(tmp_path: Path, quiet_zookeeper: LoneZooKeeper) -> Iterator[ScannedSite]:
    with (
        broker_telling_the_time(60) as admin_url,
        closing(ScannedSite(quiet_zookeeper.hosts, f"/s-{uuid4().hex}", admin_url, tmp_path / "orphans")) as made,
    ):
        yield made


def test_an_orphan_scan_is_submitted_and_spark_submit_gives_its_exit_code(
    tmp_path: Path, workers: SparkCluster, site: ScannedSite
) -> None:
    # Each directory of a hundred millions has one ledger; a piece has four directories.
    ids = [number * 1_000_000 for number in range(1, 25)]
    site.topic("t/n/persistent/orders", ids)
    site.ledgers(CursorHolder("t/n/persistent/orders", "gone"), [7])
    # Of the properties that the job sets, here; by --conf they could not be changed.
    site.overrides["spark.conf"] = "{spark.sql.shuffle.partitions: '2'}"
    settings = settings_file(site.settings, tmp_path)
    scan = workers.submission(CHECKOUT / "jobs" / "orphan_scan.py", ["--config", str(settings)], {})
    scan.start(wait=False)
    eventually(lambda: not scan.is_running(), 240)
    assert scan.exit_code == 20, scan.log_since_start()
    named = CliRunner().invoke(cli, ["--config", str(settings), "-o", "json", "orphans", "list"])
    (plan,) = json.loads(named.stdout)["plans"]
    assert (plan["plan"]["scan_id"], plan["plan"]["counts"]["candidates"]) == (scan_ids(site.settings)[0], 1)
    assert f"plan {plan['plan']['plan_id']}: 1 orphans, 0 missing" in scan.log_since_start()
    plans = plans_of(site.settings)
    assert [one.ledger_id for one in plans.all_candidates(plans.manifest(plan["plan"]["plan_id"]))] == [7]
    # The archive has no bytecode: what lies there was compiled because an executor imported it.
    compiled = "python/site/bookwarden/pipelines/scan/__pycache__/reading.*.pyc"
    assert [file for worker in workers.workers for file in worker.folder.glob(compiled)]


def tasks_by_executor(events: Path) -> Counter[str]:
    """Count the tasks that ended well, from Spark's event log."""
    lines = [line for log in events.rglob("events_*") for line in log.read_text().splitlines()]
    ended = [event for event in map(json.loads, lines) if event["Event"] == "SparkListenerTaskEnd"]
    return Counter(
        event["Task Info"]["Executor ID"] for event in ended if event["Task End Reason"]["Reason"] == "Success"
    )


def assert_both_workers_ran_the_archive(workers: SparkCluster, tasks: Counter[str]) -> None:
    assert sum(tasks.values()) >= PARTITIONS
    for number in range(2):
        folder = workers.work_folder(number)
        # The archive has no bytecode: what lies here was compiled because an executor imported it from here.
        for module in ("deletion/phase_two/__pycache__/sweeping", "pipelines/sweep/__pycache__/query"):
            assert list(folder.glob(f"app-*/*/env/bookwarden/{module}.*.pyc")), f"{folder} did not import {module}"
