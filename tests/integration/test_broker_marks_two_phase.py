"""Brokers in mode two-phase, which is PIP-186 itself: the sweep alone deletes what they drop, on real brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Final

import pulsar
import pytest

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import PulsarUnavailableError
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.metastore.urls import open_store
from bookwarden.wire.broker_marks import MARKING_BROKERS, decode_marking_broker
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import PARTITIONS, DeletionSite
from servers.marking_brokers import ROUND, MarkingGround, consume, marking, outbox, received, run, two_phase
from servers.pool import ENTRIES_PER_LEDGER, Clusters
from servers.pulsar_topics import unload
from servers.topic_contents import listed, managed_ledger_of, send
from servers.waiting import eventually

MakeGround = Callable[..., tuple[DevCluster, MarkingGround]]
pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

# Exit code of `broker-marks status` where a broker has written without marks.
_UNMARKED: Final = 27


@pytest.fixture
def ground(clusters: Clusters, make_namespace: Callable[[DevCluster], str], tmp_path: Path) -> Iterator[MakeGround]:
    taken: list[DevCluster] = []

    def make(**lines: str) -> tuple[DevCluster, MarkingGround]:
        """Take servers with these lines of broker.conf, which the test may break, else those of other files too."""
        if lines:
            taken.append(cluster := clusters.taken(marking(bookwardenMarks="two-phase", **lines)))
        else:
            cluster = clusters.shared(two_phase())
        site = DeletionSite.of(cluster, make_namespace(cluster), tmp_path)
        return cluster, MarkingGround(cluster.connection(), site)

    yield make
    for cluster in taken:
        cluster.kill()


def test_nothing_is_deleted_before_the_sweep_and_everything_by_it(
    ground: MakeGround,
) -> None:
    _, at = ground()
    loaded, idle = at.topic("loaded"), at.topic("idle")
    # A test of another file may have had the broker write without marks.
    before = run(at.site, "status", codes=(0, _UNMARKED))["unmarked_writes"]
    with closing(at), closing(at.connection.client()) as client:
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
        with closing(open_store(at.site.store_url)) as store:
            eventually(lambda: not set(outbox(store)) & set(at.ever), 60)
        # Those of the deletion topic itself are left to the broker.
        own = _cursor_ledgers_of_deletion_topic(at)
        assert own
        for partition in range(PARTITIONS):
            unload(at.admin, f"{at.site.settings.deletion.topic}-partition-{partition}")
        eventually(lambda: not any(at.swept.exists(ledger_id) for ledger_id in own), 60)
    shown = run(at.site, "status", codes=(0, _UNMARKED))
    (broker,) = shown["brokers"]
    assert (broker["marking"]["mode"], shown["unmarked_writes"]) == ("two-phase", before)


def _cursor_ledgers_of_deletion_topic(at: MarkingGround) -> set[int]:
    deletion = at.site.settings.deletion
    found: set[int] = set()
    for partition in range(PARTITIONS):
        holder = managed_ledger_of(f"{deletion.topic}-partition-{partition}")
        found |= ManagedLedgers(at.swept.opened.store).cursors(holder)[deletion.subscription].info.ledger_ids
    return found


def test_buckets_of_delayed_messages_are_left_to_the_sweep(
    ground: MakeGround,
) -> None:
    _, at = ground()
    topic = at.topic("delayed")
    with closing(at), closing(at.connection.client()) as client:
        consumer = client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Shared)
        send(client, topic, 25, deliver_after=timedelta(hours=1))

        def buckets() -> frozenset[int]:
            cursors = ManagedLedgers(at.swept.opened.store).cursors(managed_ledger_of(topic))
            return cursors["sub"].info.delayed_bucket_ids

        def cleared() -> bool:
            try:
                at.admin.post(f"{topic_path(topic)}/subscription/sub/skip_all")
            except PulsarUnavailableError:
                # The broker itself writes the cursor's node at that moment: BadVersion.
                return False
            return True

        made = eventually(buckets, 60)
        consumer.close()
        # It clears the delayed messages: their ledgers go before they leave the cursor's node.
        eventually(cleared, 30)
        at.admin.delete(f"{topic_path(topic)}/subscription/sub?force=true")
        eventually(lambda: not ManagedLedgers(at.swept.opened.store).cursors(managed_ledger_of(topic)), 30)
        assert all(at.swept.exists(ledger_id) for ledger_id in made)
        marks = received(at.connection, at.site, set(made))
        kinds = {mark.component for mark in marks if mark.ledger_id in made}
        assert kinds == {LedgerComponent.DELAYED_INDEX_BUCKET}


def test_a_broker_that_is_killed_at_trims_leaves_all_to_the_sweep(
    ground: MakeGround,
) -> None:
    cluster, at = ground()
    topic = at.topic("killed")
    with closing(at):
        for _ in range(3):
            with closing(at.connection.client()) as client:
                client.subscribe(topic, "sub").close()
                at.trim(client, topic)
                send(client, topic, ROUND)
                at.look(topic)
                consume(client, topic, ROUND)
                cluster.broker.kill()
            cluster.broker.start()
        dropped = {ledger_id for ledger_id, is_cursors in at.ever.items() if not is_cursors} - set(
            listed(at.swept, topic)
        )
        assert len(dropped) >= 6
        assert all(at.swept.exists(ledger_id) for ledger_id in at.ever)
        at.sweep_all(dropped)


def test_beyond_the_limit_the_broker_deletes_until_the_sweep_is_back(
    ground: MakeGround,
) -> None:
    cluster, at = ground(bookwardenMarksMaxAgeSeconds="20")
    topic = at.topic("late")
    with (
        closing(at),
        closing(at.connection.client()) as client,
        closing(open_store(at.site.store_url)) as store,
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
        cluster.broker.kill()
        cluster.broker.start()
        eventually(lambda: len(store.list_children(MARKING_BROKERS)) == 1 and exceeded() == "age", 60)
        waiting = {ledger_id for ledger_id in at.ever if at.swept.exists(ledger_id)}
        named = set(listed(at.swept, topic))
        cursors = {ledger_id for ledger_id, is_cursors in at.ever.items() if is_cursors}
        at.sweep_all(waiting - named - cursors)
        for cursor in sorted(cursors & waiting):
            # What was left of cursors is marked as well; the one in use is kept.
            at.swept.sweep(*(mark for mark in received(at.connection, at.site, set()) if mark.ledger_id == cursor))
        eventually(lambda: exceeded() == "", 90)
        client.subscribe(topic, "sub").close()
        again = at.trim(client, topic)
        assert all(at.swept.exists(ledger_id) for ledger_id in again)
