"""Tests that run on a Pulsar with its metadata in ZooKeeper, and again on one with it in Oxia."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bookwarden_dev.devcluster import DevCluster

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

SHARED_CLUSTERS = {"zookeeper": "pulsar_cluster", "oxia": "oxia_cluster"}


def on_oxia(*values: Any) -> ParameterSet:
    """Give the parameters of a test on Oxia, behind its store."""
    # The first start on a machine builds Oxia.
    return pytest.param("oxia", *values, marks=pytest.mark.timeout(1800))


# For tests of the fixture `shared_cluster`, and of those that are made from it.
on_each_store = pytest.mark.parametrize("shared_cluster", ["zookeeper", on_oxia()], indirect=True)


def shared_cluster_on(store: str, request: pytest.FixtureRequest) -> DevCluster:
    """Return the cluster with its metadata in a store that all tests share."""
    cluster: DevCluster = request.getfixturevalue(SHARED_CLUSTERS[store])
    if store == "oxia" and is_tried_again(request):
        # A shard that two writers broke, see docs/oxia.md, takes writes again when its server was restarted.
        cluster.oxia.restart()
    return cluster


def is_tried_again(request: pytest.FixtureRequest) -> bool:
    """Say whether the test failed before, and what it left may be in the way."""
    return getattr(request.node, "execution_count", 1) > 1
