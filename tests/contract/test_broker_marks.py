"""Whether brokers mark, and their outbox measured and forwarded, with the metadata in each store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bookwarden.clusters.pulsar.broker_marks import MarkingBrokers, Outbox
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.phase_one.outbox_drain import OutboxDrain
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading, UnreadableLedger
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.wire.broker_marks import ENABLED_NODE, OUTBOX_ROOT, MarksEnabled
from contract.conftest import Connect

pytestmark = pytest.mark.servers

_NODE = '{"format":1,"drops":[{"managedLedger":"t/n/persistent/a","time":5,"data":[%d]}],"drivers":[]}'


class Catalog:
    """Has the ledgers with odd ids."""

    def read_many(self, ledger_ids: Sequence[int]) -> list[LedgerReading]:
        return [UnreadableLedger(one, "odd") if one % 2 else AbsentLedger(one) for one in ledger_ids]

    def delete_many(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a drain deletes no ledger")


class Topic:
    def __init__(self) -> None:
        self.ids: list[int] = []

    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        self.ids += [mark.ledger_id for mark in marks]
        return [None] * len(marks)


def test_an_outbox_of_two_starts_is_measured_and_drained(connect_each: Connect) -> None:
    store, topic = connect_each(), Topic()
    numbers = [*range(3), *range(998, 1002), 12_345]
    for start in ("a", "b"):
        for number in numbers:
            path = f"{OUTBOX_ROOT}/b1:8080-{start}/{number // 1000}/{number}"
            store.create(path, (_NODE % number).encode(), make_parents=True)
    outbox, other = Outbox(store), Outbox(connect_each())
    size = outbox.size()
    assert (size.nodes, size.size) == (16, 2 * sum(len(_NODE % number) for number in numbers))
    assert size.oldest_ms == min(
        found.node.created_ms for folder in outbox.folders() for some in outbox.read(folder) for found in some
    )
    assert other.size() == size
    report = OutboxDrain(MarkingBrokers(store), outbox, Catalog(), Marker(topic)).run()
    assert (report.nodes, report.gone, report.kept) == (16, 8, [])
    assert topic.ids == [1, 999, 1001, 12_345] * 2
    assert store.children_of(OUTBOX_ROOT) == []
    # What was known is forgotten.
    assert other.size().nodes == 0


def test_whether_brokers_mark_is_written_and_replaced(connect_each: Connect) -> None:
    store = connect_each()
    brokers = MarkingBrokers(store)
    assert brokers.enabled() == MarksEnabled(enabled=True)
    for enabled in (False, True):
        state = MarksEnabled(enabled, "me@here", 5)
        brokers.set_enabled(state)
        assert MarkingBrokers(connect_each()).enabled() == state
    node = store.get(ENABLED_NODE)
    assert node is not None
    store.delete_many([(ENABLED_NODE, node.version)])
