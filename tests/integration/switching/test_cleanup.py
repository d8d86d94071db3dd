"""What a former bookie cluster has goes once brokers read it, whole, from the active one; the rest stays."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.demo.ledger_places import ledgers_of_topic
from bookwarden.devcluster.bookie_clusters import ClusterPlan
from bookwarden.devcluster.servers.settings import PULSARS_LEDGERS_ROOT
from bookwarden.ledgers.metadata import Segment
from bookwarden.pipelines.sweep.outcome_table import read_outcomes
from bookwarden.wire.ledger_metadata import decode_ledger_metadata, decode_ledger_password, encode_ledger_metadata
from servers.switching.copied import copy_ledger
from servers.switching.site import SwitchingSite, switching_site
from servers.topic_contents import read_back, send

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = 350
REFUSED = 5
# One more bookie of b than a ledger is on.
CLUSTERS = (ClusterPlan("a", PULSARS_LEDGERS_ROOT), ClusterPlan("b", "/bookies-b", bookies=3))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with switching_site(tmp_path_factory.mktemp("cleanup"), ("4.0.8",), CLUSTERS) as running:
        yield running


def lose_a_replica(site: SwitchingSite, ledger_id: int) -> None:
    """Let the metadata of b's copy name a bookie that never got it in the place of one that did."""
    cluster = site.servers.clusters["b"]
    path = ledger_path(cluster.ledgers_root, ledger_id)
    node = site.store.get(path)
    assert node is not None
    metadata = decode_ledger_metadata(node.value)
    (first, _), (other,) = metadata.segments[0].ensemble, cluster.ids - set(metadata.segments[0].ensemble)
    changed = metadata._replace(segments=(Segment(0, (first, other)),))
    password = decode_ledger_password(node.value)
    site.store.put(path, encode_ledger_metadata(changed, password=password), node.version)


def run(site: SwitchingSite, state: Path, *words: str) -> None:
    """Run a command that has to succeed, in a process of its own; the sweep's state is in this folder."""
    places = [f"sweep.{name}={state / name}" for name in ("checkpoint", "outcomes", "journal")]
    sets = [word for place in places for word in ("--set", place)]
    command = [sys.executable, "-m", "bookwarden.cli", *site.options, *sets, *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_what_was_copied_whole_goes_from_the_former_cluster(site: SwitchingSite, tmp_path: Path) -> None:
    site.register("b")
    site.wait_until_followed()
    run(site, tmp_path, "init")
    (topic,) = site.new_topics(1)
    with closing(site.connection.client()) as client:
        send(client, topic, COUNT)
        assert site.command("switch", "--target", "b", "--yes")["phase"] == "DONE"
        site.admin.put(f"{topic_path(topic)}/unload")
        # The last one is made on b.
        send(client, topic, 1)
        sent = [*(str(number).encode() for number in range(COUNT)), b"0"]
        assert read_back(client, topic) == sent
        own = sorted(ledgers_of_topic(site.store, topic) & site.places().by_cluster["a"])
        assert len(own) >= 4
        whole, uncopied, short = own[:-2], own[-2], own[-1]
        clusters = {name: (site.store, site.servers.clusters[name].ledgers_root) for name in "ab"}
        bookies = tuple(sorted(site.servers.clusters["b"].ids)[:2])
        for ledger_id in (*whole, short):
            copy_ledger(ledger_id, clusters["a"], clusters["b"], bookies)
        lose_a_replica(site, short)

        targets = site.command("list-cleanup-targets")
        assert [(one["cluster"], one["ledgers"]) for one in targets["targets"]] == [("a", len(whole) + 1)]
        # Nothing goes within the rollback window, nor by a dry run.
        assert site.command("cleanup")["dryRun"] is True
        shown = CliRunner().invoke(cli, [*site.options, "bookie-clusters", "cleanup", "--max-deletions", "2"])
        assert (shown.exit_code, "2 ledgers would be marked, with --no-dry-run." in shown.output) == (0, True)
        for text in ("bookie cluster b, which is active, does not have it", "can be rolled back for another 24.0 h"):
            assert text in shown.output
        refused = CliRunner().invoke(cli, [*site.options, "bookie-clusters", "cleanup", "--no-dry-run", "--yes"])
        assert (refused.exit_code, "can be rolled back for another 24.0 h" in refused.output) == (REFUSED, True)
        assert site.command("cleanup", "--no-dry-run", "--force", "--yes")["marked"] == len(whole) + 1
        run(site, tmp_path, "sweep", "--once")
        left = site.places().by_cluster
        assert left["a"] & set(own) == {uncopied, short}
        assert left["b"] >= {*whole, short}
        rows = {row["ledger_id"]: row for row in read_outcomes(str(tmp_path / "outcomes"))}
        assert {rows[ledger_id]["outcome"] for ledger_id in whole} == {"deleted"}
        assert rows[short]["outcome"] == "retry"
        assert "where it is not proven: bookie" in rows[short]["reason"]
        # Brokers that find everything anew.
        site.kill_brokers()
        assert read_back(client, topic) == sent
    assert site.places().astray == ()
