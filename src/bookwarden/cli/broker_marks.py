"""The commands about brokers that mark what leaves their metadata (docs/broker-marks.md)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from bookwarden.cli.inflight import outbox_data, outbox_text
from bookwarden.cli.shell.invocation import Invocation, operator, pass_invocation
from bookwarden.cli.shell.output import Cells, Column, Document, Facts, Note, Part, Table, counted, moment, table_of
from bookwarden.clusters.pulsar.broker_marks import LiveBroker, MarkingBrokers, OutboxSize
from bookwarden.deletion.phase_one.outbox_drain import DrainReport
from bookwarden.exit_codes import MORE_LATER, NOT_DONE, SOME_FAILED
from bookwarden.preflight import require_marking
from bookwarden.wire.broker_marks import MarkingBroker, MarksEnabled
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import BrokerMarks

#: With a broker that forwards no node is that old.
_OLD_S: Final = 600
#: Brokers write their nodes again every 30 seconds.
_SILENT_S: Final = 120
_LOOK_EVERY_S: Final = 0.5

_STATUS_EPILOG: Final = """\b
Exit codes: 0 every live broker marks; 22 not all of them, or none while something is in the outbox;
27 a write went on unmarked, the outbox is not emptied, a broker has not written its node for two minutes,
or one deletes by itself because the sweep is behind."""
_CHANGE_EPILOG: Final = """\b
Exit codes: 0 every live broker with the jar's line acts by it; 25 not yet after --timeout."""
_DRAIN_EPILOG: Final = """\b
Exit codes: 0 planned, or done; 27 a node is left, as the output says: run it again."""


@click.group("broker-marks")
def broker_marks() -> None:
    """See which brokers mark, and turn that off or on.

    With a line of broker.conf a broker puts each ledger that leaves its metadata into an outbox first, and what it does
    not delete itself on the deletion topic: docs/broker-marks.md.
    """


@broker_marks.command("status", epilog=_STATUS_EPILOG)
@pass_invocation
def status(invocation: Invocation) -> None:
    """Show which live brokers mark, and what waits in the outbox.

    Counts are those that brokers tell every 30 seconds, and begin with a broker's start; the outbox is read now.
    """
    with Cluster(invocation.settings) as cluster:
        marks = BrokerMarks(cluster)
        brokers, enabled = marks.brokers.read(), marks.brokers.enabled()
        size, has_topic = marks.outbox.size(), marks.brokers.has_deletion_topic()
    now_s = time.time()
    delay_s = invocation.settings.deletion.delete_delay_seconds
    invocation.write(_describe(brokers, enabled, size, now_s, has_topic=has_topic, delay_s=delay_s))
    click.get_current_context().exit(_code(brokers, size, now_s))


def _code(brokers: Sequence[LiveBroker], size: OutboxSize, now_s: float) -> int:
    marking = [broker.marking for broker in brokers if broker.marking is not None]
    if size.oldest_s(now_s) > _OLD_S or any(one.unmarked_writes for one in marking):
        return SOME_FAILED
    if any(_silent_s(broker, now_s) for broker in brokers) or any(one.left and one.left.exceeded for one in marking):
        return SOME_FAILED
    if not all(broker.marks for broker in brokers) or (size.nodes and not marking):
        return NOT_DONE
    return 0


def _silent_s(broker: LiveBroker, now_s: float) -> float:
    """Return for how long a broker has not written its node, if that is too long; else 0."""
    silent_s = now_s - broker.written_ms / 1000
    return silent_s if broker.marking is not None and silent_s > _SILENT_S else 0.0


def _describe(
    brokers: Sequence[LiveBroker],
    enabled: MarksEnabled,
    size: OutboxSize,
    now_s: float,
    *,
    has_topic: bool,
    delay_s: float,
) -> Document:
    marking = [broker.marking for broker in brokers if broker.marking is not None]
    cells: Cells[LiveBroker] = {
        Column("broker", whole=False): lambda broker: broker.name,
        Column("marks", whole=False): lambda broker: _state(broker, now_s),
        Column("mode"): lambda broker: broker.marking.mode if broker.marking else "",
        Column("jar"): lambda broker: broker.marking.jar if broker.marking else "",
        Column("started"): lambda broker: moment(broker.marking.started_ms) if broker.marking else "",
        Column("sent", right=True): _number(lambda one: sum(one.sent.values())),
        Column("failed", right=True): _number(lambda one: sum(one.failed.values())),
        Column("unmarked writes", right=True): _number(lambda one: one.unmarked_writes),
        Column("left to the sweep", whole=False): _left,
    }
    kinds = _sums(one.stored for one in marking)
    parts: list[Part] = [
        Facts((("set to", _set_to(enabled)), ("outbox", outbox_text(size, now_s)))),
        table_of(brokers, cells, empty="No broker is registered."),
        Table(
            (Column("kind"), Column("put into the outbox", right=True)),
            tuple((kind, f"{number:,}") for kind, number in kinds.items()),
            empty="No broker that marks lives.",
        ),
    ]
    parts += [Note(text) for text in _notes(brokers, size, now_s, has_topic=has_topic, delay_s=delay_s)]
    data = {
        "enabled": enabled,
        "deletion_topic": has_topic,
        "outbox": outbox_data(size, now_s),
        "brokers": [_data(broker, now_s) for broker in brokers],
        "stored": kinds,
        "gone": sum(one.gone for one in marking),
        "sent": _sums(one.sent for one in marking),
        "failed": _sums(one.failed for one in marking),
        "unmarked_writes": sum(one.unmarked_writes for one in marking),
    }
    return Document(data, tuple(parts))


def _state(broker: LiveBroker, now_s: float) -> str:
    if broker.marking is None:
        return broker.problem or "no: its broker.conf has no line for it"
    silent_s = _silent_s(broker, now_s)
    return ("yes" if broker.marks else "off") + (f", said {silent_s:,.0f} s ago" if silent_s else "")


def _left(broker: LiveBroker) -> str:
    if broker.marking is None or broker.marking.left is None:
        return ""
    left = broker.marking.left
    text = f"{left.ledgers:,} ledgers, {left.bytes:,} bytes, the oldest {left.oldest_s:,} s old"
    return text + (f"; beyond the limit of {left.exceeded}" if left.exceeded else "")


def _number(of: Callable[[MarkingBroker], int]) -> Callable[[LiveBroker], str]:
    return lambda broker: "" if broker.marking is None else f"{of(broker.marking):,}"


def _sums(each: Any) -> dict[str, int]:
    # Kinds without any are shown, as metrics are.
    total: Counter[str] = Counter()
    for counts in each:
        total.update(counts)
    return dict(total)


def _set_to(enabled: MarksEnabled) -> str:
    by = f", by {enabled.by} at {moment(enabled.at_ms)}" if enabled.by else ""
    return ("on" if enabled.enabled else "off") + by


def _data(broker: LiveBroker, now_s: float) -> Mapping[str, object]:
    marking = None if broker.marking is None else asdict(broker.marking)
    return {
        "name": broker.name,
        "marks": broker.marks,
        "problem": broker.problem,
        "silent_seconds": round(_silent_s(broker, now_s), 1),
        "marking": marking,
    }


def _notes_of_sweep(brokers: Sequence[LiveBroker], delay_s: float) -> Iterator[str]:
    """Yield what is to be known where the sweep alone deletes."""
    leaving = [(broker.name, broker.marking.left) for broker in brokers if broker.marking and broker.marking.left]
    exceeded = [name for name, left in leaving if left.exceeded]
    if exceeded:
        yield (
            f"{', '.join(exceeded)}: the sweep is behind by more than a limit of broker.conf, so that the broker "
            "deletes ledgers by itself until the sweep has caught up."
        )
    short = [name for name, left in leaving if left.max_s <= delay_s]
    if short:
        yield (
            f"{', '.join(short)}: bookwardenMarksMaxAgeSeconds is not more than delete_delay_seconds, {delay_s:,.0f}: "
            "the sweep cannot keep within it."
        )
    modes = {broker.marking.mode for broker in brokers if broker.marking}
    if len(modes) > 1:
        yield f"Brokers are in different modes: {', '.join(sorted(modes))}."


def _notes(
    brokers: Sequence[LiveBroker], size: OutboxSize, now_s: float, *, has_topic: bool, delay_s: float
) -> list[str]:
    notes = list(_notes_of_sweep(brokers, delay_s))
    silent = [broker.name for broker in brokers if _silent_s(broker, now_s)]
    if silent:
        notes.append(
            f"{', '.join(silent)}: its node was not written for more than {_SILENT_S} s, so that what it says is old, "
            "and its outbox may not be forwarded: its log, and whether it hangs; or the clock of this machine is ahead."
        )
    without = [broker.name for broker in brokers if broker.marking is None]
    if without and len(without) < len(brokers):
        notes.append(
            f"{', '.join(without)}: what it drops and leaves behind is found by `follow` and by the scan alone."
        )
    unmarked = [broker.name for broker in brokers if broker.marking is not None and broker.marking.unmarked_writes]
    if unmarked:
        notes.append(
            f"Writes went on unmarked on {', '.join(unmarked)}: its log and bookwarden_unmarked_writes_total say why; "
            "`follow` or the scan finds what they left behind."
        )
    if not has_topic and (size.nodes or len(without) < len(brokers)):
        notes.append("Brokers do not know the deletion topic, and keep all in the outbox: run `bookwarden init`.")
    if size.nodes and all(broker.marking is None for broker in brokers):
        notes.append("No broker forwards the outbox: `bookwarden broker-marks drain` does.")
    elif size.oldest_s(now_s) > _OLD_S:
        notes.append("The outbox is not emptied: the logs of the brokers, and bookwarden_outbox_waiting_for_topic.")
    return notes


def _change(invocation: Invocation, *, enabled: bool, timeout: float, dry_run: bool) -> None:
    wanted = MarksEnabled(enabled, operator(), int(time.time() * 1000))
    with Cluster(invocation.settings) as cluster:
        marking = BrokerMarks(cluster).brokers
        before = marking.read()
        if dry_run:
            changed = [broker.name for broker in before if broker.marking is not None and broker.marks != enabled]
            text = f"{counted(len(changed), 'broker')} would change; nothing was changed."
            invocation.write(Document({"dry_run": True, "brokers": changed}, (Note(text),)))
            return
        marking.set_enabled(wanted)
        late = _await(marking, enabled, timeout)
        brokers = marking.read()
    with_line = [broker.name for broker in brokers if broker.marking is not None]
    word = "on" if enabled else "off"
    notes = [f"Marks are {word} on {counted(len(with_line) - len(late), 'broker')}."]
    if late:
        notes.append(f"Not yet on {', '.join(late)}: `bookwarden broker-marks status` shows when.")
    if not enabled:
        notes.append("What is in the outbox is forwarded all the same.")
    data = {"enabled": enabled, "brokers": with_line, "late": late}
    invocation.write(Document(data, tuple(map(Note, notes))))
    click.get_current_context().exit(MORE_LATER if late else 0)


def _await(brokers: MarkingBrokers, enabled: bool, timeout_s: float) -> list[str]:
    """Wait until each broker with the line says so; return those that do not in time."""
    until = time.monotonic() + timeout_s
    while True:
        found = brokers.read()
        late = [broker.name for broker in found if broker.marking is not None and broker.marks != enabled]
        if not late or time.monotonic() >= until:
            return late
        time.sleep(_LOOK_EVERY_S)


_timeout_option: Callable[[Any], Any] = click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=15,
    show_default=True,
    help="Maximum seconds to wait for the brokers, which look every 3 seconds.",
)
_dry_run_option: Callable[[Any], Any] = click.option(
    "--dry-run", is_flag=True, help="Only say which brokers would change."
)


@broker_marks.command("off", epilog=_CHANGE_EPILOG)
@_timeout_option
@_dry_run_option
@pass_invocation
def turn_off(invocation: Invocation, timeout: float, dry_run: bool) -> None:
    """Have all brokers write as without the jar, at once.

    No restart is needed, and a broker that starts later does so too. What a broker then leaves behind is found by
    `follow` and by the scan alone.
    """
    _change(invocation, enabled=False, timeout=timeout, dry_run=dry_run)


@broker_marks.command("on", epilog=_CHANGE_EPILOG)
@_timeout_option
@_dry_run_option
@pass_invocation
def turn_on(invocation: Invocation, timeout: float, dry_run: bool) -> None:
    """Have all brokers with the jar's line mark again, at once."""
    _change(invocation, enabled=True, timeout=timeout, dry_run=dry_run)


@broker_marks.command("drain", epilog=_DRAIN_EPILOG)
@click.option("--execute", is_flag=True, help="Send the marks; without it the command only says which it would.")
@pass_invocation
def drain(invocation: Invocation, execute: bool) -> None:
    """Forward the outbox where no broker does.

    That is when the last broker with the jar's line is gone; while one lives it is refused. Sends what BookKeeper still
    has, and all offloaded copies, to the deletion topic, as brokers do.
    """
    with Cluster(invocation.settings) as cluster:
        if execute:
            require_marking(cluster)
        marks = BrokerMarks(cluster)
        report = (marks.drain if execute else marks.planned_drain).run()
    invocation.write(_drained(report))
    click.get_current_context().exit(SOME_FAILED if report.kept else 0)


def _drained(report: DrainReport) -> Document:
    marks = {kind.value: number for kind, number in report.marks.items()}
    sent = ", ".join(f"{number:,} {kind}" for kind, number in marks.items()) or "none"
    facts = [
        ("nodes forwarded" if report.executed else "nodes to forward", f"{report.nodes:,}"),
        ("gone from BookKeeper", f"{report.gone:,}"),
        ("marks sent" if report.executed else "marks to send", sent),
    ]
    if report.trashed:
        facts.append(
            ("nodes moved into the trash" if report.executed else "nodes for the trash", f"{report.trashed:,}")
        )
    parts: list[Part] = [Facts(tuple(facts))]
    if report.kept:
        columns = (Column("left in the outbox", whole=False), Column("why", whole=False))
        parts.append(Table(columns, tuple((kept.path, kept.reason) for kept in report.kept)))
    if not report.executed:
        parts.append(
            Note(
                "Nothing was changed; --execute does it." if report.nodes + report.trashed else "Nothing is to be done."
            )
        )
    data = {
        "executed": report.executed,
        "nodes": report.nodes,
        "gone": report.gone,
        "marks": marks,
        "trashed": report.trashed,
        "kept": report.kept,
    }
    return Document(data, tuple(parts))
