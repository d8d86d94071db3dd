"""The bookie cluster is switched where each ZooKeeper knows its users and all speak TLS: no stranger can interfere."""

from __future__ import annotations

from collections.abc import Iterator

import kazoo.exceptions
import pytest

from bookwarden.bookie_clusters.operation import ORDER_PATH
from bookwarden.bookie_clusters.registry import FOLLOWERS_PATH, REGISTRY_PATH
from bookwarden_dev.devcluster.bookie_clusters import ClusterPlan
from bookwarden_dev.devcluster.servers.readiness import zookeeper_client
from bookwarden_dev.devcluster.servers.settings import PULSAR_VERSIONS, PULSARS_LEDGERS_ROOT
from servers.switching.round_trip import SMALL_LEDGERS, register_and_switch_to
from servers.switching.site import SwitchingSite, switching_site

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]
# kazoo switches SSL 2 and 3 off by options that Python deprecates, and has no other way.
pytestmark += [pytest.mark.filterwarnings("ignore:ssl.OP_NO_SSL:DeprecationWarning")]

CLUSTERS = (
    ClusterPlan("a", PULSARS_LEDGERS_ROOT, bookies=1),
    ClusterPlan("b", "/bookies-b", bookies=1, own_zookeeper=True),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    home = tmp_path_factory.mktemp("secured")
    with switching_site(home, PULSAR_VERSIONS[:1], CLUSTERS, SMALL_LEDGERS, secured=True) as running:
        yield running


def test_it_is_switched_and_no_stranger_can_do_that(site: SwitchingSite) -> None:
    register_and_switch_to(site, "b")
    registry = site.registry()
    assert all(site.store.get_many([REGISTRY_PATH, ORDER_PATH]))
    with zookeeper_client(site.servers.clusters["a"].ports.zookeeper) as stranger:
        for path in (REGISTRY_PATH, ORDER_PATH):
            with pytest.raises(kazoo.exceptions.NoAuthError):
                stranger.set(path, b"{}")
            with pytest.raises(kazoo.exceptions.NoAuthError):
                stranger.delete(path)
        with pytest.raises(kazoo.exceptions.NoAuthError):
            stranger.create(f"{FOLLOWERS_PATH}/stranger", b"{}")
    assert site.registry() == registry
