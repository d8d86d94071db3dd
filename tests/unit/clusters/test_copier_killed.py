"""A copier that is killed anywhere leaves nothing that is read, and the next one comes to the same end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bookwarden.ledgers.custom_metadata import is_unfinished
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.ledgers.outcomes import CopyOutcome
from unit.clusters.copy_site import CopySite
from unit.switching.mortal import Killed, Mortal

LEDGERS = (7, 8, 9)


@pytest.fixture
def ground() -> Iterator[CopySite]:
    with ExitStack() as stack:
        yield CopySite(stack)


@pytest.mark.parametrize("before", [True, False], ids=["before the write", "after the write"])
@pytest.mark.parametrize("kill_at", range(3))
def test_killed_at_a_write_of_metadata_the_next_one_copies_all(ground: CopySite, kill_at: int, before: bool) -> None:
    sources = {ledger_id: ground.plant(ledger_id) for ledger_id in LEDGERS}
    mortal = Mortal(ground.store, kill_at, before=before)
    if kill_at < 2:
        with pytest.raises(Killed):
            list(ground.copier(mortal).copy(LEDGERS))
    else:
        # There are two: what is begun, and what is closed.
        list(ground.copier(mortal).copy(LEDGERS))
    for ledger_id in LEDGERS:
        copy = ground.copied(ledger_id)
        if copy is not None and not is_unfinished(copy):
            ground.require_same(ledger_id, sources[ledger_id])
    outcomes = {result.outcome for result in ground.copier().copy(LEDGERS)}
    closed = kill_at == 2 or (kill_at, before) == (1, False)
    assert outcomes == {CopyOutcome.COMPLETE if closed else CopyOutcome.COPIED}
    for ledger_id, source in sources.items():
        ground.require_same(ledger_id, source)


@pytest.mark.parametrize("answers", [1, 30, 100, 150])
def test_with_some_entries_written_nothing_is_closed_and_the_next_one_copies_all(
    ground: CopySite, answers: int
) -> None:
    source = ground.plant(7)
    for bookie in ground.targets:
        bookie.hang_up_after = answers
    assert ground.copy(7).outcome is CopyOutcome.DEFERRED
    copy = ground.copied(7)
    assert copy is None or (is_unfinished(copy) and copy.state is LedgerState.OPEN)
    for bookie in ground.targets:
        bookie.hang_up_after = None
        bookie.drop_connections()
    assert ground.copy(7).outcome is CopyOutcome.COPIED
    ground.require_same(7, source)
