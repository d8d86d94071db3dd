"""Ordinary life at 50 changed nodes a second, which `bookwarden follow` watches: no mark, and no ledger lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.metadata import AbsentLedger
from bookwarden.ledgers.naming import unpack
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import DevCluster
from servers.follow.changes import counting_changes
from servers.follow.life import living
from servers.follow.site import LATE_S, FollowingSite, site_of
from servers.follow.traffic import steady_traffic
from servers.topic_contents import compacted_in_use
from servers.waiting import eventually

CHANGES_A_SECOND = 50
# Longer than a busy broker takes for its deletes.
GRACE_S = 90.0
_BUSY_TOPICS = 40
_MESSAGES_A_SECOND = 250
_LIVING_TOPICS = 30
_HANDS = 3
# One split in some seconds.
_BUNDLES = 256


def live(cluster: DevCluster, home: Path, seed: int, seconds: float, say: Callable[[str], None]) -> None:
    """Let topics live so long; AssertionError if anything is marked, a ledger is lost, or too few nodes change."""
    following = FollowingSite(site_of(cluster, "ordinary", home / "ordinary"), grace_s=GRACE_S)
    following.start()
    try:
        with (
            steady_traffic(cluster, "ordinary/life", topics=_BUSY_TOPICS, messages_per_second=_MESSAGES_A_SECOND),
            living(cluster, "ordinary/life", seed, hands=_HANDS, topics=_LIVING_TOPICS, bundles=_BUNDLES) as done,
            counting_changes(cluster.store_url) as changes,
        ):
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(left, 60))
                say(f"{changes}; {dict(done)}")
        eventually(following.has_caught_up, LATE_S, pause=1)
        eventually(following.is_settled, GRACE_S + LATE_S, pause=1)
        say(f"looked at: {dict(following.looked_at())}")
        lost = _lost(cluster, following)
    finally:
        following.process.stop()
    assert following.marked() == []
    assert not following.outcomes(), following.outcomes()
    assert not lost, lost
    assert not changes.gap, changes.gap
    assert changes.a_second >= CHANGES_A_SECOND, str(changes)


def _lost(cluster: DevCluster, following: FollowingSite) -> list[int]:
    """List the ledgers that a node names and BookKeeper does not have, and that are in use."""
    named = {
        ledger: (path, place)
        for _, path, naming in following.state().items()
        for ledger, place in unpack(naming).places.items()
    }
    with Cluster(following.site.settings) as opened:
        readings = opened.bookkeeper.catalog.read_many(sorted(named))
    absent = [found.ledger_id for found in readings if isinstance(found, AbsentLedger)]
    with closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin:
        return [ledger for ledger in absent if not _was_replaced(admin, ledger, *named[ledger])]


def _was_replaced(admin: PulsarAdmin, ledger: int, path: str, place: PlaceKind) -> bool:
    """Say whether it was a compacted ledger: the cursor's node names one of before while its own ledger is open."""
    if place is not PlaceKind.COMPACTED:
        return False
    tenant, namespace, domain, topic = path.split("/")[2:6]
    return compacted_in_use(admin, f"{domain}://{tenant}/{namespace}/{topic}") != ledger
