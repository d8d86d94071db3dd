"""The rows that a scan makes of nodes: which of them say that a ledger must be there."""

from __future__ import annotations

import pytest

from bookwarden.clusters.pulsar.reference_nodes import cursor_node
from bookwarden.clusters.pulsar.reference_rows import rows_of
from bookwarden.ledgers.references import PlaceKind
from bookwarden.wire.pb import managed_ledger_pb2

COMPACTED, CURSORS_OWN = 7, 8


@pytest.mark.parametrize(("cursors_ledger", "gone"), [(CURSORS_OWN, True), (-1, False)])
def test_the_compacted_ledger_in_a_cursors_node_need_not_exist_while_the_cursors_ledger_is_open(
    cursors_ledger: int, gone: bool
) -> None:
    cursor = managed_ledger_pb2.ManagedCursorInfo(cursorsLedgerId=cursors_ledger)
    cursor.properties.add(name="CompactedTopicLedger", value=COMPACTED)
    node = cursor_node("t/n/persistent/topic", "__compaction")
    rows = list(rows_of(node, *node.read(cursor.SerializeToString(), "zk:a")))
    found = {row.ledger_id: (row.place, row.gone) for row in rows if row.ledger_id is not None}
    assert found.pop(COMPACTED) == (PlaceKind.COMPACTED.value, gone)
    assert found == ({} if cursors_ledger == -1 else {CURSORS_OWN: (PlaceKind.CURSOR.value, False)})
