"""Readers of what the page shows: from the folders that commands write, from the cluster, and from Prometheus."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import urllib3

from bookwarden.clusters.pulsar.broker_marks import Outbox
from bookwarden.clusters.pulsar.trash import TrashLeaseNode
from bookwarden.config import Settings
from bookwarden.deletion.dead_letters import reason_group
from bookwarden.errors import BookwardenError, FileError, FormatError, NotFoundError
from bookwarden.ledgers.outcomes import DropOutcome, Outcome
from bookwarden.ledgers.received import REASON
from bookwarden.metastore.lock import holder_of
from bookwarden.orphans.classes import LedgerClass
from bookwarden.orphans.plan import PlanManifest
from bookwarden.orphans.summary import Summary
from bookwarden.pipelines.columns.tables import rows_in
from bookwarden.pipelines.disk.summary import read_summary
from bookwarden.pipelines.folders import Folder
from bookwarden.pipelines.plan_files import PlanFiles
from bookwarden.pipelines.scan.folder import plans_of, scan_ids
from bookwarden.pipelines.streams.outcome_table import whole_files
from bookwarden.preflight import require_topics
from bookwarden.resources import Closeable, CloseableT
from bookwarden.server.page.cached import CachedReading, CachedReadings
from bookwarden.server.page.moves_reading import MoveSources, read_clients
from bookwarden.server.page.topic_reading import read_topic, topic_named
from bookwarden.server.page.values import (
    KIND_LABELS,
    OVERVIEW,
    Activity,
    Alarm,
    Alarms,
    CauseCount,
    ClientMove,
    DamagedNode,
    DiskFolder,
    GoneNamespace,
    HourCount,
    Job,
    OutcomeCount,
    Overview,
    Plan,
    Queues,
    Reading,
    ReasonCount,
    ScanReport,
    Scans,
    StoreState,
    Topic,
    Trash,
    Wanted,
)
from bookwarden.trash.generations import TrashedGeneration
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.cluster_migration import ClusterMigration
from bookwarden.wiring.scan import guard_limits_of
from bookwarden.wiring.trash import TrashOperations

ValueT = TypeVar("ValueT")
#: Of the outcome tables.
DAYS: Final = 14
_HOUR_MS: Final = 3_600_000
_PLANS: Final = 5
_LETTERS: Final = 500
_ALERTS: Final = 100
_PROMETHEUS_S: Final = 4.0
# What is in the trash may be large: its records are read whole, and of each ledger its metadata.
_GENERATIONS: Final = 500
_TRASHED_LEDGERS: Final = 50_000
_LARGE_S: Final = 20.0
_REST: Final = 9.0
# As `follow` writes the reason of a mark.
_DROPPED: Final = r"\((?P<cause>[a-z ]+)\)$"
_UNKNOWN: Final = "not known"
#: As the alerts of conf/monitoring have it, wherever `serve` is.
_RUNBOOK: Final = re.compile(r"/runbook/([a-z0-9-]+(?:/[a-z0-9-]+)*#[a-z0-9_-]+)$")


class PageReader:
    """The parts of the page, each read at most once in ten seconds, whatever the others do. Close it at the end."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        # Whoever looks needs no password that may be in it.
        self._cluster = re.sub(r"//[^/]*@", "//", settings.pulsar.admin_url)
        self._clock = clock
        queues, store, trash, topics = (_Kept(lambda: Cluster(settings)) for _ in range(4))
        moves, look = _Kept(lambda: MoveSources(settings)), _StoreLook()
        clients = _Kept(lambda: ClusterMigration(settings))
        self._kept: tuple[_Kept[Any], ...] = (queues, store, trash, topics, moves, clients)
        self._queues = CachedReading("queues", lambda: queues.read(_queues), clock=clock)
        self._store = CachedReading("store", lambda: store.read(look), clock=clock)
        self._activity = CachedReading("outcomes", _OutcomeTables(settings, clock).read, clock=clock)
        self._scans = CachedReading("scans", partial(read_scans, settings, {}), clock=clock)
        self._disk = CachedReading("disk", partial(read_disk, settings), clock=clock)
        self._alarms = CachedReading("alarms", partial(read_alarms, settings.serve.prometheus_url), clock=clock)
        self._moves = CachedReading("moves", lambda: moves.read(MoveSources.read), clock=clock)
        has_green = settings.cluster_migration.green.pulsar is not None
        self._clients = CachedReading(
            "clients",
            lambda: clients.read(read_clients) if has_green else ClientMove(),
            silent_s=_LARGE_S,
            rest=_REST,
            clock=clock,
        )
        self._trash = CachedReading("trash", lambda: trash.read(read_trash), silent_s=_LARGE_S, rest=_REST, clock=clock)
        self._topics = CachedReadings(
            "topic",
            lambda name: topics.read(lambda cluster: read_topic(cluster, name)),
            silent_s=_LARGE_S,
            rest=_REST,
            clock=clock,
        )

    def close(self) -> None:
        """Close what was kept open from one reading to the next; what is being read now is closed when it ends."""
        for each in self._kept:
            each.close()

    def read(self, wanted: Wanted = OVERVIEW) -> Overview:
        """Return all parts of the overview, and others that are wanted, as they are known."""
        # All begin before the first is waited for.
        parts = (
            *(self._queues, self._store, self._activity, self._scans, self._disk, self._alarms),
            *(self._moves, self._clients),
        )
        for part in (*parts, *((self._trash,) if wanted.trash else ())):
            part.begin()
        topic = self._topic(wanted.topic) if wanted.topic else None
        return Overview(
            self._cluster,
            int(self._clock() * 1000),
            self._queues.get(),
            self._store.get(),
            self._activity.get(),
            self._scans.get(),
            self._disk.get(),
            self._alarms.get(),
            self._moves.get(),
            self._clients.get(),
            self._trash.get() if wanted.trash else None,
            topic,
        )

    def _topic(self, text: str) -> Reading[Topic]:
        try:
            name = str(topic_named(text))
        except FormatError as error:
            # Nothing is to be read for it.
            return Reading(Topic("", absent=str(error)), int(self._clock() * 1000))
        return self._topics.get(name)


class _Kept(Generic[CloseableT]):
    """Something that stays open from one reading to the next, and is opened again after an error."""

    def __init__(self, make: Callable[[], CloseableT]) -> None:
        self._make = make
        self._open: CloseableT | None = None
        self._closed = False
        self._lock = threading.Lock()

    def read(self, look: Callable[[CloseableT], ValueT]) -> ValueT:
        # It is nobody's until it has answered.
        opened = self._take() or self._make()
        try:
            found = look(opened)
        except BaseException:
            _close(opened)
            raise
        with self._lock:
            before, self._open = self._open, opened
        # Of another reading at the same time.
        _close(before)
        if self._closed:
            self.close()
        return found

    def close(self) -> None:
        self._closed = True
        _close(self._take())

    def _take(self) -> CloseableT | None:
        with self._lock:
            opened, self._open = self._open, None
        return opened


def _close(opened: Closeable | None) -> None:
    if opened is not None:
        with suppress(BookwardenError):
            opened.close()


def _queues(cluster: Cluster) -> Queues:
    topics, deletion = cluster.deletion_topics, cluster.settings.deletion
    require_topics(cluster.admin, cluster.settings, deletion.topic, deletion.retry_topic, deletion.dlq_topic)
    entries = sum(behind.entries for behind in topics.entries().values())
    firsts = topics.first_marks() if entries else []
    dead = sum(behind.entries for behind in topics.dead_entries().values())
    letters = list(islice(topics.look_at_dead_letters(), _LETTERS)) if dead else []
    reasons = Counter(reason_group(letter.properties.get(REASON, letter.problem or "")) for letter in letters)
    return Queues(
        entries,
        min((one.published_at for one in firsts), default=None),
        min((one.due_at for one in firsts), default=None),
        dead,
        tuple(ReasonCount(reason or "(none)", number) for reason, number in reasons.most_common()),
        len(letters),
    )


class _StoreLook:
    """Reads the metadata store; the outbox keeps what it knows of nodes while the store is the same."""

    _outbox: Outbox | None = None
    _of: object = None

    def __call__(self, cluster: Cluster) -> StoreState:
        settings, store = cluster.settings, cluster.store
        if self._outbox is None or self._of is not store:
            self._outbox, self._of = Outbox(store), store
        size = self._outbox.size()
        locks = (("sweep", settings.sweep.lock), ("follow", settings.follow.lock))
        jobs = tuple(Job(name, holder_of(store, path.rstrip("/"))) for name, path in locks if path)
        return StoreState(size.nodes, size.oldest_ms, jobs, bool(settings.trash.rules), TrashLeaseNode(store).read())


def read_trash(cluster: Cluster) -> Trash:
    """Read the trash, and what BookKeeper still has of what was dropped last."""
    operations = TrashOperations(cluster)
    content = operations.records.read()
    newest_first = sorted(content.generations, key=lambda one: (-one.dropped_ms, one.generation))
    shown = list(_first_of(newest_first))
    summaries = operations.records.summarize(shown, cluster.bookkeeper.catalog, operations.restore.under_way())
    return Trash(
        tuple(summaries),
        len(newest_first) - len(shown),
        sum(len(one.ledger_ids) for one in newest_first),
        tuple(GoneNamespace(copy.namespace, copy.gone_ms) for copy in operations.namespaces.absent()),
        tuple(DamagedNode(path, why) for path, why in content.unreadable.items()),
    )


def _first_of(generations: Iterable[TrashedGeneration]) -> Iterator[TrashedGeneration]:
    """Yield the first ones: the largest is looked at alone."""
    ledgers = 0
    for number, one in enumerate(generations):
        ledgers += len(one.ledger_ids)
        if number and (number >= _GENERATIONS or ledgers > _TRASHED_LEDGERS):
            return
        yield one


class _OutcomeTables:
    """Reads the newest days of the outcome tables; each file once."""

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._sweep = _Counts(settings.sweep.outcomes)
        self._follow = _Counts(settings.follow.outcomes)
        self._clock = clock

    def read(self) -> Activity:
        """Raise FileError where a folder cannot be read, FormatError where a file is damaged."""
        sweep, follow = self._sweep.read(), self._follow.read()
        now_ms = int(self._clock() * 1000)
        since_ms = now_ms // _HOUR_MS * _HOUR_MS - 23 * _HOUR_MS
        return Activity(
            _hours(sweep, Outcome.DELETED.value),
            _hours(follow, DropOutcome.MARKED.value),
            _outcomes(sweep, since_ms),
            _outcomes(follow, since_ms),
            self._sweep.newest_ms,
            self._follow.newest_ms,
        )


# Begin of the hour in ms, outcome, cause: ledgers and bytes.
_Tally = dict[tuple[int, str, str], tuple[int, int]]


class _Counts:
    """The outcomes of one table by hour and cause."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._files: dict[str, tuple[_Tally, int]] = {}

    @property
    def newest_ms(self) -> int | None:
        return max((newest for _, newest in self._files.values()), default=None)

    def read(self) -> _Tally:
        found: dict[tuple[int, str, str], tuple[int, int]] = {}
        with _naming(self._location):
            folder = Folder(self._location, with_options=True)
            files = {}
            for name in whole_files(folder, DAYS):
                # Merged meanwhile: the next reading has its rows in another file.
                with suppress(FileNotFoundError):
                    files[name] = self._files.get(name) or _counts_in(folder, name)
            self._files = files
        for tally, _ in self._files.values():
            for key, (ledgers, size) in tally.items():
                before = found.get(key, (0, 0))
                found[key] = before[0] + ledgers, before[1] + size
        return found


def _counts_in(folder: Folder, name: str) -> tuple[_Tally, int]:
    columns = ["decided_at", "outcome", "component", "reason", "ledger_bytes"]
    try:
        with folder.open(name) as source:
            rows = pq.read_table(source, columns=columns)
    except (pa.ArrowException, KeyError) as error:
        raise FormatError(f"{folder.location}/{name} is no file of outcomes ({error}): move it away") from error
    times = pc.cast(rows.column("decided_at"), pa.timestamp("ms", tz="UTC"), safe=False)
    outcomes = rows.column("outcome")
    dropped = pc.struct_field(pc.extract_regex(rows.column("reason"), _DROPPED), "cause")
    # There may be millions of rows, and few groups of them.
    groups = (
        pa.table(
            {
                "hour": pc.cast(pc.floor_temporal(times, unit="hour"), pa.int64()),
                "outcome": outcomes,
                "cause": pc.if_else(pc.equal(outcomes, DropOutcome.MARKED.value), dropped, rows.column("component")),
                "size": pc.fill_null(rows.column("ledger_bytes"), 0),
            }
        )
        .group_by(["hour", "outcome", "cause"])
        .aggregate([([], "count_all"), ("size", "sum")])
        .select(["hour", "outcome", "cause", "count_all", "size_sum"])
    )
    tally: dict[tuple[int, str, str], tuple[int, int]] = {}
    for hour_ms, outcome, cause, ledgers, size in rows_in(groups):
        key = hour_ms, outcome, _cause_of(outcome, cause)
        before = tally.get(key, (0, 0))
        tally[key] = before[0] + ledgers, before[1] + size
    newest = pc.max(times)
    return tally, 0 if not rows.num_rows else int(newest.value)


def _cause_of(outcome: str, cause: str | None) -> str:
    if outcome == DropOutcome.MARKED.value:
        return cause or _UNKNOWN
    return KIND_LABELS.get(cause or "", _UNKNOWN) if outcome == Outcome.DELETED.value else ""


def _hours(tally: _Tally, outcome: str) -> tuple[HourCount, ...]:
    return tuple(
        HourCount(hour_ms, cause, ledgers, size)
        for (hour_ms, name, cause), (ledgers, size) in sorted(tally.items())
        if name == outcome
    )


def _outcomes(tally: _Tally, since_ms: int) -> tuple[OutcomeCount, ...]:
    counts = Counter[str]()
    for (hour_ms, outcome, _), (ledgers, _) in tally.items():
        if hour_ms >= since_ms:
            counts[outcome] += ledgers
    return tuple(OutcomeCount(*one) for one in counts.most_common())


def read_scans(settings: Settings, known: dict[object, Summary]) -> Scans:
    """Read the newest plans; one that is damaged is named. Raises FileError where the folder cannot be read.

    ``known`` keeps their summaries, which never change and may be large, from one reading to the next.
    """
    plans, limits = plans_of(settings), guard_limits_of(settings.orphans)
    found, reports, damaged, planned = list[Plan](), list[ScanReport](), list[str](), set[str]()
    for plan_id in reversed(plans.plan_ids()[-_PLANS:]):
        try:
            manifest = plans.manifest(plan_id)
            planned.add(manifest.scan_id)
            found.append(_plan(plans, manifest))
            summary = known.get(manifest.files) or plans.summary(manifest)
            reports.append(ScanReport(found[-1], manifest, summary, limits))
        except (FormatError, NotFoundError) as error:
            damaged.append(f"{plans.folder.location}/{plan_id}: {error}")
    known.clear()
    known.update((one.manifest.files, one.summary) for one in reports)
    causes, inside, doubts = tuple[CauseCount, ...](), 0, 0
    if reports and reports[0].plan is found[0]:
        summary = reports[0].summary
        causes = tuple(CauseCount(one.key, one.ledgers, one.logical_bytes) for one in summary.by_cause)
        inside, doubts = summary.total(LedgerClass.INSIDE_LIST)[0], summary.doubts_total
    # Of older ones than the plans that were looked at nothing is said.
    oldest = min(planned, default="")
    unfinished = tuple(one for one in scan_ids(settings) if one not in planned and one >= oldest)
    return Scans(tuple(found), causes, inside, doubts, tuple(damaged), unfinished, tuple(reports))


def read_report(settings: Settings, plan_id: str) -> ScanReport:
    """Read a plan; NotFoundError where there is none, FormatError where it is damaged."""
    plans = plans_of(settings)
    manifest = plans.manifest(plan_id)
    return ScanReport(_plan(plans, manifest), manifest, plans.summary(manifest), guard_limits_of(settings.orphans))


def _plan(plans: PlanFiles, manifest: PlanManifest) -> Plan:
    progress, counts = plans.progress(manifest), manifest.counts
    is_applied = counts.candidates == 0 or (progress.updated_ms > 0 and not progress.failed)
    return Plan(
        manifest.plan_id,
        manifest.created_ms,
        counts.ledgers,
        counts.candidates,
        counts.candidate_bytes,
        counts.missing,
        progress.marked,
        progress.updated_ms,
        is_applied,
    )


def read_disk(settings: Settings) -> DiskFolder:
    """Read the last account of disk use; FileError where the folder cannot be read, FormatError where it is damaged."""
    location = settings.disk.folder
    with _naming(location):
        return DiskFolder(location, read_summary(Folder(location)))


def read_alarms(address: str) -> Alarms:
    """Ask Prometheus for its alerts; OSError where it does not answer, FormatError where that is no Prometheus."""
    if not address:
        return Alarms()
    url = f"{address.rstrip('/')}/api/v1/alerts"
    try:
        with urllib3.PoolManager(retries=False, timeout=_PROMETHEUS_S) as pool:
            answer = pool.request("GET", url)
            content = answer.data
    except urllib3.exceptions.HTTPError as error:
        raise ConnectionError(f"{url} does not answer ({error}): serve.prometheus_url names it") from error
    try:
        found = json.loads(content)
    except ValueError as error:
        raise FormatError(f"{url} answered {answer.status}, and no JSON: serve.prometheus_url names it") from error
    data = found.get("data") if isinstance(found, dict) else None
    alerts = data.get("alerts") if isinstance(data, dict) else None
    if not isinstance(alerts, list):
        raise FormatError(f"{url} answered {answer.status} without alerts: serve.prometheus_url names it")
    return Alarms(address, tuple(sorted(_alarms(alerts), key=_urgency)[:_ALERTS]))


def _alarms(alerts: Iterable[Any]) -> Iterator[Alarm]:
    for alert in alerts:
        if isinstance(alert, Mapping):
            labels, notes = (_texts(alert.get(name)) for name in ("labels", "annotations"))
            text = notes.get("summary") or notes.get("description") or notes.get("message", "")
            yield Alarm(
                labels.get("alertname", _UNKNOWN),
                str(alert.get("state", "")),
                str(alert.get("activeAt", ""))[:19],
                labels.get("severity", ""),
                text,
                runbook[1] if (runbook := _RUNBOOK.search(notes.get("runbook_url", ""))) else "",
            )


def _urgency(alarm: Alarm) -> tuple[bool, bool, str]:
    return alarm.state != "firing", alarm.severity != "critical", alarm.name


def _texts(value: object) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, Mapping) else {}


@contextmanager
def _naming(location: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(f"{location} cannot be read: {error}") from error
