"""Holders: what in Pulsar's metadata a ledger can belong to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ManagedLedgerHolder:
    """A topic's managed ledger; ``name`` is ``tenant/namespace/persistent/encoded``."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, order=True)
class CursorHolder:
    """A cursor of a managed ledger; ``cursor`` is the encoded subscription, as in the metadata path."""

    managed_ledger: str
    cursor: str

    def __str__(self) -> str:
        return f"{self.managed_ledger}/{self.cursor}"


@dataclass(frozen=True, slots=True, order=True)
class SchemaHolder:
    """The schema of a topic; ``schema_id`` is ``tenant/namespace/encoded``, shared by all partitions."""

    schema_id: str

    def __str__(self) -> str:
        return f"schema:{self.schema_id}"


Holder = ManagedLedgerHolder | CursorHolder | SchemaHolder


@dataclass(frozen=True, slots=True)
class LiveReferences:
    """The ledgers that a holder names, read just now; a holder that does not exist names none."""

    ledger_ids: frozenset[int]
    exists: bool


@dataclass(frozen=True, slots=True)
class UnknownReferences:
    """A holder's references could not be read or understood: nothing may be concluded from it."""

    reason: str


References = LiveReferences | UnknownReferences
