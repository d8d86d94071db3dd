"""Holes in what is done and told: deletes, the journal, and marks that are sent on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.messages.retries import RetrySender
from bookwarden.deletion.phase_two import decide, ledger_deletion
from bookwarden.deletion.phase_two.decide import Action, Decision
from bookwarden.deletion.phase_two.isolation import Isolation
from bookwarden.deletion.phase_two.sent_on import Sendings
from bookwarden.deletion.undo.operation import Undo
from bookwarden.ledgers.metadata import DeleteResult, StoredLedger
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.metastore.following.phases import MOVED
from bookwarden.metastore.following.store import MigratingStore
from bookwarden.pipelines.streams import outcome_table
from bookwarden.wire import avro

from .. import journal
from .hole import Hole


def _flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RetrySender, "flush", lambda sender: None)


def _journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal.MemoryJournal, "append", lambda self, records: None)


def _late_journal(patch: pytest.MonkeyPatch) -> None:
    delete = ledger_deletion.LedgerDeleter.carry_out

    class Later(list[Any]):
        append = list.extend  # type: ignore[assignment]

    def delete_first(deleter: ledger_deletion.LedgerDeleter, *rest: Any) -> Any:
        written, later = deleter._journal, Later()
        deleter._journal = later
        try:
            result = delete(deleter, *rest)
        finally:
            deleter._journal = written
        written.append(later)
        return result

    patch.setattr(ledger_deletion.LedgerDeleter, "carry_out", delete_first)


def _replays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sendings, "send", lambda sendings, decided, now_ms: None)


def _unknown_is_done(patch: pytest.MonkeyPatch) -> None:
    done: Mapping[DeleteResult, Decision] = {
        **ledger_deletion._AFTER_DELETE,
        DeleteResult.UNKNOWN: Decision(Action.FINISH, Outcome.DELETED, ""),
    }
    patch.setattr(ledger_deletion, "_AFTER_DELETE", done)


def _lost_race_is_done(patch: pytest.MonkeyPatch) -> None:
    done: Mapping[DeleteResult, Decision] = {
        **ledger_deletion._AFTER_DELETE,
        DeleteResult.LOST_RACE: Decision(Action.FINISH, Outcome.ALREADY_GONE, ""),
    }
    patch.setattr(ledger_deletion, "_AFTER_DELETE", done)


def _any_version(patch: pytest.MonkeyPatch) -> None:
    delete = BookKeeperCatalog.delete_many

    def as_it_is(catalog: BookKeeperCatalog, ledgers: Sequence[StoredLedger], *rest: Any) -> list[DeleteResult]:
        now = catalog.read_many([ledger.ledger_id for ledger in ledgers])
        newest = zip(ledgers, now, strict=True)
        return delete(catalog, [new if isinstance(new, StoredLedger) else old for old, new in newest], *rest)

    patch.setattr(BookKeeperCatalog, "delete_many", as_it_is)


def _discard_partial(patch: pytest.MonkeyPatch) -> None:
    begin = Undo.__init__

    def discards(undo: Undo, *ports: Any, **options: Any) -> None:
        begin(undo, *ports, **{**options, "discard_partial": True})

    patch.setattr(Undo, "__init__", discards)


def _sent_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sendings, "without_sent", lambda sendings, decided: list(decided))


def _any_time(patch: pytest.MonkeyPatch) -> None:
    for module in (avro, outcome_table):
        patch.setattr(module, "is_time", lambda milliseconds: True)


def _unthought_of(patch: pytest.MonkeyPatch) -> None:
    judge = decide._judge

    def fails(mark: PendingDeletion, *rest: Any) -> Decision:
        if mark.marked_at == 1:
            raise ArithmeticError("nobody thought of this")
        return judge(mark, *rest)

    patch.setattr(decide, "_judge", fails)


def _not_cut_out(patch: pytest.MonkeyPatch) -> None:
    _unthought_of(patch)

    def all_or_nothing(isolation: Isolation, step: Any, act: Any, cut_out: Any) -> Iterator[Any]:
        yield act(step)

    patch.setattr(Isolation, "carry_out", all_or_nothing)


def _writes_the_source(patch: pytest.MonkeyPatch) -> None:
    write = MigratingStore._write

    def at_once(store: MigratingStore, call: Any) -> Any:
        return write(store, call) if store.state in MOVED else call(store._progress.source)

    patch.setattr(MigratingStore, "_write", at_once)


_FORGED = ("roll over", "trim", "switch cursor", "forge", "mark by id", "sweep")

HOLES = {
    "retries count as sent before they are": Hole(_flush, "unsettled"),
    "nothing is journaled": Hole(_journal, "journal"),
    "the journal is written after the delete": Hole(_late_journal, "journal"),
    "what is to be retried is not sent on": Hole(_replays, "unsettled"),
    "a delete without an answer was done": Hole(_unknown_is_done, "untrue", (), _FORGED, 215),
    "a ledger that changed meanwhile is gone": Hole(_lost_race_is_done, "untrue", ("replication",), _FORGED),
    "whatever version is deleted, not that which was read": Hole(_any_version, "journal", ("replication",), _FORGED),
    "an undo drops what is left of a ledger": Hole(
        _discard_partial,
        "dropped",
        ("half lost",),
        ("collect half", "undo", "scan", "apply", "sweep", "wait long"),
        first=8,
    ),
    "a replay sends the same retries and letters again": Hole(
        _sent_again, "again", (), ("forge", "mark topic"), first=3
    ),
    "a mark of a time that no clock tells is taken": Hole(_any_time, "stuck", ("forged times",)),
    "nobody thought of what a mark says": Hole(_unthought_of, "poison", ()),
    "what is written does not wait for the end of a move": Hole(
        _writes_the_source, "unsaved", ("moved metadata",), ("move metadata", "mark by id")
    ),
    "a mark that fails is not cut out of its batch": Hole(_not_cut_out, "stuck", ()),
}
