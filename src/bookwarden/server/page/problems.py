"""Problems that the parts of the page show, each with the command that tells more or mends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any, Final

from bookwarden.bookie_clusters.documents import Overview as SwitchOverview
from bookwarden.bookie_clusters.moving.build import FoundBuild
from bookwarden.bookie_clusters.order import Phase
from bookwarden.cluster_migration.states import LOST_SIGHT
from bookwarden.cluster_migration.watching import warnings_of
from bookwarden.findings import size_text
from bookwarden.ledgers.bookie_report import FULL, NEARLY_FULL
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.metadata_migration.watching import warnings_of_copy, warnings_of_preparation
from bookwarden.server.page.values import ClientMove, LedgerPlace, Overview, Reading, Scans, StoreMove

_FORECAST_DAYS: Final = 14
#: Marks and outbox are emptied within seconds; the alerts of conf/monitoring are the same.
_OVERDUE_MS: Final = 1_200_000
_OUTBOX_MS: Final = 600_000
#: Of ledgers of a topic whose messages are out of reach.
LOST_PLACES: Final = frozenset({LedgerPlace.MISSING, LedgerPlace.GAP})
_BROKERS: Final = 5
_ERRORS: Final = 3
_LOST_SIGHT: Final = tuple(state.value for state in LOST_SIGHT)
_SERIOUS_OUTCOMES: Final = {
    "mismatch": ("{} marks of the last 24 hours may be forged", "sweep#mismatch"),
    "poisonous": ("the sweep failed at {} marks in the last 24 hours", "sweep#poisonous"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not well."""

    text: str
    command: str  #: That tells more, or mends it; "" if none does.
    runbook: str  #: PAGE#SECTION of the documents.
    serious: bool = False  #: Data is lost, or soon will be.


def problems_of(shown: Overview) -> list[Problem]:
    """List what is not well, the most serious first."""
    found = [
        *_unread(shown),
        *_of_alarms(shown),
        *(scan_problems(shown.scans.value) if shown.scans.value else ()),
        *_of_queues(shown),
        *_of_activity(shown),
        *_of_disk(shown),
        *_of_moves(shown),
        *_of_trash(shown),
        *_of_topic(shown),
    ]
    return sorted(found, key=lambda one: not one.serious)


def headline(problems: list[Problem], *, complete: bool) -> str:
    """Return in one line whether all is well; ``complete`` is false while parts have not been read yet."""
    if problems:
        return "1 thing needs a look" if len(problems) == 1 else f"{len(problems):,} things need a look"
    return "All is well" if complete else "Nothing is known to be wrong; not everything has answered yet"


def is_complete(shown: Overview) -> bool:
    """Return whether each part was read at least once."""
    return all(part.read_ms for _, part, *_ in _parts(shown))


def time_text(milliseconds: int) -> str:
    """Return the time of day, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).strftime("%H:%M:%S")


def _parts(shown: Overview) -> list[tuple[str, Reading[Any], str, str]]:
    found: list[tuple[str, Reading[Any], str, str]] = [
        ("The brokers", shown.queues, "bookwarden inflight", "deploy#what-must-be-reachable"),
        ("The metadata store", shown.store, "bookwarden config check", "metadata-store#consistency-of-reads"),
        ("The outcome tables", shown.activity, "", "sweep#the-outcome-table"),
        ("The folder of scans", shown.scans, "bookwarden orphans list", "orphans#files-of-a-scan"),
        ("The account of disk use", shown.disk, "bookwarden disk", "disk#by-bookie"),
        ("Prometheus", shown.alarms, "", "page#alarms"),
    ]
    # They are in the same store, of which one line is enough.
    if not shown.store.silent_since_ms:
        found.append(("The records of moves", shown.moves, "bookwarden bookie-clusters status", "page#moves"))
    found.append(("Blue and green", shown.clients, "bookwarden cluster-migration watch", "cluster-migration#states"))
    if shown.topic is not None:
        runbook = "disk#what-holds-a-topics-oldest-ledger"
        found.append(("The topic", shown.topic, "bookwarden disk why TOPIC", runbook))
    if shown.trash is not None:
        found.append(("The trash", shown.trash, "bookwarden trash list", "trash#while-it-runs"))
    return found


def _unread(shown: Overview) -> Iterator[Problem]:
    for name, reading, command, runbook in _parts(shown):
        if reading.silent_since_ms:
            why = f": {reading.error}" if reading.error else ""
            yield Problem(f"{name}: no answer since {time_text(reading.silent_since_ms)} UTC{why}", command, runbook)


def _of_alarms(shown: Overview) -> Iterator[Problem]:
    for alarm in shown.alarms.value.alerts if shown.alarms.value else ():
        if alarm.state == "firing":
            text = f"Alarm {alarm.name}" + (f": {alarm.text}" if alarm.text else "")
            yield Problem(text, "", alarm.runbook or "monitoring#alerts", alarm.severity == "critical")


def scan_problems(scans: Scans) -> Iterator[Problem]:
    """Yield what is not well by the newest plan, and the plans that cannot be read."""
    for text in scans.damaged:
        yield Problem(f"A plan cannot be read: {text}", "bookwarden orphans scan", "orphan-plans#files")
    if scans.inside_lists:
        text = f"Topics' lists lost {_ledgers(scans.inside_lists)}: acknowledged messages are out of reach"
        yield Problem(text, "bookwarden orphans plan show", "orphans#inside-the-list", serious=True)
    if not scans.plans:
        return
    newest = scans.plans[0]
    if newest.missing:
        text = f"{_ledgers(newest.missing)} missing: metadata names them, and BookKeeper has them no more"
        yield Problem(text, f"bookwarden orphans plan show {newest.plan_id}", "orphans#missing-ledgers", serious=True)
    if newest.candidates and not newest.is_applied:
        text = f"{_ledgers(newest.candidates)} with {size_text(newest.candidate_bytes)} can be reclaimed: a plan waits"
        yield Problem(text, f"bookwarden orphans apply --plan {newest.plan_id}", "orphan-plans#applying")


def _of_queues(shown: Overview) -> Iterator[Problem]:
    queues, store = shown.queues.value, shown.store.value
    if store is not None and store.outbox_oldest_ms is not None:
        age_ms = shown.now_ms - store.outbox_oldest_ms
        if age_ms > _OUTBOX_MS:
            text = f"The outbox of brokers that mark is not emptied: its oldest node is {age_text(age_ms)} old"
            yield Problem(text, "bookwarden broker-marks status", "broker-marks#while-it-runs")
    if queues is None:
        return
    if queues.due_ms is not None and shown.now_ms - queues.due_ms > _OVERDUE_MS:
        sweep = next((job for job in store.jobs if job.name == "sweep"), None) if store is not None else None
        why = "no sweep runs" if sweep is not None and not sweep.holder else "the sweep does not get on"
        text = f"Marks have been due for {age_text(shown.now_ms - queues.due_ms)}: {why}"
        command = "bookwarden sweep" if why == "no sweep runs" else "bookwarden inflight"
        yield Problem(text, command, "deploy#when-it-stalls")
    if queues.dead_letters:
        number = "1 dead letter waits" if queues.dead_letters == 1 else f"{queues.dead_letters:,} dead letters wait"
        first = f", most of them: {queues.reasons[0].reason}" if queues.reasons else ""
        yield Problem(number + first, "bookwarden dlq list --group-by reason", "cli#dead-letters")


def _of_activity(shown: Overview) -> Iterator[Problem]:
    activity = shown.activity.value
    if activity is None:
        return
    for outcome, number in activity.swept:
        if outcome in _SERIOUS_OUTCOMES:
            text, runbook = _SERIOUS_OUTCOMES[outcome]
            sentence = text.format(f"{number:,}")
            yield Problem(sentence[0].upper() + sentence[1:], "bookwarden dlq list --group-by reason", runbook)
    lost = next((number for outcome, number in activity.followed if outcome == "inside the list"), 0)
    if lost:
        text = f"follow saw topics' lists lose {_ledgers(lost)} in the last 24 hours"
        yield Problem(text, "bookwarden orphans scan", "orphans#inside-the-list", serious=True)


def _of_disk(shown: Overview) -> Iterator[Problem]:
    found = shown.disk.value
    if found is None or found.summary is None:
        return
    for bookie in found.summary.bookies:
        share = bookie.used_share
        if share is not None and share >= NEARLY_FULL:
            text = f"{bookie.name} is {100 * share:.0f} % full: above 90 % it does no major compaction"
            yield Problem(text, "bookwarden disk --by bookie", "disk#by-bookie", share >= FULL)
        elif bookie.error:
            yield Problem(
                f"{bookie.name} does not tell of its disks: {bookie.error}",
                "bookwarden disk --by bookie",
                "disk#by-bookie",
            )
    forecast = found.summary.forecast
    if forecast is not None and forecast.full is not None:
        today = datetime.fromtimestamp(shown.now_ms / 1000, timezone.utc).date()
        try:
            left = (date.fromisoformat(forecast.full) - today).days
        except ValueError:
            return
        if left <= _FORECAST_DAYS:
            text = f"The disks of all bookies are full on {forecast.full} if they fill as they did"
            yield Problem(text, "bookwarden disk", "disk#growth-and-when-the-disks-are-full", serious=True)


def _of_moves(shown: Overview) -> Iterator[Problem]:
    moves, clients = shown.moves.value, shown.clients.value
    if moves is not None:
        for store in moves.stores:
            yield from metadata_problems(store, shown.now_ms)
        if moves.error:
            yield Problem(moves.error, "bookwarden bookie-clusters status", "howto/repair-bookie-clusters#dead-ends")
        if moves.switch is not None:
            yield from switch_problems(moves.switch)
            if moves.switch.build is not None:
                yield from build_problems(moves.switch.build)
    if clients is not None:
        yield from client_problems(clients)


def metadata_problems(store: StoreMove, now_ms: int) -> Iterator[Problem]:
    """Yield what holds the migration of a metadata store."""
    snapshot, runbook = store.snapshot, "howto/move-metadata#a-migration-that-stalls"
    command = "bookwarden metadata-migration status"
    if snapshot is None:
        yield Problem(f"The migration of {store.url}: {store.error}", command, runbook)
        return
    # While it lasts nothing of the store can be written.
    idle_s = max(0.0, (now_ms - snapshot.changed_ms) / 1000) if snapshot.changed_ms else 0.0
    for text in (*warnings_of_preparation(snapshot, idle_s), *warnings_of_copy(snapshot)):
        yield Problem(f"The migration of {store.url}: {text}", command, runbook, serious=True)
    if snapshot.phase == "FAILED":
        text = f"The migration of {store.url} FAILED: the source serves as before, and no start succeeds"
        yield Problem(text, command, "howto/move-metadata#after-failed")


def switch_problems(overview: SwitchOverview) -> Iterator[Problem]:
    """Yield what holds a switch of bookie clusters, and the brokers that do not know of it."""
    runbook, command = "howto/switch-bookie-clusters#when-a-step-fails", "bookwarden bookie-clusters"
    state = overview.state
    registry, found = state.registry, state.order
    if registry is None:
        return
    without = [one.name for one in state.brokers if one.follower is None]
    if without and registry.directive is not None:
        text = f"{_names(without)} without the jar: what is written there since the switch is lost to other brokers"
        yield Problem(text, f"{command} status", runbook, serious=True)
    if found is not None and found.order.is_under_way and found.is_free:
        text = f"The switch to {found.order.target} is in {state.phase.value}, and no process carries it out"
        yield Problem(text, f"{command} switch --resume", runbook)
    behind = [one.name for one in state.brokers if one.follower is not None and not one.follows(registry.epoch)]
    if behind and state.phase is Phase.LIVE_DUAL_READ:
        text = f"The switch to {registry.active} waits for {_names(behind)} to follow epoch {registry.epoch}"
        yield Problem(text, f"{command} status --watch", runbook)
    if state.phase is Phase.DONE_WITH_FAILURES and found is not None:
        text = f"The switch to {found.order.target} is made, and something else failed: {'; '.join(found.order.errors)}"
        yield Problem(text, f"{command} switch --resume", runbook)


def build_problems(found: FoundBuild) -> Iterator[Problem]:
    """Yield what holds a copy of ledgers to another bookie cluster."""
    one, command = found.newest, "bookwarden bookie-clusters"
    if found.is_stopped:
        text = f"The copy from {one.source} to {one.target} was stopped before it was through ({found.holder})"
        yield Problem(text, f"{command} build --resume", "moving-ledgers#build")
    failed = one.counts.of(CopyOutcome.FAILED)
    if failed:
        text = f"{_ledgers(failed)} could not be copied from {one.source} to {one.target}"
        yield Problem(text, f"{command} status", "moving-ledgers#what-came-of-each-ledger")


def client_problems(clients: ClientMove) -> Iterator[Problem]:
    """Yield what holds the move of clients to another cluster."""
    snapshot, runbook, command = clients.snapshot, "cluster-migration#states", "bookwarden cluster-migration watch"
    if snapshot is None:
        return
    # What is seen once may be a client on its way.
    for text in warnings_of(snapshot):
        yield Problem(f"Clients: {text}", command, runbook, serious=text.startswith(_LOST_SIGHT))
    for error in snapshot.errors[:_ERRORS]:
        yield Problem(f"Clients: {error}", command, runbook)


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:_BROKERS])
    return f"{shown} and {len(names) - _BROKERS:,} more" if len(names) > _BROKERS else shown


def _of_trash(shown: Overview) -> Iterator[Problem]:
    store = shown.store.value
    # What was read a while ago says nothing of now.
    if store is not None and store.has_trash and (store.lease is None or not store.lease.is_valid(shown.store.read_ms)):
        if store.lease is None:
            text = "Brokers keep nothing of what they drop: no sweep has given the trash a lease"
        else:
            age = age_text(shown.now_ms - store.lease.defer_until_ms)
            text = f"Brokers keep nothing more of what they drop: the lease of the trash ended {age} ago"
        yield Problem(text, "bookwarden inflight", "trash#when-nothing-more-is-kept")
    trash = shown.trash.value if shown.trash is not None else None
    if trash is not None and trash.unreadable:
        first = trash.unreadable[0]
        more = f", and {len(trash.unreadable) - 1:,} more" if len(trash.unreadable) > 1 else ""
        text = f"A node of the trash cannot be read: {first.path}: {first.error}{more}"
        yield Problem(text, "bookwarden trash list", "trash#formats")


def _of_topic(shown: Overview) -> Iterator[Problem]:
    topic = shown.topic.value if shown.topic is not None else None
    for part in topic.parts if topic is not None else ():
        lost = [one.ledger_id for one in part.ledgers if one.place in LOST_PLACES]
        if lost:
            text = f"{part.pins.topic}: {_ledgers(len(lost))} missing, or lost by its list: messages are out of reach"
            command = f"bookwarden ledger explain {lost[0]} --everywhere"
            yield Problem(text, command, "orphans#missing-ledgers", serious=True)


def age_text(milliseconds: float) -> str:
    """Return a length of time in its two largest units."""
    seconds = max(0, int(milliseconds / 1000))
    for unit, size, smaller, of in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // of
            return (
                f"{seconds // size} {unit} {rest} {smaller}"
                if rest and seconds < 10 * size
                else f"{seconds // size} {unit}"
            )
    return f"{seconds} s"


def _ledgers(number: int) -> str:
    return "1 ledger" if number == 1 else f"{number:,} ledgers"
