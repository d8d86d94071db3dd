"""`bookwarden bookie-clusters unload`: topics that still write to another bookie cluster than the active one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from bookwarden.bookie_clusters.inventory import LedgerInventory, UnloadResult, roll, take_inventory
from bookwarden.bookie_clusters.registry import Registry
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Note, Part, Table, counted
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.errors import BookwardenError
from bookwarden.wiring.cluster import Cluster

_SHOWN: Final = 20


def inventory_data(found: LedgerInventory, *, holders: bool = False) -> dict[str, Any]:
    """Return the counts and what is left open for programs; with ``holders`` also whose ledgers are elsewhere."""
    held = [one._asdict() for one in found.held]
    return {
        "ledgers": [
            {"cluster": one.cluster, "kind": one.kind, "open": one.open, "closed": one.closed, "bytes": one.size}
            for one in found.counts
        ],
        "stillWriting": [
            {
                "cluster": one.cluster,
                "ledgerId": one.ledger_id,
                "holder": None if one.holder is None else str(one.holder),
                "topic": one.topic,
            }
            for one in found.left
        ],
        **({"elsewhere": held} if holders else {}),
    }


def inventory_parts(found: LedgerInventory, registry: Registry, *, holders: bool = False) -> list[Part]:
    """Return the same for people, with all holders."""
    columns = (
        Column("bookie cluster"),
        Column("ledgers of"),
        Column("open", right=True),
        Column("closed", right=True),
        Column("bytes", right=True),
    )
    rows = tuple((one.cluster, one.kind, f"{one.open:,}", f"{one.closed:,}", f"{one.size:,}") for one in found.counts)
    parts: list[Part] = [Table(columns, rows, empty="There are no ledgers.")]
    if holders:
        named = (
            Column("elsewhere in"),
            Column("ledgers of"),
            Column("ledgers", right=True),
            Column("holder", whole=False),
        )
        held = tuple((one.cluster, one.kind, f"{one.ledgers:,}", one.holder or "?") for one in found.held)
        parts.append(Table(named, held, empty=f"No ledger is outside {registry.active}."))
    if not found.left:
        return [*parts, Note(f"Nothing is written outside {registry.active}: no ledger is open elsewhere.")]
    places = (Column("open elsewhere", right=True), Column("in"), Column("of", whole=False))
    shown = found.left[:_SHOWN]
    parts.append(Table(places, tuple((str(one.ledger_id), one.cluster, str(one.holder or "?")) for one in shown)))
    more = f" (the first {_SHOWN} are shown)" if len(found.left) > _SHOWN else ""
    without = sum(one.topic is None for one in found.left)
    parts.append(
        Note(
            f"{counted(len(found.left), 'ledger')} open outside {registry.active}{more}. They close when full, or old "
            f"enough, or when their topic is unloaded: `bookie-clusters unload` unloads "
            f"{counted(len(found.topics), 'topic')}."
            + (f" {without} of them no topic closes; look at each with `ledger explain`." if without else "")
        )
    )
    return parts


_EPILOG = """\b
When ledgers stay open elsewhere: docs/bookie-clusters.md, "Switch"."""


def per_second_option(*, hidden: bool = False) -> Callable[[Any], Any]:
    """Add --per-second, which spreads the load of clients that reconnect."""
    kind = click.FloatRange(min=0, min_open=True)
    text = "Maximum number of topics that are unloaded in a second."
    return click.option(
        "--per-second", type=kind, default=5.0, show_default=True, metavar="N", help=text, hidden=hidden
    )


@click.command("unload", epilog=_EPILOG)
@per_second_option()
@click.option("--dry-run", is_flag=True, help="Only list the topics.")
@yes_option
@pass_invocation
def unload(invocation: Invocation, per_second: float, dry_run: bool, yes: bool) -> None:
    """Unload topics that still write elsewhere.

    That is, to another bookie cluster than the active one. A ledger that was open at a switch is written until it is
    full or old enough; unloading its topic closes it. Clients reconnect, and the next ledger is in the active cluster.
    Reads the metadata of all ledgers first. May be stopped at any time and run again. Ends with 1 where a topic was not
    unloaded.
    """
    with Cluster(invocation.settings) as cluster:
        registry = cluster.registry.require().registry
        found = take_inventory(registry, store_of=cluster.registry.store_of)
        data = {"dryRun": dry_run, **inventory_data(found)}
        if dry_run or invocation.output != "json":
            invocation.write(Document(data, tuple(inventory_parts(found, registry))))
        if dry_run:
            return
        unloaded = unload_elsewhere(invocation, cluster, found, per_second, yes=yes, look="--dry-run")
    failed = [one for one in unloaded if one.failed]
    number = counted(sum(not one.error for one in unloaded), "topic")
    if invocation.output == "json":
        invocation.write(Document({**data, "unloaded": unloaded_data(unloaded)}, ()))
    else:
        invocation.write(Document({}, (Note(f"{number} unloaded."),)))
    if failed:
        one = failed[0]
        raise BookwardenError(f"{counted(len(failed), 'topic')} not unloaded, such as {one.topic}: {one.error}")


def unload_elsewhere(
    invocation: Invocation, cluster: Cluster, found: LedgerInventory, per_second: float, *, yes: bool, look: str
) -> Sequence[UnloadResult]:
    """Ask, unload the topics, and report each; ``look`` is how to see them only."""
    if found.topics:
        confirm(f"Unload {counted(len(found.topics), 'topic')}? Clients reconnect.", yes=yes, look=look)
    return roll(
        found.topics,
        cluster.topics.unload,
        per_second,
        lambda one: invocation.say(f"{one.topic}: {one.error or 'unloaded'}"),
    )


def unloaded_data(unloaded: Sequence[UnloadResult]) -> list[dict[str, Any]]:
    """Return the results for programs."""
    return [{"topic": one.topic, "trouble": one.error or None} for one in unloaded]
