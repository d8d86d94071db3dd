"""What the sweep does not delete though its holder's node does not name it, with the metadata in each store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookwarden.clusters.pulsar.metadata_paths import cursor_path, managed_ledger_path
from bookwarden.ledgers.holders import CursorHolder, ManagedLedgerHolder
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.pb import managed_ledger_pb2
from servers.each_store import on_oxia
from servers.swept_store import SweptStore

pytestmark = pytest.mark.servers

Connect = Callable[[], MetadataStore]


@pytest.fixture(params=["zookeeper", on_oxia()])
def connect_each(request: pytest.FixtureRequest) -> Connect:
    """Make stores of either kind."""
    name = "connect" if request.param == "zookeeper" else "connect_oxia"
    made: Connect = request.getfixturevalue(name)
    return made


def test_a_node_whose_bytes_are_something_else_keeps_its_ledgers_at_the_cost_of_a_retry(connect_each: Connect) -> None:
    site = SweptStore(connect_each())
    cursor = managed_ledger_pb2.ManagedCursorInfo(
        cursorsLedgerId=12, markDeleteLedgerId=3, markDeleteEntryId=4, individualDeletedMessages=[b"\x0a\x00"]
    ).SerializeToString()
    for first, value in ((100, b"\x08\x05"), (110, cursor), (120, b"\xa2\x01\x03new")):
        holder = ManagedLedgerHolder(f"t/damaged/persistent/topic-{first}")
        site.ledgers(holder, first, first + 1)
        site.population.names(holder, [first])
        site.write(managed_ledger_path(holder.name), value)
        assert site.outcomes(holder, first, first + 1) == [Outcome.RETRY] * 2
        assert site.left(first, first + 1) == {first, first + 1}
    # With its node repaired the topic lets go of what it does not list, and no more.
    site.population.names(holder, [120])
    assert site.outcomes(holder, 120, 121) == [Outcome.STILL_REFERENCED, Outcome.DELETED]
    assert (site.left(120, 121), site.journaled) == ({120}, [121])


def test_a_cursors_node_with_a_field_that_no_cursor_has_keeps_its_ledger(connect_each: Connect) -> None:
    site = SweptStore(connect_each())
    holder = CursorHolder("t/damaged/persistent/read", "sub")
    site.ledgers(holder, 130)
    site.population.names(ManagedLedgerHolder(holder.managed_ledger), [])
    site.write(cursor_path(holder.managed_ledger, "sub"), b"\x08\x01\x82\x01\x02\x08\x07")
    assert site.outcomes(holder, 130) == [Outcome.RETRY]
    assert site.left(130) == {130}
