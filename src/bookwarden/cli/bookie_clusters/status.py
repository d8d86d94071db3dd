"""`bookwarden bookie-clusters status`: the registry, the newest order, and what each broker follows."""

from __future__ import annotations

import time
from typing import Final

import click

from bookwarden.bookie_clusters.brokers import Broker
from bookwarden.bookie_clusters.documents import Overview, read_overview, state_data
from bookwarden.bookie_clusters.inventory import take_inventory
from bookwarden.bookie_clusters.offline.record import MoveRecord
from bookwarden.bookie_clusters.operation import SwitchState
from bookwarden.bookie_clusters.order import Phase
from bookwarden.bookie_clusters.promoted import Promotion
from bookwarden.bookie_clusters.registry import Registry
from bookwarden.cli.bookie_clusters.build import build_facts
from bookwarden.cli.bookie_clusters.output import NONE_REGISTERED, directive_facts
from bookwarden.cli.bookie_clusters.unload import (
    inventory_data,
    inventory_parts,
    per_second_option,
    unload_elsewhere,
    unloaded_data,
)
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Facts, Note, Part, Table, counted, moment
from bookwarden.exit_codes import MORE_LATER, SOME_FAILED
from bookwarden.wiring.bookie_clusters import SwitchOperations
from bookwarden.wiring.cluster import Cluster

_LOOK_EVERY_S: Final = 0.5
_CODES: Final = {
    Phase.SWITCH_TRIGGERED: MORE_LATER,
    Phase.LIVE_DUAL_READ: MORE_LATER,
    Phase.ROLLBACK: MORE_LATER,
    Phase.DONE_WITH_FAILURES: SOME_FAILED,
}

_EPILOG = """\b
Exit codes: 0 nothing was begun, or it is DONE; 25 under way; 27 DONE_WITH_FAILURES."""


@click.command(epilog=_EPILOG)
@click.option("--watch", is_flag=True, help="Show each change, until nothing is under way.")
@click.option("--ledgers", is_flag=True, help="List all ledgers: by cluster and kind, and what still writes elsewhere.")
@click.option("--holders", is_flag=True, help="With --ledgers: also whose ledgers are outside the active cluster.")
# Of 0.1.0: `unload` is in the place of --roll, which is accepted for one more release.
@click.option("--roll", is_flag=True, hidden=True)
@per_second_option(hidden=True)
@click.option("--yes", is_flag=True, hidden=True)
@pass_invocation
def status(
    invocation: Invocation, watch: bool, ledgers: bool, holders: bool, roll: bool, per_second: float, yes: bool
) -> None:
    """Show where a switch stands.

    The phase, the registered bookie clusters, the newest order, and by which epoch each live broker acts. Changes
    nothing, and stopping it stops nothing.
    """
    if ((roll or holders) and not ledgers) or (watch and ledgers):
        raise click.UsageError("--holders goes with --ledgers, and --watch without")
    with Cluster(invocation.settings) as cluster:
        operations = SwitchOperations(cluster)
        overview = read_overview(operations.switch)
        state = overview.state
        if ledgers and state.registry is not None:
            found = take_inventory(state.registry, store_of=cluster.registry.store_of, by_holder=holders)
            document = _describe(cluster.url, overview)
            data = {**state_data(cluster.url, overview), **inventory_data(found, holders=holders)}
            parts = (*document.parts, *inventory_parts(found, state.registry, holders=holders))
            if not roll or invocation.output != "json":
                invocation.write(Document(data, parts))
            if roll:
                unloaded = unload_elsewhere(invocation, cluster, found, per_second, yes=yes, look="--ledgers")
                if invocation.output == "json":
                    invocation.write(Document({**data, "unloaded": unloaded_data(unloaded)}, parts))
            click.get_current_context().exit(_CODES.get(state.phase, 0))
        shown = _describe(cluster.url, overview)
        invocation.write(shown)
        while watch and _CODES.get(state.phase) == MORE_LATER:
            time.sleep(_LOOK_EVERY_S)
            overview = read_overview(operations.switch)
            state = overview.state
            now = _describe(cluster.url, overview)
            if now.data != shown.data:
                invocation.write(now)
                shown = now
    click.get_current_context().exit(_CODES.get(state.phase, 0))


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
        Column("error", whole=False),
    )
    parts.append(Table(columns, tuple(map(_row, state.brokers)), empty="No broker is registered."))
    without = [broker.name for broker in state.brokers if broker.follower is None]
    if state.registry is None:
        parts.append(NONE_REGISTERED)
    elif without:
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


def _facts(url: str, state: SwitchState, promotion: Promotion | None) -> list[tuple[str, str]]:
    registry, found = state.registry, state.order
    pairs = [("phase", state.phase.value), ("registry", url if registry is None else f"{url}, epoch {registry.epoch}")]
    if registry is not None:
        pairs += directive_facts(registry)
    if found is not None and found.order.is_under_way:
        pairs.append(
            ("carried out by", "no process: `bookie-clusters switch --resume`" if found.is_free else found.holder)
        )
    if found is not None and found.order.errors:
        pairs.append(("errors", "; ".join(found.order.errors)))
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
        return broker.name, "", "", "", "", broker.error or "without the jar"
    return broker.name, str(one.epoch), one.active, one.jar, ", ".join(sorted(one.unreachable)), ""
