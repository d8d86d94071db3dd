"""A broker in mode two-phase whose outbox is full while its metadata moves from ZooKeeper to Oxia: Pulsar 4.2.4."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bookwarden.wire.broker_marks import DELETION_TOPIC_NODE
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from servers.deletion_site import DeletionSite
from servers.marking_brokers import MarkingGround, marking, outbox
from servers.migration.site import Migration
from servers.short_lived import running_until_killed
from servers.waiting import eventually

# One try more than elsewhere, since brokers and bookies that connect at the same moment can stop a shard of Oxia 0.14.0
# for good: docs/oxia.md.
pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.flaky(reruns=2)]

_OPTIONS = ClusterOptions(pulsar="4.2.4", oxia=True, oxia_shards=4, session_seconds=60)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    with running_until_killed(DevCluster(tmp_path / "pulsar", marking(_OPTIONS, bookwardenMarks="two-phase"))) as made:
        yield made


def test_what_is_in_the_outbox_when_the_metadata_moves_is_sent_from_where_it_is_then(
    cluster: DevCluster, make_namespace: Callable[[DevCluster], str], tmp_path: Path
) -> None:
    before = DeletionSite.of(cluster, make_namespace(cluster), tmp_path)
    with closing(Migration(cluster)) as migration, closing(MarkingGround(cluster.connection(), before)) as at:
        topic = at.topic("moved")
        with closing(at.connection.client()) as client:
            client.subscribe(topic, "sub").close()
            # Without it brokers keep all in the outbox.
            node = migration.source.get(DELETION_TOPIC_NODE)
            assert node is not None
            migration.source.delete_many([(DELETION_TOPIC_NODE, node.version)])
            dropped = at.trim(client, topic)
            assert dropped <= set(outbox(migration.source))
        migration.start()
        migration.wait_for("COMPLETED", seconds=180)
        migration.raise_counters()
    after = DeletionSite(before.service_url, before.admin_url, cluster.oxia_url, before.namespace, tmp_path)
    with closing(migration.target()) as target:
        assert dropped <= set(outbox(target))
        with (
            closing(MarkingGround(cluster.connection(), after, new=False)) as at,
            closing(at.connection.client()) as client,
        ):
            eventually(lambda: not dropped & set(outbox(target)), 120)
            assert all(at.swept.exists(ledger_id) for ledger_id in dropped)
            # And the next ones, which the broker has written into the target alone.
            later = at.trim(client, topic)
            assert at.gone() == []
            at.sweep_all(dropped | later)
