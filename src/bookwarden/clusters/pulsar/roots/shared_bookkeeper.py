"""Proof of a metadata root's BookKeeper: ledgers that the root names, looked up in the BookKeeper.

An id alone proves nothing, since every BookKeeper counts from 0; so the ledger's metadata must name the holder, and its
size and time must fit. Two clusters may even have topics of the same names, each over a BookKeeper of its own: then a
ledger that our own root names in the same place is ours, whatever the other root says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from bookwarden.clusters.bookkeeper.catalog import ReadsLedgers
from bookwarden.clusters.pulsar.roots.sample import NamedLedger
from bookwarden.ledgers.custom_metadata import custom_metadata_mismatch
from bookwarden.ledgers.metadata import LedgerState, StoredLedger, UnreadableLedger
from bookwarden.metastore.interface import MetadataStore

# The clocks of two stores, and of a broker, may differ by this much.
_CLOCKS_DIFFER_MS: Final = 600_000


class LookedUp(NamedTuple):
    """A sample looked up in this BookKeeper: the number of its ledgers, and those that were found.

    ``unreadable`` are ids whose metadata could not be understood, so that they may be these ledgers or others.
    """

    ledgers: int
    found: tuple[NamedLedger, ...]
    unreadable: tuple[NamedLedger, ...] = ()


def look_up(sample: Sequence[NamedLedger], catalog: ReadsLedgers) -> LookedUp:
    """Look up exactly these ledgers; StoreError where the BookKeeper's store does not answer."""
    readings = catalog.read_many([named.ledger_id for named in sample])
    pairs = list(zip(sample, readings, strict=True))
    found = [named for named, reading in pairs if isinstance(reading, StoredLedger) and is_the_same(named, reading)]
    unreadable = [named for named, reading in pairs if isinstance(reading, UnreadableLedger)]
    return LookedUp(len(sample), tuple(found), tuple(unreadable))


def is_the_same(named: NamedLedger, stored: StoredLedger) -> bool:
    """Return whether BookKeeper's ledger may be the one that the node names, by holder, size and time."""
    metadata = stored.metadata
    if custom_metadata_mismatch(named.holder, metadata.custom) is not None:
        return False
    if named.entries is not None and metadata.state is LedgerState.CLOSED and metadata.last_entry_id is not None:
        return (metadata.last_entry_id + 1, metadata.length) == (named.entries, named.size)
    # A node is written when its newest ledger is made, or later. A copied store has its own times of creation.
    times = [time for time in (stored.created_ms, metadata.ctime_ms) if time]
    return not named.written_ms or not times or min(times) <= named.written_ms + _CLOCKS_DIFFER_MS


def not_named_by(roots: Iterable[MetadataStore], ledgers: Sequence[NamedLedger]) -> list[NamedLedger]:
    """Omit the ledgers that one of the roots names in the same place; StoreError where one does not answer."""
    for store in roots:
        here = named_by(store, ledgers)
        ledgers = [named for named in ledgers if named not in here]
    return list(ledgers)


def named_by(store: MetadataStore, ledgers: Sequence[NamedLedger]) -> list[NamedLedger]:
    """Return the ledgers that a root names now in the same place; StoreError where it does not answer."""
    nodes = {named.node.path: named.node for named in ledgers}
    store.sync()
    values = zip(nodes.items(), store.get_many(list(nodes)), strict=True)
    here = {path: node.read(value, "").ledger_ids for (path, node), value in values if value is not None}
    return [named for named in ledgers if named.ledger_id in here.get(named.node.path, ())]


def shared_ledger(
    sample: Sequence[NamedLedger], catalog: ReadsLedgers, ours: Mapping[str, MetadataStore]
) -> tuple[LookedUp, NamedLedger | None]:
    """Look up what another root names; return a ledger that proves that it is over this BookKeeper, None without one.

    ``ours`` are the configured roots. Raises StoreError where one of them, or the BookKeeper's, does not answer.
    """
    looked_up = look_up(sample, catalog)
    evidence = not_named_by(ours.values(), looked_up.found) if looked_up.found else []
    return looked_up, evidence[0] if evidence else None
