"""Running servers that the tests of one process share, by what they are; and which files share some."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Final, Protocol, TypeVar

from xdist.scheduler import LoadScopeScheduling

from bookwarden_dev.devcluster import ClusterOptions, DevCluster, ServerProcess

ENTRIES_PER_LEDGER: Final = 10
# A handful of messages fills several ledgers, some acknowledgements that of a cursor (see
# servers.topic_contents.acknowledge_each), and delayed messages are kept in buckets.
_SMALL: Final = {
    "managedLedgerCursorMaxEntriesPerLedger": "10",
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    "delayedDeliveryMinIndexCountPerBucket": "5",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "2",
    # A compaction fails once a bookie that is paused has not taken an entry for so long.
    "bookkeeperClientTimeoutInSeconds": "120",
}
#: Its sessions outlive any restart and any pause of a server: a bookie that lost its session takes no ledger any more.
PLAIN: Final = ClusterOptions(max_entries_per_ledger=ENTRIES_PER_LEDGER, session_seconds=60, broker_settings=_SMALL)
#: For faults that end sessions, and for garbage: the bookie collects it at once, its entry logs are small, full early
#: and compacted as soon as anything in them is garbage.
COLLECTING: Final = ClusterOptions(
    max_entries_per_ledger=ENTRIES_PER_LEDGER,
    broker_settings=_SMALL,
    bookie_settings={
        "gcWaitTime": "1000",
        "minorCompactionInterval": "1",
        "majorCompactionInterval": "2",
        "majorCompactionThreshold": "0.99",
        "logSizeLimit": "1048576",
        "flushInterval": "1000",
    },
)
NEWER: Final = ClusterOptions(
    pulsar="4.2.4",
    max_entries_per_ledger=ENTRIES_PER_LEDGER,
    broker_settings={
        **_SMALL,
        "transactionCoordinatorEnabled": "true",
        # Those of topics are in the metadata store, of all namespaces without the system topic for them.
        "topicPoliciesServiceClassName": "org.apache.pulsar.broker.service.MetadataStoreTopicPoliciesService",
    },
)
SECURED: Final = ClusterOptions(auth="token", zookeeper_digest=True)
ON_OXIA: Final = ClusterOptions(pulsar="4.2.4", metadata="oxia", oxia_shards=2, session_seconds=60)
# As many as one file uses, and one more: each takes some 600 MB.
_ROOM: Final = 4
# Files whose tests share servers that no other file uses run one after the other, in one process.
_TOGETHER: Final[tuple[frozenset[str], ...]] = tuple(
    frozenset(f"tests/integration/{name}.py" for name in names.split())
    for names in (
        # Those of servers.marking_brokers.two_phase.
        "test_broker_marks_faults test_broker_marks_on_oxia test_broker_marks_two_phase test_trash test_trash_policies",
        "blue_green/test_moved blue_green/test_moved_elsewhere blue_green/test_preparation",
        # Kinds of servers.switching.shared_site.
        "switching/test_build switching/test_cleanup switching/test_copies_killed switching/test_directives"
        " switching/test_drain switching/test_moved_and_back switching/test_rollback_in_cleanup",
        "switching/test_live_switch switching/test_switch_storms switching/test_switched_kinds"
        " switching/test_switched_marks",
        "switching/test_autorecovery switching/test_copy_faults",
        # COLLECTING and NEWER: what begins with "orphans" comes first, and needs them without orphans of others.
        "orphans/test_orphan_scenario test_sweep_storms test_undo",
        "orphans/test_orphan_scan_versions test_lost_session test_pulsar_4_2",
        # That of tests/integration/conftest.py.
        "orphans/test_orphaned_objects test_offloaded_copies",
        "devcluster/test_access test_secured_sweep",
        # That of servers.three_bookies.
        "test_bookie_reader test_ledger_recovery",
        # The wheel, and an environment with it: servers.installed.
        "test_installed_wheel test_played_commands",
    )
)


class Servers(Protocol):
    """Servers that start and end together."""

    @property
    def servers(self) -> Iterable[ServerProcess]:
        """All of them."""

    def kill(self) -> None:
        """Kill those that run."""


T = TypeVar("T", bound=Servers)


class ServerPool:
    """Keeps servers running from one file's tests to the next; those used longest ago are killed for new ones."""

    def __init__(self, room: int = _ROOM) -> None:
        self._room = room
        self._running: dict[Hashable, Servers] = {}

    def shared(self, kind: Hashable, start: Callable[[], T]) -> T:
        """Return the running servers of a kind; start them if there are none, or if a test left some of them dead."""
        found = self.taken(kind, start)
        self._running[kind] = found
        while len(self._running) > self._room:
            self._running.pop(next(iter(self._running))).kill()
        return found

    def taken(self, kind: Hashable, start: Callable[[], T]) -> T:
        """Return servers of a kind for the caller alone, who kills them: those of the pool, which forgets them, or new
        ones.
        """
        found = self._running.pop(kind, None)
        if found is not None and all(server.is_running() for server in found.servers):
            return found  # type: ignore[return-value]  # what this kind's `start` returned
        if found is not None:
            found.kill()
        return start()

    def close(self) -> None:
        """Kill all."""
        for servers in self._running.values():
            servers.kill()
        self._running.clear()


class Clusters:
    """Development clusters of a pool, by their options; ``make_home`` makes the folder of a new one."""

    def __init__(self, pool: ServerPool, make_home: Callable[[str], Path]) -> None:
        self._pool = pool
        self._make_home = make_home

    def shared(self, options: ClusterOptions) -> DevCluster:
        """Return a running cluster that others use too: use a namespace of your own, leave its servers running."""
        return self._pool.shared(repr(options), lambda: self._start(options))

    def taken(self, options: ClusterOptions) -> DevCluster:
        """Return a running cluster for the caller alone, who may break it, and kills it."""
        return self._pool.taken(repr(options), lambda: self._start(options))

    def _start(self, options: ClusterOptions) -> DevCluster:
        cluster = DevCluster(self._make_home("pulsar"), options)
        cluster.up()
        return cluster


class SharedServersScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
    """Gives a process a file at a time, or files whose tests share servers."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((min(files) for files in _TOGETHER if file in files), file)
