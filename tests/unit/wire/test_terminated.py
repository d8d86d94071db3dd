"""The node of a topic that was terminated, as one that accepts messages again."""

from __future__ import annotations

import pytest

from bookwarden.errors import FormatError
from bookwarden.wire.envelope import Compression, unwrap, wrap
from bookwarden.wire.managed_ledger import decode_managed_ledger, without_termination
from bookwarden.wire.pb import managed_ledger_pb2 as pb

LEDGERS = [
    pb.ManagedLedgerInfo.LedgerInfo(ledgerId=5, entries=10, size=100, timestamp=7),
    pb.ManagedLedgerInfo.LedgerInfo(ledgerId=6, entries=3, size=30, timestamp=8),
]
OWN = pb.KeyValue(key="owner", value="shop")
TERMINATED = pb.ManagedLedgerInfo(
    ledgerInfo=LEDGERS,
    terminatedPosition=pb.NestedPositionInfo(ledgerId=6, entryId=2),
    properties=[OWN, pb.KeyValue(key="migrated", value="true")],
)
OPEN = pb.ManagedLedgerInfo(ledgerInfo=LEDGERS, properties=[OWN])


def test_only_the_termination_and_the_mark_go() -> None:
    assert without_termination(TERMINATED.SerializeToString(), "migrated") == OPEN.SerializeToString()


@pytest.mark.parametrize("codec", list(Compression))
def test_a_compressed_node_stays_compressed(codec: Compression) -> None:
    reopened = without_termination(wrap(TERMINATED.SerializeToString(), codec), "migrated")
    assert unwrap(reopened) == (OPEN.SerializeToString(), codec)
    assert decode_managed_ledger(reopened).terminated is None


def test_a_node_that_is_not_terminated_is_refused() -> None:
    with pytest.raises(FormatError, match="not terminated"):
        without_termination(OPEN.SerializeToString(), "migrated")
