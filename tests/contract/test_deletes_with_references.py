"""That nothing names a ledger and that it goes are one transaction, where the store has transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import uuid4

import pytest

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.config import load_settings
from bookwarden.deletion.journal.entries import JournalEntry
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.ledgers.kinds import CursorHolder, Holder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.wiring.cluster import Cluster
from contract.conftest import StoreMaker
from servers.lone_zookeeper import LoneZooKeeper
from servers.population import Population
from servers.sweep_parts import sweep_with
from unit.deletion.test_sweeping import NOW, POLICY, Recorder, mark

ORDERS, INVOICES = ManagedLedgerHolder("t/ns/persistent/orders"), ManagedLedgerHolder("t/ns/persistent/invoices")


class Interrupted(Recorder):
    """Lets something happen between the last look at the references and the delete."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self._happens = happens

    def append(self, entries: Sequence[JournalEntry]) -> None:
        super().append(entries)
        self._happens()


@pytest.mark.parametrize("ledgers_in", ["", "/pulsar"], ids=["ledgers elsewhere", "ledgers there"])
@pytest.mark.parametrize(
    "holder", [ORDERS, CursorHolder(ORDERS.name, "sub"), SchemaHolder("t/ns/orders")], ids=["data", "cursor", "schema"]
)
def test_a_ledger_that_is_named_between_check_and_delete_stays(
    lone_zookeeper: LoneZooKeeper, connect: StoreMaker, holder: Holder, ledgers_in: str
) -> None:
    top = f"/t-{uuid4().hex}"
    for path in (top, f"{top}/pulsar"):
        connect().create(path, b"")
    ledgers = Population(connect(chroot=top + ledgers_in))
    pulsar = Population(connect(chroot=f"{top}/pulsar"))
    pulsar.names(holder, [7])
    pulsar.names(INVOICES, [8])
    for ledger_id, owner in ((1, holder), (2, INVOICES), (7, holder), (8, INVOICES)):
        ledgers.ledger(ledger_id, owner)
    settings = load_settings(
        overrides={
            "metadata_store.urls": f"['zk:{lone_zookeeper.hosts}{top}/pulsar']",
            "metadata_store.bookkeeper_url": f"zk:{lone_zookeeper.hosts}{top}{ledgers_in}",
        }
    )
    recorder = Interrupted(lambda: pulsar.names(holder, [1]))
    with Cluster(settings) as cluster:
        sweep = sweep_with(
            cluster.bookkeeper.catalog,
            cluster.references.live,
            recorder,
            recorder,
            POLICY,
            SweepLimits(),
            clock=lambda: NOW,
        )
        rows = [row for rows in sweep.process([mark(1, holder), mark(2, INVOICES)], "q/0") for row in rows]
    assert {row.ledger_id: row.outcome for row in rows} == {1: Outcome.RETRY, 2: Outcome.DELETED}
    found = ledgers.store.get_many([ledger_path("/ledgers", ledger_id) for ledger_id in (1, 2)])
    assert [node is not None for node in found] == [True, False]
