"""What most tests of operations on real servers begin with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from servers.deletion_site import DeletionSite
from servers.installed import base, built, wheel, with_spark
from servers.object_store import OFFLOAD_BUCKET, ObjectStore, TroubledStore
from servers.older_broker import OlderBroker
from servers.pool import ENTRIES_PER_LEDGER, NEWER, Clusters, ServerPool
from servers.three_bookies import ThreeBookies

__all__ = ["base", "built", "wheel", "with_spark"]


@pytest.fixture
def site(shared_cluster: DevCluster, namespace: str, tmp_path: Path) -> DeletionSite:
    """Deletion topics in a namespace of the test's own on the cluster that all tests share."""
    cluster = shared_cluster
    made = DeletionSite.of(cluster, namespace, tmp_path)
    made.create_topics()
    return made


@pytest.fixture
def store(shared_cluster: DevCluster) -> Iterator[MetadataStore]:
    """The metadata store of that cluster."""
    opened = open_store(shared_cluster.store_url)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def offload_proxy(object_store: ObjectStore) -> Iterator[TroubledStore]:
    """What the broker of `offloading_cluster` takes for its S3 server."""
    object_store.create_bucket(OFFLOAD_BUCKET)
    with closing(TroubledStore(object_store.port)) as made:
        yield made


@pytest.fixture(scope="module")
def offloading_cluster(clusters: Clusters, object_store: ObjectStore, offload_proxy: TroubledStore) -> DevCluster:
    """A running Pulsar that offloads into OFFLOAD_BUCKET, in which nothing is left of other modules."""
    cluster = clusters.shared(
        ClusterOptions(
            max_entries_per_ledger=ENTRIES_PER_LEDGER,
            offload=True,
            broker_settings={
                **object_store.broker_settings(OFFLOAD_BUCKET),
                "managedLedgerOffloadServiceEndpoint": offload_proxy.endpoint,
            },
            broker_environment=object_store.broker_environment,
        )
    )
    for key in object_store.keys(OFFLOAD_BUCKET):
        object_store.client.delete_object(Bucket=OFFLOAD_BUCKET, Key=key)
    assert object_store.uploads(OFFLOAD_BUCKET) == set()
    return cluster


@pytest.fixture(scope="module")
def three_bookies(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> ThreeBookies:
    """Running bookies that tests share; whoever kills some of them starts them again."""
    return pool.shared(ThreeBookies, lambda: ThreeBookies.started(tmp_path_factory.mktemp("bookies")))


@pytest.fixture(scope="module")
def older_broker(clusters: Clusters, pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> OlderBroker:
    """A running broker on the ensemble and bookie of the cluster that is NEWER."""
    newer = clusters.shared(NEWER)
    return pool.shared(OlderBroker, lambda: OlderBroker.started(newer, tmp_path_factory.mktemp("older")))
