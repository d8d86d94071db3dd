"""A storm for `bookwarden follow`: topics live, brokers leave ledgers behind, and follow and ZooKeeper are killed.

Every ledger that was left behind is marked in the end, and nothing of what lives. What was dropped is written by hand,
as a broker that died would leave it, so that it is known.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.devcluster import ClusterOptions, DevCluster
from bookwarden.errors import StoreError
from bookwarden.metastore.urls import open_store
from servers.deletion_site import DeletionSite
from servers.follow.life import living
from servers.follow.planted import PlantedNodes
from servers.follow.site import LATE_S, FollowingSite
from servers.orphan_grounds import BROKER_SETTINGS, ENTRIES_PER_LEDGER
from servers.waiting import eventually

# Longer than a busy broker takes for its deletes.
_GRACE_S = 90.0


def main() -> int:
    """Play the storm, as `make soak STORM=follow` does."""
    parser = argparse.ArgumentParser(prog="python -m servers.follow.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of follow; every third comes with one of ZooKeeper")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--minutes", type=float, default=10.0, help="of ordinary life, the kills among them")
    asked = parser.parse_args()
    logging.getLogger("pulsar").setLevel(logging.CRITICAL)
    # It stays if anything fails, with all logs.
    home = Path(tempfile.mkdtemp(prefix="bookwarden-soak-"))
    _say(f"seed {asked.seed}, servers in {home}")
    options = ClusterOptions(max_entries_per_ledger=ENTRIES_PER_LEDGER, broker_settings=BROKER_SETTINGS)
    cluster = DevCluster(home, options)
    try:
        cluster.up()
        play(cluster, home, asked.kills, asked.seed, asked.minutes * 60)
    finally:
        cluster.kill()
    shutil.rmtree(home)
    _say("every drop that was left behind is marked, and nothing else")
    return 0


def play(cluster: DevCluster, home: Path, kills: int, seed: int, seconds: float) -> None:
    """Play the storm on a cluster; AssertionError if a drop is missed, or something else is marked."""
    chance = random.Random(seed)
    site = DeletionSite(cluster.service_url, cluster.admin_url, cluster.store_url, "soak/n", home / "site")
    with closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin:
        admin.put("/tenants/soak", {"allowedClusters": ["dev"]})
        for namespace in ("soak/n", "soak/life"):
            admin.put(f"/namespaces/{namespace}")
    site.create_topics()
    following = FollowingSite(site, grace_s=_GRACE_S)
    with closing(open_store(cluster.store_url)) as store:
        planted, expected = PlantedNodes(store, "soak/n"), set[int]()
        topic = planted.topic("dropping")
        named = planted.named(200, topic)
        following.start()
        try:
            with living(cluster, "soak/life", seed) as life:
                for number in range(kills):
                    time.sleep(chance.uniform(0.2, 1.0) * seconds / kills)
                    expected |= _drop(planted, topic, named, chance.randrange(1, 4))
                    following.process.kill()
                    if number % 3 == 2:
                        cluster.zookeeper.kill()
                        cluster.zookeeper.start()
                    expected |= _drop(planted, topic, named, chance.randrange(1, 4))
                    following.start()
                    _say(f"kill {number + 1} of {kills}; {len(expected)} ledgers left behind; {dict(life.done)}")
            eventually(lambda: set(following.marked()) >= expected, _GRACE_S + LATE_S, pause=1)
            eventually(following.is_settled, _GRACE_S + LATE_S, pause=1)
        finally:
            following.process.kill()
    assert set(following.marked()) == expected, set(following.marked()) ^ expected
    assert not following.with_outcome("inside the list")


def _drop(planted: PlantedNodes, topic: object, named: list[int], count: int) -> set[int]:
    """Take the oldest off the list, as a broker that dies before its deletes; retried while ZooKeeper is away."""
    dropped, named[:] = named[:count], named[count:]

    def written() -> bool:
        try:
            planted.population.names(topic, named)  # type: ignore[arg-type]  # a holder
        except StoreError:
            return False
        return True

    eventually(written, 120, pause=1)
    return set(dropped)


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
