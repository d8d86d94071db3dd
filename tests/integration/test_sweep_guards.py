"""What the sweep leaves alone although nothing names it, on real servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.each_store import on_each_store
from servers.population import Population
from servers.sweeping_site import SweepingSite

pytestmark = [pytest.mark.servers, on_each_store]

# Where no counter of ids gets to, lest it seem behind them.
LEDGER = 4_000_000_000


@pytest.fixture
def site(shared_cluster: DevCluster, namespace: str, tmp_path: Path) -> DeletionSite:
    made = DeletionSite.of(
        shared_cluster,
        namespace,
        tmp_path,
        {"deletion.unlisted_grace_seconds": "60"},
    )
    made.create_topics()
    return made


@pytest.fixture
def sweeping(site: DeletionSite) -> Iterator[SweepingSite]:
    with SweepingSite(site.settings) as made:
        yield made


def test_a_clock_that_runs_ahead_makes_no_young_ledger_old(
    site: DeletionSite, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)
    holder = ManagedLedgerHolder(f"{namespace}/persistent/young")
    with SweepingSite(site.settings) as sweeping:
        Population(sweeping.opened.bookkeeper.store).ledger(LEDGER, holder)
        row = sweeping.outcome(LEDGER, holder)
        assert row.outcome is Outcome.RETRY
        assert "unlisted_grace_seconds" in row.reason
        assert sweeping.exists(LEDGER)


def test_a_mark_of_another_bookie_cluster_is_not_carried_out(sweeping: SweepingSite, namespace: str) -> None:
    holder = ManagedLedgerHolder(f"{namespace}/persistent/elsewhere")
    Population(sweeping.opened.bookkeeper.store).ledger(LEDGER + 1, holder)
    mark = replace(mark_of_holder(LEDGER + 1, holder, "test"), bookie_cluster="bk-b")
    (row,) = sweeping.sweep(mark)
    assert row.outcome is Outcome.RETRY
    assert "bookie cluster 'bk-b'" in row.reason
    assert sweeping.exists(LEDGER + 1)
