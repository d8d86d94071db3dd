"""A census of ledgers: what ZooKeeper and the bookie hold, before and after."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from bookwarden.clusters.bookkeeper.bookie import Bookie
from bookwarden.clusters.bookkeeper.catalog import DEFAULT_LEDGERS_ROOT, BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_paths import is_special, ledger_id_of
from bookwarden.ledgers.custom_metadata import identify_holder
from bookwarden.ledgers.holders import CursorHolder, Holder, ManagedLedgerHolder
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.metastore.interface import MetadataStore


@dataclass(frozen=True, slots=True)
class CountedLedger:
    """A ledger as the census found it."""

    ledger_id: int
    holder: str
    kind: str
    on_bookie: bool


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Which ledgers each side holds."""

    in_metadata: frozenset[int]
    on_bookie: frozenset[int]


def list_ledger_ids(store: MetadataStore, root: str = DEFAULT_LEDGERS_ROOT) -> list[int]:
    """List the ids of all ledgers below the root, by walking its directories; for small clusters."""
    return sorted(ledger_id for path in _walk(store, root) if (ledger_id := ledger_id_of(root, path)) is not None)


def _walk(store: MetadataStore, path: str) -> Iterator[str]:
    for child in store.list_children(path):
        if is_special(child):
            continue
        below = f"{path}/{child}"
        if child.startswith("L"):
            yield below
        else:
            yield from _walk(store, below)


def take_census(store: MetadataStore, bookie: Bookie, tenant: str) -> list[CountedLedger]:
    """Find every ledger of a tenant's own topics, with its holder, kind, and whether the bookie has its first entry.

    The broker keeps topics of its own in each namespace, whose names begin with two underscores; they are left out.
    """
    found = []
    for reading in BookKeeperCatalog(store).read_many(list_ledger_ids(store)):
        holder = identify_holder(reading.metadata.custom) if isinstance(reading, StoredLedger) else None
        if holder is not None and _name(holder).startswith(f"{tenant}/") and "/__" not in _name(holder):
            found.append((reading.ledger_id, holder))
    held = bookie.holds([ledger_id for ledger_id, _ in found])
    return [CountedLedger(number, _name(holder), _kind(holder), held[number]) for number, holder in found]


def whereabouts(store: MetadataStore, bookie: Bookie, ledger_ids: Collection[int]) -> Whereabouts:
    """Say which of the ledgers ZooKeeper and the bookie hold now."""
    store.sync()
    listed = frozenset(list_ledger_ids(store)) & frozenset(ledger_ids)
    held = bookie.holds(list(ledger_ids))
    return Whereabouts(listed, frozenset(number for number, there in held.items() if there))


def _name(holder: Holder) -> str:
    return str(holder).removeprefix("schema:")


def _kind(holder: Holder) -> str:
    if isinstance(holder, ManagedLedgerHolder):
        return "data"
    return "cursor" if isinstance(holder, CursorHolder) else "schema"
