"""Brokers in mode two-phase, which is PIP-186 itself: the sweep alone deletes what they drop, on real brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pulsar
import pytest

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.metastore.urls import open_store
from bookwarden.wire.broker_marks import MARKING_BROKERS, decode_marking_broker
from bookwarden.wiring.pulsar import TopicsContext
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.marking_brokers import consume, ledgers_of, marking, outbox, received, run
from servers.pool import ENTRIES_PER_LEDGER, Clusters
from servers.pulsar_topics import unload
from servers.sweeping_site import SweepingSite
from servers.topic_contents import acknowledge_each, listed, managed_ledger_of, send
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

_ROUND = 2 * ENTRIES_PER_LEDGER
_SKIPPED = 12


class Ground:
    """A cluster with a deletion topic of a test's own, which its brokers know, and its ledgers that ever were."""

    def __init__(self, cluster: DevCluster, namespace: str, folder: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.site = DeletionSite.of(cluster, namespace, folder)
        self.site.create_topics()
        self.admin = PulsarAdmin(cluster.connection(), timeout_s=60)
        acknowledge_each(self.admin, namespace)
        with TopicsContext(self.site.settings) as topics:
            assert topics.publish().state in ("created", "updated", "unchanged")
        self.swept = SweepingSite(self.site.settings)
        #: By id: whether it was a cursor's.
        self.ever: dict[int, bool] = {}

    def close(self) -> None:
        self.swept.close()
        self.admin.close()

    def topic(self, name: str) -> str:
        return f"persistent://{self.namespace}/{name}"

    def look(self, topic: str) -> None:
        self.ever |= ledgers_of(self.swept, managed_ledger_of(topic))

    def trim(self, client: pulsar.Client, topic: str, count: int = _ROUND) -> set[int]:
        """Send, receive, and wait until the first ledgers are gone from the list; return these."""
        before = set(listed(self.swept, topic))
        send(client, topic, count)
        before |= set(listed(self.swept, topic))
        self.look(topic)
        # Each is an entry of the cursor's ledger, which is full with ten.
        for _ in range(_SKIPPED):
            self.admin.post(f"{topic_path(topic)}/subscription/sub/skip/1")
        self.look(topic)
        consume(client, topic, count - _SKIPPED)
        self.look(topic)
        return eventually(lambda: before - set(listed(self.swept, topic)), 60)

    def sweep_all(self, ledgers: set[int]) -> None:
        """Wait for the marks of these ledgers, sweep them, and see that they are gone."""
        marks = {mark.ledger_id: mark for mark in received(self.cluster, self.site, ledgers)}
        rows = self.swept.sweep(*(marks[ledger_id] for ledger_id in sorted(ledgers)))
        assert {row.outcome for row in rows} == {Outcome.DELETED}
        assert not any(self.swept.exists(ledger_id) for ledger_id in ledgers)


@pytest.fixture
def ground(
    clusters: Clusters, make_namespace: Callable[[DevCluster], str], tmp_path: Path
) -> Iterator[Callable[..., Ground]]:
    taken: list[DevCluster] = []

    def make(**lines: str) -> Ground:
        cluster = clusters.taken(marking(bookwardenMarks="two-phase", **lines))
        taken.append(cluster)
        return Ground(cluster, make_namespace(cluster), tmp_path)

    yield make
    for cluster in taken:
        cluster.kill()


def test_nothing_is_deleted_before_the_sweep_and_everything_by_it(ground: Callable[..., Ground]) -> None:
    at = ground()
    loaded, idle = at.topic("loaded"), at.topic("idle")
    with closing(at), closing(at.cluster.connection().client()) as client:
        client.subscribe(loaded, "sub").close()
        client.subscribe(idle, "sub").close()
        for _ in range(3):
            at.trim(client, loaded)
        send(client, idle, 3 * ENTRIES_PER_LEDGER)
        consume(client, idle, ENTRIES_PER_LEDGER)
        unload(at.admin, idle)
        for topic in (loaded, idle):
            at.look(topic)
            at.admin.delete(f"{topic_path(topic)}?force=true")
            eventually(lambda topic=topic: not listed(at.swept, topic), 30)
        # Those of cursors, too, which roll.
        assert sum(at.ever.values()) >= 4
        assert len(at.ever) - sum(at.ever.values()) >= 9
        assert [ledger_id for ledger_id in at.ever if not at.swept.exists(ledger_id)] == []
        at.sweep_all(set(at.ever))
        with closing(open_store(at.cluster.store_url)) as store:
            eventually(lambda: not set(outbox(store)) & set(at.ever), 60)
    shown = run(at.site, "status")
    (broker,) = shown["brokers"]
    assert (broker["marking"]["mode"], shown["unmarked_writes"]) == ("two-phase", 0)


def test_a_broker_that_is_killed_at_trims_leaves_all_to_the_sweep(ground: Callable[..., Ground]) -> None:
    at = ground()
    topic = at.topic("killed")
    with closing(at):
        for _ in range(3):
            with closing(at.cluster.connection().client()) as client:
                client.subscribe(topic, "sub").close()
                at.trim(client, topic)
                send(client, topic, _ROUND)
                at.look(topic)
                consume(client, topic, _ROUND)
                at.cluster.broker.kill()
            at.cluster.broker.start()
        dropped = {ledger_id for ledger_id, is_cursors in at.ever.items() if not is_cursors} - set(
            listed(at.swept, topic)
        )
        assert len(dropped) >= 6
        assert all(at.swept.exists(ledger_id) for ledger_id in at.ever)
        at.sweep_all(dropped)


def test_beyond_the_limit_the_broker_deletes_until_the_sweep_is_back(ground: Callable[..., Ground]) -> None:
    at = ground(bookwardenMarksMaxAgeSeconds="20")
    topic = at.topic("late")
    with (
        closing(at),
        closing(at.cluster.connection().client()) as client,
        closing(open_store(at.cluster.store_url)) as store,
    ):

        def exceeded() -> str | None:
            (name,) = store.list_children(MARKING_BROKERS)
            node = store.get(f"{MARKING_BROKERS}/{name}")
            assert node is not None
            left = decode_marking_broker(node.value).left
            return left.exceeded if left else None

        client.subscribe(topic, "sub").close()
        left = at.trim(client, topic)
        assert exceeded() == ""
        assert all(at.swept.exists(ledger_id) for ledger_id in left)
        eventually(lambda: exceeded() == "age", 60)
        assert run(at.site, "status", codes=(27,))["brokers"][0]["marking"]["left"]["ledgers"] > 0
        later = at.trim(client, topic)
        eventually(lambda: not any(at.swept.exists(ledger_id) for ledger_id in later - left), 60)
        assert all(at.swept.exists(ledger_id) for ledger_id in left)
        # The limit holds after a restart too.
        at.cluster.broker.kill()
        at.cluster.broker.start()
        eventually(lambda: len(store.list_children(MARKING_BROKERS)) == 1 and exceeded() == "age", 60)
        waiting = {ledger_id for ledger_id in at.ever if at.swept.exists(ledger_id)}
        named = set(listed(at.swept, topic))
        cursors = {ledger_id for ledger_id, is_cursors in at.ever.items() if is_cursors}
        at.sweep_all(waiting - named - cursors)
        for cursor in sorted(cursors & waiting):
            # What was left of cursors is marked as well; the one in use is kept.
            at.swept.sweep(*(mark for mark in received(at.cluster, at.site, set()) if mark.ledger_id == cursor))
        eventually(lambda: exceeded() == "", 90)
        client.subscribe(topic, "sub").close()
        again = at.trim(client, topic)
        assert all(at.swept.exists(ledger_id) for ledger_id in again)
