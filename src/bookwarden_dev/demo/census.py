"""A census of ledgers in the metadata store, on the bookie and in the bucket, before and after."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from bookwarden.clusters.bookkeeper.bookies.probe import Bookie
from bookwarden.clusters.bookkeeper.catalog import DEFAULT_LEDGERS_ROOT, BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_paths import is_special, ledger_id_of
from bookwarden.ledgers.custom_metadata import identify_holder
from bookwarden.ledgers.kinds import Holder, SchemaHolder
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.metastore.interface import MetadataStore

# The offloader's names of data and index: see clusters/offload/names.py.
_OBJECT = re.compile(r"[0-9a-f-]{36}-ledger-(\d+)(-index)?")


@dataclass(frozen=True, slots=True)
class CountedLedger:
    """A ledger as the census found it."""

    ledger_id: int
    holder: str
    kind: str
    on_bookie: bool
    in_bucket: bool


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The ledgers that each place holds."""

    in_metadata: frozenset[int]
    on_bookie: frozenset[int]
    in_bucket: frozenset[int]


@dataclass(frozen=True, slots=True)
class Places:
    """The places where ledgers can be; ``objects`` lists the names of the bucket's objects."""

    store: MetadataStore
    bookie: Bookie
    objects: Callable[[], Iterable[str]]

    def on_bookie(self, ledger_ids: Collection[int]) -> frozenset[int]:
        """Return the ledgers of which the bookie has the first entry; raise BookieUnavailableError if it is unknown."""
        held = self.bookie.holds(list(ledger_ids))
        return frozenset(number for number, there in held.items() if there)

    def in_bucket(self) -> frozenset[int]:
        """Return the ledgers of which the bucket has anything at all."""
        return offloaded_ledger_ids(self.objects())

    def whereabouts(self, ledger_ids: Collection[int]) -> Whereabouts:
        """Return the ones among these ledgers that each place holds now."""
        self.store.sync()
        asked = frozenset(ledger_ids)
        listed = frozenset(list_ledger_ids(self.store))
        return Whereabouts(listed & asked, self.on_bookie(ledger_ids), self.in_bucket() & asked)


def offloaded_ledger_ids(names: Iterable[str]) -> frozenset[int]:
    """Return the ledgers whose copies, or parts of copies, are among a bucket's objects."""
    found = (_OBJECT.fullmatch(name) for name in names)
    return frozenset(int(match[1]) for match in found if match)


def list_ledger_ids(store: MetadataStore) -> list[int]:
    """List the ids of all ledgers, by walking their directories; for small clusters."""
    ids = [ledger_id_of(DEFAULT_LEDGERS_ROOT, path) for path in _walk(store, DEFAULT_LEDGERS_ROOT)]
    return sorted(ledger_id for ledger_id in ids if ledger_id is not None)


def _walk(store: MetadataStore, path: str) -> Iterator[str]:
    for child in store.list_children(path):
        if is_special(child):
            continue
        below = f"{path}/{child}"
        if child.startswith("L"):
            yield below
        else:
            yield from _walk(store, below)


def take_census(places: Places, tenant: str) -> list[CountedLedger]:
    """Find every ledger of a tenant's own topics, with its holder, its kind, and where it is.

    The broker keeps topics of its own in each namespace, whose names begin with two underscores; they are left out.
    """
    found = []
    for reading in BookKeeperCatalog(places.store).read_many(list_ledger_ids(places.store)):
        holder = identify_holder(reading.metadata.custom) if isinstance(reading, StoredLedger) else None
        if holder is not None and _name(holder).startswith(f"{tenant}/") and "/__" not in _name(holder):
            found.append((reading.ledger_id, holder))
    held, copied = places.on_bookie([ledger_id for ledger_id, _ in found]), places.in_bucket()
    return [
        CountedLedger(number, _name(holder), holder.ledgers_label, number in held, number in copied)
        for number, holder in found
    ]


def _name(holder: Holder) -> str:
    return str(holder).removeprefix(SchemaHolder.prefix)
