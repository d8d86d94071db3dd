"""Invented readings for the web page of `bookwarden serve`; `python -m servers.page_sample PORT` serves them."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

from fastapi import FastAPI

from bookwarden.bookie_clusters.brokers import Broker, RegistryFollower
from bookwarden.bookie_clusters.documents import Overview as SwitchOverview
from bookwarden.bookie_clusters.moving.build import Build, CopyCounts, CopyPace, FoundBuild
from bookwarden.bookie_clusters.moving.scope import Scope
from bookwarden.bookie_clusters.operation import FoundOrder, SwitchState
from bookwarden.bookie_clusters.order import Order, Phase
from bookwarden.bookie_clusters.registry import BookieCluster, Directive, Registry
from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.cluster_migration.states import CursorStatus, TopicStatus
from bookwarden.ledgers.disk_growth import DayUse, Growth, forecast_of
from bookwarden.ledgers.disk_use import BookieUse, Use
from bookwarden.ledgers.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadInfo, Position
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.ledgers.pins import CursorState, Retention, TopicState, find_pins
from bookwarden.ledgers.references import Doubt
from bookwarden.ledgers.trash import KeepRule, TrashLease
from bookwarden.metadata_migration.watching import PhaseSnapshot
from bookwarden.orphans.classes import Cause
from bookwarden.orphans.guards import GuardLimits
from bookwarden.orphans.plan import EmptiedScope, FileDigest, PlanCounts, PlanManifest, ScannedCluster
from bookwarden.orphans.summary import Cell, ClassCount, ForeignOwner, GrowthPoint, ScanFindings, summarize
from bookwarden.pipelines.disk.summary import DiskSummary
from bookwarden.redirects import MIGRATED_PROPERTY
from bookwarden.server.page.routes import page_router
from bookwarden.server.page.values import (
    Activity,
    Alarm,
    Alarms,
    CauseCount,
    ClientMove,
    DiskFolder,
    GoneNamespace,
    HourCount,
    Job,
    LedgerPlace,
    Moves,
    OutcomeCount,
    Overview,
    Plan,
    Queues,
    Reading,
    ReasonCount,
    ScanReport,
    Scans,
    StoreMove,
    StoreState,
    Topic,
    TopicLedger,
    TopicPart,
    Trash,
    Wanted,
)
from bookwarden.trash.summary import Summary

#: 2026-11-28 12:04:31 UTC.
NOW_MS = 1_795_867_471_000
HOUR_MS = 3_600_000
GIB, TIB = 2**30, 2**40


def _use(
    name: str, tib: float, ledgers: int, trashed: float = 0.0, unnamed: float = 0.0, offloaded: float = 0.0
) -> Use:
    size = int(tib * TIB)
    return Use(
        name,
        ledgers,
        ledgers // 90,
        0,
        size // 2,
        size,
        int(size * trashed),
        int(size * unnamed),
        int(offloaded * TIB),
        NOW_MS - 400 * 24 * HOUR_MS,
    )


_NAMESPACES = (
    _use("billing/invoices", 7.46, 402_113, unnamed=0.01, offloaded=12.1),
    _use("iot/telemetry", 5.55, 512_004, trashed=0.02, unnamed=0.03, offloaded=21.0),
    _use("billing/ledger-events", 3.73, 151_730, unnamed=0.02),
    _use("web/clicks", 3.09, 220_451, trashed=0.16, unnamed=0.01, offloaded=4.4),
    _use("iot/raw-2023", 2.73, 90_225, unnamed=0.42),
    _use("web/sessions", 1.36, 61_113),
    _use("iot/alarms", 1.18, 75_301, trashed=0.05),
    _use("billing/audit", 1.09, 44_018),
    _use("search/index-updates", 0.74, 30_444, unnamed=0.06),
    _use("search/queries", 0.41, 20_119),
    _use("mail/outbox", 0.33, 18_550),
    _use("pulsar/system", 0.27, 9_120),
    _use("(none)", 0.19, 1_204, unnamed=1.0),
)
_SHARES = (0.31, 0.22, 0.16, 0.09, 0.07, 0.05, 0.03)


def _tenants() -> tuple[Use, ...]:
    found: dict[str, Use] = {}
    for use in _NAMESPACES:
        tenant = use.name.partition("/")[0]
        before = found.get(tenant, Use(tenant))
        sums = [one + other for one, other in zip(before[1:-1], use[1:-1], strict=True)]
        found[tenant] = Use(tenant, *sums, use.oldest_ms)
    return tuple(sorted(found.values(), key=lambda use: -use.disk_bytes))


def _topics() -> tuple[Use, ...]:
    found = [
        use._replace(
            name=f"{use.name}/persistent/{use.name.rpartition('/')[2]}-partition-{number}",
            ledgers=int(use.ledgers * share),
            logical_bytes=int(use.logical_bytes * share),
            disk_bytes=int(use.disk_bytes * share),
            trashed_bytes=int(use.trashed_bytes * share),
            unnamed_bytes=int(use.unnamed_bytes * share),
            offloaded_bytes=int(use.offloaded_bytes * share),
        )
        for use in _NAMESPACES
        if "/" in use.name
        for number, share in enumerate(_SHARES)
    ]
    return tuple(sorted(found, key=lambda use: -use.disk_bytes))


def _bookies() -> tuple[BookieUse, ...]:
    shares = ((61, 2, 6, 3), (58, 2, 8, 4), (70, 3, 7, 11), (22, 1, 1, 2))
    return tuple(
        BookieUse(
            f"bookie-{number}.example:3181",
            410_000 - number * 9_000,
            *(int(9 * TIB * share / 100) for share in (named, trashed, unnamed)),
            int(9 * TIB * 0.005),
            int(9 * TIB),
            int(9 * TIB * (1 - (named + trashed + unnamed + unexplained) / 100)),
        )
        for number, (named, trashed, unnamed, unexplained) in enumerate(shares, 1)
    )


def disk_summary() -> DiskSummary:
    """Return an account of four bookies, one of which is nearly full."""
    tenants = _tenants()
    total = Use("total", *(sum(column) for column in zip(*(use[1:-1] for use in tenants), strict=True)), None)
    total_bytes = sum(one.total or 0 for one in _bookies())
    free = sum(one.free or 0 for one in _bookies())
    days = []
    for back in range(34, -1, -1):
        used = total_bytes - free - int(back * 0.11 * TIB) + int(math.sin(back * 1.7) * 0.12 * TIB)
        day = (date(2026, 11, 28) - timedelta(days=back)).isoformat()
        days.append(DayUse(day, "", 1_500_000, used, 0, 0, 0, total_bytes, total_bytes - used))
    return DiskSummary(
        measured_ms=NOW_MS - 7 * HOUR_MS,
        total=total,
        tenants=tenants,
        tenants_left_out=0,
        namespaces=_NAMESPACES,
        namespaces_left_out=0,
        topics=_topics(),
        topics_left_out=0,
        bookies=_bookies(),
        days=tuple(days),
        growth=Growth("2026-11-27", int(0.11 * TIB)),
        forecast=forecast_of(days),
    )


def _activity() -> Activity:
    begin_ms = NOW_MS // HOUR_MS * HOUR_MS
    deleted, leaks = [], []
    for back in range(14 * 24):
        at_ms, wave = begin_ms - back * HOUR_MS, 1 + math.sin((begin_ms / HOUR_MS - back) / 24 * 2 * math.pi)
        data = int(1_300 + 1_250 * wave + 160 * math.sin(back * 2.3))
        deleted += [
            HourCount(at_ms, "data", data, data * 66 * 2**20),
            HourCount(at_ms, "subscription", data // 9, data * 2**14),
            HourCount(at_ms, "schema", data // 130, data * 2**9),
        ]
        if back % 19 in (3, 4):
            leaks.append(HourCount(at_ms, "node deleted", 7 + back % 5, 9 * GIB))
        if back % 11 == 2:
            leaks.append(HourCount(at_ms, "trimmed", 3 + back % 3, 4 * GIB))
        if back % 61 == 8:
            leaks.append(HourCount(at_ms, "replaced", 2, GIB))
    return Activity(
        tuple(sorted(deleted)),
        tuple(sorted(leaks)),
        (
            OutcomeCount("deleted", 68_556),
            OutcomeCount("already gone", 412),
            OutcomeCount("retry", 96),
            OutcomeCount("gave up", 4),
        ),
        (OutcomeCount("gone", 60_911), OutcomeCount("marked", 51), OutcomeCount("named again", 12)),
        NOW_MS - 2_000,
        NOW_MS - 190_000,
    )


def scan_report(plan: Plan, begun_ms: int) -> ScanReport:
    """Return the report of a plan in which little is wrong, and some of which is held back."""
    day_ms = 24 * HOUR_MS
    orphans = (
        ("iot/raw-2023", Cause.TRIM, "<90d", 214, 121 * GIB),
        ("billing/invoices", Cause.TOPIC_DELETED, "<30d", 133, 58 * GIB),
        ("web/sessions", Cause.CURSOR_ROLLOVER, "<1y", 61, 9 * GIB),
        ("search/index-updates-of-the-old-cluster-in-frankfurt", Cause.NEVER_LISTED, "older", 4, 2 * GIB),
    )
    cells = [
        *(Cell("orphan", "MANAGED_LEDGER", name, cause.value, age, *counts) for name, cause, age, *counts in orphans),
        Cell("referenced", "MANAGED_LEDGER", "iot/telemetry", "", "<30d", 10_120_433, 14 * TIB),
        Cell("in the trash", "MANAGED_LEDGER", "web/clicks", "", "<7d", 61_204, TIB),
        Cell("too young", "CURSOR", "web/clicks", "", "<3d", 21_904, 3 * GIB),
        Cell("foreign", "other", "(none)", "", "<1y", 165, GIB),
    ]
    counts = PlanCounts(plan.ledgers, 15 * TIB, 10_122_000, plan.candidates, plan.candidate_bytes, plan.missing)
    roots = ("zk:zk-1.example:2181,zk-2.example:2181,zk-3.example:2181",)
    manifest = PlanManifest(
        plan_id=plan.plan_id,
        scan_id=f"{plan.plan_id[:12]}0000-77ab",
        tool_version="0.1.0",
        begun_ms=begun_ms,
        created_ms=plan.created_ms,
        cutoff_ms=begun_ms - 3 * day_ms,
        cluster=ScannedCluster("5e0c7fd4-2a3b-4c55-9d0e-6b1f0a9c2e11", roots[0], "/ledgers", roots),
        counts=counts,
        candidates=(FileDigest("candidates-00000.parquet", "", plan.candidates),),
        emptied=(EmptiedScope("topic", "search/index-updates/persistent/rebuild", 4),),
    )
    summary = summarize(
        cells,
        ScanFindings(
            foreign=[ForeignOwner("custom metadata of Functions' packages", 165, GIB, tuple(range(901, 1066)))],
            doubts=[Doubt("/managed-ledgers/iot/raw/persistent/x", "zk:zk-1.example:2181", "it is no protobuf")],
            objects=[ClassCount("referenced", "s3://offload-eu", 41_202, 37 * TIB)],
        ),
        plan_id=plan.plan_id,
        scan_id=manifest.scan_id,
        created_ms=plan.created_ms,
        cutoff_ms=manifest.cutoff_ms,
        cluster=manifest.cluster.instance_id,
        earlier=[
            GrowthPoint(f"p{back}", plan.created_ms - back * day_ms, 10_204_118 - back * 9_000, 15 * TIB, *orphans)
            for back, *orphans in ((9, 120, 44 * GIB), (7, 180, 71 * GIB), (4, 352, 160 * GIB), (1, 388, 171 * GIB))
        ],
    )
    return ScanReport(plan, manifest, summary, GuardLimits())


def _dropped(
    topic: str, hours: float, what: str = "topic", ledgers: int = 4, gib: float = 1.0, **fields: Any
) -> Summary:
    """Return a life of a topic that ended, or lost something, some hours ago; the trash keeps it for a week."""
    at_ms = NOW_MS - int(hours * HOUR_MS)
    usual = Summary(
        topic=f"persistent://{topic}",
        generation=at_ms - 90 * 24 * HOUR_MS,
        what=what,
        dropped_ms=at_ms,
        brokers=("broker-2.example:8080",),
        ledgers=ledgers,
        bytes=int(gib * GIB),
        subscriptions=("billing", "warehouse"),
        schema=what == "topic",
        expires_ms=at_ms + 7 * 24 * HOUR_MS,
        missing=(),
        restore="",
    )
    return replace(usual, **fields)


def trash_sample() -> Trash:
    """Return a trash with all that waits there."""
    generations = (
        *(
            _dropped(f"web/clicks/sessions-2025-partition-{number}", 1.7, ledgers=212 + number, gib=31.5 - number)
            for number in range(4)
        ),
        _dropped("billing/invoices/drafts", 5.2, "ledgers", 38, 12.4, subscriptions=()),
        _dropped(
            "search/queries/suggest",
            29.0,
            ledgers=17,
            gib=2.2,
            subscriptions=("index",),
            missing=("2 ledgers that BookKeeper has no more: 482113, 482990",),
        ),
        _dropped("iot/telemetry/backfill", 41.0, ledgers=96, gib=44.0, restore="writing nodes, by anna@ops-1.example"),
        _dropped("iot/alarms/pager", 66.0, "subscriptions", 2, 0.0, subscriptions=("night-shift",)),
        _dropped("iot/alarms/drill__transaction_pending_ack", 120.5, ledgers=1, gib=0.01, subscriptions=("drill",)),
        _dropped("mail/outbox/bounced", 161.5, ledgers=6, gib=0.4, subscriptions=tuple(f"relay-{n}" for n in range(9))),
        _dropped("mail/outbox/bounced", 167.2, ledgers=3, gib=0.1, brokers=("broker-1.example:8080",)),
    )
    ledgers = sum(one.ledgers for one in generations)
    return Trash(generations, 0, ledgers, (GoneNamespace("lab/trial", NOW_MS - 50 * HOUR_MS),))


def _lease(*, ended: bool) -> TrashLease:
    day = 24 * 3_600
    rules = (KeepRule("lab/scratch-*", 0, 0), KeepRule("*/*", 7 * day, day))
    until_ms = NOW_MS - 420_000 if ended else NOW_MS + 870_000
    return TrashLease(until_ms, "bookwarden@sweep-0.example", 2 * TIB, rules)


def sample(*, well: bool = False) -> Overview:
    """Return a cluster with several things to look at; ``well`` is one without."""
    at = NOW_MS - 3_000
    plans = (
        Plan("20261128T031012-5f2c", NOW_MS - 9 * HOUR_MS, 10_204_118, 412, 190 * GIB, 0, 0, 0, well),
        Plan(
            "20261127T031009-a91d",
            NOW_MS - 33 * HOUR_MS,
            10_190_204,
            388,
            171 * GIB,
            0,
            388,
            NOW_MS - 30 * HOUR_MS,
            True,
        ),
        Plan("20261126T031011-07be", NOW_MS - 57 * HOUR_MS, 10_177_541, 0, 0, 0, 0, 0, True),
    )
    scans = Scans(
        plans,
        (
            CauseCount("trimmed, never deleted", 214, 121 * GIB),
            CauseCount("topic deleted", 133, 58 * GIB),
            CauseCount("cursor rollover", 61, 9 * GIB),
            CauseCount("created, never listed", 4, 2 * GIB),
        ),
        reports=tuple(scan_report(plan, plan.created_ms - HOUR_MS // 2) for plan in plans[:2]),
    )
    jobs = (
        Job("sweep", "sweep-0.example as process 4121 since 2026-11-16T08:20:11Z"),
        Job("follow", "sweep-0.example as process 4188 since 2026-11-16T08:20:14Z"),
    )
    reasons = (
        ReasonCount("the node of <name> may be damaged: ledger # in it is above the last id", 3),
        ReasonCount("no driver <text> is configured for the offloaded copy of ledger #", 1),
    )
    summary = disk_summary()
    if well:
        summary = DiskSummary(
            **{
                **{name: getattr(summary, name) for name in summary.__dataclass_fields__},
                "bookies": tuple(one for one in summary.bookies if (one.free or 0) > (one.total or 1) / 9),
                "forecast": None,
            }
        )
    alerts = (
        Alarm("BookieWritable", "firing", "2026-11-28T11:41:07", "warning", "bookie-3 is writable, and above 90 %"),
        Alarm("SweepBacklog", "pending", "2026-11-28T12:01:40", "warning", "marks wait for more than a minute"),
    )
    return Overview(
        "https://pulsar-prod-eu.example:8443",
        NOW_MS,
        Reading(
            Queues(
                1_204, NOW_MS - 482_000, NOW_MS + 40_000, 0 if well else 4, () if well else reasons, 0 if well else 4
            ),
            at,
        ),
        Reading(StoreState(212, NOW_MS - 4_000, jobs, True, _lease(ended=not well)), at),
        Reading(_activity(), at),
        Reading(scans, at),
        Reading(DiskFolder("/var/lib/bookwarden/disk", summary), at),
        Reading(Alarms("http://prometheus.example:9090", () if well else alerts), at),
        Reading(quiet_moves() if well else moves_sample(), at),
        Reading(ClientMove() if well else clients_sample(), at),
    )


_ORDERS = "persistent://billing/invoices/orders"


def _offload(*, deleted: bool) -> OffloadInfo:
    return OffloadInfo(1, 2, True, deleted, NOW_MS, "aws-s3")


def topic_sample() -> Topic:
    """Return a topic whose oldest ledger a subscription holds, with ledgers in all places."""
    begun_ms, step_ms, lately_ms = NOW_MS - 24 * 24 * HOUR_MS, 11 * HOUR_MS, NOW_MS - 40_000
    listed, ledgers = [], []
    for number in range(52):
        ledger_id = 48_100 + 37 * number
        at_ms = begun_ms + number * step_ms + (number % 5) * HOUR_MS // 2
        ends_ms = begun_ms + (number + 1) * step_ms + ((number + 1) % 5) * HOUR_MS // 2
        entries, size = 50_000 + 700 * (number % 7), int((1.6 + 0.2 * (number % 4)) * GIB)
        place, offload, clusters = LedgerPlace.BOOKIES, None, ("fast",)
        if number < 3:
            place, clusters = LedgerPlace.ORPHAN, ("old",)
        elif number < 14:
            place, offload, clusters = LedgerPlace.OFFLOADED, _offload(deleted=True), ()
        elif number < 18:
            place, offload, clusters = LedgerPlace.BOTH, _offload(deleted=False), ("old", "fast")
        elif number in (29, 30):
            place, clusters = LedgerPlace.GAP, ("old",)
        elif number == 35:
            place, clusters = LedgerPlace.MISSING, ()
        elif number < 38:
            place, clusters = LedgerPlace.FORMER, ("old",)
        is_last = number == 51
        begins_ms = at_ms if clusters else 0
        ledgers.append(TopicLedger(ledger_id, entries, size, begins_ms, 0 if is_last else ends_ms, place, clusters))
        if place not in (LedgerPlace.ORPHAN, LedgerPlace.GAP):
            listed.append(LedgerInfo(ledger_id, entries, size, 0 if is_last else ends_ms, offload))
    cursors = (
        CursorState("audit-2024", Position(48_100 + 37 * 13, 4_121), advanced_ms=0, behind=1_902_417, consumers=0),
        CursorState("billing", Position(48_100 + 37 * 51, 31_007), advanced_ms=lately_ms, behind=212, consumers=4),
        CursorState("warehouse", Position(48_100 + 37 * 44, 12), advanced_ms=lately_ms, behind=390_551, consumers=2),
        CursorState(
            "pulsar.repl.eu-west", Position(48_100 + 37 * 47, 9_000), advanced_ms=NOW_MS - HOUR_MS, behind=201_330
        ),
        CursorState("dashboard-reader", Position(48_100 + 37 * 50, 5), durable=False, behind=9),
    )
    state = TopicState(
        _ORDERS,
        ManagedLedgerInfo(tuple(listed)),
        cursors,
        True,
        Retention(6 * 24 * 60, -1, "the namespace billing/invoices"),
        clusters=("eu-west", "us-east"),
        check_s=120,
    )
    part = TopicPart(find_pins(state, NOW_MS), tuple(ledgers), cursors)
    return Topic(_ORDERS, (part,), plan="20261128T031012-5f2c", plan_ms=NOW_MS - 9 * HOUR_MS)


def _cluster(name: str, since: int, **fields: Any) -> BookieCluster:
    uri = f"zk+hierarchical://zk-{name}.example:2181/ledgers"
    return BookieCluster(name, uri, f"zk:zk-{name}.example:2181", "/ledgers", f"instance-{name}", since, **fields)


def _broker(number: int, epoch: int) -> Broker:
    names = {"old": "instance-old", "fast": "instance-fast"}
    return Broker(f"broker-{number}.example:8080", RegistryFollower(epoch, "fast", "5f2c91ab", names, jar="0.2.0"))


def moves_sample() -> Moves:
    """Return a switch that waits for a broker, and a copy that is under way."""
    origin, at_ms = "ops-1.example process 8121", NOW_MS - 95_000
    order = Order("old", "fast", 6, origin, at_ms, Phase.LIVE_DUAL_READ)
    clusters = {one.name: one for one in (_cluster("old", 1, bootstrap=True), _cluster("fast", 6))}
    directive = Directive("old", "fast", origin, 7, at_ms)
    registry = Registry(7, "5f2c91ab", "/ledgers", "fast", clusters, directive)
    brokers = (_broker(1, 7), _broker(2, 7), _broker(3, 6))
    counts = CopyCounts()
    for outcome, ledgers, gib in ((CopyOutcome.COPIED, 18_204, 2), (CopyOutcome.COMPLETE, 3_117, 1)):
        counts.ledgers[outcome, "cursor"], counts.sizes[outcome, "cursor"] = ledgers, gib * GIB
    counts.ledgers[CopyOutcome.OPEN, "schema"] = 14
    build = Build(
        *("old", "fast", Scope(), "/var/lib/bookwarden/build-20261128", NOW_MS - HOUR_MS),
        is_listed=True,
        ledgers=33_410,
        size=5 * GIB,
        looked_at=21_335,
        size_looked_at=3 * GIB,
        counts=counts,
        pace=CopyPace(6.1, 950_000.0),
    )
    state = SwitchState(Phase.LIVE_DUAL_READ, registry, FoundOrder(order, 3, origin, False), brokers)
    snapshot = PhaseSnapshot(NOW_MS - 3_000)
    stores = (StoreMove("zk:zk-1.example:2181,zk-2.example:2181,zk-3.example:2181", snapshot),)
    found = FoundBuild(build, None, 4, "ops-1.example process 8207", False)
    return Moves(stores, SwitchOverview(state, None, found, None))


def quiet_moves() -> Moves:
    """Return a cluster in which nothing was ever moved."""
    state = SwitchState(Phase.NOT_REGISTERED, None, None, ())
    return Moves((StoreMove("zk:zk-1.example:2181", PhaseSnapshot(NOW_MS)),), SwitchOverview(state, None, None, None))


def _topic_seen(number: int, unread: int, consumers: int | None, publishers: int = 0) -> TopicStatus:
    info = ManagedLedgerInfo((), {MIGRATED_PROPERTY: "true"}, terminated=Position(5, 9))
    cursors = (CursorStatus("billing", unread, consumers),)
    topic = f"persistent://web/clicks/clicks-partition-{number}"
    return TopicStatus(topic, info, True, loaded=True, publishers=publishers, cursors=cursors)


def clients_sample() -> ClientMove:
    """Return a move of clients of which one topic has no consumer any more."""
    topics = [_topic_seen(number, 0, 2) for number in range(22)]
    topics += [_topic_seen(number, 1_900 * (number - 20), 2) for number in range(22, 31)]
    topics.append(_topic_seen(31, 4_204, 0))
    return ClientMove(True, MigrationSnapshot(NOW_MS - 5_000, tuple(topics), {"web/clicks": True}))


def shown_with(shown: Overview, wanted: Wanted) -> Overview:
    """Return it with invented readings of what a page wants besides."""
    at = NOW_MS - 3_000
    return replace(
        shown,
        trash=Reading(trash_sample(), at) if wanted.trash else None,
        topic=Reading(topic_sample(), at) if wanted.topic else None,
    )


def sample_app(shown: Overview | None = None) -> FastAPI:
    """Make an application that shows invented readings."""
    app = FastAPI(docs_url=None, redoc_url=None)
    found = sample() if shown is None else shown
    # As of a reading: what is rendered is kept while it is the same.
    parts: dict[Wanted, Overview] = {}

    def read(wanted: Wanted) -> Overview:
        if wanted not in parts:
            parts[wanted] = shown_with(found, wanted)
        return parts[wanted]

    app.include_router(page_router(read))
    return app


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(sample_app(), port=int(sys.argv[1]), log_level="warning")
