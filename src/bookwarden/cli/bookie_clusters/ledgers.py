"""The ledgers of all bookie clusters for people and programs."""

from __future__ import annotations

from typing import Any, Final

from bookwarden.cli.shell.output import Column, Note, Part, Table, counted
from bookwarden.switching.inventory import Inventory
from bookwarden.switching.registry import Registry

_SHOWN: Final = 20


def inventory_data(found: Inventory, *, holders: bool = False) -> dict[str, Any]:
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


def inventory_parts(found: Inventory, registry: Registry, *, holders: bool = False) -> list[Part]:
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
