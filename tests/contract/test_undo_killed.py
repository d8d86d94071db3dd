"""An undo that is killed at any step leaves what the next undo brings to the same end, on a real ZooKeeper."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.bookkeeper.undone import UndoneLedger, UndoneLedgers
from bookwarden.deletion.journal.entries import JournalEntry, UndoRecord, UndoStep
from bookwarden.deletion.journal.reading import JournalDamage, JournalFolder, JournalReader
from bookwarden.deletion.journal.writing import FileJournal
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from servers.lone_zookeeper import LoneZooKeeper

pytestmark = pytest.mark.servers

# Ledgers 1 and 2 are held, 3 is lost on its bookies, 4 was open. Calls into the ports are counted, and the process
# kills itself before or after the one that it is told.
_UNDO = """
import os, signal, sys
from pathlib import Path
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.undone import UndoneLedgers
from bookwarden.deletion.journal.reading import JournalFolder, JournalReader, SelectedDeletions, Selection
from bookwarden.deletion.journal.writing import FileJournal
from bookwarden.metastore.following.store import Migrations
from bookwarden.deletion.undo.operation import Undo
from bookwarden.clusters.bookkeeper.bookies.probe import ReplicaStatus, Presence
from bookwarden.metastore.urls import open_store
from bookwarden.wire.ledger_metadata import decode_ledger_metadata

url, root, folder, fatal = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
moments = 0

def moment():
    global moments
    if moments == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    moments += 1

def mortal(port, *names):
    class Mortal:
        def __getattr__(self, name):
            found = getattr(port, name)
            if name not in names:
                return found
            def call(*arguments, **named):
                moment()
                result = found(*arguments, **named)
                moment()
                return result
            return call
    return Mortal()

class Bookies:
    def holdings(self, entries):
        return [
            {bookie: ReplicaStatus(Presence.NOT_HELD if ledger == 3 else Presence.HELD)
             for bookie in metadata.segments[0].ensemble}
            for ledger, metadata, _ in entries
        ]

store = open_store(url)
journal = FileJournal(folder)
undo = Undo(
    mortal(BookKeeperCatalog(mortal(store, "create"), root), "read_many", "restore_many", "delete_many"),
    mortal(Bookies(), "holdings"),
    mortal(Migrations(), "await_writes"),
    mortal(journal, "append"),
    decode_ledger_metadata,
    "undo",
    undone=mortal(UndoneLedgers(mortal(store, "create"), root + "-undone"), "note_many", "withdraw_many"),
)
deletions = SelectedDeletions(JournalReader(JournalFolder(folder)), Selection())
for rows in undo.run(deletions):
    for row in rows:
        print(row.ledger_id, row.outcome.value, sep=":")
journal.close()
store.close()
"""


@pytest.fixture
def store(zookeeper: LoneZooKeeper) -> Iterator[MetadataStore]:
    opened = open_store(f"zk:{zookeeper.hosts}")
    yield opened
    opened.close()


def test_an_undo_killed_at_any_step_is_finished_by_the_next(
    zookeeper: LoneZooKeeper, store: MetadataStore, tmp_path: Path
) -> None:
    step, killed = 0, True
    while killed:
        root, folder = f"/ledgers-{secrets.token_hex(4)}", tmp_path / f"journal-{step}"
        store.create(root, b"")
        raw = _delete_four(root, folder)
        ended = _undo(zookeeper, root, folder, step)
        killed = ended.returncode == -9
        assert killed or ended.returncode == 0, ended.stderr
        # Whenever it was killed: no metadata without a record of it, and none that is not what it was.
        begun = {record.ledger_id for record in _records(folder) if isinstance(record, UndoRecord)}
        there = {ledger_id for ledger_id in raw if _node(store, root, ledger_id) is not None}
        assert there <= begun, f"killed at step {step}"
        assert there <= set(_undone(store, root)), f"killed at step {step}: a sweep would delete it again"
        again = _undo(zookeeper, root, folder, -1)
        assert again.stdout.split("\n")[:3] == ["1:restored", "2:restored", "3:lost"], (step, again.stderr)
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


def _undo(zookeeper: LoneZooKeeper, root: str, folder: Path, fatal: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _UNDO, f"zk:{zookeeper.hosts}", root, str(folder), str(fatal)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


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
