"""Brokers that cannot mark: which do not start, what they do without their outbox, and without the deletion topic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import ServerError
from bookwarden.metastore.urls import open_store
from bookwarden.wire.broker_marks import MARKING_BROKERS, OUTBOX_ROOT, decode_marking_broker
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import DevCluster
from servers.blue_green.further_broker import further_broker
from servers.deletion_site import PARTITIONS, DeletionSite
from servers.marking_brokers import MARKS, MarkingGround, outbox, received, run, two_phase
from servers.pool import Clusters
from servers.topic_contents import acknowledge_each
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(clusters: Clusters) -> DevCluster:
    """A cluster of other files too: each test brings its broker back."""
    return clusters.shared(two_phase())


def test_a_broker_that_could_not_keep_its_word_does_not_start(cluster: DevCluster) -> None:
    zookeeper = cluster.store_url.removeprefix("zk:")
    settings = cluster.options.broker_settings
    cluster.broker.kill()
    for lines, reason in (
        ({"bookwardenMarks": "never"}, "the modes of this jar are mark and two-phase"),
        (
            {"bookkeeperMetadataServiceUri": f"zk+hierarchical://{zookeeper}/ledgers"},
            "it needs a bookkeeperMetadataServiceUri that is empty",
        ),
    ):
        before = dict(settings)
        settings.update(lines)  # type: ignore[attr-defined]  # a dict
        with pytest.raises(ServerError):
            cluster.broker.start()
        assert reason in cluster.broker.log_since_start()
        settings.clear()  # type: ignore[attr-defined]
        settings.update(before)  # type: ignore[attr-defined]
    cluster.broker.start()


def test_where_the_outbox_may_not_be_written_writes_go_on_and_the_broker_deletes(
    cluster: DevCluster, make_namespace: Callable[[DevCluster], str], tmp_path: Path
) -> None:
    site = DeletionSite.of(cluster, make_namespace(cluster), tmp_path)
    operator = KazooClient(hosts=cluster.store_url.removeprefix("zk:"))
    operator.start()
    with (
        closing(MarkingGround(cluster.connection(), site)) as at,
        closing(at.connection.client()) as client,
        closing(open_store(cluster.store_url)) as store,
    ):
        topic = at.topic("refused")
        client.subscribe(topic, "sub").close()
        left = at.trim(client, topic)
        # That of the broker before goes with its session.
        eventually(lambda: len(store.children_of(MARKING_BROKERS)) == 1, 60)
        (name,) = store.list_children(MARKING_BROKERS)
        root = f"{OUTBOX_ROOT}/{name}"
        paths = [OUTBOX_ROOT, root, *(f"{root}/{block}" for block in store.list_children(root))]
        for path in paths:
            operator.set_acls(path, [make_acl("world", "anyone", read=True, delete=True, admin=True)])
        try:
            refused = at.trim(client, topic)
            # What is not in the outbox the broker deletes, and nothing else.
            eventually(lambda: not any(at.swept.exists(ledger_id) for ledger_id in refused - left), 60)
            assert all(at.swept.exists(ledger_id) for ledger_id in left)
        finally:
            for path in paths:
                operator.set_acls(path, OPEN_ACL_UNSAFE)
            operator.stop()
            operator.close()

        def unmarked() -> int:
            node = store.get(f"{MARKING_BROKERS}/{name}")
            return 0 if node is None else decode_marking_broker(node.value).unmarked_writes

        eventually(unmarked, 60)
        assert run(site, "status", codes=(27,))["unmarked_writes"] > 0
        again = at.trim(client, topic)
        assert all(at.swept.exists(ledger_id) for ledger_id in again - refused - left)


@pytest.mark.parametrize("fault", ["unsubscribed", "terminated"])
def test_what_the_deletion_topic_does_not_take_is_sent_when_it_is_made_again(
    cluster: DevCluster, make_namespace: Callable[[DevCluster], str], tmp_path: Path, fault: str
) -> None:
    site = DeletionSite.of(cluster, make_namespace(cluster), tmp_path)
    deletion = site.settings.deletion

    def failures() -> int:
        return cluster.broker.log_since_start().count("marks stay in the outbox")

    with (
        closing(MarkingGround(cluster.connection(), site)) as at,
        closing(at.connection.client()) as client,
        closing(open_store(cluster.store_url)) as store,
    ):
        topic = at.topic("kept")
        client.subscribe(topic, "sub").close()
        # The broker has producers of the topic that goes.
        received(at.connection, site, at.trim(client, topic))
        for number in range(PARTITIONS):
            path = topic_path(f"{deletion.topic}-partition-{number}")
            if fault == "terminated":
                at.admin.post(f"{path}/terminate")
            else:
                at.admin.delete(f"{path}/subscription/{deletion.subscription}", params={"force": True})
        before = failures()
        kept = at.trim(client, topic)
        assert kept <= set(outbox(store))
        # Until then the broker has producers, which would make partitions again.
        eventually(lambda: failures() > before, 60)
        at.admin.delete(f"{topic_path(deletion.topic)}/partitions", params={"force": True})
        with Cluster(site.settings) as opened:
            opened.deletion_topics.setup().run()
            opened.deletion_topics.publish()
        received(at.connection, site, kept)
        eventually(lambda: not kept & set(outbox(store)), 60)
        assert at.gone() == []


def test_next_to_it_a_stock_broker_deletes_what_it_drops_and_status_names_it(
    cluster: DevCluster, make_namespace: Callable[[DevCluster], str], tmp_path: Path
) -> None:
    namespace, shared = make_namespace(cluster), make_namespace(cluster)
    lines = cluster.options.broker_settings.items()
    stock = {name: value for name, value in lines if value != MARKS and not name.startswith("bookwarden")}
    options = dataclasses.replace(cluster.options, broker_settings=stock)
    with further_broker(cluster, tmp_path / "stock", options) as (process, connection):
        site = DeletionSite(connection.service_url, connection.admin_url, cluster.store_url, namespace, tmp_path)
        with closing(MarkingGround(connection, site)) as at, closing(connection.client()) as client:
            # Without a load manager the broker that is asked first takes a bundle; of those of deletion topics that may
            # be the other one, which sends marks.
            topic = f"persistent://{shared}/shared"
            acknowledge_each(at.admin, shared)
            client.subscribe(topic, "sub").close()
            dropped = at.trim(client, topic)
            eventually(lambda: not any(at.swept.exists(ledger_id) for ledger_id in dropped), 60)
            shown = run(site, "status", codes=(22, 27))
            name = connection.admin_url.partition("://")[2].rstrip("/")
            assert [one["name"] for one in shown["brokers"] if not one["marks"]] == [name]
        process.kill()
        # Its topics go to the other one when its session has ended.
        at = MarkingGround(cluster.connection(), DeletionSite.of(cluster, namespace, tmp_path), new=False)
        with closing(at), closing(cluster.connection().client(operation_timeout_seconds=60)) as client:
            client.subscribe(topic, "sub").close()
            kept = at.trim(client, topic)
            assert all(at.swept.exists(ledger_id) for ledger_id in kept - dropped)
