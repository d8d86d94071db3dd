"""The web page of `bookwarden serve`: what it says of what was read, escaped, and by whom it may be asked for."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from bookwarden.bookie_clusters.brokers import Broker
from bookwarden.bookie_clusters.moving.build import CopyCounts
from bookwarden.bookie_clusters.offline.record import MovePhase, MoveRecord
from bookwarden.bookie_clusters.order import Phase
from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.cluster_migration.states import CursorStatus, TopicStatus
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.config import Settings, load_settings
from bookwarden.ledgers.disk_growth import Forecast
from bookwarden.ledgers.disk_use import BookieUse, Use
from bookwarden.ledgers.managed_ledger import ManagedLedgerInfo, Position
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.ledgers.pins import CursorState, TopicPins
from bookwarden.ledgers.trash import KeepRule, TrashLease
from bookwarden.metadata_migration.watching import PhaseSnapshot
from bookwarden.pipelines.disk.summary import DiskSummary
from bookwarden.server.app import make_app
from bookwarden.server.page.disk import DiskPlace, disk_json, render_disk
from bookwarden.server.page.moves import moves_json, render_moves
from bookwarden.server.page.overview import overview_json, render_overview
from bookwarden.server.page.problems import Problem, age_text, headline, is_complete, problems_of
from bookwarden.server.page.routes import PAGES
from bookwarden.server.page.scan import render_scan
from bookwarden.server.page.topic import render_topic, topic_json
from bookwarden.server.page.trash import render_trash, trash_json
from bookwarden.server.page.values import (
    Activity,
    Alarm,
    Alarms,
    ClientMove,
    DamagedNode,
    DiskFolder,
    Job,
    LedgerPlace,
    Moves,
    OutcomeCount,
    Overview,
    Plan,
    Queues,
    Reading,
    ReasonCount,
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
from servers.asgi import Answer, request
from servers.page_sample import (
    NOW_MS,
    disk_summary,
    moves_sample,
    quiet_moves,
    sample,
    sample_app,
    shown_with,
    trash_sample,
)

DOCS = Path(__file__).parents[3] / "docs"
EVIL = "<script>alert(1)</script>\"'&"
WELL = sample(well=True)
IN_TRASH = Wanted(trash=True)
ALL = Wanted(trash=True, topic="orders")


def said(shown: Overview) -> str:
    """Return the one line of an overview."""
    return headline(problems_of(shown), complete=is_complete(shown))


def queues(**fields: Any) -> Callable[[Overview], Overview]:
    return lambda shown: replace(shown, queues=Reading(Queues(7, **fields), NOW_MS))


def newest(**fields: Any) -> Callable[[Overview], Overview]:
    values = {"candidates": 0, "candidate_bytes": 0, "missing": 0, "marked": 0, "applied_ms": 0, "is_applied": True}
    plan = Plan("one", NOW_MS, 9, **{**values, **fields})
    return lambda shown: replace(shown, scans=Reading(Scans((plan,)), NOW_MS))


def account(**fields: Any) -> Callable[[Overview], Overview]:
    summary = replace(disk_summary(), **{"bookies": (), "forecast": None, **fields})
    return lambda shown: replace(shown, disk=Reading(DiskFolder("/d", summary), NOW_MS))


def seen(**fields: Any) -> Callable[[Overview], Overview]:
    return lambda shown: replace(shown, activity=Reading(Activity(**fields), NOW_MS))


def silent(part: str) -> Callable[[Overview], Overview]:
    return lambda shown: replace(shown, **{part: Reading(None, 0, "it is away", NOW_MS)})


def trash(**fields: Any) -> Callable[[Overview], Overview]:
    return lambda shown: replace(shown, trash=Reading(replace(Trash(), **fields), NOW_MS))


def moving(phase: str | None, changed_ms: int = NOW_MS, error: str = "", **left: str) -> Callable[[Overview], Overview]:
    snapshot = None if error else PhaseSnapshot(NOW_MS, phase, "oxia://o", changed_ms, changed_ms, left)
    store = StoreMove("zk:z", snapshot, error)
    return lambda shown: replace(shown, moves=Reading(Moves((store,), quiet_moves().switch), NOW_MS))


def switching(
    phase: Phase = Phase.DONE, *, free: bool = False, brokers: int | None = None, **order: Any
) -> Callable[[Overview], Overview]:
    """Return a change to the invented switch, whose third broker is behind; ``brokers`` keeps the first ones."""
    switch = moves_sample().switch
    assert switch is not None
    found = switch.state.order
    assert found is not None
    state = replace(
        switch.state,
        phase=phase,
        brokers=switch.state.brokers[:brokers],
        order=replace(found, order=replace(found.order, phase=phase, **order), is_free=free),
    )
    moves = Moves((), switch._replace(state=state, build=None))
    return lambda shown: replace(shown, moves=Reading(moves, NOW_MS))


def building(*, free: bool = False, **fields: Any) -> Callable[[Overview], Overview]:
    switch, quiet = moves_sample().switch, quiet_moves().switch
    assert switch is not None
    assert quiet is not None
    assert switch.build is not None
    build = replace(switch.build, newest=replace(switch.build.newest, **fields), is_free=free)
    return lambda shown: replace(shown, moves=Reading(Moves((), quiet._replace(build=build)), NOW_MS))


def clients(topic: TopicStatus | None = None, **fields: Any) -> Callable[[Overview], Overview]:
    seen = MigrationSnapshot(NOW_MS, () if topic is None else (topic,), {"t/n": True})
    return lambda shown: replace(shown, clients=Reading(ClientMove(True, replace(seen, **fields)), NOW_MS))


def marked(**fields: Any) -> TopicStatus:
    info = ManagedLedgerInfo(terminated=Position(1, 1))
    seen = TopicStatus("persistent://t/n/a", info, True, loaded=True, cursors=(CursorStatus("s", 5, 1),))
    return replace(seen, **fields)


def lease(until_ms: int | None, *, has_trash: bool = True) -> Callable[[Overview], Overview]:
    held = None if until_ms is None else TrashLease(until_ms, "sweep", 1, (KeepRule("*/*", 3_600, 0),))
    return lambda shown: replace(shown, store=Reading(StoreState(has_trash=has_trash, lease=held), NOW_MS))


def without_jar(shown: Overview) -> Overview:
    """Return it with a broker more, which has no jar."""
    moves = shown.moves.value
    assert moves is not None
    assert moves.switch is not None
    state = replace(moves.switch.state, brokers=(*moves.switch.state.brokers, Broker("old-broker:8080")))
    return replace(shown, moves=Reading(replace(moves, switch=moves.switch._replace(state=state)), NOW_MS))


BAD: dict[str, tuple[Callable[[Overview], Overview], str, str]] = {
    **{
        part: (silent(part), f"{name}: no answer since 12:04:31 UTC: it is away", command)
        for part, name, command in (
            ("queues", "The brokers", "bookwarden inflight"),
            ("store", "The metadata store", "bookwarden config check"),
            ("activity", "The outcome tables", ""),
            ("scans", "The folder of scans", "bookwarden orphans list"),
            ("disk", "The account of disk use", "bookwarden disk"),
            ("alarms", "Prometheus", ""),
            ("moves", "The records of moves", "bookwarden bookie-clusters status"),
            ("clients", "Blue and green", "bookwarden cluster-migration watch"),
            ("trash", "The trash", "bookwarden trash list"),
            ("topic", "The topic", "bookwarden disk why TOPIC"),
        )
    },
    "dead letters": (
        queues(dead_letters=4, reasons=(ReasonCount("no driver", 3),), letters_read=4),
        "4 dead letters wait, most of them: no driver",
        "bookwarden dlq list --group-by reason",
    ),
    "overdue": (
        queues(oldest_ms=0, due_ms=NOW_MS - 3_600_000),
        "Marks have been due for 1 h: the sweep does not get on",
        "bookwarden inflight",
    ),
    "no sweep": (
        lambda shown: replace(
            queues(oldest_ms=0, due_ms=NOW_MS - 3_600_000)(shown),
            store=Reading(StoreState(jobs=(Job("sweep", ""),)), NOW_MS),
        ),
        "Marks have been due for 1 h: no sweep runs",
        "bookwarden sweep",
    ),
    "outbox": (
        lambda shown: replace(shown, store=Reading(StoreState(5, NOW_MS - 660_000), NOW_MS)),
        "The outbox of brokers that mark is not emptied: its oldest node is 11 min old",
        "bookwarden broker-marks status",
    ),
    "orphans": (
        newest(candidates=2, candidate_bytes=1024, is_applied=False),
        "2 ledgers with 1.0 KiB can be reclaimed: a plan waits",
        "bookwarden orphans apply --plan one",
    ),
    "missing": (
        newest(missing=1),
        "1 ledger missing: metadata names them, and BookKeeper has them no more",
        "bookwarden orphans plan show one",
    ),
    "inside": (
        lambda shown: replace(shown, scans=Reading(Scans(inside_lists=3), NOW_MS)),
        "Topics' lists lost 3 ledgers: acknowledged messages are out of reach",
        "bookwarden orphans plan show",
    ),
    "damaged plan": (
        lambda shown: replace(shown, scans=Reading(Scans(damaged=("/o/p: it was changed",)), NOW_MS)),
        "A plan cannot be read: /o/p: it was changed",
        "bookwarden orphans scan",
    ),
    "forged": (
        seen(swept=(OutcomeCount("mismatch", 2),)),
        "2 marks of the last 24 hours may be forged",
        "bookwarden dlq list --group-by reason",
    ),
    "lost by a list": (
        seen(followed=(OutcomeCount("inside the list", 1),)),
        "follow saw topics' lists lose 1 ledger in the last 24 hours",
        "bookwarden orphans scan",
    ),
    "full bookie": (
        account(bookies=(BookieUse("b:1", 0, 0, 0, 0, 0, 100, 8),)),
        "b:1 is 92 % full: above 90 % it does no major compaction",
        "bookwarden disk --by bookie",
    ),
    "silent bookie": (
        account(bookies=(BookieUse("b:1", 0, 0, 0, 0, 0, error="no answer"),)),
        "b:1 does not tell of its disks: no answer",
        "bookwarden disk --by bookie",
    ),
    "disks full soon": (
        account(forecast=Forecast(9, 1, "2026-12-05", "2026-12-04", None)),
        "The disks of all bookies are full on 2026-12-05 if they fill as they did",
        "bookwarden disk",
    ),
    "stalled preparation": (
        moving("PREPARATION", NOW_MS - 151_000),
        "The migration of zk:z: PREPARATION lasts longer than its broker waits: that broker has ended, or cannot write "
        "the flag; see 'A migration that stalls' in docs/howto/move-metadata.md",
        "bookwarden metadata-migration status",
    ),
    "participant left": (
        moving("COPYING", broker="b:1"),
        "The migration of zk:z: the copy began without broker (b:1): what they write to the source now may be lost; "
        "find them, and verify the copy",
        "bookwarden metadata-migration status",
    ),
    "failed migration": (
        moving("FAILED"),
        "The migration of zk:z FAILED: the source serves as before, and no start succeeds",
        "bookwarden metadata-migration status",
    ),
    "damaged flag": (
        moving(None, error="it cannot be understood"),
        "The migration of zk:z: it cannot be understood",
        "bookwarden metadata-migration status",
    ),
    "damaged registry": (
        lambda shown: replace(shown, moves=Reading(Moves(error="the registry is none"), NOW_MS)),
        "the registry is none",
        "bookwarden bookie-clusters status",
    ),
    "switch that nobody carries out": (
        switching(Phase.SWITCH_TRIGGERED, free=True, brokers=2),
        "The switch to fast is in SWITCH_TRIGGERED, and no process carries it out",
        "bookwarden bookie-clusters switch --resume",
    ),
    "broker behind": (
        switching(Phase.LIVE_DUAL_READ),
        "The switch to fast waits for broker-3.example:8080 to follow epoch 7",
        "bookwarden bookie-clusters status --watch",
    ),
    "switch with failures": (
        switching(Phase.DONE_WITH_FAILURES, brokers=2, errors=("no event was sent",)),
        "The switch to fast is made, and something else failed: no event was sent",
        "bookwarden bookie-clusters switch --resume",
    ),
    "broker without the jar": (
        lambda shown: without_jar(switching(brokers=1)(shown)),
        "old-broker:8080 without the jar: what is written there since the switch is lost to other brokers",
        "bookwarden bookie-clusters status",
    ),
    "stopped copy": (
        building(free=True),
        "The copy from old to fast was stopped before it was through (ops-1.example process 8207)",
        "bookwarden bookie-clusters build --resume",
    ),
    "failed copies": (
        building(counts=CopyCounts(Counter({(CopyOutcome.FAILED, "cursor"): 1}))),
        "1 ledger could not be copied from old to fast",
        "bookwarden bookie-clusters status",
    ),
    "stranded topic": (
        clients(marked(loaded=False)),
        "Clients: STRANDED: persistent://t/n/a (s 5 unread): `cluster-migration abort` now, restart its consumers on "
        "blue to drain it, then `start` again",
        "bookwarden cluster-migration watch",
    ),
    "silent broker of blue": (
        clients(errors=("a broker does not say which topics it has",)),
        "Clients: a broker does not say which topics it has",
        "bookwarden cluster-migration watch",
    ),
    "lease": (
        lease(NOW_MS - 420_000),
        "Brokers keep nothing more of what they drop: the lease of the trash ended 7 min ago",
        "bookwarden inflight",
    ),
    "no lease": (
        lease(None),
        "Brokers keep nothing of what they drop: no sweep has given the trash a lease",
        "bookwarden inflight",
    ),
    "damaged node of the trash": (
        trash(unreadable=(DamagedNode("/t/1", "it is no JSON"), DamagedNode("/t/2", "nor this"))),
        "A node of the trash cannot be read: /t/1: it is no JSON, and 1 more",
        "bookwarden trash list",
    ),
    "alarm": (
        lambda shown: replace(
            shown, alarms=Reading(Alarms("http://p", (Alarm("Away", "firing", "", "", "it is"),)), NOW_MS)
        ),
        "Alarm Away: it is",
        "",
    ),
}


def test_all_is_well() -> None:
    assert said(WELL) == "All is well"
    assert "All is well" in render_overview(WELL)
    assert "All is well" in render_disk(WELL, DiskPlace())


@pytest.mark.parametrize("name", BAD)
def test_each_problem_is_named_with_its_command(name: str) -> None:
    change, text, command = BAD[name]
    shown = change(WELL)
    assert [(one.text, one.command) for one in problems_of(shown)] == [(text, command)]
    assert said(shown) == "1 thing needs a look"
    page = render_overview(shown)
    assert "All is well" not in page
    assert command in page


def test_what_loses_data_in_a_move_is_serious() -> None:
    serious = {name for name, (change, *_) in BAD.items() if any(one.serious for one in problems_of(change(WELL)))}
    assert {"stalled preparation", "participant left", "broker without the jar", "stranded topic"} <= serious
    assert not {"broker behind", "failed migration", "stopped copy", "silent broker of blue"} & serious


def test_a_store_that_is_away_is_one_problem() -> None:
    away = silent("moves")(silent("store")(WELL))
    assert [one.text for one in problems_of(away)] == ["The metadata store: no answer since 12:04:31 UTC: it is away"]


def test_what_was_not_read_yet_is_not_called_well() -> None:
    nothing = Overview("c", NOW_MS)
    assert said(nothing) == "Nothing is known to be wrong; not everything has answered yet"
    assert "not read yet" in render_overview(nothing)
    assert "Nothing is measured yet" in render_disk(nothing, DiskPlace())


def test_what_is_pending_or_far_away_is_no_problem() -> None:
    pending = Alarms("http://p", (Alarm("Away", "pending", "", "", ""),))
    far = account(forecast=Forecast(9, 1, "2027-12-05", "2027-12-04", None))(WELL)
    assert said(replace(far, alarms=Reading(pending, NOW_MS))) == "All is well"


def test_an_alarm_leads_to_its_own_runbook_or_to_the_list() -> None:
    own = Alarm("Away", "firing", "", "", "", "deploy#when-it-stalls")
    for alarm, runbook in ((own, "deploy#when-it-stalls"), (own._replace(runbook=""), "monitoring#alerts")):
        (found,) = problems_of(replace(WELL, alarms=Reading(Alarms("http://p", (alarm,)), NOW_MS)))
        assert found.runbook == runbook


def test_a_trash_that_is_not_set_up_is_no_problem() -> None:
    for until_ms in (None, NOW_MS - 1):
        assert said(lease(until_ms, has_trash=False)(WELL)) == "All is well"
    # The lease was read a while ago: whether it holds now is not known.
    old = lease(NOW_MS + 5)(WELL)
    assert said(replace(old, now_ms=NOW_MS + 10_000)) == "All is well"


def test_the_serious_comes_first() -> None:
    shown = newest(candidates=2, missing=1, is_applied=False)(WELL)
    assert [one.serious for one in problems_of(shown)] == [True, False]


def test_nothing_was_ever_done() -> None:
    """Folders that are empty are no problem."""
    empty = Overview(
        "c",
        NOW_MS,
        *(
            Reading(value, NOW_MS)
            for value in (
                *(Queues(0), StoreState(), Activity(), Scans(), DiskFolder("/d"), Alarms()),
                *(quiet_moves(), ClientMove()),
            )
        ),
    )
    assert said(empty) == "All is well"
    page = render_overview(empty)
    for text in (
        "No plan yet",
        "No Prometheus",
        "Nothing was deleted in 14 days.",
        "no outcome yet",
        "not measured yet",
    ):
        assert text in page
    assert "keeps its last result in <code>/d</code>" in render_disk(empty, DiskPlace())


def test_every_text_is_escaped() -> None:
    evil = _with_texts(shown_with(sample(), ALL), EVIL)
    pages = [render_overview(evil), render_disk(evil, DiskPlace()), render_scan(evil, "")]
    # A participant's name is a key.
    held = moving("COPYING", **{EVIL: EVIL})(evil)
    pages += [
        render_moves(evil),
        render_moves(held),
        render_trash(evil),
        render_topic(evil, EVIL),
        render_topic(replace(evil, topic=None), EVIL),
    ]
    pages += [render_disk(evil, DiskPlace(tenant=EVIL)), render_disk(evil, DiskPlace(namespace=f"{EVIL}/{EVIL}"))]
    for page in pages:
        assert "&lt;script&gt;" in page
        assert page.count("<script") == 1, "only that of the page's own file"
        assert "alert(1)</script>" not in page


def _with_texts(value: Any, text: str) -> Any:
    """Put a text in place of every text in a value, but those by which it is decided."""
    if isinstance(value, str):
        return value if re.fullmatch(r"sweep|follow|firing|\d{4}-\d\d-\d\d|", value) else text
    if isinstance(value, Mapping):
        return {name: _with_texts(one, text) for name, one in value.items()}
    if hasattr(value, "_fields"):
        return type(value)(*(_with_texts(one, text) for one in value))
    if isinstance(value, tuple):
        return tuple(_with_texts(one, text) for one in value)
    if hasattr(value, "__dataclass_fields__"):
        return replace(value, **{name: _with_texts(getattr(value, name), text) for name in value.__dataclass_fields__})
    return value


def steps_of(page: str) -> list[tuple[str, str]]:
    """Return the phases on a page, each with its state."""
    return re.findall(r'<li class="(\w+)"[^>]*><span aria-hidden="true">.</span> ([\w ]+)<', page)


def test_nothing_under_way_is_one_sentence() -> None:
    page = render_moves(WELL)
    assert "No move is under way." in page
    assert steps_of(page) == []
    assert "No move is under way." not in render_moves(sample())
    assert "not read yet" in render_moves(Overview("c", NOW_MS))
    assert "No move is under way." not in render_moves(Overview("c", NOW_MS))


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        (moving("PREPARATION"), "now PREPARATION, next COPYING, next COMPLETED"),
        (moving("COPYING"), "done PREPARATION, now COPYING, next COMPLETED"),
        (moving("COMPLETED"), "done PREPARATION, done COPYING, done COMPLETED"),
        (moving("FAILED"), "done PREPARATION, done COPYING, failed FAILED"),
        (switching(Phase.SWITCH_TRIGGERED), "now SWITCH_TRIGGERED, next LIVE_DUAL_READ, next DONE"),
        (switching(Phase.LIVE_DUAL_READ), "done SWITCH_TRIGGERED, now LIVE_DUAL_READ, next DONE"),
        (switching(Phase.DONE), "done SWITCH_TRIGGERED, done LIVE_DUAL_READ, done DONE"),
        (
            switching(Phase.DONE_WITH_FAILURES),
            "done SWITCH_TRIGGERED, done LIVE_DUAL_READ, failed DONE_WITH_FAILURES",
        ),
        (switching(Phase.ROLLBACK, is_rollback=True), "now ROLLBACK, next DONE"),
        (switching(Phase.DONE, is_rollback=True), "done ROLLBACK, done DONE"),
        (building(is_listed=False), "now listing, next copying, next through"),
        (building(), "done listing, now copying, next through"),
        (building(ended_ms=NOW_MS), "done listing, done copying, done through"),
        (clients(marked()), "done start, now drain, next verify, next finish"),
        (clients(marked(cursors=())), "done start, done drain, now verify, next finish"),
        (clients(marked(), flagged={"t/n": False}), "failed start, next drain, next verify, next finish"),
    ],
)
def test_each_move_has_its_phases(change: Callable[[Overview], Overview], steps: str) -> None:
    assert ", ".join(f"{state} {name}" for state, name in steps_of(render_moves(change(WELL)))) == steps


@pytest.mark.parametrize("phase", MovePhase)
def test_a_move_with_stopped_brokers_has_its_phase(phase: MovePhase) -> None:
    quiet = quiet_moves().switch
    assert quiet is not None
    place = LedgersRoot("zk:a:2181", "/ledgers")
    record = MoveRecord("0123abcd", place, "i", place, "j", "zk://b", "/f", phase)
    page = render_moves(replace(WELL, moves=Reading(Moves((), quiet._replace(move=record)), NOW_MS)))
    assert "zk:a:2181, /ledgers" in page
    assert ("It was given up" in page) is (phase is MovePhase.ABANDONED)
    current = [name for state, name in steps_of(page) if state == "now"]
    assert current == ([] if phase in (MovePhase.ABANDONED, MovePhase.DONE) else [phase.value])


def commands_of(*generations: Summary) -> list[str]:
    shown = replace(WELL, trash=Reading(Trash(generations), NOW_MS))
    return [one["command"] for one in json.loads(trash_json(shown))["value"]["generations"]]


def dropped(topic: str, what: str = "topic", generation: int = 7, subscriptions: tuple[str, ...] = ()) -> Summary:
    return Summary(f"persistent://{topic}", generation, what, 5, ("b:1",), 1, 2, subscriptions, False, None, (), "")


def ledger(ledger_id: int, place: LedgerPlace, begun_ms: int, closed_ms: int = 0) -> TopicLedger:
    return TopicLedger(ledger_id, 10, 1_024, begun_ms, closed_ms, place)


def topic_of(*ledgers: TopicLedger, cursors: tuple[CursorState, ...] = ()) -> Topic:
    found = TopicPins("persistent://t/n/a", True, (), 0, 0, (), "", ())
    return Topic(found.topic, (TopicPart(found, ledgers, cursors),))


def page_of(topic: Topic) -> str:
    return render_topic(replace(WELL, topic=Reading(topic, NOW_MS)), topic.name)


def drawn(page: str, css: str) -> list[tuple[float, float]]:
    """Return where the rectangles of a class are, and how wide."""
    found = re.findall(rf'<rect class="{css}" x="([\d.]+)" width="([\d.]+)"', page)
    return [(float(x), float(width)) for x, width in found]


def test_a_ledger_is_drawn_along_time_and_a_cursor_where_it_stands() -> None:
    hour = 3_600_000
    ledgers = (
        ledger(5, LedgerPlace.OFFLOADED, NOW_MS - 10 * hour, NOW_MS - 5 * hour),
        ledger(6, LedgerPlace.BOOKIES, NOW_MS - 5 * hour),
    )
    cursors = (
        CursorState("half", Position(5, 4), behind=7, consumers=0),
        CursorState("before", Position(3, 9)),
        CursorState("behind", Position(9, 9)),
        CursorState("reader", Position(5, 1), durable=False),
        CursorState("lost", None),
    )
    page = page_of(topic_of(*ledgers, cursors=cursors))
    assert drawn(page, "offloaded part") == [(0.0, 500.0)]
    assert drawn(page, "named part") == [(500.0, 500.0)]
    assert drawn(page, "unread") == [(0.0, 1000.0), (0.0, 1000.0), (250.0, 750.0), (1000.0, 0.0)]
    assert "7 behind it, no consumer" in page
    assert "reader stands at" not in page
    assert "ledger 5: offloaded, 10 entries, 1.0 KiB, closed 2026-11-28 07:04 UTC" in page


def test_many_ledgers_are_few_rectangles_and_a_lost_one_is_seen() -> None:
    many = [ledger(at, LedgerPlace.BOOKIES, NOW_MS - (9_000 - at) * 1_000) for at in range(9_000)]
    many[4_000] = many[4_000]._replace(place=LedgerPlace.GAP)
    page = page_of(topic_of(*many))
    assert len(drawn(page, "named part")) < 300
    ((x, width),) = drawn(page, "gap part")
    assert abs(x - 444) < 5
    assert width >= 4
    assert "bookwarden ledger explain 4000" in page


def test_times_that_are_not_known_are_those_of_the_neighbours() -> None:
    hour = 3_600_000
    page = page_of(
        topic_of(
            ledger(1, LedgerPlace.ORPHAN, NOW_MS - 10 * hour),
            ledger(2, LedgerPlace.MISSING, 0, NOW_MS - 4 * hour),
            ledger(3, LedgerPlace.BOOKIES, NOW_MS - 2 * hour),
        )
    )
    assert drawn(page, "unnamed part") == [(0.0, 800.0)]
    assert drawn(page, "lost part") == [(600.0, 4.17)]
    assert drawn(page, "named part") == [(800.0, 200.0)]


def test_a_topic_is_shown_with_what_holds_it() -> None:
    page = render_topic(shown_with(sample(), ALL), "orders")
    assert "⚠ audit-2024" in page
    assert "⚠ warehouse" not in page
    assert "holds the oldest ledger and 34 later ones, 66.6 GiB" in page
    assert "<code>pulsar-admin topics stats</code>" in page
    lost = replace(WELL, topic=Reading(topic_of(ledger(7, LedgerPlace.GAP, 5)), NOW_MS))
    assert [(one.text, one.command, one.serious) for one in problems_of(lost)] == [
        (
            "persistent://t/n/a: 1 ledger missing, or lost by its list: messages are out of reach",
            "bookwarden ledger explain 7 --everywhere",
            True,
        )
    ]


def test_a_topic_that_is_not_there_and_one_that_is_not_read_yet() -> None:
    assert "there is no such topic" in page_of(Topic("x", absent="there is no such topic"))
    nothing = replace(Overview("c", NOW_MS), topic=Reading())
    assert "not read yet" in render_topic(nothing, "x")
    assert json.loads(topic_json(nothing))["value"] is None
    assert "no answer since 12:04:31 UTC" in render_topic(silent("topic")(WELL), "x")
    form = render_topic(WELL, "")
    assert 'href="/topic?name=persistent%3A%2F%2Fbilling%2Finvoices%2Finvoices-partition-0"' in form
    assert "Name a topic" in render_topic(Overview("c", NOW_MS), "")
    others = replace(topic_of(), others=("persistent://t/n/p-partition-8",))
    assert 'href="/topic?name=persistent%3A%2F%2Ft%2Fn%2Fp-partition-8"' in page_of(others)


def test_what_waits_has_the_command_that_restores_it() -> None:
    assert commands_of(
        dropped("t/n/a"),
        dropped("t/n/a", generation=3),
        dropped("t/n/p-partition-0"),
        dropped("t/n/p-partition-0", generation=3),
        dropped("t/n/trimmed", "ledgers"),
        dropped("t/n/one", "subscriptions", subscriptions=("it's",)),
        dropped("t/n/two", "subscriptions", subscriptions=("a", "b")),
        dropped("t/n/a-s__transaction_pending_ack"),
        dropped("t/n/a;reboot"),
    ) == [
        "bookwarden trash restore persistent://t/n/a",
        "bookwarden trash restore persistent://t/n/a --generation 3",
        "bookwarden trash restore persistent://t/n/p",
        "bookwarden trash restore persistent://t/n/p-partition-0 --generation 3",
        "bookwarden trash restore persistent://t/n/trimmed --generation 7 --under-live",
        """bookwarden trash restore persistent://t/n/one --generation 7 --subscription 'it'"'"'s'""",
        "bookwarden trash restore persistent://t/n/two --generation 7 --subscription NAME",
        "",
        "bookwarden trash restore 'persistent://t/n/a;reboot'",
    ]


def test_partitions_that_one_command_restores_are_one_row() -> None:
    page = render_trash(shown_with(WELL, IN_TRASH))
    assert page.count("<b>persistent://web/clicks/sessions-2025</b>") == 1
    assert "4 partitions" in page
    assert "sessions-2025-partition" not in page
    assert "854 ledgers, 120.0 GiB" in page
    assert "expires in 6 d 22 h" in page
    assert "relay-0, relay-1, relay-2, relay-3, relay-4 and 4 more" in page
    assert "2 ledgers that BookKeeper has no more: 482113, 482990" in page
    assert "A restore of it is not finished: writing nodes, by anna@ops-1.example." in page
    assert "bookwarden trash restore --namespace lab/trial" in page


def test_what_the_trash_shows_is_bounded_and_says_so() -> None:
    shown = trash(generations=(dropped("t/n/a"),), left_out=1_234, ledgers=99_000)(WELL)
    page = render_trash(shown)
    assert "1,234 more" in page
    assert ">1,235</div>" in page
    assert "The trash is empty." in render_trash(trash()(WELL))
    assert "what they drop" in render_trash(trash()(WELL))
    assert "the lease ended 7 min ago" in render_trash(lease(NOW_MS - 420_000)(trash()(WELL)))
    empty = replace(Overview("c", NOW_MS), trash=Reading())
    assert "not read yet" in render_trash(empty)


def test_one_namespace_shows_its_topics_and_what_the_others_have() -> None:
    page = render_disk(sample(), DiskPlace(namespace="iot/telemetry"))
    assert "persistent://iot/telemetry/telemetry-partition-0" in page
    assert "persistent://web/sessions" not in page
    assert ">others</text>" in page
    link = "/topic?name=persistent%3A%2F%2Fiot%2Ftelemetry%2Ftelemetry-partition-0"
    assert page.count(f'href="{link}"') == 3, "of the row, and of a tile in each drawing"


def test_odd_figures_are_shown() -> None:
    odd = DiskSummary(
        9 * 10**17,
        Use(""),
        (Use("", 1, disk_bytes=0), Use("t" * 300, 1, disk_bytes=5)),
        1,
        (Use("t", 1, disk_bytes=3),),
        0,
        (Use("t/n/x", 1, disk_bytes=2),),
        0,
        (BookieUse("b", 1, 9, 9, 9, 9, 0, 0), BookieUse("c", 1, 9, 9, 9, 9, 5, 9)),
        growth=None,
        forecast=Forecast(-1, 0, "never", "?", None),
    )
    shown = replace(WELL, disk=Reading(DiskFolder("/d", odd), NOW_MS))
    assert "at no time of the calendar" in render_disk(shown, DiskPlace())
    assert "t/n/x" in render_disk(shown, DiskPlace(namespace="t/n"))
    assert render_overview(shown)


def test_numbers_link_to_sections_and_json_that_are_there() -> None:
    app = sample_app()
    places = ("/topic?name=a/b/c", "/disk?tenant=iot", "/disk?namespace=iot/telemetry")
    pages = [get(app, path).text for path in (*PAGES, *places)]
    pages.append(render_overview(Overview("c", NOW_MS)))
    links = {link.replace("&amp;", "&") for page in pages for link in re.findall(r'href="(/[^"]*)"', page)}
    links |= {f"/runbook/{one.runbook}" for change, *_ in BAD.values() for one in problems_of(change(WELL))}
    assert any(link.startswith("/runbook/") for link in links)
    for link in sorted(links):
        path, _, anchor = link.partition("#")
        answer = get(app, path)
        assert answer.status == 200, link
        assert not anchor or f'id="{anchor}"' in answer.text, link


def test_json_has_what_the_page_shows() -> None:
    shown = sample()
    found = json.loads(overview_json(shown))
    assert found["queues"]["value"]["reasons"][0] == {"reason": sample().queues.value.reasons[0].reason, "letters": 3}  # type: ignore[union-attr]
    assert found["scans"]["value"]["plans"][0]["candidates"] == 412
    assert "reports" not in found["scans"]["value"]
    assert [Problem(**one) for one in found["problems"]] == problems_of(shown)
    assert json.loads(overview_json(shown, "alarms"))["value"]["alerts"][0]["name"] == "BookieWritable"
    found = json.loads(topic_json(shown_with(shown, ALL)))["value"]
    assert found["parts"][0]["ledgers"][0]["place"] == "orphan: on no list"
    assert found["parts"][0]["pins"]["pins"][0]["kind"] == "subscription"
    found = json.loads(moves_json(shown))
    assert found["moves"]["bookieClusters"]["phase"] == "LIVE_DUAL_READ"
    assert found["moves"]["metadata"][0]["snapshot"]["phase"] is None
    assert found["clients"]["snapshot"]["states"] == {"DRAINING": 9, "STUCK": 1, "DRAINED": 22}
    in_trash = json.loads(trash_json(shown_with(shown, IN_TRASH)))
    assert in_trash["value"]["generations"][0]["topic"] == trash_sample().generations[0].topic
    assert in_trash["lease"]["renewed_by"] == "bookwarden@sweep-0.example"
    assert json.loads(disk_json(shown))["summary"]["bookies"][2]["name"] == "bookie-3.example:3181"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (-5, "0 s"),
        (59_999, "59 s"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h"),
        (90_000_000, "1 d 1 h"),
        (10**10, "115 d"),
    ],
)
def test_lengths_of_time(milliseconds: int, text: str) -> None:
    assert age_text(milliseconds) == text


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    # Nothing listens there: what a page asks fails at once.
    return load_settings(
        overrides={
            "pulsar.admin_url": "http://127.0.0.1:9",
            "metadata_store.urls": json.dumps(["zk:127.0.0.1:9"]),
            "metadata_store.session_timeout_seconds": "1",
            "metadata_store.operation_timeout_seconds": "1",
            **{f"{name}.outcomes": str(tmp_path / name) for name in ("sweep", "follow")},
            **{f"{name}.folder": str(tmp_path / name) for name in ("disk", "orphans")},
        }
    )


def get(app: FastAPI, path: str, **headers: str) -> Answer:
    return request(app, "GET", path, **headers)


def test_the_page_needs_the_token(settings: Settings) -> None:
    app = make_app(settings, "geheim")
    basic = "Basic " + base64.b64encode(b"any:geheim").decode()
    for path in (*PAGES, "/page/overview.json", "/page/disk.json", "/page/page.js", "/runbook/rest"):
        refused = get(app, path)
        assert refused.status == 401
        assert refused.headers["www-authenticate"].startswith("Basic ")
        assert get(app, path, authorization="Bearer geheim").status == 200
        assert get(app, path, authorization=basic).status == 200
    for wrong in ("Basic " + base64.b64encode(b"geheim:").decode(), "Basic ?", "Basic", "Bearer", "", "geheim"):
        assert get(app, "/", authorization=wrong).status == 401


def test_a_password_that_a_browser_sends_by_itself_opens_nothing_else(settings: Settings) -> None:
    app = make_app(settings, "geheim")
    basic = "Basic " + base64.b64encode(b"any:geheim").decode()
    for method, path in (
        ("POST", "/admin/v2/bookie-clusters/switch"),
        ("GET", "/admin/v2/bookie-clusters"),
        ("GET", "/metrics"),
        ("POST", "/"),
    ):
        refused = request(app, method, path, authorization=basic)
        assert refused.status == 401
        assert refused.headers["www-authenticate"] == "Bearer"


def test_without_a_token_only_this_machine_may_look(settings: Settings) -> None:
    app = make_app(settings, None)
    assert get(app, "/page/disk.json").status == 200
    assert get(app, "/page/disk.json", host="elsewhere.example").status == 400


def test_the_page_loads_nothing_from_elsewhere_and_sets_no_cookie() -> None:
    app = sample_app()
    for path in (
        "/",
        "/disk",
        "/scan",
        "/trash",
        "/page/page.css",
        "/page/scan.json",
        "/page/trash.json",
        "/runbook/rest",
    ):
        answer = get(app, path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "set-cookie" not in answer.headers
        # A document names addresses in its text.
        assert path.startswith("/runbook/") or not re.search(
            r"""(?:src|href|url|@import)[=(\s]+["']?(?:https?:)?//""", answer.text
        )
    assert not re.search(r" style=| on[a-z]+=", "".join(get(app, path).text for path in PAGES))


def test_what_is_not_there_is_said_to_be_absent(settings: Settings) -> None:
    app = make_app(settings, None)
    for path in (
        "/page/secret.py",
        "/page/overview.json?part=x",
        "/scan?plan=x",
        "/page/scan.json?plan=x",
        "/runbook/nonsense",
        "/runbook/../setup",
        "/runbook/conf/bookwarden.yaml",
    ):
        assert get(app, path).status == 404, path


def test_a_damaged_summary_is_a_named_problem(settings: Settings) -> None:
    folder = Path(settings.disk.folder)
    folder.mkdir()
    (folder / "summary.json").write_text("{")
    answer = get(make_app(settings, None), "/disk")
    assert answer.status == 200
    assert f"{folder}/summary.json is not JSON: it is damaged" in answer.text


def test_a_page_is_rendered_once_for_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[Overview] = []
    shown = [sample()]

    def render(one: Overview) -> str:
        rendered.append(one)
        return "page"

    monkeypatch.setattr("bookwarden.server.page.routes.render_overview", render)
    from bookwarden.server.page.routes import page_router

    app = FastAPI()
    app.include_router(page_router(lambda _: shown[0]))
    app = app
    for _ in range(5):
        assert get(app, "/").text == "page"
    assert len(rendered) == 1
    shown[0] = replace(shown[0], queues=replace(shown[0].queues, silent_since_ms=5))
    get(app, "/")
    assert len(rendered) == 2


def test_a_part_that_one_page_alone_shows_is_rendered_again_when_it_was_read_again() -> None:
    from bookwarden.server.page.routes import page_router

    generations, read_ms = trash_sample().generations, [NOW_MS]
    app = FastAPI()
    # All other parts are those of the same reading.
    app.include_router(
        page_router(lambda _: replace(WELL, trash=Reading(Trash(generations[: read_ms[0] - NOW_MS]), read_ms[0])))
    )
    assert "The trash is empty." in get(app, "/trash").text
    read_ms[0] += 5
    assert "persistent://billing/invoices/drafts" in get(app, "/trash").text


def test_places_that_clients_invent_do_not_fill_the_memory() -> None:
    from bookwarden.server.page.routes import _KEPT, _Rendered

    rendered, shown = _Rendered(), sample()
    for number in range(3 * _KEPT):
        rendered.get(number, shown, lambda: b"")
    assert len(rendered._kept) == _KEPT
