"""Clusters that nothing is to be read from after the tests that use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bookwarden_dev.devcluster import DevCluster


@contextmanager
def running_until_killed(cluster: DevCluster) -> Iterator[DevCluster]:
    """Run a cluster for the block; to stop it in order would only take longer."""
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.kill()
