"""Values that the page shows: each part as it was last read. Times are in milliseconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

from bookwarden.bookie_clusters.documents import Overview as SwitchOverview
from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.ledgers.kinds import KINDS
from bookwarden.ledgers.pins import CursorState, TopicPins
from bookwarden.ledgers.trash import TrashLease
from bookwarden.metadata_migration.watching import PhaseSnapshot
from bookwarden.orphans.guards import GuardLimits
from bookwarden.orphans.plan import PlanManifest
from bookwarden.orphans.summary import Summary as ScanSummary
from bookwarden.pipelines.disk.summary import DiskSummary
from bookwarden.trash.summary import Summary

ValueT = TypeVar("ValueT")
#: The name for people of each kind of ledger, by that of its component.
KIND_LABELS: Final = {kind.component.name: kind.ledgers_label for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Reading(Generic[ValueT]):
    """A part as it was last read, and whether it can be read now."""

    value: ValueT | None = None  #: None before the first answer.
    read_ms: int = 0  #: When `value` was asked for; 0 before the first answer.
    error: str = ""  #: Why it could not be read the last time; "" if it could.
    silent_since_ms: int = 0  #: No answer, or only errors, since then; 0 if it answers.


class ReasonCount(NamedTuple):
    """Dead letters whose reasons are of one kind."""

    reason: str
    letters: int


@dataclass(frozen=True, slots=True)
class Queues:
    """The messages that wait on the topics of two-phase deletion."""

    entries: int  #: In flight: broker entries on the deletion topic and its retry topic.
    oldest_ms: int | None = None  #: When the oldest mark in flight was published; None without one.
    due_ms: int | None = None  #: When the first of them is due; None without one.
    dead_letters: int = 0  #: Broker entries on the DLQ.
    reasons: tuple[ReasonCount, ...] = ()  #: Of the first dead letters, the most frequent first.
    letters_read: int = 0  #: How many letters `reasons` counts.


class Job(NamedTuple):
    """A job that holds its lock while it runs."""

    name: str  #: Of its command.
    holder: str  #: Host, process and since when; "" if it does not run.


@dataclass(frozen=True, slots=True)
class StoreState:
    """The state in the metadata store: the outbox of brokers that mark, which jobs run, and the lease of the trash."""

    outbox_nodes: int = 0
    outbox_oldest_ms: int | None = None  #: When the oldest node was made; None without one.
    jobs: tuple[Job, ...] = ()
    has_trash: bool = False  #: Whether the settings have rules for the trash.
    lease: TrashLease | None = None  #: By which brokers keep what they drop; None where no sweep has given any.


class HourCount(NamedTuple):
    """Ledgers of one hour and cause."""

    hour_ms: int  #: When the hour begins.
    cause: str  #: Kind of the ledger for a deletion; of a leak what the broker did.
    ledgers: int
    size: int  #: In bytes, as far as it is known.


class OutcomeCount(NamedTuple):
    """Outcomes of the last day."""

    outcome: str
    number: int


@dataclass(frozen=True, slots=True)
class Activity:
    """The outcomes in the tables of the sweep and of follow."""

    deleted: tuple[HourCount, ...] = ()  #: By hour.
    leaks: tuple[HourCount, ...] = ()  #: Marked by follow, by hour.
    swept: tuple[OutcomeCount, ...] = ()  #: Of the sweep, the most frequent first.
    followed: tuple[OutcomeCount, ...] = ()  #: Of follow, the most frequent first.
    swept_ms: int | None = None  #: Of the sweep's newest outcome; None without any.
    followed_ms: int | None = None  #: Of follow's newest outcome; None without any.


class Plan(NamedTuple):
    """A plan of an orphan scan."""

    plan_id: str  #: As in its manifest.
    created_ms: int  #: When it was made.
    ledgers: int  #: All that were listed.
    candidates: int  #: Orphans, to be marked.
    candidate_bytes: int  #: Their logical bytes.
    missing: int  #: Ledgers that are named, and gone.
    marked: int  #: By `orphans apply`.
    applied_ms: int  #: When it was last applied; 0 if never.
    is_applied: bool  #: Whether each candidate was come to.


@dataclass(frozen=True, slots=True)
class ScanReport:
    """The findings of a scan, its plan, and the limits under which that can be applied."""

    plan: Plan
    manifest: PlanManifest
    summary: ScanSummary
    limits: GuardLimits


class CauseCount(NamedTuple):
    """Orphans of one probable cause."""

    cause: str
    ledgers: int
    size: int


@dataclass(frozen=True, slots=True)
class Scans:
    """The scans and plans in the folder."""

    plans: tuple[Plan, ...] = ()  #: The newest first; a few.
    causes: tuple[CauseCount, ...] = ()  #: Of the newest plan, by bytes.
    inside_lists: int = 0  #: Ledgers that their topics' lists lost, by the newest plan.
    doubts: int = 0  #: Places that the newest scan could not read.
    damaged: tuple[str, ...] = ()  #: What is wrong with a plan that cannot be read.
    unfinished: tuple[str, ...] = ()  #: Scans without a plan.
    reports: tuple[ScanReport, ...] = ()  #: Of `plans`, but for those whose summary cannot be read.


class Alarm(NamedTuple):
    """An alert of Prometheus."""

    name: str  #: Of the rule.
    state: str  #: firing or pending.
    since: str  #: As Prometheus writes it.
    severity: str  #: Its label; "" without one.
    text: str  #: The summary, or what it has in its place.
    runbook: str = ""  #: PAGE#SECTION of the documents, where it names one of ours.


@dataclass(frozen=True, slots=True)
class Alarms:
    """The alerts of Prometheus; ``address`` is "" where the settings name none."""

    address: str = ""
    alerts: tuple[Alarm, ...] = ()


@dataclass(frozen=True, slots=True)
class DiskFolder:
    """The last account of disk use; ``summary`` is None where there is none."""

    location: str
    summary: DiskSummary | None = None


class GoneNamespace(NamedTuple):
    """A deleted namespace whose policies the trash has."""

    namespace: str
    gone_ms: int  #: When it was seen to be gone.


class DamagedNode(NamedTuple):
    """A node that cannot be read."""

    path: str
    error: str


@dataclass(frozen=True, slots=True)
class Trash:
    """The content of the trash, as `trash list` describes it."""

    generations: tuple[Summary, ...] = ()  #: What was dropped last comes first.
    left_out: int = 0  #: Further ones, which were dropped before.
    ledgers: int = 0  #: Of all, those too.
    namespaces: tuple[GoneNamespace, ...] = ()
    unreadable: tuple[DamagedNode, ...] = ()


class LedgerPlace(Enum):
    """The place of a ledger of a topic, or why it has none."""

    BOOKIES = "on bookies"
    FORMER = "on bookies of another cluster alone"
    BOTH = "on bookies, and offloaded"
    OFFLOADED = "offloaded"
    TRIMMED = "trimmed by the source of the shadow topic"
    UNSEEN = "not looked at"
    UNREADABLE = "with metadata that cannot be read"
    ORPHAN = "orphan: on no list"
    MISSING = "missing: listed, and BookKeeper has it no more"
    GAP = "gap: the list lost it"


class TopicLedger(NamedTuple):
    """A data ledger of a topic, listed or not."""

    ledger_id: int  #: By which the others are in order.
    entries: int  #: 0 where that is not known.
    size: int  #: In bytes, each entry once; 0 where that is not known.
    begun_ms: int  #: When it was created; 0 where that is not known.
    closed_ms: int  #: By the list; 0 where that does not say it.
    place: LedgerPlace  #: By its metadata, the list and the newest plan.
    clusters: tuple[str, ...] = ()  #: Names of the bookie clusters that have it; none where none is registered.


@dataclass(frozen=True, slots=True)
class TopicPart:
    """A topic without partitions, or a partition."""

    pins: TopicPins
    ledgers: tuple[TopicLedger, ...]  #: By growing id.
    cursors: tuple[CursorState, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic, as it was asked for."""

    name: str  #: Its full name.
    parts: tuple[TopicPart, ...] = ()  #: The first ones of its partitions.
    others: tuple[str, ...] = ()  #: Names of the further partitions, of which nothing was read.
    plan: str = ""  #: The id of the plan that orphans and gaps are from; "" without one.
    plan_ms: int = 0  #: When that was made.
    notes: tuple[str, ...] = ()  #: What could not be seen of it.
    absent: str = ""  #: Why there is nothing to show; "" if there is.


@dataclass(frozen=True, slots=True)
class StoreMove:
    """A metadata store that Pulsar may move; ``error`` is why it is not known how far that is."""

    url: str
    snapshot: PhaseSnapshot | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves of metadata, and of bookie clusters and their ledgers."""

    stores: tuple[StoreMove, ...] = ()
    switch: SwitchOverview | None = None  #: None where the records cannot be understood.
    error: str = ""  #: Why they cannot.


@dataclass(frozen=True, slots=True)
class ClientMove:
    """The move of clients to another Pulsar cluster."""

    has_green: bool = False  #: Whether the settings name another cluster.
    snapshot: MigrationSnapshot | None = None  #: Of the namespaces that are migrated; None where none is.


class Wanted(NamedTuple):
    """The parts that a page shows besides those of the overview."""

    trash: bool = False
    topic: str = ""  #: As a client names it; "" for none.


#: No other part.
OVERVIEW: Final = Wanted()


@dataclass(frozen=True, slots=True)
class Overview:
    """All parts, as they were last read."""

    cluster: str  #: Where the settings say that Pulsar is.
    now_ms: int  #: When they were put together.
    queues: Reading[Queues] = Reading()  #: From the brokers.
    store: Reading[StoreState] = Reading()  #: From the metadata store.
    activity: Reading[Activity] = Reading()  #: From the outcome tables.
    scans: Reading[Scans] = Reading()  #: From the folder of scans.
    disk: Reading[DiskFolder] = Reading()  #: From the folder of disk use.
    alarms: Reading[Alarms] = Reading()  #: From Prometheus.
    moves: Reading[Moves] = Reading()  #: From the metadata stores.
    clients: Reading[ClientMove] = Reading()  #: From blue and green.
    trash: Reading[Trash] | None = None  #: From the metadata stores; None where the page does not show it.
    topic: Reading[Topic] | None = None  #: From the whole cluster, and the newest plan; likewise.
