"""Offloaded ledgers of a deleted topic: brokers delete copies at once, and a bucket with versions has them still."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.trash.plan import RestoreRequest
from bookwarden.wiring.trash import TrashOperations
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from servers.deletion_site import DeletionSite
from servers.marking_brokers import MarkingGround, marking
from servers.object_store import ACCESS_KEY, SECRET_KEY, ObjectStore
from servers.pool import Clusters
from servers.pulsar_topics import offload
from servers.topic_contents import listed, managed_ledger_of, read_back, retain, send
from servers.trashed_topics import delete, keep_dropped
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]
BUCKET = "keeps-versions"
COUNT = 45


def undelete(objects: ObjectStore) -> int:
    """Remove all delete markers, as an operator does; return how many there were."""
    markers = objects.client.list_object_versions(Bucket=BUCKET).get("DeleteMarkers", [])
    for marker in markers:
        objects.client.delete_object(Bucket=BUCKET, Key=marker["Key"], VersionId=marker["VersionId"])
    return len(markers)


def test_what_only_offloaded_copies_had_comes_back_once_the_bucket_has_them_again(
    clusters: Clusters, object_store: ObjectStore, make_namespace: Callable[[DevCluster], str], tmp_path: Path
) -> None:
    object_store.create_bucket(BUCKET)
    object_store.client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    options = ClusterOptions(
        offload=True,
        broker_settings=object_store.broker_settings(BUCKET),
        broker_environment=object_store.broker_environment,
    )
    lines = {**object_store.broker_settings(BUCKET), "bookwardenMarks": "two-phase"}
    cluster = clusters.taken(marking(options, **lines))
    store = (
        f"{{driver: S3, endpoint: '{object_store.endpoint}', buckets: [{BUCKET}], "
        f"access_key: {ACCESS_KEY}, secret_key: {SECRET_KEY}}}"
    )
    site = DeletionSite.of(cluster, make_namespace(cluster), tmp_path, {"offload.stores": f"[{store}]"})
    with closing(MarkingGround(cluster.connection(), site)) as at, closing(cluster.connection().client()) as client:
        opened = at.swept.opened
        retain(at.admin, site.namespace)
        at.admin.put(f"/namespaces/{site.namespace}/offloadDeletionLagMs", 0)
        topic = at.topic("offloaded")
        send(client, topic, COUNT)
        path = topic_path(topic)
        # Its reader would make the topic again.
        with closing(cluster.connection().client()) as other:
            sent = read_back(other, topic)
        *offloaded, last = listed(at.swept, topic)
        offload(at.admin, topic, last)

        def are_left_to_the_sweep() -> bool:
            at.admin.post(f"{path}/trim")
            read = ManagedLedgers(opened.store).read(managed_ledger_of(topic))
            return read is not None and all(
                one.offload and one.offload.bookkeeper_deleted for one in read.info.ledgers[:-1]
            )

        eventually(are_left_to_the_sweep, 60)
        at.sweep_all(set(offloaded))
        copies = object_store.keys(BUCKET)
        assert len(copies) == 2 * len(offloaded)
        keep_dropped(opened, site.namespace)
        delete(opened, topic)
        eventually(lambda: not object_store.keys(BUCKET), 60)

        operations = TrashOperations(opened, operator="tester")
        (trashed,) = [
            one for one in operations.records.read().generations if one.managed_ledger == managed_ledger_of(topic)
        ]
        plan = operations.restore.plan(trashed, RestoreRequest())
        assert [lost.what for lost in plan.lost] == [f"ledger {one}" for one in offloaded]
        assert all(any(f"{key} and its index" in lost.why for key in copies) for lost in plan.lost)
        assert undelete(object_store) == len(copies)
        result = operations.restore.run(trashed, RestoreRequest())
        assert result.plan is not None
        assert (result.plan.lost, result.gone, result.problems) == ((), (), ())
        assert read_back(client, topic) == sent
        assert object_store.keys(BUCKET) == copies
    cluster.kill()
