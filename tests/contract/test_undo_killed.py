"""An undo that is killed at any step leaves what the next undo brings to the same end, on a real ZooKeeper."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.bookkeeper.undone import UndoneLedgers
from bookwarden.deletion.journal.entries import JournalEntry, UndoRecord, UndoStep
from bookwarden.deletion.journal.reading import (
    JournalDamage,
    JournalFolder,
    JournalReader,
    SelectedDeletions,
    Selection,
)
from bookwarden.deletion.journal.writing import FileJournal
from bookwarden.deletion.ports import NoMigrations
from bookwarden.deletion.undo.operation import Undo
from bookwarden.ledgers.holdings import Holding, Presence
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.ledgers.undone import UndoneLedger
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden.wire.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from servers.lone_zookeeper import LoneZooKeeper

pytestmark = pytest.mark.servers

# Each step has a process of its own, to be killed; they are forked from one that has imported most of it.
_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload(["pytest", Undo.__module__, "bookwarden.metastore.zookeeper.store"])


class _Mortal:
    """A port, around some of whose calls this process may have to die."""

    def __init__(self, moment: Callable[[], None], port: object, *names: str) -> None:
        self._moment = moment
        self._port = port
        self._names = names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if name not in self._names:
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self._moment()
            result = found(*arguments, **named)
            self._moment()
            return result

        return call


class _Bookies:
    """They hold all but ledger 3."""

    def holdings(self, entries: Iterable[Any]) -> list[dict[str, Holding]]:
        return [
            dict.fromkeys(metadata.segments[0].ensemble, Holding(Presence.NOT_HELD if ledger == 3 else Presence.HELD))
            for ledger, metadata, _ in entries
        ]


def _undo(url: str, root: str, folder: Path, fatal: int) -> list[str]:
    """Undo; calls into the ports are counted, and the process kills itself before or after the one that is fatal."""
    moments = itertools.count()

    def moment() -> None:
        if next(moments) == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    mortal: Any = partial(_Mortal, moment)
    with closing(open_store(url)) as store, closing(FileJournal(folder)) as journal:
        undo = Undo(
            mortal(BookKeeperCatalog(mortal(store, "create"), root), "read_many", "restore_many", "delete_many"),
            mortal(_Bookies(), "holdings"),
            mortal(NoMigrations(), "await_writes"),
            mortal(journal, "append"),
            decode_ledger_metadata,
            "undo",
            undone=mortal(UndoneLedgers(mortal(store, "create"), f"{root}-undone"), "note_many", "withdraw_many"),
        )
        deletions = SelectedDeletions(JournalReader(JournalFolder(folder)), Selection())
        return [f"{row.ledger_id}:{row.outcome.value}" for rows in undo.run(deletions) for row in rows]


@pytest.fixture
def store(zookeeper: LoneZooKeeper) -> Iterator[MetadataStore]:
    opened = open_store(f"zk:{zookeeper.hosts}")
    yield opened
    opened.close()


def test_an_undo_killed_at_any_step_is_finished_by_the_next(
    zookeeper: LoneZooKeeper, store: MetadataStore, tmp_path: Path
) -> None:
    url, step, killed = f"zk:{zookeeper.hosts}", 0, True
    while killed:
        root, folder = f"/ledgers-{secrets.token_hex(4)}", tmp_path / f"journal-{step}"
        store.create(root, b"")
        raw = _delete_four(root, folder)
        process = _PROCESSES.Process(target=_undo, args=(url, root, folder, step))
        process.start()
        process.join(120)
        killed = process.exitcode == -signal.SIGKILL
        assert killed or process.exitcode == 0
        # Whenever it was killed: no metadata without a record of it, and none that is not what it was.
        begun = {record.ledger_id for record in _records(folder) if isinstance(record, UndoRecord)}
        there = {ledger_id for ledger_id in raw if _node(store, root, ledger_id) is not None}
        assert there <= begun, f"killed at step {step}"
        assert there <= set(_undone(store, root)), f"killed at step {step}: a sweep would delete it again"
        assert _undo(url, root, folder, -1)[:3] == ["1:restored", "2:restored", "3:lost"], f"killed at step {step}"
        assert _node(store, root, 1) == raw[1], f"killed at step {step}"
        assert _node(store, root, 2) == raw[2], f"killed at step {step}"
        assert _node(store, root, 3) is None, f"killed at step {step}"
        assert _node(store, root, 4) is None, f"killed at step {step}"
        last = {record.ledger_id: record.step for record in _records(folder) if isinstance(record, UndoRecord)}
        assert last == {1: UndoStep.RESTORED, 2: UndoStep.RESTORED, 3: UndoStep.LOST}, f"killed at step {step}"
        assert set(_undone(store, root)) == {1, 2}, f"killed at step {step}"
        step += 1
    assert step > 20, "an undo has more steps than that"


def _delete_four(root: str, folder: Path) -> dict[int, bytes]:
    """Journal the deletion of four ledgers, none of which is in the store."""
    raw: dict[int, bytes] = {}
    for ledger_id in range(1, 5):
        state = LedgerState.OPEN if ledger_id == 4 else LedgerState.CLOSED
        last = None if ledger_id == 4 else 9
        parts = (Segment(0, ("b1", "b2")),)
        raw[ledger_id] = encode_ledger_metadata(LedgerMetadata(3, state, 2, 2, 2, parts, ledger_id, last))
    journal = FileJournal(folder)
    journal.append(
        [JournalEntry(number, "h", ledger_path(root, number), 0, 1, value, "q/1", 1) for number, value in raw.items()]
    )
    journal.close()
    return raw


def _node(store: MetadataStore, root: str, ledger_id: int) -> bytes | None:
    found = store.get(ledger_path(root, ledger_id))
    return found.value if found else None


def _undone(store: MetadataStore, root: str) -> dict[int, UndoneLedger]:
    return UndoneLedgers(store, f"{root}-undone").read_many(range(1, 5))


def _records(folder: Path) -> list[object]:
    damaged: list[JournalDamage] = []
    records: list[object] = list(JournalReader(JournalFolder(folder), damaged.append))
    assert damaged == []
    return records
