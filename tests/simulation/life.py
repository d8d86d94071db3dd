"""One life of a cluster and of the product beside it: the operations of a script are done to it, one by one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from random import Random
from typing import TypeVar

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.bookkeeper.undone import UNDONE_ROOT, UndoneLedgers
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.deletion.journal.reading import JournalReader, SelectedDeletions, Selection
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.phase_one.named_ledgers import marks_of_ids
from bookwarden.deletion.phase_one.removal import Removal
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.deletion.undo.operation import Undo
from bookwarden.deletion.undo.rows import UndoOutcome
from bookwarden.errors import BookwardenError, NotFoundError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.metastore.following.store import Migrations
from bookwarden.orphans.apply import Apply
from bookwarden.orphans.applying import ApplyResult
from bookwarden.orphans.guards import GuardLimits
from bookwarden.orphans.plan import ScannedCluster
from bookwarden.wire.ledger_metadata import decode_ledger_metadata

from . import brokers, invariants, switches
from .adapters import Entries, Probe
from .channel import Sender, Topics
from .faults import CALM, Faults, Killed, Session, Troubles
from .journal import MemoryJournal
from .model import Topic, World
from .moving import Move
from .nodes import path_of_ledger
from .scanning import Plans, Roots, Scan, identity_of, require_all_roots, scan
from .sweeping import Deployment, Sweeper
from .violation import Violation

T = TypeVar("T")

LIMITS = GuardLimits(max_share=1.0)
_ROUNDS = 3
_LONGEST_DRAIN = 40
_DAY_S = 86_400.0
# With the feature that each needs, "" for none.
_UNDER_A_READER: tuple[tuple[brokers.Operation, str], ...] = (
    (brokers.roll_over, ""),
    (brokers.trim, ""),
    (brokers.switch_cursor, ""),
    (brokers.compact, ""),
    (brokers.offload, "offload"),
    (brokers.delete_topic, ""),
    (brokers.create_topic, ""),
    (brokers.make_bucket, ""),
    (brokers.add_schema, ""),
    (brokers.replicate_again, "replication"),
)


class Life:
    """A world, and the product in it; ``features`` are what may befall it beyond a cluster's ordinary life."""

    def __init__(self, seed: int, features: frozenset[str]) -> None:
        rng = Random(f"life {seed}")
        self.features = features
        self.world = World(features)
        self._found_clusters(rng)
        delay = 3600.0 if rng.random() < 0.25 else 0.0
        policy = DeletionPolicy(max_retries=4, delete_delay=delay)
        deployment = Deployment(policy)
        self.topics = Topics(self.world.clock)
        self.journal = MemoryJournal(self.world.clock)
        self.sweeper = Sweeper(self.world, self.topics, self.journal, deployment, self._look_for_others)
        self.plans = Plans()
        self._meanwhile = self._brokers_go_on
        self.told: list[str] = []

    def _found_clusters(self, rng: Random) -> None:
        self.world.add_cluster("", configured=True)
        kind = rng.random()
        if kind >= 0.8 and "registry" in self.features:
            switches.register(self.world)
        if kind < 0.2:
            self.world.add_cluster("/b", configured=True)
        elif kind < 0.5 and "stranger" in self.features:
            self.world.add_cluster("/b", configured=False)
            if rng.random() < 0.7:
                # As `initialize-cluster-metadata` leaves it, whichever BookKeeper is used then.
                self.world.nodes.write("/b/ledgers/INSTANCEID", b"unused")
                self.world.nodes.write("/b/ledgers/available", b"")
        for cluster in self.world.clusters:
            brokers.start_broker(self.world, cluster)

    def check(self) -> None:
        """Hold the world against the invariants, and note what the product deleted."""
        invariants.nothing_needed_is_gone(self.world)
        self.world.note_deletions()

    # The product.

    def sweep(self, rng: Random, troubles: Troubles) -> None:
        """Carry out a batch."""
        self.sweeper.run(rng.randrange(2**32), troubles, self._interleave)

    def move_metadata(self, rng: Random, troubles: Troubles) -> None:
        """Move the metadata as PIP-454 does, to where nodes, their versions and times, and ids begin anew."""
        # A copy of a node that lost its bytes looks like one that never had any (docs/safety.md, What is left).
        if any(self.world.nodes.is_emptied(topic.path) for topic in self.world.topics()):
            return
        # A lagging server is one of the source's, and of a store that does not move.
        troubles = replace(troubles, lags=False, interleaved=0.05)
        with closing(Move(self.world, rng)) as move:
            self._meanwhile = move.go_on
            try:
                while not move.is_over:
                    rng.choice(_WHILE_MOVING)(self, rng, troubles)
                    self.check()
                    if rng.random() < 0.3:
                        move.restart()
                    move.go_on(rng)
                rng.choice(_WHILE_MOVING)(self, rng, troubles)
            finally:
                self._meanwhile = self._brokers_go_on

    def _interleave(self, rng: Random) -> None:
        self._meanwhile(rng)

    def _brokers_go_on(self, rng: Random) -> None:
        operation, feature = rng.choice(_UNDER_A_READER)
        if not feature or feature in self.features:
            operation(self.world, rng)

    def _session(self, faults: Faults, chroot: str = "") -> Session:
        return Session(self.world.nodes, faults, chroot)

    def _faults(self, rng: Random, troubles: Troubles) -> Faults:
        return Faults(rng.randrange(2**32), troubles, self._interleave)

    def _roots(self, faults: Faults) -> Roots:
        configured = {one.root: self._session(faults, one.root) for one in self.world.clusters if one.configured}
        entries = Entries(self.world)
        entries.faults = faults
        by_url = {f"sim:{root}": session for root, session in configured.items()}
        return Roots(
            # Chroots are ZooKeeper's, which lists all or nothing; in an Oxia no other root can be seen.
            lambda chroot: Session(self.world.nodes, faults, chroot, lists_whole=True),
            self._session(faults),
            by_url,
            frozenset(configured),
            entries,
        )

    def _look_for_others(self, faults: Faults) -> None:
        require_all_roots(self._roots(faults))

    def scan(self, rng: Random, troubles: Troubles) -> Scan | None:
        """Scan, and make a plan; None where it was refused or broke off."""
        roots = self._roots(self._faults(rng, troubles))
        skew_ms = int(self.sweeper.skew_s * 1000)
        begun_ms = self.world.clock.ms + skew_ms
        clocks = {"the broker": self.world.clock.ms + self.world.broker_skew_ms}
        found = self._unless_stopped(
            lambda: scan(roots, self.plans, LIMITS, now_ms=begun_ms + 1000, begun_ms=begun_ms, clocks=clocks)
        )
        if found is not None:
            invariants.nothing_needed_is_planned(self.world, found)
        return found

    def apply(self, rng: Random, troubles: Troubles) -> ApplyResult | None:
        """Mark what the newest plan has."""
        newest = self.plans.newest
        if newest is None:
            return None
        faults = self._faults(rng, troubles)
        roots = self._roots(faults)
        marker = Marker(Sender(self.topics, faults), clock=self.world.clock)
        application = Apply(
            self.plans,
            marker,
            BookKeeperCatalog(self._session(faults)),
            _Cluster(roots),
            LIMITS,
            batch=7,
            clock=lambda: self.world.clock.now + self.sweeper.skew_s,
        )
        return self._unless_stopped(lambda: application.run(newest.plan.plan_id, execute=True))

    def undo(self, rng: Random, troubles: Troubles) -> None:
        """Put some of what was deleted lately back."""
        ids = self.journal.ids[-8:]
        if not ids:
            return
        faults = self._faults(rng, troubles)
        self.journal.faults = faults
        chosen = frozenset(rng.sample(ids, rng.randrange(1, len(ids) + 1)))
        undo = Undo(
            BookKeeperCatalog(self._session(faults)),
            Probe(self.world, faults),
            Migrations(),
            self.journal,
            decode_ledger_metadata,
            f"undo-{rng.randrange(10**6)}",
            clock=self.world.clock,
            undone=UndoneLedgers(self._session(faults)),
        )

        def put_back() -> None:
            for rows in undo.run(SelectedDeletions(JournalReader(self.journal), Selection(ledger_ids=chosen))):
                for row in rows:
                    there = self.world.nodes.has(path_of_ledger(row.ledger_id))
                    if row.outcome is UndoOutcome.LOST and row.ledger_id in self.world.half_lost and not there:
                        raise Violation("dropped", f"half of ledger {row.ledger_id} was left, and its metadata went")
                    if row.outcome is UndoOutcome.RESTORED:
                        self.world.keep(row.ledger_id)

        self._unless_stopped(put_back)
        self.world.note_restored(chosen)
        # Of one whose delete never came through the record may be there all the same.
        self.world.undone |= {one for one in chosen if self.world.nodes.has(ledger_path(UNDONE_ROOT, one))}

    def mark_by_id(self, rng: Random, troubles: Troubles) -> None:
        """Mark a ledger by its id, as an operator who wants it gone does."""
        if not self.world.ledgers:
            return
        kept = sorted(self.world.kept)
        ledger_id = rng.choice(kept) if kept and rng.random() < 0.5 else rng.choice(sorted(self.world.ledgers))
        faults = self._faults(rng, troubles)
        self.world.kept.discard(ledger_id)
        marker = Marker(Sender(self.topics, faults), clock=self.world.clock)

        def mark() -> None:
            marks = marks_of_ids(BookKeeperCatalog(self._session(faults)), [ledger_id])
            UndoneLedgers(self._session(faults)).withdraw_many([ledger_id])
            marker.mark(marks)

        self._unless_stopped(mark)

    def mark_topic(self, rng: Random, troubles: Troubles, *, skew_ms: int = 0) -> None:
        """Trim or delete a topic of the first cluster in two phases."""
        topics = [one for one in self.world.clusters[0].topics.values() if not one.damaged]
        if not topics:
            return
        topic = rng.choice(topics)
        faults = self._faults(rng, troubles)
        sender = Sender(self.topics, faults, skew_ms)
        marker = Marker(sender, clock=lambda: self.world.clock.now + skew_ms / 1000)
        store, admin = ManagedLedgers(self._session(faults)), _Admin(self.world, topic, rng)
        if rng.random() < 0.8:
            self._unless_stopped(
                lambda: [plan.carry_out() for plan in Removal(marker, store, admin).plan_trim(str(topic.name))]
            )
        else:
            self._unless_stopped(lambda: Removal(marker, store, admin).plan_topic(str(topic.name)).carry_out())

    def _unless_stopped(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except (BookwardenError, Killed) as error:
            self.told.append(f"{type(error).__name__}: {error}")
            return None

    # The end.

    def finish(self) -> None:
        """Let all faults stop and time pass; then every leak is deleted or told of."""
        world, rng = self.world, Random("the end")
        self.sweeper.skew_s = 0.0
        world.broker_skew_ms = 0
        world.repair()
        brokers.count_on(world)
        world.advance(3600.0)
        self.check()
        for cluster in world.clusters:
            brokers.start_broker(world, cluster)
        found = applied = None
        for _ in range(_ROUNDS):
            self._drain(rng)
            world.advance(4 * _DAY_S)
            self.scan(rng, CALM)
            world.advance(1.1 * _DAY_S)
            found = self.scan(rng, CALM)
            applied = None if found is None else self.apply(rng, CALM)
            self._drain(rng)
            if not invariants.leaks(world):
                break
        invariants.every_leak_is_told(world, self.topics, found, applied)

    def _drain(self, rng: Random) -> None:
        """Sweep until nothing is left but marks that wait for something that may never come."""
        for _ in range(_LONGEST_DRAIN):
            if self.sweeper.is_idle or self.sweeper.refused:
                return
            self.sweeper.run(rng.randrange(2**32), CALM)
            self.check()
            if self.sweeper.failures > 5:
                raise Violation("stuck", f"the sweep does not get past a batch: {self.sweeper.last_failure}")
            if not self.topics.due():
                self.world.advance(600.0)


# What an operator may do, or the sweep does, while brokers write nothing.
_WHILE_MOVING: tuple[Callable[[Life, Random, Troubles], object], ...] = (
    Life.sweep,
    Life.sweep,
    Life.scan,
    Life.apply,
    Life.undo,
    Life.mark_by_id,
)


class _Cluster:
    """The cluster that the settings name."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def identity(self) -> ScannedCluster:
        """Read which it is now."""
        return identity_of(self._roots)

    def prove_roots(self) -> None:
        """Refuse where another Pulsar names a ledger of this BookKeeper."""
        require_all_roots(self._roots)


class _Admin:
    """The broker of one topic, asked to trim or delete."""

    def __init__(self, world: World, topic: Topic, rng: Random) -> None:
        self._world = world
        self._topic = topic
        self._rng = rng

    def partitions(self, topic: str) -> list[str]:
        """Name the partitions."""
        return [topic]

    def mark_delete_positions(self, topic: str) -> dict[str, Position]:
        """Say how far subscriptions are: all is consumed."""
        return {}

    def compacted_ledgers(self, topic: str) -> frozenset[int]:
        """Name the compacted ledger."""
        return frozenset() if self._topic.compacted is None else frozenset({self._topic.compacted})

    def trim(self, topic: str) -> None:
        """Trim."""
        self._require()
        brokers.trim_topic(self._world, self._topic, self._rng)

    def delete_topic(self, topic: str, *, force: bool) -> None:
        """Delete the topic."""
        self._require()
        brokers.delete_this(self._world, self._topic, self._rng)

    def delete_subscription(self, topic: str, subscription: str, *, force: bool) -> None:
        """Never asked."""
        raise NotFoundError(subscription)

    def delete_schema(self, topic: str) -> None:
        """Never asked."""
        raise NotFoundError(topic)

    def _require(self) -> None:
        if self._topic.gone:
            raise NotFoundError(f"there is no topic {self._topic.name}")
