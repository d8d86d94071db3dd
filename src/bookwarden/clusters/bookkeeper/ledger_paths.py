"""Paths of ledgers' metadata nodes, for each layout that BookKeeper has had.

Format: util.StringUtils and meta.*LedgerManager of BookKeeper 4.17; LAYOUT: meta.LedgerLayout.
"""

from __future__ import annotations

import enum
import re
from typing import Final

from bookwarden.errors import FormatError
from bookwarden.ledgers.pending_deletion import MAX_LEDGER_ID

# The hybrid layout keeps ids below Java's largest int in the short tree.
_FIRST_LONG_ID: Final = 2**31 - 1
_MAX_SHORT_ID: Final = 10**10 - 1

_FLAT = re.compile(r"/L(\d{10,19})", re.ASCII)
_SHORT = re.compile(r"/(\d{2})/(\d{4})/L(\d{4})", re.ASCII)
_LONG = re.compile(r"/(\d{3})/(\d{4})/(\d{4})/(\d{4})/L(\d{4})", re.ASCII)

SPECIAL_CHILDREN: Final = frozenset(
    {"available", "cookies", "LAYOUT", "INSTANCEID", "underreplication", "idgen", "idgen-long"}
)


class LedgerLayout(enum.Enum):
    """The layout of ledger ids in directories; the values are BookKeeper's names."""

    FLAT = "flat"
    LEGACY_HIERARCHICAL = "legacyhierarchical"
    HIERARCHICAL = "hierarchical"
    LONG_HIERARCHICAL = "longhierarchical"


# Looked up once: an enum's attribute takes a fifth of the time of a path.
_HYBRID: Final = LedgerLayout.HIERARCHICAL

_FACTORIES: Final = {
    "FlatLedgerManagerFactory": LedgerLayout.FLAT,
    "LegacyHierarchicalLedgerManagerFactory": LedgerLayout.LEGACY_HIERARCHICAL,
    "HierarchicalLedgerManagerFactory": LedgerLayout.HIERARCHICAL,
    "LongHierarchicalLedgerManagerFactory": LedgerLayout.LONG_HIERARCHICAL,
    "PulsarLedgerManagerFactory": LedgerLayout.HIERARCHICAL,
}


def ledger_path(root: str, ledger_id: int, layout: LedgerLayout = LedgerLayout.HIERARCHICAL) -> str:
    """Return the path of a ledger's node; raise FormatError for an id that the layout cannot hold."""
    if not 0 <= ledger_id <= MAX_LEDGER_ID:
        raise FormatError(f"ledger id {ledger_id} is not between 0 and {MAX_LEDGER_ID}")
    if layout is _HYBRID:
        return _short_path(root, ledger_id) if ledger_id < _FIRST_LONG_ID else _long_path(root, ledger_id)
    if layout is LedgerLayout.LONG_HIERARCHICAL:
        return _long_path(root, ledger_id)
    if layout is LedgerLayout.FLAT:
        return f"{root}/L{ledger_id:010d}"
    if ledger_id > _MAX_SHORT_ID:
        raise FormatError(f"ledger id {ledger_id} is too large for the layout {layout.value}")
    return _short_path(root, ledger_id)


def ledger_id_of(root: str, path: str) -> int | None:
    """Parse the id in a node's path, in any layout; None for a node that is not a ledger's."""
    if not path.startswith(root + "/"):
        return None
    rest = path[len(root) :]
    for pattern in (_SHORT, _LONG, _FLAT):
        match = pattern.fullmatch(rest)
        if match:
            ledger_id = int("".join(match.groups()))
            return ledger_id if _is_canonical(rest, ledger_id) else None
    return None


def is_special(child: str) -> bool:
    """Return whether a child of the ledgers root holds something other than ledgers."""
    return child in SPECIAL_CHILDREN or child.startswith("ID-")


def parse_layout(raw: bytes) -> LedgerLayout:
    """Read the value of the LAYOUT node: ``2\\n<factory class>:<version>``, or ``1\\n<layout>:<version>``.

    Raises FormatError for a layout that is not known: ledgers looked for in the wrong place would seem absent.
    """
    lines = raw.decode("utf-8", "replace").strip().split("\n")
    name = lines[1].rpartition(":")[0] if len(lines) == 2 else ""
    factory = _FACTORIES.get(name.rpartition(".")[2])
    if lines[0] == "2" and factory is not None:
        return factory
    if lines[0] == "1" and name == "hierarchical":
        # Version 1 had no hybrid: its hierarchical is the short tree.
        return LedgerLayout.LEGACY_HIERARCHICAL
    if lines[0] == "1" and name in [layout.value for layout in LedgerLayout]:
        return LedgerLayout(name)
    raise FormatError(f"the LAYOUT node of the ledgers root names no layout that is known: {raw[:200]!r}")


def _short_path(root: str, ledger_id: int) -> str:
    digits = str(ledger_id).zfill(10)
    return f"{root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"


def _long_path(root: str, ledger_id: int) -> str:
    digits = str(ledger_id).zfill(19)
    return f"{root}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def _is_canonical(rest: str, ledger_id: int) -> bool:
    if ledger_id > MAX_LEDGER_ID:
        return False
    return not rest.startswith("/L") or rest == f"/L{ledger_id:010d}"
