"""The sweep as spark-submit runs it: it serves its metrics, and the Kubernetes hook ends it with exit code 0."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import urllib3
import yaml
from prometheus_client.parser import text_string_to_metric_families

from bookwarden.clusters.pulsar.messages.producers import ConfirmedProducers
from bookwarden.ledgers.kinds import LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.metastore.urls import open_store
from bookwarden.processes import descendants
from bookwarden.wiring.pulsar import connection_of
from bookwarden_dev.devcluster import DevCluster, ServerProcess, ServerSpec
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from servers.deletion_site import DeletionSite
from servers.population import Population
from servers.spark_cluster import SPARK_HOME, java_options
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]

CHECKOUT = Path(__file__).parents[2]
SCRIPT = CHECKOUT / "streaming" / "ledger_deletion.py"
Sample = tuple[str, tuple[tuple[str, str], ...]]


@pytest.fixture
def site(pulsar_cluster: DevCluster, namespace: str, tmp_path: Path) -> DeletionSite:
    cluster = pulsar_cluster
    made = DeletionSite.of(cluster, namespace, tmp_path)
    (port,) = free_ports(1)
    made.overrides = {"metrics.port": str(port), "deletion.two_phase_deletion_max_retry_delete_count": "0"}
    made.create_topics()
    return made


@pytest.fixture
def submitted(site: DeletionSite) -> Iterator[ServerProcess]:
    """A JVM, and the script below it; ready when its endpoint answers."""
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "512m"]
    # The JVM's own files, too, belong to the test.
    submit += ["--driver-java-options", java_options(Path(tempfile.gettempdir()))]
    submit += ["--conf", "spark.ui.enabled=false", "--conf", f"spark.pyspark.python={sys.executable}"]
    settings = site.folder / "bookwarden.yaml"
    settings.write_text(yaml.safe_dump(site.settings.model_dump(mode="json")))
    line = [*submit, str(SCRIPT), "--config", str(settings)]
    log = site.folder / "sweep.log"
    process = ServerProcess(ServerSpec("sweep", lambda: line, log, lambda _: bool(scrape(site)), site.folder))
    process.start()
    yield process
    process.kill()


def scrape(site: DeletionSite) -> dict[Sample, float]:
    """Read all samples from the endpoint; none while nobody answers."""
    url = f"http://{LOOPBACK}:{site.settings.metrics.port}/metrics"
    try:
        answer = urllib3.request("GET", url, timeout=5.0, retries=False)
    except urllib3.exceptions.HTTPError:
        return {}
    families = text_string_to_metric_families(answer.data.decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def sample(name: str, **labels: str) -> Sample:
    return f"bookwarden_{name}", tuple(sorted(labels.items()))


def test_the_endpoint_serves_the_list_of_the_proposal_and_the_hook_of_the_examples_ends_the_sweep_gently(
    site: DeletionSite, submitted: ServerProcess
) -> None:
    assert scrape(site)[sample("ledgers_deleted_total", ledger_type="LEDGER")] == 0
    holder = ManagedLedgerHolder(f"{site.namespace}/persistent/orders")
    first = 1_300_000_000 + (hash(site.namespace) % 100_000) * 1000
    marks = [
        PendingDeletion(holder.name, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, first + number)
        for number in range(3)
    ]
    with closing(open_store(site.store_url)) as store:
        population = Population(store)
        for mark in marks[:2]:
            population.ledger(mark.ledger_id, holder)
        population.ledger(first + 10, holder)
        node = population.names(holder, [first + 10])
        site.mark(*marks[:2])
        eventually(lambda: scrape(site)[sample("ledgers_deleted_total", ledger_type="LEDGER")] == 2, 120)
        found = store.get(node)
        assert found is not None
        store.put(node, b"\x0a\xff\xff", found.version)
        population.ledger(marks[2].ledger_id, holder)
    site.mark(marks[2])
    send_nonsense(site)
    eventually(lambda: scrape(site)[sample("outcomes_total", outcome="malformed", ledger_type="unknown")] == 1, 120)
    eventually(lambda: scrape(site)[sample("outcomes_total", outcome="gave up", ledger_type="LEDGER")] == 1, 120)

    with closing(open_store(site.store_url)) as store:
        # What cannot be read here would be in the way of everything that looks at all topics of the shared cluster.
        store.put(node, found.value, found.version + 1)

    samples = scrape(site)
    assert samples[sample("pending_deletions_received_total", ledger_type="LEDGER")] == 3
    assert samples[sample("pending_deletions_acked_total", ledger_type="LEDGER")] == 3
    assert samples[sample("ledger_deletions_failed_total", ledger_type="LEDGER")] == 1
    assert samples[sample("pending_deletions_max_retry_total", ledger_type="LEDGER")] == 1
    assert samples[sample("pending_deletions_sent_total", ledger_type="LEDGER", destination="dlq")] == 1
    assert samples[sample("ledgers_deleted_total", ledger_type="OFFLOAD_LEDGER")] == 0
    assert samples[sample("ledger_bytes_deleted_total")] == 2000
    assert samples[sample("batch_seconds_count")] >= 1
    partitions = {
        f"persistent://{site.namespace}/{topic}-partition-{number}"
        for topic in ("deletion", "deletion-RETRY")
        for number in range(4)
    }
    inflight = {dict(labels)["topic"] for name, labels in samples if name == "bookwarden_inflight_entries"}
    assert inflight == partitions

    # The last batch is acknowledged when the next look for messages begins.
    eventually(lambda: site.backlog() == 0, 60)
    end_by_hook(submitted)
    assert site.counts() == {"deleted": 2, "gave up": 1, "malformed": 1}


def end_by_hook(submitted: ServerProcess) -> None:
    """End the script below the JVM as the hook of the Kubernetes examples does."""
    examples = (CHECKOUT / "conf" / "deploy" / "kubernetes").glob("sparkapplication-*.yaml")
    found = [pattern for file in examples for pattern in re.findall("sweep='(.+)'", file.read_text())]
    assert len(found) == 2
    (pattern,) = set(found)
    # What pgrep -f would look at; only what this test started is signalled.
    below = [pid for pid in descendants(submitted.pid) if re.search(pattern, command_line(pid))]
    (script,) = below
    assert script != submitted.pid
    os.kill(script, signal.SIGTERM)
    eventually(lambda: not submitted.is_running(), 90)
    assert submitted.exit_code == 0
    assert "SIGTERM: finishing the running batch" in submitted.spec.log_file.read_text()


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def send_nonsense(site: DeletionSite) -> None:
    producers = ConfirmedProducers(connection_of(site.settings.pulsar).client)
    try:
        producers.send(site.settings.deletion.topic, b"\xff\xfe", schema=None, key="forged", properties={})
        producers.flush()
    finally:
        producers.close()
