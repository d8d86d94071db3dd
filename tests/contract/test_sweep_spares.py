"""What the sweep does not delete though its holder's node does not name it, with the metadata in each store."""

from __future__ import annotations

import pytest

from bookwarden.clusters.bookkeeper.undone import UndoneLedger, UndoneLedgers
from bookwarden.clusters.pulsar.metadata.paths import cursor_path, managed_ledger_path
from bookwarden.ledgers.kinds import CursorHolder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.live_references import UnknownReferences
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.wire.pb import managed_ledger_pb2
from contract.conftest import Connect, StoreMaker
from servers.population import OLD_MS
from servers.swept_store import SweptStore

pytestmark = pytest.mark.servers


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
        if first < 120:
            # What cannot be read is a doubt about every topic of the store.
            site.population.names(holder, [first])
    # With its node repaired the topic lets go of what it does not list, and no more.
    site.population.names(holder, [121])
    assert site.outcomes(holder, 120, 121) == [Outcome.DELETED, Outcome.STILL_REFERENCED]
    assert (site.left(120, 121), site.journaled) == ({121}, [120])


def test_a_cursors_node_with_a_field_that_no_cursor_has_keeps_its_ledger(connect_each: Connect) -> None:
    site = SweptStore(connect_each())
    holder = CursorHolder("t/damaged/persistent/read", "sub")
    site.ledgers(holder, 130)
    site.population.names(ManagedLedgerHolder(holder.managed_ledger), [])
    site.write(cursor_path(holder.managed_ledger, "sub"), b"\x08\x01\x82\x01\x02\x08\x07")
    assert site.outcomes(holder, 130) == [Outcome.RETRY]
    assert site.left(130) == {130}


def test_ledgers_that_were_undone_are_kept_until_their_records_are_withdrawn(connect_each: Connect) -> None:
    store, ids = connect_each(), range(200, 260)
    site, holder, undone = SweptStore(store), ManagedLedgerHolder("t/undone/persistent/orders"), UndoneLedgers(store)
    site.ledgers(holder, *ids)
    # The topic is there and has trimmed them; of the last two others were meant.
    site.ledgers(holder, 299)
    site.population.names(holder, [299])
    others = {258: OLD_MS - 1, 259: OLD_MS + 1}
    undone.note_many([UndoneLedger(found, "undo-1", 1, others.get(found, OLD_MS)) for found in ids])
    undone.note_many([UndoneLedger(200, "undo-2", 2, None)])
    rows = site.sweep(holder, *ids)
    assert {found for found, row in rows.items() if row.outcome is Outcome.UNDONE} == set(ids) - set(others)
    assert "mark ledger 200`" in rows[200].reason
    assert "undo-2" in rows[200].reason
    assert (site.left(*ids), sorted(site.journaled)) == (set(ids) - set(others), list(others))
    assert undone.withdraw_many([200, 201, 999]) == {200, 201}
    assert undone.withdraw_many([200]) == frozenset()
    assert site.outcomes(holder, 200, 201, 202) == [Outcome.DELETED, Outcome.DELETED, Outcome.UNDONE]


def test_a_broken_node_of_another_topic_delays_marks_and_costs_none_of_them_a_retry(
    connect_each: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    store, holder = connect_each(), ManagedLedgerHolder("t/waiting/persistent/orders")
    site, broken = SweptStore(store, shadow_refresh=60), ManagedLedgerHolder("t/waiting/persistent/shadow")
    site.ledgers(holder, 301, 302, 309)
    site.ledgers(broken, 310)
    site.population.names(holder, [309])
    path = managed_ledger_path(broken.name)
    site.write(path, b"PULSAR.SHADOW_SOURCE and no more")
    rows = site.sweep(holder, 301, 302)
    assert [row.outcome for row in rows.values()] == [Outcome.WAITING] * 2
    assert path in rows[301].reason
    # What is wrong with its own node is a topic's own affair.
    assert site.outcomes(broken, 310) == [Outcome.RETRY]
    assert [what for what, _, _ in site.sent] == ["wait", "wait", "retry"]
    assert site.left(301, 302, 309, 310) == {301, 302, 309, 310}
    assert [record.name for record in caplog.records].count("bookwarden.clusters.pulsar.references.live") == 1
    site.population.names(broken, [310])
    assert SweptStore(store, shadow_refresh=60).outcomes(holder, 301) == [Outcome.DELETED]


def test_a_ledger_that_another_topic_lists_is_spared_whoever_made_it(connect_each: Connect) -> None:
    store = connect_each()
    owner, rescuer = (ManagedLedgerHolder(f"t/rescued/persistent/{name}") for name in ("orders", "orders-rescued"))
    site = SweptStore(store, shadow_refresh=60)
    site.ledgers(owner, 501, 502, 509)
    site.population.names(owner, [509])
    # Put back under another name, without a word of whose they were.
    site.population.names(rescuer, [501])
    rows = site.sweep(owner, 501, 502)
    assert [row.outcome for row in rows.values()] == [Outcome.STILL_REFERENCED, Outcome.DELETED]
    assert rescuer.name in rows[501].reason
    # What it lists is read anew each time, whenever the last look at all topics was.
    site.population.names(rescuer, [600])
    assert site.outcomes(owner, 501) == [Outcome.DELETED]


@pytest.mark.parametrize(
    ("owner", "listed"),
    [(SchemaHolder("t/lists/orders"), 601), (CursorHolder("t/lists/persistent/others", "sub"), 603)],
    ids=["schema", "cursor"],
)
def test_a_ledger_that_a_topic_lists_is_spared_though_its_metadata_calls_it_one_of_another_kind(
    connect_each: Connect, owner: SchemaHolder | CursorHolder, listed: int
) -> None:
    site, topic = SweptStore(connect_each(), shadow_refresh=60), ManagedLedgerHolder("t/lists/persistent/orders")
    site.ledgers(owner, listed, listed + 1)
    site.population.names(topic, [listed])
    rows = site.sweep(owner, listed, listed + 1)
    assert [row.outcome for row in rows.values()] == [Outcome.STILL_REFERENCED, Outcome.DELETED]
    assert topic.name in rows[listed].reason


def test_a_node_that_the_store_refuses_to_show_concerns_its_own_holder(connect_apart: StoreMaker) -> None:
    hidden, seen = (ManagedLedgerHolder(f"t/guarded/persistent/{name}") for name in ("hidden", "seen"))
    guarding = connect_apart(digest=("warden", "secret"), acl="creator")
    for shadow_refresh, of_others, ledger_id in ((0.0, Outcome.DELETED, 400), (60.0, Outcome.WAITING, 401)):
        site = SweptStore(connect_apart(), shadow_refresh=shadow_refresh)
        site.ledgers(hidden, ledger_id + 10)
        site.ledgers(seen, ledger_id)
        site.ledgers(seen, ledger_id + 50)
        site.population.names(seen, [ledger_id + 50])
        path = managed_ledger_path(hidden.name)
        if guarding.get(path) is None:
            guarding.create(path, b"")
        marks = {**site.sweep(hidden, ledger_id + 10), **site.sweep(seen, ledger_id)}
        assert (marks[ledger_id + 10].outcome, marks[ledger_id].outcome) == (Outcome.RETRY, of_others)
        assert path in marks[ledger_id + 10].reason
        assert ledger_id + 10 in site.left(ledger_id + 10)
        read = site.references.read([hidden, seen])
        assert isinstance(read[hidden], UnknownReferences)
