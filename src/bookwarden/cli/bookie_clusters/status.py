"""`bookwarden bookie-clusters status`: the registry, the newest order, and what each broker follows."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import click

from bookwarden.cli.bookie_clusters.build import build_facts
from bookwarden.cli.bookie_clusters.ledgers import inventory_data, inventory_parts
from bookwarden.cli.bookie_clusters.switch import DONE_WITH_FAILURES
from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Facts, Note, Part, Table, counted, moment
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.switching.brokers import Broker
from bookwarden.switching.documents import state_data
from bookwarden.switching.inventory import Unloaded
from bookwarden.switching.inventory import roll as roll_topics
from bookwarden.switching.offline.record import MoveRecord
from bookwarden.switching.operation import State
from bookwarden.switching.order import Phase
from bookwarden.switching.overview import Overview
from bookwarden.switching.promoted import Promotion
from bookwarden.switching.registry import Registry
from bookwarden.wiring.switch import SwitchContext

_UNDER_WAY: Final = 25
_LOOK_EVERY_S: Final = 0.5
_CODES: Final = {
    Phase.SWITCH_TRIGGERED: _UNDER_WAY,
    Phase.LIVE_DUAL_READ: _UNDER_WAY,
    Phase.ROLLBACK: _UNDER_WAY,
    Phase.DONE_WITH_FAILURES: DONE_WITH_FAILURES,
}

_EPILOG = """\b
Exit codes: 0 nothing was begun, or it is DONE; 25 under way; 27 DONE_WITH_FAILURES."""


@click.command(epilog=_EPILOG)
@click.option("--watch", is_flag=True, help="Show each change, until nothing is under way.")
@click.option("--ledgers", is_flag=True, help="List all ledgers: by cluster and kind, and what still writes elsewhere.")
@click.option("--holders", is_flag=True, help="With --ledgers: also whose ledgers are outside the active cluster.")
@click.option("--roll", is_flag=True, help="With --ledgers: unload the topics that still write elsewhere.")
@click.option(
    "--per-second",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="N",
    help="Topics that --roll unloads in a second.",
)
@yes_option
@output_option
@pass_invocation
def status(
    invocation: Invocation, watch: bool, ledgers: bool, holders: bool, roll: bool, per_second: float, yes: bool
) -> None:
    """Show where a switch stands.

    The phase, the registered bookie clusters, the newest order, and by which epoch each live broker acts. Changes
    nothing but what --roll unloads, and stopping it stops nothing.
    """
    if ((roll or holders) and not ledgers) or (watch and ledgers):
        raise click.UsageError("--roll and --holders go with --ledgers, and --watch without")
    with SwitchContext(invocation.settings) as context:
        overview = context.overview()
        state = overview.state
        if ledgers and state.registry is not None:
            wanted = _Wanted(holders, roll, per_second, yes)
            _show_ledgers(invocation, context, overview, state.registry, wanted)
            click.get_current_context().exit(_CODES.get(state.phase, 0))
        shown = _describe(context.pulsar_url, overview)
        invocation.write(shown)
        while watch and _CODES.get(state.phase) == _UNDER_WAY:
            time.sleep(_LOOK_EVERY_S)
            overview = context.overview()
            state = overview.state
            now = _describe(context.pulsar_url, overview)
            if now.data != shown.data:
                invocation.write(now)
                shown = now
    click.get_current_context().exit(_CODES.get(state.phase, 0))


class _Wanted(NamedTuple):
    """The options of --ledgers."""

    holders: bool
    roll: bool
    per_second: float
    yes: bool


def _show_ledgers(
    invocation: Invocation, context: SwitchContext, overview: Overview, registry: Registry, wanted: _Wanted
) -> None:
    """Show the state with the ledgers of all clusters, and unload what still writes elsewhere if that is asked for."""
    found = context.inventory(registry, by_holder=wanted.holders)
    document = _describe(context.pulsar_url, overview)
    data = {
        **state_data(context.pulsar_url, overview),
        **inventory_data(found, holders=wanted.holders),
    }
    parts = (*document.parts, *inventory_parts(found, registry, holders=wanted.holders))
    if wanted.roll:
        if invocation.output != "json":
            invocation.write(Document(data, parts))
        if found.topics:
            topics = counted(len(found.topics), "topic")
            confirm(f"Unload {topics}? Clients connect anew.", yes=wanted.yes, look="--ledgers")
        unloaded = roll_topics(
            found.topics, context.topics.unload, wanted.per_second, lambda one: _tell(invocation, one)
        )
        data["unloaded"] = [{"topic": one.topic, "trouble": one.trouble or None} for one in unloaded]
        if invocation.output != "json":
            return
    invocation.write(Document(data, parts))


def _tell(invocation: Invocation, one: Unloaded) -> None:
    invocation.say(f"{one.topic}: {one.trouble or 'unloaded'}")


def _describe(url: str, overview: Overview) -> Document:
    state, promotion, build, move = overview
    parts: list[Part] = [Facts((*_facts(url, state, promotion), *build_facts(build), *_move_facts(move)))]
    if state.registry is not None:
        registry = state.registry
        names = [cluster.name for cluster in registry.in_reading_order()]
        rows = tuple(
            (name, registry.status_of(name).value, registry.cluster(name).metadata_service_uri) for name in names
        )
        parts.append(
            Table((Column("bookie cluster"), Column("status"), Column("metadataServiceUri", whole=False)), rows)
        )
    columns = (
        Column("broker"),
        Column("epoch", right=True),
        Column("active"),
        Column("jar"),
        Column("cannot read"),
        Column("trouble", whole=False),
    )
    parts.append(Table(columns, tuple(map(_row, state.brokers)), empty="No broker is registered."))
    without = [broker.name for broker in state.brokers if broker.follower is None]
    if state.registry is not None and without:
        left_with = _counted_elsewhere(state.registry)
        if left_with is not None:
            parts.append(
                Note(
                    f"Without the jar brokers take ledger ids from the counter of {left_with}, with it from the one "
                    f"below {state.registry.id_root}, which is behind then, and topics would lose what came before "
                    "smaller ids. Before a broker with the jar starts, stop all brokers, and register another cluster."
                )
            )
        parts.append(
            Note(
                f"{', '.join(without)} runs without the jar: it knows one bookie cluster only. Never switch while it "
                "runs, and stop it if that was done."
            )
        )
    return Document(state_data(url, overview), tuple(parts))


def _counted_elsewhere(registry: Registry) -> str | None:
    """Return the name of the only cluster if brokers with the jar do not take ids from its own counter, else None."""
    alone = [each.name for each in registry.open_ranges()] if len(registry.clusters) == 1 else []
    return alone[0] if alone else None


def _facts(url: str, state: State, promotion: Promotion | None) -> list[tuple[str, str]]:
    registry, found = state.registry, state.order
    pairs = [("phase", state.phase.value), ("registry", url if registry is None else f"{url}, epoch {registry.epoch}")]
    directive = None if registry is None else registry.directive
    if directive is not None:
        pairs.append(
            (
                "switch target",
                f"{directive.target} (from {directive.source}, epoch {directive.epoch}, by {directive.origin} at "
                f"{moment(directive.time_ms)})",
            )
        )
    if found is not None and found.order.is_under_way:
        pairs.append(("carried out by", "nobody: `bookie-clusters switch --resume`" if found.is_free else found.holder))
    if found is not None and found.order.troubles:
        pairs.append(("troubles", "; ".join(found.order.troubles)))
    if promotion is not None:
        failed = f", but for {counted(len(promotion.failed), 'topic')} that failed" if promotion.failed else ""
        pairs.append(("promoted", f"what was in {promotion.target} before {moment(promotion.through_ms)}{failed}"))
    return pairs


def _move_facts(move: MoveRecord | None) -> list[tuple[str, str]]:
    if move is None:
        return []
    return [("move --offline", f"{move.phase.value}, to {move.uri}: `bookie-clusters move --status`")]


def _row(broker: Broker) -> tuple[str, ...]:
    one = broker.follower
    if one is None:
        return broker.name, "", "", "", "", broker.trouble or "without the jar"
    return broker.name, str(one.epoch), one.active, one.jar, ", ".join(sorted(one.unreachable)), ""
