"""The bookie cluster of a Pulsar without ZooKeeper is switched: its metadata is in Oxia, that of each cluster too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bookwarden.devcluster.bookie_clusters import ClusterPlan
from bookwarden.devcluster.servers.settings import PULSARS_LEDGERS_ROOT
from servers.switching.round_trip import LONE_BOOKIES, delete_and_unregister, register_and_switch_to
from servers.switching.site import SwitchingSite, switching_site

# The first start on a machine builds Oxia.
pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(1800)]

CLUSTERS = (
    ClusterPlan("a", PULSARS_LEDGERS_ROOT, bookies=1),
    ClusterPlan("b", PULSARS_LEDGERS_ROOT, bookies=1, own_oxia=True),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    home = tmp_path_factory.mktemp("on-oxia")
    with switching_site(home, ["4.2.4"], CLUSTERS, LONE_BOOKIES, metadata="oxia") as running:
        yield running


def test_a_cluster_in_an_oxia_of_its_own_is_switched_to_and_left_again(site: SwitchingSite) -> None:
    topics = register_and_switch_to(site, "b")
    registry = site.registry()
    assert registry.cluster("a").store_url is None
    assert registry.cluster("b").store_url == site.servers.clusters["b"].store_url
    delete_and_unregister(site, topics, "b")
