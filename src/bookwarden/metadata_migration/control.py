"""A source surveyed and observed, and its migration begun and followed, by the source, its brokers and the target."""

from __future__ import annotations

import dataclasses
import heapq
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.migration import MigrationAdmin
from bookwarden.clusters.pulsar.rest.registered_brokers import RegisteredBroker, read_registered_brokers
from bookwarden.errors import BookwardenError, ConfigError, FormatError, RefusedError, StoreError
from bookwarden.metadata_migration.walking import TreeWalk
from bookwarden.metadata_migration.watching import NodeCopyProgress, PhaseSnapshot
from bookwarden.metastore.following.flag import MIGRATION_PATH, PARTICIPANTS_PATH, parse_flag
from bookwarden.metastore.interface import MetadataStore, MigrationTarget, TargetSeen, Versioned

# Enough to estimate a share to 3 % (two standard deviations), and few enough to be read at once.
SAMPLE_SIZE: Final = 1_000

_KEPT_PATHS: Final = 3


class SizedNode(NamedTuple):
    """A node's path and the bytes of its value."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Survey:
    """The nodes of a source."""

    nodes: int  #: Number of persistent nodes.
    size: int  #: Bytes of values and paths of the persistent nodes.
    ephemeral: int  #: Number of ephemeral nodes.
    largest: SizedNode | None  #: The persistent node with the largest value; None without nodes.
    #: The first paths of each session's ephemeral nodes, in order; None: the store shows no sessions.
    sessions: Mapping[int | None, tuple[str, ...]]
    #: Paths of some persistent nodes, all if they are few, each chosen with the same probability.
    sample: tuple[str, ...]

    @property
    def is_sampled_whole(self) -> bool:
        """Whether the sample has all nodes."""
        return len(self.sample) == self.nodes


def survey(
    source: MetadataStore,
    *,
    progress: Callable[[int], object] = lambda _: None,
    sample_size: int = SAMPLE_SIZE,
) -> Survey:
    """Read all of a source; ``progress`` is called with the number of nodes read so far."""
    tally = _SurveyCounter(progress, sample_size)
    TreeWalk([source], tally.add).run()
    return tally.survey()


def read_snapshot(source: MetadataStore) -> PhaseSnapshot:
    """Read the flag and the participants, after a sync; raise StoreError or FormatError if that fails."""
    at_ms = int(time.time() * 1000)
    source.sync()
    participants = {one.name: one.whose for one in read_participants(source)}
    node = source.get(MIGRATION_PATH)
    if node is None:
        return PhaseSnapshot(at_ms, participants=participants)
    state = parse_flag(node)
    return PhaseSnapshot(at_ms, state.phase, state.target_url, node.created_ms, state.changed_ms, participants)


class _SurveyCounter:
    """Gathers what the threads of a walk find."""

    def __init__(self, progress: Callable[[int], object], sample_size: int) -> None:
        self._progress = progress
        self._sample_size = sample_size
        self._lock = threading.Lock()
        self._random = random.Random()
        self._nodes = self._size = self._ephemeral = 0
        self._largest: SizedNode | None = None
        self._sessions: dict[int | None, list[str]] = {}
        # The paths with the largest random numbers: a heap, the smallest first.
        self._sample: list[tuple[float, str]] = []

    def add(self, paths: Sequence[str], nodes: Sequence[Sequence[Versioned | None]]) -> None:
        """Count the nodes of some paths."""
        with self._lock:
            for path, node in zip(paths, nodes[0], strict=True):
                if node is None:
                    continue
                if node.ephemeral:
                    self._add_ephemeral(path, node)
                else:
                    self._add_persistent(path, len(node.value))
            self._progress(self._nodes + self._ephemeral)

    def survey(self) -> Survey:
        """Sum up."""
        sessions = {session: tuple(paths) for session, paths in self._sessions.items()}
        sample = tuple(sorted(path for _, path in self._sample))
        return Survey(self._nodes, self._size, self._ephemeral, self._largest, sessions, sample)

    def _add_ephemeral(self, path: str, node: Versioned) -> None:
        self._ephemeral += 1
        kept = self._sessions.setdefault(node.session, [])
        kept.append(path)
        kept.sort()
        del kept[_KEPT_PATHS:]

    def _add_persistent(self, path: str, size: int) -> None:
        self._nodes += 1
        self._size += size + len(path)
        if self._largest is None or size > self._largest.size:
            self._largest = SizedNode(path, size)
        drawn = self._random.random()
        if len(self._sample) < self._sample_size:
            heapq.heappush(self._sample, (drawn, path))
        elif drawn > self._sample[0][0]:
            heapq.heapreplace(self._sample, (drawn, path))


@dataclass(frozen=True, slots=True)
class ConfiguredStores:
    """Settings that bear on a move."""

    source_url: str  #: As in the settings, or as the operator gives it.
    chroot: str  #: Of the source; "" if it has none.
    ledgers_root: str  #: BookKeeper's, as the settings name it.
    other_stores: tuple[str, ...]  #: Stores of the settings other than the source.
    session_timeout_s: float  #: Bookwarden's own, in seconds.
    drain_limit_s: float  #: Bookwarden's own, in seconds.
    own_locks: tuple[str, ...]  #: Paths below which bookwarden's own processes keep a node.


@dataclass(frozen=True, slots=True)
class RegisteredClusters:
    """The bookie clusters that the source's registry names, between which brokers with the jar are switched."""

    names: tuple[str, ...] = ()  #: Empty where none is registered.
    id_root: str = ""  #: Where ledger ids are counted in the source.
    counts_itself: bool = True  #: That is the root of the one cluster, in the source: a stock broker counts on there.
    problem: str = ""  #: Why the registry cannot be read; "" if it can.


@dataclass(frozen=True, slots=True)
class SourceObservations(ConfiguredStores):
    """The state of source, target and processes before a migration."""

    target_url: str  #: As the operator gives it.
    phase: str | None  #: In the flag; None without a flag.
    flag_target: str | None  #: In the flag; None if it names none.
    participants: Mapping[str, str]  #: By registered node, the process behind it; "" if unknown.
    #: Sessions with ephemeral nodes that have not registered, with some paths of those.
    not_taking_part: Mapping[int | None, tuple[str, ...]]
    survey: Survey  #: Of the source.
    brokers: tuple[RegisteredBroker, ...]  #: All that are registered.
    admin_error: str | None  #: Why the broker of the settings cannot be asked about migrations; None if it can.
    admin_brokers: tuple[str, ...]  #: The brokers of its cluster, as it lists them.
    has_numbered_ledgers: bool  #: Whether the source's counter has given ids to ledgers.
    bookies: tuple[str, ...]  #: Ids of the bookies registered now.
    bookies_known: tuple[str, ...]  #: Ids of all bookies that have a cookie.
    target: TargetSeen | str  #: A text says why it does not answer.
    registered: RegisteredClusters = RegisteredClusters()  #: By the registry of bookie clusters in the source.


# A target that does not answer is not asked again for this time.
_TARGET_AVOIDED_S: Final = 60.0


class MigrationControl:
    """A source, its brokers, and the target; reads only, but for `start`.

    ``source`` is the raw one: the store that follows a migration would redirect reads; ``surveyed`` is the same, its
    reads limited for the survey. ``keeps_ledgers`` says that it has BookKeeper's metadata too, ``is_zookeeper`` that
    brokers move such a store. ``broker`` is asked about migrations, and ``connection`` has the credentials for all.
    ``read_registered`` reads the registry of bookie clusters, with the fields of RegisteredClusters.
    """

    def __init__(
        self,
        configured: ConfiguredStores,
        source: MetadataStore,
        surveyed: MetadataStore,
        broker: MigrationAdmin,
        connection: PulsarConnection,
        open_target: Callable[[str], MetadataStore],
        read_registered: Callable[[], tuple[tuple[str, ...], str, bool, str]],
        *,
        is_zookeeper: bool,
        keeps_ledgers: bool,
    ) -> None:
        self.source_url = configured.source_url
        self.broker = broker
        self._configured = configured
        self._source = source
        self._surveyed = surveyed
        self._connection = connection
        self._open_target = open_target
        self._read_registered = read_registered
        self._is_zookeeper = is_zookeeper
        self._keeps_ledgers = keeps_ledgers
        self._targets: dict[str, MetadataStore] = {}
        self._target_avoided_until = 0.0

    def snapshot(self) -> PhaseSnapshot:
        """Read the flag and the participants, as `read_snapshot`."""
        return read_snapshot(self._source)

    def copy_progress(self, found: Survey, target_url: str | None) -> NodeCopyProgress | None:
        """Return how much of the source the target has, by the survey's sample; None without an answer."""
        if not found.sample or target_url is None or time.monotonic() < self._target_avoided_until:
            return None
        try:
            nodes = self._target(target_url).get_many(found.sample)
        except BookwardenError:
            # Brokers may reach a target that we cannot; the watch goes on without the figure, and without waiting.
            self._target_avoided_until = time.monotonic() + _TARGET_AVOIDED_S
            return None
        there = sum(node is not None for node in nodes)
        return NodeCopyProgress(round(found.nodes * there / len(nodes)), found.nodes, not found.is_sampled_whole)

    def require_libraries(self, target_url: str) -> None:
        """Raise MissingExtraError where a library for the target is not installed; nothing is connected."""
        with suppress(ConfigError):
            # A URL that cannot be is a line of the pre-flight.
            self._target(target_url)

    def survey(self, progress: Callable[[int], object] = lambda _: None) -> Survey:
        """Read all of the source."""
        return survey(self._surveyed, progress=progress)

    def observe(self, target_url: str, found: Survey, *, may_write: bool) -> SourceObservations:
        """Observe everything that a migration depends on, after the survey of the source.

        ``may_write`` lets the target be probed with a key that is deleted again. Raises StoreError where the source
        does not answer, and ConfigError where it cannot be moved.
        """
        if not self._is_zookeeper:
            raise ConfigError(f"{self.source_url} is no ZooKeeper: brokers move metadata from ZooKeeper to Oxia alone")
        snapshot = self._snapshot_of_any_flag()
        registered = read_participants(self._source)
        root = self._configured.ledgers_root
        registered_clusters = RegisteredClusters(*self._read_registered())
        numbered = registered_clusters.id_root or (root if self._keeps_ledgers else "")
        bookies, known = self._bookies(root) if self._keeps_ledgers else ((), ())
        return SourceObservations(
            **{field.name: getattr(self._configured, field.name) for field in dataclasses.fields(ConfiguredStores)},
            target_url=target_url,
            phase=snapshot.phase,
            flag_target=snapshot.target_url,
            participants={one.name: one.whose for one in registered},
            not_taking_part=self._not_taking_part(found, registered),
            survey=found,
            brokers=tuple(read_registered_brokers(self._source, self._connection)),
            admin_error=_error_of(self.broker.status),
            admin_brokers=self._admin_brokers(),
            has_numbered_ledgers=bool(numbered) and self._source.get(f"{numbered}/idgen") is not None,
            bookies=bookies,
            bookies_known=known,
            target=self._target_seen(target_url, may_write=may_write),
            registered=registered_clusters,
        )

    def start(self, target_url: str) -> None:
        """Make the broker begin; raises as the broker's `start`, and RefusedError if there is a flag.

        An order next to an existing flag is dangerous: 4.2.4 overwrites its phase with FAILED, also in mid-copy.
        """
        snapshot = self.snapshot()
        if snapshot.phase is not None:
            raise RefusedError(
                f"{MIGRATION_PATH} of {self.source_url} says {snapshot.phase}: a broker that starts now would "
                "write FAILED over it; see `bookwarden metadata-migration status`"
            )
        self.broker.start(target_url)

    def _admin_brokers(self) -> tuple[str, ...]:
        try:
            return tuple(self.broker.brokers())
        except BookwardenError:
            # The broker's status says what is wrong with it.
            return ()

    def _snapshot_of_any_flag(self) -> PhaseSnapshot:
        try:
            return self.snapshot()
        except FormatError:
            return PhaseSnapshot(int(time.time() * 1000), "not understood")

    def _bookies(self, root: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        available = f"{root}/available"
        writable, read_only, known = self._source.list_many([available, f"{available}/readonly", f"{root}/cookies"])
        return tuple(name for name in (*writable, *read_only) if name != "readonly"), tuple(known)

    def _not_taking_part(self, found: Survey, registered: list[Participant]) -> dict[int | None, tuple[str, ...]]:
        """Return the sessions that have ephemeral nodes, still now, and have not registered."""
        taking_part = {one.session for one in registered}
        left: dict[int | None, tuple[str, ...]] = {}
        for session, paths in found.sessions.items():
            if session in taking_part:
                continue
            nodes = self._source.get_many(paths)
            still = [
                path for path, node in zip(paths, nodes, strict=True) if node is not None and node.session == session
            ]
            if still:
                left[session] = tuple(still)
        return left

    def _target_seen(self, url: str, *, may_write: bool) -> TargetSeen | str:
        try:
            store = self._target(url)
            if not isinstance(store, MigrationTarget):
                return f"{url} is no Oxia: brokers take a target that begins with oxia:// alone"
            return store.probe(may_write=may_write)
        except (StoreError, ConfigError) as error:
            return str(error)

    def _target(self, url: str) -> MetadataStore:
        if url not in self._targets:
            self._targets[url] = self._open_target(url)
        return self._targets[url]


def _error_of(call: Callable[[], object]) -> str | None:
    try:
        call()
    except BookwardenError as error:
        return str(error)
    return None


class Participant(NamedTuple):
    """A registered process: its node's name, its session, its own description, and since when (ms)."""

    name: str
    session: int | None
    whose: str
    since_ms: int


def read_participants(source: MetadataStore) -> list[Participant]:
    """Read the processes registered now, in the order of registration; none without a node for them."""
    names = sorted(source.list_many([PARTICIPANTS_PATH])[0])
    nodes = source.get_many([f"{PARTICIPANTS_PATH}/{name}" for name in names])
    return [
        Participant(name, node.session, node.value.decode("utf-8", "replace"), node.created_ms)
        for name, node in zip(names, nodes, strict=True)
        if node is not None
    ]
