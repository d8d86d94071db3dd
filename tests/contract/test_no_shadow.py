"""An unreadable node taken as no shadow topic, with the metadata in each store."""

from __future__ import annotations

from uuid import uuid4

import pytest

from bookwarden.clusters.pulsar.references.no_shadow import NodeContent, NoShadow, NoShadowRecords
from bookwarden.clusters.pulsar.references.shadows import ShadowTopics, read_doubt
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from contract.conftest import Connect
from servers.population import Population

pytestmark = pytest.mark.servers


def test_a_record_counts_for_the_node_as_it_was_and_a_node_that_is_mended_needs_none(connect_each: Connect) -> None:
    store, now = connect_each(), 0.0
    holder = ManagedLedgerHolder(f"t/n-{uuid4().hex}/persistent/a topic%2Fwith odd~name")
    path = f"/managed-ledgers/{holder.name}"
    Population(store)
    store.create(path, b"\x47\x78broken", make_parents=True)
    shadows = ShadowTopics(store, 600, clock=lambda: now)

    def look() -> tuple[int, int]:
        """Count the doubts, and those that were taken as no shadow topic."""
        nonlocal now
        now += 5
        doubts = [doubt for doubt in shadows.known().doubts if doubt.path == path]
        return len(doubts), sum(doubt.taken is not None for doubt in doubts)

    assert look() == (1, 0)
    for _ in range(2):
        doubt = read_doubt(store, path)
        assert doubt is not None
        assert doubt.content is not None
        records = NoShadowRecords(store)
        # Written twice, as by two persons.
        records.write(NoShadow(path, doubt.content, "other@there", 1, "x"))
        record = NoShadow(path, doubt.content, "me@here", 2, "none here")
        records.write(record)
        assert records.read()[path] == record
        assert look() == (1, 1)
        node = store.get(path)
        assert node is not None
        store.put(path, node.value, node.version)
        changed = store.get(path)
        assert changed is not None
        assert NodeContent.of(changed) != doubt.content
        assert look() == (1, 0)
    assert records.remove(path)
    assert not records.remove(path)
    assert path not in records.read()
    Population(store).names(holder, [7])
    assert look() == (0, 0)
    assert shadows.known().listing(7) == [holder.name]
