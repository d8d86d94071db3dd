"""Output of the references to a ledger for people and programs."""

from __future__ import annotations

from typing import Any

from bookwarden.cli.shell.output import Column, Part, Table
from bookwarden.deletion.explaining import Explanation
from bookwarden.ledgers.live_references import LiveReferences, UnknownReferences

_PLACE_COLUMNS = (Column("named by"), Column("of", whole=False), Column("node", whole=False), Column("metadata root"))
_DOUBT_COLUMNS = (Column("not read", whole=False), Column("metadata root"), Column("reason", whole=False))


def reference_pairs(found: Explanation) -> tuple[tuple[str, str], ...]:
    """List the ledger's holder, and whether that still names it."""
    if found.holder is None:
        return (("holder", "none that the sweep knows"),)
    holder = ("holder", f"{found.holder.label} {found.holder}")
    references = found.references
    if isinstance(references, UnknownReferences):
        return holder, ("names it", f"unknown: {references.reason}")
    if not isinstance(references, LiveReferences):
        return (holder,)
    ledger_id = found.reading.ledger_id
    pairs = [
        holder,
        ("exists", "yes" if references.exists else "no"),
        ("names it", _how_named(ledger_id, references)),
        ("other ledgers", f"{len(references.ledger_ids - {ledger_id}):,}"),
    ]
    pairs += [
        (f"shadow {shadow.managed_ledger}", "names it" if ledger_id in shadow.ledger_ids else "does not name it")
        for shadow in references.shadows
    ]
    if references.unnamed_use is not None and not references.names(ledger_id):
        pairs.append(("in use unnamed", references.unnamed_use.reason))
    return tuple(pairs)


def _how_named(ledger_id: int, references: LiveReferences) -> str:
    if ledger_id not in references.ledger_ids:
        return "no"
    if ledger_id in references.left_behind:
        return "yes, as offloaded and deleted from BookKeeper"
    return "yes"


def place_tables(found: Explanation) -> list[Part]:
    """List all places that name the ledger, and those that could not be read, if they were looked for."""
    if found.everywhere is None:
        return []
    rows = tuple(
        (place.kind.value, place.holder, place.path, place.root)
        for place in (named.place for named in found.everywhere)
    )
    parts: list[Part] = [Table(_PLACE_COLUMNS, rows, title="Everywhere", empty="No place in the metadata names it.")]
    if found.doubts:
        doubts = tuple((doubt.path, doubt.root, doubt.reason) for doubt in found.doubts)
        parts.append(Table(_DOUBT_COLUMNS, doubts, title="Places that may name it"))
    return parts


def reference_data(found: Explanation) -> dict[str, Any]:
    """Return the same for programs."""
    live = found.references if isinstance(found.references, LiveReferences) else None
    return {
        "holder": str(found.holder) if found.holder else None,
        "holder_exists": live.exists if live else None,
        "referenced": found.referenced,
        "references_problem": found.references.reason if isinstance(found.references, UnknownReferences) else None,
        "left_behind": live is not None and found.reading.ledger_id in live.left_behind,
        "shadows": [shadow.managed_ledger for shadow in live.shadows] if live else [],
        "unnamed_use": live.unnamed_use.reason if live and live.unnamed_use else None,
        "everywhere": None if found.everywhere is None else [_place(*named.place) for named in found.everywhere],
        "doubts": [{"path": doubt.path, "root": doubt.root, "reason": doubt.reason} for doubt in found.doubts],
    }


def _place(kind: Any, holder: str, path: str, root: str) -> dict[str, Any]:
    return {"kind": kind, "holder": holder, "path": path, "root": root}
