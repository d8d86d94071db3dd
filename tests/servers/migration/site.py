"""A real Pulsar whose metadata a test moves to a real Oxia, and ZooKeeper's own account of who wrote what meanwhile."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from bookwarden.background import in_background
from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.metastore.following.flag import COORDINATOR_PATH, MIGRATION_PATH, PARTICIPANTS_PATH, read_flag
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.snapshot.transaction_log import (
    Change,
    Closed,
    Created,
    Deleted,
    Replaced,
    logs_after,
    read_logs,
)
from bookwarden.metastore.urls import open_store
from bookwarden.processes import descendants, identify
from bookwarden_dev.devcluster import DevCluster, ServerProcess
from servers.waiting import eventually

# What the value of our participants' nodes begins with.
OURS = b"bookwarden "
_HOLDER = b"test"
# Two clients that write to a shard of Oxia 0.14.0 at the same moment can stop it for good (docs/oxia.md), and brokers,
# bookies and sweeps all do once a move begins: the more shards, the less often they meet at one.
SHARDS = 16
# What is written to the source in these phases is not in the target.
COPIED = ("COPYING", "COMPLETED")


class Migration:
    """The operator of a migration, and of what delays it."""

    def __init__(self, cluster: DevCluster) -> None:
        self.cluster = cluster
        self.source = open_store(cluster.store_url)

    def start(self) -> None:
        """Ask the broker to move the metadata to the cluster's Oxia."""
        with closing(PulsarAdmin(self.cluster.connection(), timeout_s=60)) as admin:
            admin.post("/metadata/migration/start", params={"target": self.cluster.oxia_url})

    def phase(self) -> str:
        """Read the flag in the source."""
        state = read_flag(self.source)
        return state.phase if state else "NOT_STARTED"

    def wait_for(self, *phases: str, seconds: float = 120) -> str:
        """Wait for one of the phases, and return it."""

        def reached() -> str | None:
            now = self.phase()
            return now if now in phases else None

        return eventually(reached, seconds, 0.1) or ""

    def remove_flag(self) -> None:
        """Take away the flag of what failed, as an operator has to before another try."""
        node = self.source.get(MIGRATION_PATH)
        assert node is not None
        self.source.delete_many([(MIGRATION_PATH, node.version)])

    def participants(self) -> dict[str, bytes]:
        """Give the nodes of the participants with their values, by path."""
        self.source.sync()
        paths = [f"{PARTICIPANTS_PATH}/{name}" for name in self.source.list_children(PARTICIPANTS_PATH)]
        found = zip(paths, self.source.get_many(paths), strict=True)
        return {path: node.value for path, node in found if node is not None}

    def our_participants(self) -> list[str]:
        return [path for path, value in self.participants().items() if value.startswith(OURS)]

    @contextmanager
    def held_in_preparation(self) -> Iterator[None]:
        """Keep the coordinator in PREPARATION: for the block, one more takes part, and does not leave."""
        node = self.source.ephemeral_sequential(f"{PARTICIPANTS_PATH}/id-", _HOLDER)
        try:
            yield
        finally:
            self.source.delete_many([(node, 0)])

    def wait_until_left(self) -> None:
        """Wait until none is among the participants but the one that the test holds there."""
        eventually(lambda: set(self.participants().values()) == {_HOLDER}, 60, 0.1)

    def empty_target(self) -> None:
        """Take from an Oxia that does not run all that it has."""
        shutil.rmtree(self.cluster.home / "oxia")

    def raise_counters(self) -> None:
        """Let the target's counters pass what the source gave, as the runbook asks for.

        Until then each topic that wants a ledger asks for one that is there, and fails, and the sweep deletes nothing.
        Nobody else writes meanwhile, since thousands of writes to one shard would meet another's.
        """
        urls = f"metadata_store.urls={json.dumps([self.cluster.store_url])}"
        command = ["metadata-migration", "counters", "--execute", "--count-up"]
        with self.cluster.broker.paused(), self.cluster.bookie.paused():
            result = CliRunner().invoke(cli, ["--set", urls, *command])
        assert result.exit_code == 0, result.output

    def target(self) -> MetadataStore:
        """Open the Oxia."""
        return open_store(self.cluster.oxia_url)

    def history(self) -> History:
        """Read ZooKeeper's log as far as it goes."""
        return read_history(self.cluster.home / "zookeeper" / "version-2")

    def close(self) -> None:
        self.source.close()


@contextmanager
def slowed(server: ServerProcess) -> Iterator[None]:
    """Let a server run for a small part of the time, often enough that nobody who waits for it gives up."""

    def slow(ended: threading.Event) -> None:
        while not ended.is_set():
            with server.paused():
                ended.wait(3)
            ended.wait(0.1)

    with in_background(slow, "slow"):
        yield


class FrozenJob:
    """A job with all processes that it started, stopped in the middle of whatever they did."""

    def __init__(self, job: ServerProcess) -> None:
        self._job = job
        self._processes = [found for pid in descendants(job.pid) if (found := identify(pid))]
        for process in self._processes:
            process.signal(signal.SIGSTOP)

    def kill(self) -> None:
        """Kill all of them, as the end of the machine would."""
        for process in self._processes:
            process.signal(signal.SIGKILL)
        self._job.kill()


@dataclass(frozen=True, slots=True)
class Write:
    """A change in ZooKeeper, and what was so at that moment.

    ``phase`` is the migration's; ``registered`` says that its session had a node among the participants.
    """

    path: str
    kind: type[Change]
    session: int
    phase: str
    registered: bool


class History:
    """What ZooKeeper's log tells: ``writes``, but for those of the migration itself, and the sessions that are ours.

    ``phases`` are those that the flag had, NOT_STARTED where it was removed.
    """

    def __init__(self) -> None:
        self.ours: set[int] = set()
        self.writes: list[Write] = []
        self.phases = ["NOT_STARTED"]
        self._participants: dict[str, int] = {}

    def add(self, session: int, change: Change) -> None:
        """Take what a session changed next into account."""
        if isinstance(change, Closed):
            self._participants = {path: owner for path, owner in self._participants.items() if owner != change.session}
        elif change.path == MIGRATION_PATH:
            self.phases.append("NOT_STARTED" if isinstance(change, Deleted) else json.loads(change.value)["phase"])
        elif change.path.startswith(f"{PARTICIPANTS_PATH}/"):
            self._participate(session, change)
        elif not change.path.startswith(COORDINATOR_PATH):
            registered = session in self._participants.values()
            self.writes.append(Write(change.path, type(change), session, self.phases[-1], registered))

    def _participate(self, session: int, change: Created | Replaced | Deleted) -> None:
        if isinstance(change, Created):
            self._participants[change.path] = session
            if change.value.startswith(OURS):
                self.ours.add(session)
        elif isinstance(change, Deleted):
            del self._participants[change.path]

    def validate(self, ledgers: Collection[str]) -> None:
        """Check that we wrote only while our node was among the participants, and nobody else deleted the ledgers."""
        ours = [write for write in self.writes if write.session in self.ours]
        assert [write for write in ours if write.kind is Deleted], "nothing was deleted in ZooKeeper"
        assert [write for write in ours if not write.registered or write.phase in COPIED] == []
        deleted = [write for write in self.writes if write.kind is Deleted and write.path in ledgers]
        assert {write.session for write in deleted} <= self.ours
        assert len({write.path for write in deleted}) == len(deleted)

    def late(self) -> set[str]:
        """Name what anybody wrote when the copy was being made, or was made."""
        return {write.path for write in self.writes if write.phase in COPIED}


def read_history(folder: Path) -> History:
    """Read the log of a ZooKeeper from its first transaction, as far as it goes."""
    history = History()
    for transaction in read_logs(logs_after(folder, 0), 0):
        for change in transaction.changes:
            history.add(transaction.session, change)
    return history
