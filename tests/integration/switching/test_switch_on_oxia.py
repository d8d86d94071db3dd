"""The bookie cluster of a Pulsar without ZooKeeper is switched: its metadata is in Oxia, that of each cluster too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookwarden_dev.devcluster.bookie_clusters import ClusterPlan
from bookwarden_dev.devcluster.servers.settings import PULSARS_LEDGERS_ROOT
from servers.switching.drained import empty_and_unregister, run
from servers.switching.round_trip import SMALL_LEDGERS, TOPICS, register_and_switch_to
from servers.switching.site import SwitchingSite, switching_site

# The first start on a machine builds Oxia.
pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(1800)]

CLUSTERS = (
    ClusterPlan("a", PULSARS_LEDGERS_ROOT, bookies=1),
    ClusterPlan("b", PULSARS_LEDGERS_ROOT, bookies=1, own_oxia=True),
)


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    home = tmp_path_factory.mktemp("on-oxia")
    with switching_site(home, ["4.2.4"], CLUSTERS, SMALL_LEDGERS, metadata="oxia") as running:
        yield running


@pytest.mark.usefixtures("spark")
def test_a_cluster_in_an_oxia_of_its_own_is_switched_to_left_again_and_emptied(
    site: SwitchingSite, tmp_path: Path
) -> None:
    load = register_and_switch_to(site, "b")
    registry = site.registry()
    assert registry.cluster("a").store_url is None
    b = site.servers.clusters["b"]
    assert registry.cluster("b").store_url == b.store_url
    run(site, tmp_path, "init")
    site.command("unload", "--yes")
    built = run(site, tmp_path, "bookie-clusters", "build", "--all")
    assert (built["source"], built["target"]) == ("b", "a")
    assert sum(one["ledgers"] for one in built["outcomes"] if one["outcome"] == "copied") >= TOPICS
    assert sum(one["ledgers"] for one in site.command("promote", "--dry-run")["toPromote"]) >= TOPICS
    assert site.command("promote", "--yes")["failed"] == []
    assert site.command("promote", "--dry-run")["toPromote"] == []
    empty_and_unregister(site, tmp_path, "b")
    for server in b.servers:
        server.kill()
    site.kill_brokers()
    assert set(load.lost_to_a_reader(site.connection).values()) == {0}
