"""Clusters that nothing is to be read from after the tests that use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bookwarden_dev.devcluster import ClusterOptions, DevCluster


def soaked(home: Path, options: ClusterOptions, oxia: str | None) -> DevCluster:
    """Make a cluster; ``oxia`` is another program than the one that is built for tests, which may stop for good."""
    return DevCluster(home, replace(options, oxia_program=oxia))


@contextmanager
def running_until_killed(cluster: DevCluster) -> Iterator[DevCluster]:
    """Run a cluster for the block; to stop it in order would only take longer."""
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.kill()
