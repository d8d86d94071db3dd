"""The overview as HTML and JSON: texts and charts of what was read, which its template lays out."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

from bookwarden.findings import size_text
from bookwarden.ledgers.bookie_report import NEARLY_FULL
from bookwarden.ledgers.disk_use import BookieUse
from bookwarden.orphans.report.charts import BarChart, Figure, stacked_bar, standing_bars
from bookwarden.server.page.problems import age_text, problems_of
from bookwarden.server.page.templates import Card, encode_json, moment, plain, reading_fields, render, state_text
from bookwarden.server.page.values import CauseCount, HourCount, Overview, Reading

_HOUR_MS: Final = 3_600_000
_HOURS: Final = 48
_DAYS: Final = 14
#: Of the JSON; disk use has a path of its own.
PARTS: Final = ("queues", "store", "activity", "scans", "alarms", "problems")


class CauseRow(NamedTuple):
    """Ledgers of one cause in the last hours and days."""

    cause: str
    hour: str
    day: str
    days: str
    size: str


def render_overview(shown: Overview) -> str:
    """Render the page `/`."""
    activity, scans, alarms = shown.activity.value, shown.scans.value, shown.alarms.value
    return render(
        "overview",
        shown,
        cards=_cards(shown),
        jobs=_jobs(shown),
        activity=activity,
        deleted_rows=_cause_rows(activity.deleted, shown.now_ms) if activity else [],
        leak_rows=_cause_rows(activity.leaks, shown.now_ms) if activity else [],
        charts=[
            ("Deleted by hour", "deleted", _by_hour(activity.deleted, shown.now_ms), f"{_HOURS - 1} h ago"),
            ("Leaks by hour", "leak", _by_hour(activity.leaks, shown.now_ms), f"{_HOURS - 1} h ago"),
            ("Deleted by day", "deleted", _by_day(activity.deleted, shown.now_ms), f"{_DAYS - 1} days ago"),
            ("Leaks by day", "leak", _by_day(activity.leaks, shown.now_ms), f"{_DAYS - 1} days ago"),
        ]
        if activity
        else [],
        queues=shown.queues.value,
        scans=scans,
        plans=[
            (
                plan.plan_id,
                moment(plan.created_ms),
                f"{plan.ledgers:,}",
                f"{plan.candidates:,}",
                size_text(plan.candidate_bytes),
                f"{plan.missing:,}",
                "nothing to apply"
                if not plan.candidates
                else f"{moment(plan.applied_ms)}, {plan.marked:,} marked"
                if plan.applied_ms
                else "not applied",
            )
            for plan in (scans.plans if scans else ())
        ],
        causes=_causes(scans.causes if scans else ()),
        alarms=alarms,
    )


def _causes(causes: Sequence[CauseCount]) -> list[tuple[str, BarChart, str]]:
    most = max((one.size for one in causes), default=0)
    return [
        (
            one.cause,
            stacked_bar([Figure(one.cause, one.size, "", "")], most),
            f"{size_text(one.size)} in {one.ledgers:,}",
        )
        for one in causes
    ]


def overview_json(shown: Overview, part: str = "") -> bytes:
    """Return what the page `/` shows, or one of PARTS of it."""
    found: dict[str, Any] = {name: _part(getattr(shown, name)) for name in PARTS if name != "problems"}
    found["problems"] = [dataclasses.asdict(one) for one in problems_of(shown)]
    if part:
        return encode_json(found[part])
    return encode_json({"cluster": shown.cluster, "now_ms": shown.now_ms, **found})


def _part(reading: Reading[Any]) -> dict[str, Any]:
    value = None if reading.value is None else plain(reading.value)
    return {**reading_fields(reading), "value": value}


def _cards(shown: Overview) -> list[Card]:
    queues, store = shown.queues.value, shown.store.value
    activity, scans = shown.activity.value, shown.scans.value
    cards = []
    if queues is None:
        cards.append(
            Card("In flight", "?", state_text(shown.queues), "sweep#what-is-in-flight", _source("queues"), True)
        )
    else:
        if queues.oldest_ms is None:
            detail = "nothing waits"
        else:
            detail = f"oldest {age_text(shown.now_ms - queues.oldest_ms)}"
            if queues.due_ms is not None:
                left = queues.due_ms - shown.now_ms
                detail += f", next due in {age_text(left)}" if left > 0 else f", due for {age_text(-left)}"
        if store is not None and store.outbox_nodes:
            detail += f"; {store.outbox_nodes:,} nodes in the outbox"
        cards.append(Card("In flight", f"{queues.entries:,}", detail, "sweep#what-is-in-flight", _source("queues")))
    for name, counts, runbook in (
        ("Deleted in 24 h", activity.deleted if activity else None, "sweep#deleted"),
        ("Leaks in 24 h", activity.leaks if activity else None, "follow#what-brokers-leave-behind"),
    ):
        if counts is None:
            cards.append(Card(name, "?", state_text(shown.activity), runbook, _source("activity"), True))
            continue
        recent = _since(counts, shown.now_ms, 24)
        size = sum(one.size for one in recent)
        cards.append(
            Card(
                name,
                f"{sum(one.ledgers for one in recent):,}",
                f"ledgers, {size_text(size)}",
                runbook,
                _source("activity"),
            )
        )
    dead = queues.dead_letters if queues else None
    cards.append(
        Card(
            "Dead letters",
            "?" if dead is None else f"{dead:,}",
            state_text(shown.queues) or (f"{len(queues.reasons):,} kinds of reasons" if queues and dead else "none"),
            "cli#dead-letters",
            _source("queues"),
            dead is None or dead > 0,
        )
    )
    newest = scans.plans[0] if scans and scans.plans else None
    if newest is None:
        cards.append(
            Card(
                "Orphans",
                "?" if scans is None else "-",
                state_text(shown.scans) or "no plan yet",
                "orphans#what-a-scan-does",
                _source("scans"),
                scans is None,
            )
        )
    else:
        cards.append(
            Card(
                "Orphans",
                f"{newest.candidates:,}",
                f"{size_text(newest.candidate_bytes)}; scan {age_text(shown.now_ms - newest.created_ms)} ago",
                "orphans#what-a-scan-does",
                _source("scans"),
                bool(newest.candidates and not newest.is_applied),
            )
        )
    summary = shown.disk.value.summary if shown.disk.value else None
    if summary is None:
        cards.append(
            Card(
                "On disks",
                "?" if shown.disk.value is None else "-",
                state_text(shown.disk) or "not measured yet",
                "disk#what-is-counted",
                "/page/disk.json",
                shown.disk.value is None,
            )
        )
    else:
        cards.append(
            Card(
                "On disks",
                size_text(summary.total.disk_bytes),
                f"{_fullest(summary.bookies)}measured {age_text(shown.now_ms - summary.measured_ms)} ago",
                "disk#what-is-counted",
                "/page/disk.json",
                any((one.used_share or 0) >= NEARLY_FULL for one in summary.bookies),
            )
        )
    return cards


def _fullest(bookies: Sequence[BookieUse]) -> str:
    shares = [share for one in bookies if (share := one.used_share) is not None]
    return f"fullest bookie {100 * max(shares):.0f} %; " if shares else ""


def _source(part: str) -> str:
    return f"/page/overview.json?part={part}"


def _jobs(shown: Overview) -> list[tuple[str, str, str, str, str]]:
    """List the jobs: name, whether it runs, what it did last, runbook, JSON."""
    store, activity = shown.store.value, shown.activity.value
    rows = []
    for name, runbook in (("sweep", "deploy#when-it-stalls"), ("follow", "follow#running-it")):
        job = next((job for job in store.jobs if job.name == name), None) if store else None
        if job is None:
            runs = state_text(shown.store) or "not known: it has no lock"
        else:
            runs = f"runs on {job.holder}" if job.holder else "does not run"
        last_ms = None if activity is None else activity.swept_ms if name == "sweep" else activity.followed_ms
        last = "no outcome yet" if last_ms is None else f"last outcome {age_text(shown.now_ms - last_ms)} ago"
        counts = () if activity is None else activity.swept if name == "sweep" else activity.followed
        if counts:
            last += "; in 24 h " + ", ".join(f"{number:,} {outcome}" for outcome, number in counts[:6])
        rows.append((name, runs, last if activity else state_text(shown.activity), runbook, _source("activity")))
    scans = shown.scans.value
    newest = scans.plans[0] if scans and scans.plans else None
    unfinished = f"{len(scans.unfinished):,} without a plan" if scans and scans.unfinished else "at rest"
    rows.append(
        (
            "orphans scan",
            state_text(shown.scans) if scans is None else unfinished,
            "no plan yet" if newest is None else f"{moment(newest.created_ms)}, {newest.ledgers:,} ledgers",
            "orphans#what-a-scan-does",
            _source("scans"),
        )
    )
    summary = shown.disk.value.summary if shown.disk.value else None
    rows.append(
        (
            "disk",
            state_text(shown.disk) if shown.disk.value is None else "at rest",
            "not measured yet"
            if summary is None
            else f"{moment(summary.measured_ms)}, {summary.total.ledgers:,} ledgers",
            "disk#what-is-counted",
            "/page/disk.json",
        )
    )
    return rows


def _since(counts: Iterable[HourCount], now_ms: int, hours: int) -> list[HourCount]:
    """Take those of the newest hours; the one that runs is the first of them."""
    first_ms = now_ms // _HOUR_MS * _HOUR_MS - (hours - 1) * _HOUR_MS
    return [one for one in counts if one.hour_ms >= first_ms]


def _cause_rows(counts: Sequence[HourCount], now_ms: int) -> list[CauseRow]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for place, hours in enumerate((1, 24, _DAYS * 24)):
        for one in _since(counts, now_ms, hours):
            sums[one.cause][place] += one.ledgers
            if hours == 24:
                sums[one.cause][3] += one.size
    rows = sorted(sums.items(), key=lambda item: (-item[1][2], item[0]))
    return [
        CauseRow(cause, f"{hour:,}", f"{day:,}", f"{days:,}", size_text(size))
        for cause, (hour, day, days, size) in rows
    ]


def _by_hour(counts: Sequence[HourCount], now_ms: int) -> BarChart:
    return _bars(counts, now_ms // _HOUR_MS * _HOUR_MS, _HOUR_MS, _HOURS, "%d %b %H:%M")


def _by_day(counts: Sequence[HourCount], now_ms: int) -> BarChart:
    day_ms = 24 * _HOUR_MS
    return _bars(counts, now_ms // day_ms * day_ms, day_ms, _DAYS, "%a %d %b")


def _bars(counts: Sequence[HourCount], last_ms: int, step_ms: int, steps: int, form: str) -> BarChart:
    sums: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in counts:
        sums[one.hour_ms // step_ms * step_ms][one.cause] += one.ledgers
    figures = []
    for step in range(steps - 1, -1, -1):
        at_ms = last_ms - step * step_ms
        causes = sums.get(at_ms, {})
        total = sum(causes.values())
        when = datetime.fromtimestamp(at_ms / 1000, timezone.utc).strftime(form)
        by = ", ".join(f"{number:,} {cause}" for cause, number in sorted(causes.items(), key=lambda item: -item[1]))
        figures.append(Figure(when, total, f"{total:,}", f"{when} UTC: {total:,}" + (f" ({by})" if by else "")))
    return standing_bars(figures)
