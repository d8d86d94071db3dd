"""What most tests of operations on real servers begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookwarden.devcluster import DevCluster
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from servers.deletion_site import DeletionSite


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
