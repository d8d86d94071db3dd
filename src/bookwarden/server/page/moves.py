"""The page of moves as HTML and JSON: of metadata, of bookie clusters, of clients; their phases and what holds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from bookwarden.bookie_clusters.brokers import Broker
from bookwarden.bookie_clusters.documents import Overview as SwitchOverview
from bookwarden.bookie_clusters.documents import state_data
from bookwarden.bookie_clusters.moving.build import DONE, Build, FoundBuild
from bookwarden.bookie_clusters.offline.record import MovePhase, MoveRecord
from bookwarden.bookie_clusters.order import Phase
from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.cluster_migration.states import DONE as DONE_STATES
from bookwarden.cluster_migration.states import TopicState
from bookwarden.cluster_migration.watching import DrainOutcome, ending_of
from bookwarden.findings import size_text
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.server.page.charts import BarChart, Figure, stacked_bar
from bookwarden.server.page.problems import (
    Problem,
    age_text,
    build_problems,
    client_problems,
    metadata_problems,
    switch_problems,
)
from bookwarden.server.page.templates import encode_json, moment, plain, reading_fields, render
from bookwarden.server.page.values import ClientMove, Moves, Overview, StoreMove

_SOURCE: Final = "/page/moves.json"
_NAMES: Final = 5
_METADATA_PHASES: Final = ("PREPARATION", "COPYING", "COMPLETED")
_SWITCH_PHASES: Final = (Phase.SWITCH_TRIGGERED.value, Phase.LIVE_DUAL_READ.value, Phase.DONE.value)
_OFFLINE_PHASES: Final = tuple(phase.value for phase in MovePhase if phase is not MovePhase.ABANDONED)
_CLIENT_PHASES: Final = ("start", "drain", "verify", "finish")
_GOING: Final = frozenset({TopicState.SERVING, TopicState.WAITING, TopicState.DRAINING, TopicState.UNKNOWN})


class Step(NamedTuple):
    """A phase of a move."""

    name: str
    state: str  #: done, now, failed or next.


class MoveView(NamedTuple):
    """A move as it is shown."""

    title: str  #: What is moved.
    runbook: str  #: PAGE#SECTION.
    sentence: str  #: Where it is.
    steps: tuple[Step, ...] = ()  #: None where nothing was begun.
    facts: tuple[tuple[str, str], ...] = ()  #: Names and texts.
    held: tuple[Problem, ...] = ()  #: What holds it, and what to do.
    bar: BarChart | None = None  #: How much of it is done.
    bar_text: str = ""  #: Likewise as text.


def render_moves(shown: Overview) -> str:
    """Render the page `/moves`."""
    moves, clients = shown.moves.value, shown.clients.value
    views = [*_views_of(moves, shown.now_ms)] if moves is not None else []
    if clients is not None:
        views.append(_clients(clients, shown.now_ms))
    return render("moves", shown, views=views, under_way=[one for one in views if _is_under_way(one)], source=_SOURCE)


def moves_json(shown: Overview) -> bytes:
    """Return what the page `/moves` shows; bookie clusters are as `bookie-clusters status` has them."""
    moves, clients = shown.moves.value, shown.clients.value
    snapshot = None if clients is None else clients.snapshot
    metadata: list[Any] = [] if moves is None else [plain(one) for one in moves.stores]
    switch = None if moves is None or moves.switch is None else state_data("", moves.switch)
    return encode_json(
        {
            "moves": {
                **reading_fields(shown.moves),
                "metadata": metadata,
                "bookieClusters": switch,
                "problem": "" if moves is None else moves.error,
            },
            "clients": {
                **reading_fields(shown.clients),
                "snapshot": None if snapshot is None else _snapshot_data(snapshot),
            },
        }
    )


def _snapshot_data(snapshot: MigrationSnapshot) -> dict[str, Any]:
    return {
        "at_ms": snapshot.at_ms,
        "flagged": dict(snapshot.flagged),
        "states": {state.value: number for state, number in snapshot.states.items()},
        "unread": snapshot.unread,
        "errors": list(snapshot.errors),
        "restarted": list(snapshot.restarted),
    }


def _is_under_way(view: MoveView) -> bool:
    return bool(view.held) or any(step.state == "now" for step in view.steps)


def _views_of(moves: Moves, now_ms: int) -> Iterator[MoveView]:
    for store in moves.stores:
        yield _metadata(store, now_ms)
    if moves.switch is None:
        yield MoveView("Bookie clusters", "bookie-clusters#switch", moves.error)
        return
    yield _switch(moves.switch, now_ms)
    if moves.switch.build is not None:
        yield _build(moves.switch.build, now_ms)
    if moves.switch.move is not None:
        yield _offline(moves.switch.move)


def _steps(names: Sequence[str], now: str, *, failed: bool = False, over: bool = False) -> tuple[Step, ...]:
    """Return the phases up to one, which is under way, over or failed, and those that follow."""
    at = names.index(now) if now in names else -1
    state = "failed" if failed else "done" if over else "now"
    return tuple(
        Step(name, "done" if number < at else state if number == at else "next") for number, name in enumerate(names)
    )


def _metadata(store: StoreMove, now_ms: int) -> MoveView:
    title, runbook, snapshot = f"Metadata of {store.url}", "metadata-migration#what-happens", store.snapshot
    if snapshot is None:
        return MoveView(title, runbook, store.error, held=tuple(metadata_problems(store, now_ms)))
    if snapshot.phase in (None, "NOT_STARTED"):
        return MoveView(title, runbook, "No migration of it was begun.")
    phase, is_over = snapshot.phase or "", snapshot.phase == "COMPLETED"
    names = (*_METADATA_PHASES[:-1], "FAILED") if phase == "FAILED" else _METADATA_PHASES
    since = f", since {moment(snapshot.changed_ms)}" if snapshot.changed_ms else ""
    facts = [("target", snapshot.target_url or "-"), ("writes stopped for", f"{snapshot.blocked_seconds:,.1f} s")]
    if snapshot.participants and not is_over:
        facts.append((f"{len(snapshot.participants):,} participants not gone", _some(sorted(snapshot.participants))))
    return MoveView(
        title,
        runbook,
        f"{phase}{since}.",
        _steps(names, phase, failed=phase == "FAILED", over=is_over),
        tuple(facts),
        tuple(metadata_problems(store, now_ms)),
    )


def _switch(overview: SwitchOverview, now_ms: int) -> MoveView:
    state, title, runbook = overview.state, "Bookie clusters", "bookie-clusters#switch"
    registry, found = state.registry, state.order
    held = tuple(switch_problems(overview))
    if registry is None:
        return MoveView(title, runbook, "No bookie cluster is registered: there is nothing to switch.", held=held)
    facts = [
        (
            "registered",
            ", ".join(f"{one.name} ({registry.status_of(one.name).value})" for one in registry.in_reading_order()),
        ),
        ("registry", f"epoch {registry.epoch}"),
        ("brokers", f"{_following(state.brokers, registry.epoch):,} of {len(state.brokers):,} follow it"),
    ]
    if overview.promotion is not None:
        promoted = overview.promotion
        facts.append(("promoted", f"what was in {promoted.target} before {moment(promoted.through_ms)}"))
    if state.phase in (Phase.NOT_REGISTERED, Phase.REGISTERED) or found is None:
        return MoveView(title, runbook, "Nothing was switched.", (), tuple(facts), held)
    order = found.order
    facts.insert(0, ("order", f"{order.source} to {order.target}, {moment(order.time_ms)}, by {order.origin}"))
    phase, is_over = state.phase.value, state.phase in (Phase.DONE, Phase.DONE_WITH_FAILURES)
    if state.phase is Phase.ROLLBACK or (is_over and order.is_rollback):
        names: Sequence[str] = (Phase.ROLLBACK.value, phase if is_over else Phase.DONE.value)
    else:
        names = (*_SWITCH_PHASES[:-1], phase if is_over else Phase.DONE.value)
    ago = age_text(now_ms - order.time_ms)
    return MoveView(
        title,
        runbook,
        f"{phase}: the {'rollback' if order.is_rollback else 'switch'} to {order.target} was ordered {ago} ago.",
        _steps(names, phase, failed=state.phase is Phase.DONE_WITH_FAILURES, over=is_over),
        tuple(facts),
        held,
    )


def _following(brokers: Sequence[Broker], epoch: int) -> int:
    return sum(one.follows(epoch) for one in brokers)


def _build(found: FoundBuild, now_ms: int) -> MoveView:
    one, title, runbook = found.newest, "Copy of ledgers", "moving-ledgers#build"
    facts = [("of", f"{one.scope} from {one.source} to {one.target}"), ("files", one.folder)]
    if one.is_listed:
        facts.append(
            ("looked at", f"{one.looked_at:,} of {one.ledgers:,} ledgers, {_of(one.size_looked_at, one.size)}")
        )
    facts += [
        (outcome.value, f"{one.counts.of(outcome):,} ledgers, {size_text(one.counts.size_of(outcome))}")
        for outcome in CopyOutcome
        if one.counts.of(outcome)
    ]
    steps = _steps(("listing", "copying", "through"), _build_phase(one), over=one.is_through)
    held = tuple(build_problems(found))
    if one.is_through:
        sentence = f"The newest is through since {_ended(one, now_ms)}."
        return MoveView(title, runbook, sentence, steps, tuple(facts), held)
    left = "" if one.left_s is None or found.is_free else f", {age_text(one.left_s * 1000)} left"
    share = one.share_done if one.is_listed else 0.0
    bar = stacked_bar([Figure("done", share, "", f"{100 * share:.0f} %")], 1.0)
    by = "stopped" if found.is_stopped else f"by {found.holder}"
    last = found.last_through
    if last is not None:
        done = f"{last.counts.of(*DONE):,} ledgers there, {last.counts.of(CopyOutcome.FAILED):,} failed"
        facts.append(("the one before", f"through since {_ended(last, now_ms)}: {done}"))
    return MoveView(
        title, runbook, f"{100 * share:.0f} % done, {by}{left}.", steps, tuple(facts), held, bar, f"{100 * share:.0f} %"
    )


def _build_phase(one: Build) -> str:
    return "through" if one.is_through else "copying" if one.is_listed else "listing"


def _ended(one: Build, now_ms: int) -> str:
    return "?" if one.ended_ms is None else f"{moment(one.ended_ms)} ({age_text(now_ms - one.ended_ms)})"


def _of(size: int, whole: int) -> str:
    return f"{size_text(size)} of {size_text(whole)}"


def _offline(record: MoveRecord) -> MoveView:
    phase = record.phase
    facts = (
        ("from", f"{record.source.url}, {record.source.ledgers_root}"),
        ("to", f"{record.target.url}, {record.target.ledgers_root}"),
    )
    runbook = "howto/move-ledgers-offline"
    title = "Move of ledgers with stopped brokers"
    if phase is MovePhase.ABANDONED:
        return MoveView(title, runbook, "It was given up: brokers use the source.", (), facts)
    sentence = {
        MovePhase.AHEAD: "Brokers write to the source, and what is closed is copied.",
        MovePhase.STOPPING: "All brokers have to be stopped; then the same command goes on.",
        MovePhase.REST: "Brokers are stopped: the rest is recovered, copied and compared.",
        MovePhase.DONE: "Everything was found the same; brokers may start on the target.",
    }[phase]
    steps = _steps(_OFFLINE_PHASES, phase.value, over=phase is MovePhase.DONE)
    return MoveView(title, runbook, sentence, steps, facts)


def _clients(clients: ClientMove, now_ms: int) -> MoveView:
    title, runbook, snapshot = "Clients from blue to green", "cluster-migration#states", clients.snapshot
    if not clients.has_green:
        return MoveView(title, runbook, "The settings name no other cluster that clients could be moved to.")
    if snapshot is None:
        return MoveView(title, runbook, "No namespace is being migrated.")
    held = tuple(client_problems(clients))
    flagged = sorted(name for name, is_on in snapshot.flagged.items() if is_on)
    states = snapshot.states
    facts = [
        ("sent to green", _some(flagged) or "no namespace"),
        *((state.value, "1 topic" if number == 1 else f"{number:,} topics") for state, number in states.items()),
        ("left to read", f"{snapshot.unread:,} entries"),
        ("seen", f"{age_text(now_ms - snapshot.at_ms)} ago"),
    ]
    ending, whole = ending_of(snapshot), len(snapshot.topics)
    if ending is DrainOutcome.FLAG_OFF:
        steps = _steps(_CLIENT_PHASES, "start", failed=True)
        sentence = "The flag is off: blue sends no client to green."
    elif ending is DrainOutcome.DRAINED:
        steps = _steps(_CLIENT_PHASES, "verify")
        sentence = "Blue has nothing left to read: `cluster-migration verify` is next, then `finish`."
    else:
        steps = _steps(_CLIENT_PHASES, "drain")
        sentence = f"{snapshot.done:,} of {whole:,} topics are done."
    bar = stacked_bar(
        [
            Figure("named", sum(number for state, number in states.items() if state in DONE_STATES), "", "done"),
            Figure("unexplained", sum(number for state, number in states.items() if state in _GOING), "", "under way"),
            Figure(
                "unnamed",
                sum(number for state, number in states.items() if state not in _GOING | DONE_STATES),
                "",
                "held, or left",
            ),
        ],
        whole,
    )
    return MoveView(title, runbook, sentence, steps, tuple(facts), held, bar, f"{snapshot.done:,} of {whole:,}")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
