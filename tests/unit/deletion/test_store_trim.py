"""Trims in the store: what may be loaded, may be written to, or is another topic by now is left alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.errors import RefusedError
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.wire.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from servers.population import Population
from unit.deletion.test_mark import Sender
from unit.deletion.test_mark_operations import NODE, TOPIC, Place, managed_ledger


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_a_topic_whose_last_ledger_is_not_closed_may_be_loaded_though_nobody_owns_it(state, force):
    place = Place(managed_ledger([1, 2]))
    write_state(place, 2, state)
    with pytest.raises(RefusedError, match="last ledger 2 is not closed"):
        place.trim().plan(TOPIC, force=force)
    assert place.sender.sent == []
    write_state(place, 2, LedgerState.CLOSED)
    assert place.trim().plan(TOPIC, force=force).carry_out().removed == (1,)


def test_a_topic_that_is_loaded_while_its_marks_are_sent_is_left_alone():
    place = Place(managed_ledger([1, 2]))
    write_state(place, 2, LedgerState.CLOSED)

    class LoadedMeanwhile(Sender):
        def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
            write_state(place, 2, LedgerState.OPEN)
            return super().send_all(marks)

    place.marker = Marker(LoadedMeanwhile())
    result = place.trim().plan(TOPIC).carry_out()
    assert "last ledger 2 is not closed" in result.problem
    assert place.listed() == [1, 2]


def write_state(place: Place, ledger_id: int, state: LedgerState) -> None:
    """Let BookKeeper say so of a ledger."""
    path = ledger_path("/ledgers", ledger_id)
    node = place.store.get(path)
    if node is None:
        Population(place.store).ledger(ledger_id, ManagedLedgerHolder("t/n/persistent/a"))
        node = place.store.get(path)
    assert node is not None
    metadata = decode_ledger_metadata(node.value)
    open_now = state is not LedgerState.CLOSED
    metadata = metadata._replace(state=state, length=0 if open_now else 1000, last_entry_id=None if open_now else 9)
    place.store.put(path, encode_ledger_metadata(metadata), node.version)


@pytest.mark.parametrize("missing", ["entries", "timestamp"])
def test_a_ledger_that_looks_as_if_it_were_written_to_is_not_removed_though_it_is_not_the_last(missing):
    # As after ids began anew: 60 is the newest, and 900 from before has the largest id.
    info = managed_ledger([50, 60, 900])
    info.ledgerInfo[1].ClearField(missing)
    place = Place(info)
    with pytest.raises(RefusedError, match=r"ledger 60 .* no entries or no time"):
        place.trim().plan(TOPIC, [50, 60], force=True)
    assert place.trim().plan(TOPIC).carry_out().removed == (50,)
    assert place.listed() == [60, 900]


def test_a_topic_that_was_made_anew_while_its_marks_were_sent_keeps_its_own_list():
    place = Place(managed_ledger([1, 2]))
    read = place.store.get(NODE)
    assert read is not None
    anew = managed_ledger([7, 8]).SerializeToString()

    class MadeAnew(Sender):
        def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
            place.store.delete_many([(NODE, read.version)])
            # In the store's time, which goes in milliseconds.
            while (node := place.store.get(NODE)) is None or node.created_ms == read.created_ms:
                if node is not None:
                    place.store.delete_many([(NODE, node.version)])
                place.store.create(NODE, anew)
            return super().send_all(marks)

    place.marker = Marker(MadeAnew())
    result = place.trim().plan(TOPIC).carry_out()
    assert "changed meanwhile" in result.problem
    assert place.listed() == [7, 8]
