"""The story of the demo, act by act, on a running development cluster."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bookwarden.clusters.bookkeeper.bookie import Bookie
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.admin import PulsarAdmin
from bookwarden.clusters.pulsar.deletion_topics import DeletionTopicsSetup
from bookwarden.clusters.pulsar.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.ownership import BundleOwnership
from bookwarden.config import Settings
from bookwarden.context import (
    PhaseOneContext,
    connection_of,
    dead_letters_of,
    decoder_of,
    deletion_topics_of,
    in_flight_of,
)
from bookwarden.deletion.phase_one import OperationResult
from bookwarden.demo import topics
from bookwarden.demo.census import CountedLedger, take_census, whereabouts
from bookwarden.demo.fates import DAMAGED, DELAYED, FORGED, RETRY, TOPIC_DELETED, TRIMMED, Ending, Fate, endings
from bookwarden.devcluster import DevCluster, ServerProcess, ServerSpec
from bookwarden.errors import ServerError
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pending_deletion import LedgerComponent, LedgerType, PendingDeletion
from bookwarden.ledgers.received import decoded
from bookwarden.pipelines.outcome_table import read_outcomes

ORDERS, CLICKS, AUDIT, INVOICES = "orders", "clicks", "audit", "invoices"
MESSAGES = {ORDERS: 90, CLICKS: 50, AUDIT: 50, INVOICES: 50}
DAMAGED_LEDGER = 900_000_001
_PATIENCE_S = 120.0
_T = TypeVar("_T")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Finale:
    """How the demo ended."""

    endings: tuple[Ending, ...]
    in_flight: int
    dead_letters: tuple[tuple[int | None, str], ...]
    readable: dict[str, tuple[int, int]]

    @property
    def as_it_should(self) -> bool:
        """Whether every ledger, the backlog, the DLQ and each topic's messages are as they should be."""
        return (
            all(ending.as_it_should for ending in self.endings)
            and self.in_flight == 0
            and [ledger_id for ledger_id, _ in self.dead_letters] == [DAMAGED_LEDGER]
            and all(found == expected for found, expected in self.readable.values())
        )


class Story:
    """Plays the acts in order; `settings_file` configures the sweep, which runs as a process of its own."""

    def __init__(self, cluster: DevCluster, settings: Settings, settings_file: Path, say: Say) -> None:
        self._cluster = cluster
        self._settings = settings
        self._file = settings_file
        self._say = say
        self._connection = connection_of(settings)
        self._admin = PulsarAdmin(self._connection)
        self._fates: dict[int, Fate] = {}
        self._late: set[int] = set()
        self._remaining = dict(MESSAGES)
        del self._remaining[CLICKS]

    def play(self) -> Finale:
        """Play all acts; raises BookwardenError where one cannot go on."""
        self._say("creating the deletion topics")
        DeletionTopicsSetup(self._admin, deletion_topics_of(self._settings)).run()
        self._fill_topics()
        with PhaseOneContext(self._settings) as phase_one:
            bookie = Bookie(f"127.0.0.1:{self._cluster.ports.bookie}", phase_one.metadata.bookies)
            self._damage_a_ledger(phase_one)
            self._release_bundles(phase_one)
            census = self._take_census(phase_one, bookie)
            self._phase_one(phase_one)
            self._phase_two(phase_one)
            return self._finale(phase_one, bookie, census)

    def _fill_topics(self) -> None:
        topics.create_namespaces(self._admin)
        for name, count in MESSAGES.items():
            self._say(f"topic {name}: {count} messages in ledgers of {topics.ENTRIES_PER_LEDGER}, with a schema")
            topics.fill(self._connection, name, count)

    def _damage_a_ledger(self, phase_one: PhaseOneContext) -> None:
        """Leave the metadata of a ledger cut off in the middle, as a restore that went wrong would."""
        value = b"BookieMetadataFormatVersion\t3\n\x7f\x08\x01"
        phase_one.metadata.store.create(ledger_path("/ledgers", DAMAGED_LEDGER), value, make_parents=True)
        self._fates[DAMAGED_LEDGER] = DAMAGED

    def _release_bundles(self, phase_one: PhaseOneContext) -> None:
        """Let the broker go of the topics that are trimmed in the store: nobody else may write a loaded one's node."""
        self._say(f"unloading {ORDERS} and {INVOICES}, so that no broker owns them")
        ownership = BundleOwnership(phase_one.metadata.store)

        def released() -> bool:
            names = [topics.topic_name(name) for name in (ORDERS, INVOICES)]
            if all(ownership.owner(name) is None for name in names):
                return True
            self._admin.put(f"/namespaces/{topics.NAMESPACES[ORDERS]}/unload")
            return False

        self._wait("the broker to let go of the topics", released)

    def _take_census(self, phase_one: PhaseOneContext, bookie: Bookie) -> list[CountedLedger]:
        census = take_census(phase_one.metadata.store, bookie, topics.TENANT)
        census.append(CountedLedger(DAMAGED_LEDGER, "(cannot be read)", "?", on_bookie=False))
        self._say(f"{len(census)} ledgers of the demo are in ZooKeeper and on the bookie")
        return census

    def _phase_one(self, phase_one: PhaseOneContext) -> None:
        self._say(f"phase one: trim {ORDERS} in the store, delete {CLICKS} through the broker")
        trimmed = phase_one.store_trim.trim(topics.topic_name(ORDERS))
        self._note(trimmed, TRIMMED)
        self._remaining[ORDERS] -= len(trimmed.removed) * topics.ENTRIES_PER_LEDGER
        self._note(phase_one.removal.delete_topic(topics.topic_name(CLICKS), force=True), TOPIC_DELETED)
        store = ManagedLedgers(phase_one.metadata.store)
        audit, invoices = (self._ledgers(store, name) for name in (AUDIT, INVOICES))
        self._say(f"a forged mark: ledger {audit[0]} of {AUDIT}, claimed to be one of {ORDERS}")
        self._say(f"a mark whose metadata update comes late: ledger {invoices[0]} of {INVOICES}")
        self._say(f"a mark that cannot be carried out: ledger {DAMAGED_LEDGER}, metadata damaged")
        self._fates |= {audit[0]: FORGED, invoices[0]: DELAYED}
        self._late = {invoices[0]}
        marks = [_mark(ORDERS, audit[0]), _mark(INVOICES, invoices[0]), _mark(ORDERS, DAMAGED_LEDGER)]
        report = phase_one.marker.mark(marks)
        if report.failed:
            raise ServerError(f"a mark was not confirmed: {report.failed[0].failure}")

    def _note(self, result: OperationResult, fate: Fate) -> None:
        if not result.done:
            raise ServerError(f"{result.operation.value} {result.target}: {result.problem}")
        self._say(f"  {len(result.planned)} ledgers marked: {result.operation.value} {result.target}")
        self._fates |= {mark.ledger_id: fate for mark in result.planned}

    @staticmethod
    def _ledgers(store: ManagedLedgers, name: str) -> list[int]:
        read = store.read(TopicName.parse(topics.topic_name(name)).managed_ledger)
        return [ledger.ledger_id for ledger in read.info.ledgers] if read else []

    def _phase_two(self, phase_one: PhaseOneContext) -> None:
        self._say("phase two: starting the sweep (Spark)")
        sweep = self._sweep_process()
        sweep.start()
        try:
            self._wait("the first outcomes", lambda: bool(self._outcomes()), sweep)
            self._say("  the sweep is at work")
            self._wait(
                "the retry of the late one", lambda: all(RETRY in self._outcomes()[n] for n in self._late), sweep
            )
            self._say(f"the late metadata update of {INVOICES} is made now")
            self._update_late(phase_one)
            self._say("waiting until nothing is in flight")
            self._wait("nothing to be in flight", lambda: self._in_flight() == 0, sweep)
        finally:
            sweep.stop()

    def _sweep_process(self) -> ServerProcess:
        command = [sys.executable, "-m", "bookwarden.cli", "--config", str(self._file), "-v", "sweep"]
        log = self._cluster.home / "logs" / "sweep.log"
        spec = ServerSpec("sweep", lambda: command, log, lambda _started: True, self._cluster.home, stop_seconds=60.0)
        return ServerProcess(spec)

    def _update_late(self, phase_one: PhaseOneContext) -> None:
        store = ManagedLedgers(phase_one.metadata.store)
        read = store.read(TopicName.parse(topics.topic_name(INVOICES)).managed_ledger)
        if read is None:
            raise ServerError(f"topic {INVOICES} has no managed ledger any more")
        store.remove_ledgers(read, self._late)
        self._remaining[INVOICES] -= len(self._late) * topics.ENTRIES_PER_LEDGER

    def _finale(self, phase_one: PhaseOneContext, bookie: Bookie, census: Sequence[CountedLedger]) -> Finale:
        gone = [ledger.ledger_id for ledger in census if not self._stays(ledger.ledger_id)]
        self._say("waiting for the bookie's own garbage collection")
        store = phase_one.metadata.store
        self._wait("the bookie to drop the bytes", lambda: not whereabouts(store, bookie, gone).on_bookie)
        after = whereabouts(store, bookie, [ledger.ledger_id for ledger in census])
        self._say("reading every topic back")
        readable = {
            name: (len(topics.read_all(self._connection, name)), expected)
            for name, expected in sorted(self._remaining.items())
        }
        decoder = decoder_of(self._settings)
        letters = [
            (decoded(letter.received, decoder.decode).mark, letter.reason)
            for letter in dead_letters_of(self._settings).read()
        ]
        return Finale(
            tuple(endings(census, self._fates, self._outcomes(), after)),
            self._in_flight(),
            tuple((mark.ledger_id if mark else None, reason) for mark, reason in letters),
            readable,
        )

    def _stays(self, ledger_id: int) -> bool:
        fate = self._fates.get(ledger_id)
        return fate is None or fate.stays

    def _outcomes(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = defaultdict(list)
        for row in read_outcomes(self._settings.sweep.outcomes):
            found[row["ledger_id"]].append(row["outcome"])
        return found

    def _in_flight(self) -> int:
        return in_flight_of(self._settings).messages

    def _wait(self, what: str, condition: Callable[[], bool], process: ServerProcess | None = None) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if process is not None and not process.is_running():
                raise ServerError(f"the {process.name} ended while waiting for {what}: see {process.spec.log_file}")
            if time.monotonic() > deadline:
                raise ServerError(
                    f"waited {_PATIENCE_S:.0f} s in vain for {what}: see the logs in {self._cluster.home}"
                )
            time.sleep(0.3)


def _mark(topic: str, ledger_id: int) -> PendingDeletion:
    return PendingDeletion(
        topics.topic_name(topic), LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger_id, reason="demo"
    )
