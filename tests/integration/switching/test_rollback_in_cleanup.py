"""A rollback while the sweep deletes what a cleanup marked: nothing goes that brokers read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bookwarden.clusters.bookkeeper.bookies.proof import WholeLedgers
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.config import load_settings
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import Waiver, mark_of_holder
from bookwarden_dev.demo.ledger_places import ledgers_of_topic
from servers.pool import ServerPool
from servers.sweeping_site import SweepingSite
from servers.switching.copied import copy_namespace
from servers.switching.shared_site import ONE_BROKER, shared_site
from servers.switching.site import SwitchingSite
from servers.topic_contents import read_back, send

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = 1100
# So that they fill more than 200 ledgers.
SMALL_LEDGERS = {"managedLedgerMaxEntriesPerLedger": "5"}


@pytest.fixture
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, ONE_BROKER, SMALL_LEDGERS, anew=True) as running:
        yield running


def test_a_rollback_while_ledgers_are_proven_keeps_them(
    site: SwitchingSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that was about to delete what cleanup marked in a finds that brokers read it there again."""
    site.ensure("a")
    site.run(tmp_path, "init")
    (topic,) = site.new_topics(1)
    name = TopicName.parse(topic)
    holder, waived = ManagedLedgerHolder(name.managed_ledger), frozenset({Waiver.SUPERSEDED, Waiver.ROLLBACK_WINDOW})
    prove, proven = WholeLedgers.problem_of, list[int]()

    def rolled_back(bookies: WholeLedgers, ledger: StoredLedger) -> str | None:
        proven.append(ledger.ledger_id)
        if len(proven) == 100:
            assert site.command("rollback", "--yes")["phase"] == "DONE"
        return prove(bookies, ledger)

    with closing(site.connection.client()) as client:
        send(client, topic, COUNT)
        assert site.command("switch", "--target", "b", "--yes")["phase"] == "DONE"
        site.admin.put(f"{topic_path(topic)}/unload")
        copied = copy_namespace(site, f"{name.tenant}/{name.namespace}", "a", "b")
        own = ledgers_of_topic(site.store, topic) & copied
        assert len(own) >= 200
        assert site.command("promote", "--yes", "--per-second", "50")["failed"] == []
        marks = [mark_of_holder(ledger_id, holder, "test") for ledger_id in sorted(own)]
        settings = load_settings(overrides=dict(word.split("=", 1) for word in site.options[1::2]))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(WholeLedgers, "problem_of", rolled_back)
        with SweepingSite(settings) as sweeping:
            rows = sweeping.sweep(*(replace(mark, bookie_cluster="a", waives=waived) for mark in marks))
        # The promotion was void before the next was asked for.
        assert proven == sorted(own)[:100]
        assert [row.outcome for row in rows] == [Outcome.WAITING] * 100 + [Outcome.RETRY] * (len(own) - 100)
        assert own <= site.places().by_cluster["a"]
        assert site.command("status")["promotion"] is None
        assert read_back(client, topic) == [str(number).encode() for number in range(COUNT)]
