"""A Pulsar that moves its metadata from ZooKeeper to Oxia while `bookwarden follow` watches.

Ledgers are dropped before the move, on its way and after it; nodes and ledgers are written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.metastore.interface import MetadataStore
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from servers.follow.planted import PlantedNodes
from servers.follow.site import LATE_S, FollowingSite, site_of
from servers.migration.site import SHARDS, Migration
from servers.waiting import eventually

OPTIONS = ClusterOptions(pulsar="4.2.4", oxia=True, oxia_shards=SHARDS, session_seconds=60)
# Longer than the move: what is dropped before it is looked at after it.
_GRACE_S = 60.0
_TOPICS = 10


def move(cluster: DevCluster, home: Path, say: Callable[[str], None]) -> None:
    """Move the metadata, once; AssertionError if a drop is missed, marked twice, or anything else is marked."""
    following = FollowingSite(site_of(cluster, "moving", home / "moving"), grace_s=_GRACE_S)
    with closing(Migration(cluster)) as migration, closing(migration.target()) as target:
        nodes = _Lists(migration.source)
        following.start()
        eventually(following.has_caught_up, LATE_S, pause=0.5)
        try:
            nodes.drop("well before")
            eventually(lambda: following.marked() == nodes.dropped(), _GRACE_S + LATE_S, pause=1)
            nodes.drop("right before")
            with migration.held_in_preparation():
                _start(cluster)
                migration.wait_for("PREPARATION")
                nodes.drop("in the preparation")
                eventually(lambda: len(following.state().timers) >= 2 * _TOPICS, LATE_S, pause=0.5)
            migration.wait_for("COMPLETED", seconds=300)
            nodes.planted.store = nodes.planted.population.store = target
            nodes.drop("right after")
            migration.raise_counters()
            # It compares all nodes with the store that it has now.
            eventually(lambda: following.told("following ") > 1, LATE_S, pause=0.5)
            eventually(following.has_caught_up, LATE_S, pause=0.5)
            nodes.drop("well after")
            eventually(lambda: set(following.marked()) >= set(nodes.dropped()), _GRACE_S + LATE_S, pause=1)
            eventually(following.is_settled, _GRACE_S + LATE_S, pause=1)
        finally:
            following.process.stop()
    assert following.marked() == nodes.dropped()
    say(f"marked once each: {nodes}; looked at: {dict(following.looked_at())}")


class _Lists:
    """Topics that drop a ledger each, and when they did."""

    def __init__(self, store: MetadataStore) -> None:
        self.planted = PlantedNodes(store, "moving/life")
        topics = [self.planted.topic(f"t{number}") for number in range(_TOPICS)]
        self._lists = [(topic, self.planted.named(8, topic)) for topic in topics]
        self._dropped: dict[str, list[int]] = {}

    def drop(self, when: str) -> None:
        self._dropped[when] = [named.pop(0) for _, named in self._lists]
        for topic, named in self._lists:
            self.planted.population.names(topic, named)

    def dropped(self) -> list[int]:
        """List all that was dropped by now."""
        return sorted(ledger for ids in self._dropped.values() for ledger in ids)

    def __str__(self) -> str:
        return ", ".join(f"{len(ids)} dropped {when}" for when, ids in self._dropped.items())


def _start(cluster: DevCluster) -> None:
    settings = {
        "metadata_store.urls": json.dumps([cluster.store_url]),
        "pulsar.admin_url": cluster.admin_url,
        "pulsar.service_url": cluster.service_url,
    }
    chosen = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    # The one that delays the preparation, and follow, are among the participants: the pre-flight does not know them.
    order = ["metadata-migration", "start", "--target", cluster.oxia_url, "--yes", "--no-watch", "--force"]
    result = CliRunner().invoke(cli, [*chosen, *order])
    assert result.exit_code == 0, result.output
