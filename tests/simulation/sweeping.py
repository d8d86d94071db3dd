"""The sweep as processes that come and go: batches that are replayed until they are done, then acknowledged."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

from pyarrow import ArrowException

from bookwarden.bookie_clusters.bookie_clusters import BookieClusters, ConfiguredCluster, MultiClusterCatalog
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.returning_ids import ReturningIds
from bookwarden.clusters.bookkeeper.undone import UndoneLedgers
from bookwarden.clusters.pulsar.messages.switch_events import SWITCH_TOPIC
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.deletion.phase_two.held_marks import HeldMarks, RetryTopicRoom
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.errors import (
    BookwardenError,
    RefusedError,
    RegistryChangedError,
    SharedDoubtError,
    StoreAccessError,
)
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.outcomes import Outcome, OutcomeRow
from bookwarden.ledgers.pending_deletion import LedgerType
from bookwarden.ledgers.received import ORIGIN_MESSAGE_ID, ReceivedMark
from bookwarden.metastore.following.target import FIRST_VERSION
from bookwarden.metastore.store_clock import StoreClock
from bookwarden.pipelines.streams.checks import LOOK_AGAIN_SECONDS
from bookwarden.pipelines.streams.outcome_table import outcome_batch
from servers.sweep_parts import sweep_with

from . import nodes, switches
from .adapters import Brokers, Entries, ObjectStore
from .channel import DLQ, RETRY, Message, Producers, Topics, outbox
from .faults import Faults, Killed, Session, Troubles
from .journal import MemoryJournal
from .model import Ledger, World
from .violation import Violation

_SENT_ON = (Outcome.RETRY, Outcome.DELAYED, Outcome.WAITING)
_DEAD = (Outcome.GAVE_UP, Outcome.MALFORMED, Outcome.POISONOUS)
_GONE = (Outcome.DELETED, Outcome.ALREADY_GONE)
_MOST_AT_ONCE = 40
# Where the sweep looks for other Pulsars; raises RefusedError.
Look = Callable[[Faults], None]


@dataclass
class Deployment:
    """How the product is set up in one life of the simulation."""

    policy: DeletionPolicy
    brokers: bool = True


@dataclass
class Sweeper:
    """The sweep of one cluster."""

    world: World
    topics: Topics
    journal: MemoryJournal
    deployment: Deployment
    look: Look
    rows: list[OutcomeRow] = field(default_factory=list)
    told: dict[int, str] = field(default_factory=dict)
    first_read: dict[int, float] = field(default_factory=dict)
    skew_s: float = 0.0
    failures: int = 0
    last_failure: str = ""
    epoch: int = 0
    refused: str = ""
    _batch: list[Message] = field(default_factory=list)
    _number: int = 0
    _process: _Process | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits."""
        return not self._batch and not self.topics.waiting

    def run(self, seed: int, troubles: Troubles, interleave: Callable[[Random], None] | None = None) -> None:
        """Carry one batch out: what was received before and is not done comes first."""
        rng = Random(seed)
        if not self._batch:
            self._receive(rng)
        if not self._batch:
            return
        if self._process is None or rng.random() < 0.2:
            self._process = _Process(self, patient=rng.random() < 0.3, waits=seed % 4 == 0)
        faults = Faults(seed, troubles, interleave)
        self._process.begin(faults)
        there = dict(self.world.ledgers)
        try:
            # A Pulsar has some hundred ledgers to be known by, which do not all go while they are looked up.
            self._look(Faults(seed, replace(troubles, interleaved=0.0)))
            rows = self._carry_out(self._process, rng)
        except Killed:
            self._process = None
            return
        except SharedDoubtError:
            # What is in doubt keeps the batch, until it is mended.
            return
        except RefusedError as error:
            # The driver ends; whoever starts it again is told the same.
            self._process, self.failures = None, 0
            self.refused = str(error)
            return
        except (BookwardenError, ArrowException, ArithmeticError) as error:
            if isinstance(error, StoreAccessError):
                raise Violation("stuck", f"one node that may not be read keeps a whole batch: {error}") from error
            self.failures += 1
            self.last_failure = f"{type(error).__name__}: {error}"
            return
        self.failures = 0
        self._settle(rows, there)

    def _carry_out(self, process: _Process, rng: Random) -> list[OutcomeRow]:
        """Do as the driver does: two tasks by one epoch of the registry, and the batch again where that changes."""
        while True:
            self.epoch = switches.epoch_of(self.world)
            rows: list[OutcomeRow] = []
            try:
                for share in _shares(self._batch):
                    rows += process.carry_out(share, f"query/{self._number}", self._number, self.epoch)
                    if rng.random() < 0.1:
                        switches.switch(self.world, self.topics, rng)
            except RegistryChangedError:
                continue
            return rows

    def on_retry_topic(self) -> int:
        """Count the messages on the retry topic."""
        return sum(message.topic == RETRY for message in self.topics.waiting)

    def _look(self, faults: Faults) -> None:
        """Look for other Pulsars before the first batch of a process, and when it is time to look again."""
        process = self._process
        if process is None or self.world.clock.now - process.looked_s < LOOK_AGAIN_SECONDS:
            return
        self.refused = ""
        try:
            self.look(faults)
        except StoreAccessError as error:
            raise RefusedError(f"what may not be looked at may be another Pulsar's: {error}") from error
        process.looked_s = self.world.clock.now

    def _receive(self, rng: Random) -> None:
        due = self.topics.due()
        if rng.random() < 0.3:
            rng.shuffle(due)
        directives = [message for message in due if message.topic == SWITCH_TOPIC]
        marks = [message for message in due if message.topic != SWITCH_TOPIC]
        is_turn_of_directives = bool(directives) and (not marks or rng.random() < 0.5)
        self._batch = directives[:1] if is_turn_of_directives else marks[: rng.randrange(1, _MOST_AT_ONCE)]
        self.topics.sent_on.clear()
        self._number += 1
        for message in self._batch:
            mark = message.received().mark
            if mark is not None:
                self.first_read.setdefault(mark.ledger_id, self.world.clock.now)

    def _settle(self, rows: Sequence[OutcomeRow], before: Mapping[int, Ledger]) -> None:
        """Acknowledge the batch; each of its messages must have come to something."""
        by_message = {row.message: row for row in rows}
        for message in self._batch:
            row = by_message.get(message.message_id)
            if row is None:
                raise Violation("unsettled", f"message {message.message_id} is acknowledged and has no outcome")
            self._check(message, row, before)
            if row.ledger_id is not None:
                self.told[row.ledger_id] = f"{row.outcome.value}: {row.reason}"
        self.rows += rows
        self.topics.acknowledge(self._batch)
        self._batch = []

    def _check(self, message: Message, row: OutcomeRow, before: Mapping[int, Ledger]) -> None:
        if row.bookie_cluster not in ("", "a", "b") and row.outcome not in (*_SENT_ON, *_DEAD):
            raise Violation("foreign", f"a mark of {row.bookie_cluster} was settled here: {row.outcome.value}")
        origin = message.properties.get(ORIGIN_MESSAGE_ID, message.message_id)
        if row.outcome is Outcome.POISONOUS:
            raise Violation("poison", f"nobody thought of what message {message.message_id} says: {row.reason}")
        self._check_cost(row)
        if row.outcome is Outcome.DIRECTIVE:
            self._check_directive(row)
        elif row.outcome in _DEAD:
            if (DLQ, origin) not in self.topics.sent_on:
                raise Violation("unsettled", f"message {message.message_id} was given up and is not in the DLQ")
        elif row.outcome in _SENT_ON:
            if (RETRY, origin) not in self.topics.sent_on:
                raise Violation("unsettled", f"message {message.message_id} is to be retried and was not sent on")
        elif row.outcome is Outcome.STILL_REFERENCED:
            age = self.world.clock.now - message.sent_s
            hasty = row.attempts == 0 and age < self.deployment.policy.still_referenced_grace
            if hasty and message.honest:
                raise Violation(
                    "hasty", f"the mark of ledger {row.ledger_id} was dropped {age:.0f} s after it was sent"
                )
        elif row.outcome in _GONE and row.ledger_type == LedgerType.LEDGER.value:
            # Not another of the same id, which came while the batch was carried out.
            now = self.world.ledgers.get(row.ledger_id)
            if now is not None and now is before.get(row.ledger_id) and self.world.nodes.has(now.path):
                raise Violation("untrue", f"ledger {row.ledger_id} is there, and {row.outcome.value!r} was told")

    def _check_cost(self, row: OutcomeRow) -> None:
        """Hold it against the rule that what is no fault of a mark, nor of its ledger, costs it no retry."""
        if row.outcome not in (Outcome.RETRY, Outcome.GAVE_UP):
            return
        others = [topic.path for topic in self.world.topics() if topic.damaged and topic.managed_ledger != row.holder]
        named = [path for path in others if f"{path}:" in row.reason]
        if named and row.component == LedgerComponent.MANAGED_LEDGER.value:
            raise Violation("costly", f"the mark of ledger {row.ledger_id} of {row.holder} pays for {named[0]}")
        if "a compaction is under way" in row.reason:
            raise Violation("costly", f"the mark of ledger {row.ledger_id} of {row.holder} pays for a compaction")

    def _check_directive(self, row: OutcomeRow) -> None:
        """Hold it against the registry, which alone counts."""
        registry = switches.registry_of(self.world)
        if registry is not None and registry.epoch == self.epoch and f"{registry.active} is active" not in row.reason:
            raise Violation("untrue", f"bookie cluster {registry.active} is active, and the row says: {row.reason}")

    def before_send(self, received: ReceivedMark) -> None:
        """Hold a send against what of this batch was sent on before, and recorded."""
        if (received.topic, received.message_id) in self.journal.sent_on(f"query/{self._number}"):
            raise Violation("again", f"message {received.message_id} is sent on once more in a replay of its batch")

    def before_delete(self, pairs: Sequence[tuple[str, int]]) -> None:
        """Hold a delete against the journal and the delay."""
        # What was read before the metadata moved is refused by its version.
        taken = [pair for pair in pairs if self.world.nodes.served_by is None or pair[1] >= FIRST_VERSION]
        if taken and self.world.counter_is_behind:
            raise Violation("ids", f"{len(taken)} ledgers are deleted while ids come again")
        if self._process is not None and (acts_by := self._process.epoch) not in (None, self.epoch):
            raise Violation("epochs", f"{len(pairs)} ledgers are deleted by epoch {acts_by} in a batch of {self.epoch}")
        by_path = {ledger.path: ledger.ledger_id for ledger in self.world.ledgers.values()}
        for path, version in pairs:
            ledger_id = by_path.get(path)
            if ledger_id is None:
                continue
            if (ledger_id, version) not in self.journal.written:
                raise Violation("journal", f"ledger {ledger_id} is deleted and was not journaled")
            waited = self.world.clock.now - self.first_read.get(ledger_id, self.world.clock.now)
            if waited < self.deployment.policy.delete_delay:
                raise Violation("delay", f"ledger {ledger_id} is deleted {waited:.0f} s after it was first looked at")


def _shares(batch: Sequence[Message]) -> list[list[Message]]:
    """Divide a batch among two tasks, a holder's marks to one."""
    shares: list[list[Message]] = [[], []]
    for message in batch:
        shares[zlib.crc32((message.key or "").encode()) % 2].append(message)
    return shares


class _Process:
    """One process of the sweep, with its sessions and what it remembers.

    One that ``waits`` leaves a batch undone while the retry topic has marks and there is a doubt about very many.
    """

    def __init__(self, sweeper: Sweeper, *, patient: bool, waits: bool) -> None:
        world = sweeper.world
        self._sweeper = sweeper
        self.looked_s = float("-inf")
        calm = Faults(0, Troubles())
        self._bookkeeper = Session(world.nodes, calm, on_delete=sweeper.before_delete)
        self._roots = [Session(world.nodes, calm, cluster.root) for cluster in world.clusters if cluster.configured]
        self._brokers, self._entries, self._store = Brokers(world), Entries(world), ObjectStore(world)
        self._ids = Session(world.nodes, calm, lists_whole=True)
        steady = map(float, count(0, 100)).__next__
        clock = StoreClock(self._bookkeeper, steady=world.clock, local=lambda: world.clock.now + sweeper.skew_s)
        self._outbox = outbox(sweeper.topics, calm, 0, clock, sweeper.before_send)
        alone = BookKeeperCatalog(self._bookkeeper)
        settled = ConfiguredCluster(self._bookkeeper, nodes.LEDGERS_ROOT, alone, "the ensemble")
        self._clusters = BookieClusters(self._bookkeeper, settled, lambda _: self._bookkeeper)
        self._sweep = sweep_with(
            MultiClusterCatalog(alone, self._clusters),
            MetadataReferences(
                self._roots,
                self._brokers if sweeper.deployment.brokers else None,
                self._entries,
                # Anew each time: what a process remembers is by a clock that does not stand still.
                shadow_refresh=1e-9,
                seen_from_ledgers=[cluster.root for cluster in world.clusters if cluster.configured],
            ),
            sweeper.journal,
            self._outbox,
            sweeper.deployment.policy,
            SweepLimits(7, 1e12 if patient else 0.0),
            copies=self._store,
            entries=self._entries,
            sent=sweeper.journal,
            undone=UndoneLedgers(self._bookkeeper),
            clusters=self._clusters,
            # Anew each time: a process is started again where the metadata was moved.
            ids=ReturningIds(self._ids, nodes.LEDGERS_ROOT, lambda: True, clock=steady),
            held=HeldMarks(RetryTopicRoom(2, sweeper.on_retry_topic, steady), once=True) if waits else None,
            pause=world.advance,
            clock=clock,
        )

    def begin(self, faults: Faults) -> None:
        """Let these faults befall what is done next."""
        for port in (self._bookkeeper, self._ids, *self._roots, self._brokers, self._entries, self._store):
            port.faults = faults
        self._sweeper.journal.faults = faults
        producers: Any = Producers(self._sweeper.topics, faults, 0)
        self._outbox._producers = producers
        if faults.troubles.lags:
            for session in (self._bookkeeper, *self._roots):
                session.fall_behind()

    @property
    def epoch(self) -> int | None:
        """The epoch of the registry that it acts by; None without one."""
        placed = self._clusters._known
        return None if placed is None else placed.registry.epoch

    def carry_out(self, batch: Sequence[Message], run: str, number: int, epoch: int) -> list[OutcomeRow]:
        """Do as a task of the query does."""
        found: list[OutcomeRow] = []

        def tell(rows: Sequence[OutcomeRow]) -> None:
            outcome_batch(rows, number)
            found.extend(rows)

        for _ in self._sweep.carry_out([message.received() for message in batch], run, tell, epoch=epoch):
            continue
        return found
