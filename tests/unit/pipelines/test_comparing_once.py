"""`follow --once`: one comparison, read in its own process, which ends also where there is nothing to compare."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

import pytest

from bookwarden.config import load_settings
from bookwarden.follow.following import DroppedLedgers, SteadyClock
from bookwarden.follow.table import FollowedNodes
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.metastore.memory import shared_memory_store
from bookwarden.pipelines.follow.metrics import FollowMetrics
from bookwarden.pipelines.follow.query import ReferenceChanges
from bookwarden.pipelines.streams.supervisor import Pulse
from servers.population import node_of


@pytest.mark.timeout(30)
@pytest.mark.parametrize("topics", [0, 3])
def test_a_comparison_ends_with_and_without_nodes(topics: int) -> None:
    name = f"compared-{uuid4().hex}"
    store = shared_memory_store(name)
    store.create("/managed-ledgers", b"")
    for number in range(topics):
        path, value = node_of(ManagedLedgerHolder(f"t/n/persistent/topic-{number}"), [number])
        store.create(path, value, make_parents=True)
    settings = load_settings(overrides={"metadata_store.urls": f"['memory:{name}']"})
    nodes = FollowedNodes(0)
    # Nothing was dropped, so that nothing is looked at.
    check: Any = None
    dropped = DroppedLedgers(nodes, check, lambda *_: [], SteadyClock(), lambda _: None)
    changes = ReferenceChanges(None, settings, Pulse(), FollowMetrics(), dropped)
    assert changes.compare(threading.Event())
    assert len(nodes) == topics
    stopped = threading.Event()
    stopped.set()
    assert not changes.compare(stopped)
