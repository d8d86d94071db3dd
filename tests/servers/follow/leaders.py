"""An Oxia of three servers, whose shards get other leaders while `bookwarden follow` watches.

A leader is killed, or cut off from the others, so that it does not know that it leads no more. Nodes and ledgers are
written by hand; marks go to a broker that has its own metadata elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from bookwarden.clusters.pulsar.references.node_snapshots import FOLLOWED
from bookwarden.errors import StoreError
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster import DevCluster
from servers.follow.planted import PlantedNodes
from servers.follow.site import LATE_S, FollowingSite, site_of
from servers.oxia_ensemble import OxiaEnsemble, OxiaMember
from servers.waiting import eventually

_SHARDS = 4
_GRACE_S = 20.0
_TOPICS = 16
# The coordinator comes back to a server that was away later and later.
_BACK_S = 300.0


def change_leaders(cluster: DevCluster, home: Path, changes: int, say: Callable[[str], None]) -> None:
    """Change leaders so often; AssertionError if a drop is missed, or something else is marked."""
    ensemble = OxiaEnsemble(home / "oxia", shards=_SHARDS)
    try:
        ensemble.start()
        _follow(cluster, ensemble, home, changes, say)
    finally:
        ensemble.kill()


def _follow(cluster: DevCluster, ensemble: OxiaEnsemble, home: Path, changes: int, say: Callable[[str], None]) -> None:
    # Clients ask the first server who leads; the others are those that stop leading.
    asked, *others = ensemble.members
    site = site_of(cluster, "leaders", home / "leaders")
    site.store_url = asked.url
    following = FollowingSite(site, grace_s=_GRACE_S)
    with closing(open_store(asked.url, operation_timeout_s=60.0)) as store:
        assert isinstance(store, OxiaStore)
        eventually(lambda: _leaders(store), 60, pause=0.2)
        planted, expected = PlantedNodes(store, "leaders/n"), set[int]()
        # Over all shards.
        lists = [(topic, planted.named(2 * changes + 2, topic)) for topic in map(planted.topic, _names())]

        def drop() -> None:
            for topic, named in lists:
                expected.add(named.pop(0))
                planted.population.names(topic, named)

        following.start()
        eventually(following.has_caught_up, LATE_S, pause=0.5)
        try:
            for number in range(changes):
                former, kill = others[number % len(others)], number % 2 == 1
                led = _lead(store, former)
                drop()
                with closing(open_store(former.url)) as misled, closing(misled.follow_below(FOLLOWED)) as feed:
                    _stop_leading(store, former, kill=kill)
                    feed.take()
                    drop()
                    eventually(following.has_caught_up, LATE_S, pause=0.5)
                    _come_back(former)
                    # Who asked the former leader hears of it when that is back.
                    eventually(lambda feed=feed: feed.take().gap, _BACK_S, pause=0.5)
                what = "killed" if kill else "cut off"
                say(f"{what} a leader of {led} of {_SHARDS} shards, {number + 1} of {changes}; {len(expected)} dropped")
            eventually(lambda: set(following.marked()) >= expected, _GRACE_S + LATE_S, pause=1)
            eventually(following.is_settled, _GRACE_S + LATE_S, pause=1)
        finally:
            following.process.stop()
    assert following.marked() == sorted(expected), set(following.marked()) ^ expected
    say(f"{len(expected)} left behind, {len(following.marked())} marked; looked at: {dict(following.looked_at())}")


def _names() -> list[str]:
    return [f"t{number}" for number in range(_TOPICS)]


def _leaders(store: OxiaStore) -> list[str]:
    """List who leads the shards, nobody until each has a leader."""
    try:
        shards = store._cluster.shards(store._cluster.deadline()).shards
    except StoreError:
        return []
    leaders = [shard.leader for shard in shards]
    return leaders if all(leaders) else []


def _lead(store: OxiaStore, member: OxiaMember) -> int:
    """Wait until a server leads a shard; return how many."""
    return eventually(lambda: _leaders(store).count(member.address), 120, pause=0.2)


def _stop_leading(store: OxiaStore, member: OxiaMember, *, kill: bool) -> None:
    if kill:
        member.kill()
    else:
        member.inner.cut_off()
    eventually(lambda: (found := _leaders(store)) and member.address not in found, 120, pause=0.2)


def _come_back(member: OxiaMember) -> None:
    member.inner.let_through()
    if not member.is_running():
        member.start()
