"""The story of the demo, act by act, on a running development cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from bookwarden.clusters.bookkeeper.bookies.probe import Bookie
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.metadata.ownership import BundleOwnership
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.config import Settings
from bookwarden.deletion.journal.reading import SelectedDeletions, Selection
from bookwarden.deletion.phase_one.operation import MarkPlan
from bookwarden.errors import ServerError
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.wire.broker_marks import MarksEnabled
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import BrokerMarks, PhaseOne, UndoOperation
from bookwarden.wiring.pulsar import connection_of
from bookwarden_dev.demo import topics
from bookwarden_dev.demo.census import CountedLedger, Places, take_census
from bookwarden_dev.demo.evidence import Evidence
from bookwarden_dev.demo.fates import (
    ARCHIVE_TRIMMED,
    ARCHIVED,
    DAMAGED,
    DELAYED,
    FOLLOWED,
    FORGED,
    MARKED_BY_BROKER,
    RETRY,
    TOPIC_DELETED,
    TRIMMED,
    UNDONE,
    Fate,
    Finale,
    Records,
    endings,
)
from bookwarden_dev.demo.stage import BUCKET, Stage
from bookwarden_dev.devcluster import ServerProcess, ServerSpec
from bookwarden_dev.devcluster.refusals import LEDGERS_FOLDER, Refusals

ORDERS, CLICKS, AUDIT, INVOICES, ARCHIVE = "orders", "clicks", "audit", "invoices", "archive"
FEED, NEWS = "feed", "news"
MESSAGES = {ORDERS: 90, CLICKS: 50, AUDIT: 50, INVOICES: 50, ARCHIVE: 50, FEED: 50, NEWS: 50}
# A counter of short ids never gives this one.
DAMAGED_LEDGER = 5_000_000_001
_TRIMMED_IN_STORE = (ORDERS, INVOICES, ARCHIVE)
_PATIENCE_S = 300.0
Say = Callable[[str], None]


class Story:
    """Plays the acts in order; `settings_file` configures the sweep, which runs as a process of its own."""

    def __init__(self, stage: Stage, settings: Settings, settings_file: Path, say: Say) -> None:
        self._stage = stage
        self._cluster = stage.cluster
        self._settings = settings
        self._file = settings_file
        self._say = say
        self._evidence = Evidence(settings)
        self._connection = connection_of(settings.pulsar)
        self._admin = PulsarAdmin(self._connection)
        self._fates: dict[int, Fate] = {}
        self._late: set[int] = set()
        self._undone: dict[int, str] = {}
        self._remaining = dict(MESSAGES)
        del self._remaining[CLICKS]

    def play(self) -> Finale:
        """Play all acts; raises BookwardenError where one cannot go on."""
        self._say("creating the deletion topics")
        with closing(self._admin), Cluster(self._settings) as cluster:
            phase_one = PhaseOne(cluster)
            cluster.deletion_topics.setup().run()
            cluster.deletion_topics.publish()
            self._fill_topics()
            places = self._places(phase_one)
            if self._stage.offloads:
                self._offload(phase_one)
            self._damage_a_ledger(phase_one)
            self._release_bundles(phase_one)
            census = self._take_census(places)
            self._phase_one(phase_one)
            if self._can_refuse and self._stage.marks:
                self._drop_marked(phase_one)
            if self._can_refuse:
                # From here on, lest it mark what phase one has just marked and the sweep not deleted yet.
                self._drop_followed(phase_one)
            self._phase_two(phase_one)
            self._undo()
            self._collect_garbage(places, census)
            return self._finale(phase_one, places, census)

    def _places(self, phase_one: PhaseOne) -> Places:
        bookie = Bookie(f"127.0.0.1:{self._cluster.ports.bookie}", phase_one.cluster.bookkeeper.bookies)
        return Places(phase_one.cluster.store, bookie, lambda: self._stage.objects.keys(BUCKET))

    def _fill_topics(self) -> None:
        topics.create_namespaces(self._admin)
        for name, count in MESSAGES.items():
            self._say(f"topic {name}: {count} messages in ledgers of {topics.ENTRIES_PER_LEDGER}, with a schema")
            topics.fill(self._connection, name, count)

    def _offload(self, phase_one: PhaseOne) -> None:
        self._say(f"the broker offloads the closed ledgers of {ARCHIVE} to bucket {BUCKET}")
        topics.begin_offload(self._admin, ARCHIVE)
        self._wait("the broker to offload", lambda: topics.is_offloaded(self._admin, ARCHIVE))
        closed = self._ledgers(ManagedLedgers(phase_one.cluster.store), ARCHIVE)[:-1]
        self._fates |= dict.fromkeys(closed, ARCHIVED)

    @property
    def _can_refuse(self) -> bool:
        """Whether the metadata store can be made to refuse deletes: Oxia has no permissions."""
        return self._cluster.store_url.startswith("zk:")

    def _drop_marked(self, phase_one: PhaseOne) -> None:
        """Kill the broker between its update of the metadata and its deletes: its own marks are in its outbox."""
        dropped = self._trim_and_kill(phase_one, FEED)
        missing = set(dropped) - self._evidence.in_outbox()
        if missing:
            raise ServerError(f"ledgers {sorted(missing)} left {FEED}, and are not in the broker's outbox")
        self._say(f"  {len(dropped)} ledgers that it left behind are in its outbox")
        self._cluster.broker.start()
        self._wait("the outbox to be emptied", lambda: not self._evidence.in_outbox() & set(dropped))
        self._say("  the broker that started again has sent their marks")
        self._fates |= dict.fromkeys(dropped, MARKED_BY_BROKER)

    def _drop_followed(self, phase_one: PhaseOne) -> None:
        """Do the same while brokers do not mark: `follow` sees what leaves the metadata, and marks it."""
        self._say("brokers mark nothing for a while (`broker-marks off`); following what they drop (Spark)")
        if self._stage.marks:
            self._turn_marks(enabled=False)
        follow = command_process(self._file, "follow")
        follow.start()
        try:
            self._wait("all nodes to be followed", lambda: "following " in follow.spec.log_file.read_text(), follow)
            dropped = self._trim_and_kill(phase_one, NEWS)
            self._cluster.broker.start()
            self._wait("the marks of what it dropped", lambda: self._evidence.dropped() >= set(dropped), follow)
            self._say(f"  {len(dropped)} ledgers that it left behind are marked, without a scan")
        finally:
            follow.stop()
        if self._stage.marks:
            self._turn_marks(enabled=True)
        self._fates |= dict.fromkeys(dropped, FOLLOWED)

    def _trim_and_kill(self, phase_one: PhaseOne, name: str) -> list[int]:
        """Have the broker trim a topic, and kill it before its deletes; return the ledgers that it dropped."""
        store = ManagedLedgers(phase_one.cluster.store)
        before, before_of_cursors = self._ledgers(store, name), self._ledgers_of_cursors(store, name)

        def trimmed() -> bool:
            if len(self._ledgers(store, name)) == 1:
                return True
            # Before it knows of the policy it trims nothing, and by itself it does so every two minutes.
            topics.trim(self._admin, name)
            return False

        self._say(f"the broker trims {name}, and is killed between its metadata update and its deletes")
        with closing(Refusals(self._cluster.store_url)) as refusals:
            refusals.deletes_in(LEDGERS_FOLDER)
            topics.keep_nothing(self._admin, name)
            self._wait("the broker to trim", trimmed)
            topics.keep_all(self._admin, name)
            self._cluster.broker.kill()
        dropped = sorted(set(before) - set(self._ledgers(store, name)))
        # A topic that was loaded again has closed its last ledger, too, with fewer.
        self._remaining[name] -= sum(self._evidence.count_entries(phase_one.cluster, number) for number in dropped)
        # On 5.0 a cursor may get a new ledger meanwhile, and its former one is left behind as well (docs/findings.md).
        return [*dropped, *sorted(before_of_cursors - self._ledgers_of_cursors(store, name))]

    def _turn_marks(self, *, enabled: bool) -> None:
        with Cluster(self._settings) as cluster:
            brokers = BrokerMarks(cluster).brokers
            brokers.set_enabled(MarksEnabled(enabled, "demo"))
            live = brokers.read
            self._wait("the brokers to act by it", lambda: all(broker.marks == enabled for broker in live()))

    def _damage_a_ledger(self, phase_one: PhaseOne) -> None:
        """Leave the metadata of a ledger cut off in the middle, as a restore that went wrong would."""
        value = b"BookieMetadataFormatVersion\t3\n\x7f\x08\x01"
        phase_one.cluster.store.create(ledger_path("/ledgers", DAMAGED_LEDGER), value, make_parents=True)
        self._fates[DAMAGED_LEDGER] = DAMAGED

    def _release_bundles(self, phase_one: PhaseOne) -> None:
        """Unload topics that are trimmed in the store: only its broker may write the node of a loaded one."""
        self._say(f"unloading {', '.join(_TRIMMED_IN_STORE)}, so that no broker owns them")
        ownership = BundleOwnership(phase_one.cluster.store)

        def released() -> bool:
            names = [topics.topic_name(name) for name in _TRIMMED_IN_STORE]
            if all(ownership.owner(name) is None for name in names):
                return True
            self._admin.put(f"/namespaces/{topics.NAMESPACES[ORDERS]}/unload")
            return False

        self._wait("the broker to let go of the topics", released)

    def _take_census(self, places: Places) -> list[CountedLedger]:
        census = take_census(places, topics.TENANT)
        census.append(CountedLedger(DAMAGED_LEDGER, "(cannot be read)", "?", on_bookie=False, in_bucket=False))
        self._say(f"{len(census)} ledgers of the demo are in {self._stage.store_name}, on the bookie and in the bucket")
        return census

    def _phase_one(self, phase_one: PhaseOne) -> None:
        self._say(f"phase one: trim {ORDERS} and {ARCHIVE} in the store, delete {CLICKS} through the broker")
        store = ManagedLedgers(phase_one.cluster.store)
        trimmed = self._trim(phase_one, ORDERS)
        # One of them is put back in the end.
        self._fates |= dict.fromkeys(trimmed, TRIMMED) | {trimmed[0]: UNDONE}
        archived = self._trim(phase_one, ARCHIVE, self._ledgers(store, ARCHIVE)[:1])
        self._fates |= dict.fromkeys(archived, ARCHIVE_TRIMMED if self._stage.offloads else TRIMMED)
        deleted = self._carry_out(phase_one.removal.plan_topic(topics.topic_name(CLICKS), force=True))
        self._fates |= dict.fromkeys(deleted, TOPIC_DELETED)
        self._mark_in_doubt(phase_one)

    def _trim(self, phase_one: PhaseOne, name: str, ledger_ids: Sequence[int] | None = None) -> list[int]:
        trimmed = self._carry_out(phase_one.store_trim.plan(topics.topic_name(name), ledger_ids))
        self._remaining[name] -= len(trimmed) * topics.ENTRIES_PER_LEDGER
        return trimmed

    def _mark_in_doubt(self, phase_one: PhaseOne) -> None:
        store = ManagedLedgers(phase_one.cluster.store)
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

    def _carry_out(self, plan: MarkPlan) -> list[int]:
        result = plan.carry_out()
        if not result.done:
            raise ServerError(f"{plan.operation.value} {plan.target}: {result.problem}")
        self._say(f"  {len(plan.marks)} pending deletions: {plan.operation.value} {plan.target}")
        return sorted({mark.ledger_id for mark in plan.marks})

    @staticmethod
    def _ledgers(store: ManagedLedgers, name: str) -> list[int]:
        read = store.read(TopicName.parse(topics.topic_name(name)).managed_ledger)
        return [ledger.ledger_id for ledger in read.info.ledgers] if read else []

    @staticmethod
    def _ledgers_of_cursors(store: ManagedLedgers, name: str) -> set[int]:
        cursors = store.cursors(TopicName.parse(topics.topic_name(name)).managed_ledger)
        return set().union(*(cursor.info.ledger_ids for cursor in cursors.values()))

    def _phase_two(self, phase_one: PhaseOne) -> None:
        self._say("phase two: starting the sweep (Spark)")
        sweep = command_process(self._file, "sweep")
        sweep.start()
        try:
            self._wait("the first outcomes", lambda: bool(self._evidence.outcomes()), sweep)
            self._say("  the sweep is at work")
            self._wait("the retry of the late one", self._late_ones_retried, sweep)
            self._say(f"the late metadata update of {INVOICES} is made now")
            self._update_late(phase_one)
            self._say("waiting until nothing is in flight")
            self._wait("nothing to be in flight", lambda: self._evidence.in_flight() == 0, sweep)
        finally:
            sweep.stop()

    def _late_ones_retried(self) -> bool:
        outcomes = self._evidence.outcomes()
        return all(RETRY in outcomes[ledger_id] for ledger_id in self._late)

    def _update_late(self, phase_one: PhaseOne) -> None:
        store = ManagedLedgers(phase_one.cluster.store)
        read = store.read(TopicName.parse(topics.topic_name(INVOICES)).managed_ledger)
        if read is None:
            raise ServerError(f"topic {INVOICES} has no managed ledger any more")
        store.remove_ledgers(read, self._late)
        self._remaining[INVOICES] -= len(self._late) * topics.ENTRIES_PER_LEDGER

    def _undo(self) -> None:
        chosen = frozenset(number for number, fate in self._fates.items() if fate.undone)
        self._say(f"undo: ledger {', '.join(map(str, chosen))} is put back by the journal")
        with Cluster(self._settings) as cluster:
            operation = UndoOperation(cluster)
            for rows in operation.undo.run(SelectedDeletions(operation.journal, Selection(ledger_ids=chosen))):
                self._undone |= {row.ledger_id: row.outcome.value for row in rows}

    def _collect_garbage(self, places: Places, census: Sequence[CountedLedger]) -> None:
        self._say("the bookie is asked to collect its garbage")
        gone = [ledger.ledger_id for ledger in census if not self._stays(ledger.ledger_id)]

        def collected() -> bool:
            self._stage.garbage.collect()
            return not places.on_bookie(gone)

        self._wait("the bookie to drop the bytes", collected)

    def _finale(self, phase_one: PhaseOne, places: Places, census: Sequence[CountedLedger]) -> Finale:
        after = places.whereabouts([ledger.ledger_id for ledger in census])
        restored = {
            number: (self._evidence.count_entries(phase_one.cluster, number), topics.ENTRIES_PER_LEDGER)
            for number in self._undone
        }
        self._say("reading every topic back")
        readable = {
            name: (len(topics.read_all(self._connection, name)), expected)
            for name, expected in sorted(self._remaining.items())
        }
        records = Records(self._evidence.outcomes(), self._evidence.outcomes(LedgerType.OFFLOAD_LEDGER), self._undone)
        return Finale(
            tuple(endings(census, self._fates, records, after)),
            self._evidence.in_flight(),
            self._evidence.dead_letters(),
            (DAMAGED_LEDGER,),
            readable,
            restored,
            self._stage.store_name,
        )

    def _stays(self, ledger_id: int) -> bool:
        fate = self._fates.get(ledger_id)
        return fate is None or fate.stays

    def _wait(self, what: str, condition: Callable[[], bool], process: ServerProcess | None = None) -> None:
        wait_for(what, condition, self._cluster.home, process)


def wait_for(what: str, condition: Callable[[], bool], home: Path, process: ServerProcess | None = None) -> None:
    """Wait until the condition is true; ServerError if that takes too long, or the process ends before.

    ``home`` is where the logs are.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if process is not None and not process.is_running():
            raise ServerError(f"the {process.name} ended while waiting for {what}: see {process.spec.log_file}")
        if time.monotonic() > deadline:
            raise ServerError(f"waited {_PATIENCE_S:.0f} s in vain for {what}: see the logs in {home}")
        time.sleep(0.3)


def command_process(settings_file: Path, command: str) -> ServerProcess:
    """Return a process of a command that runs until it is stopped; its folder is that of the settings."""
    line = [sys.executable, "-m", "bookwarden.cli", "--config", str(settings_file), "-v", command]
    home = settings_file.parent
    log = home / "logs" / f"{command}.log"
    return ServerProcess(ServerSpec(command, lambda: line, log, lambda _started: True, home, stop_seconds=60.0))


def _mark(topic: str, ledger_id: int) -> PendingDeletion:
    return PendingDeletion(
        topics.topic_name(topic), LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger_id, reason="demo"
    )
