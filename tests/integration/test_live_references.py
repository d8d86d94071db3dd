"""References and ledger metadata read from a real Pulsar, against what its broker says of itself."""

from __future__ import annotations

import pytest

from bookwarden_dev.devcluster import DevCluster
from servers.broker_claims import assert_references_are_the_brokers

pytestmark = pytest.mark.servers


def test_what_the_broker_lists_is_referenced_and_stored(pulsar_cluster: DevCluster, namespace: str) -> None:
    assert_references_are_the_brokers(pulsar_cluster, namespace)
