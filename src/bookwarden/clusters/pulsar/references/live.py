"""Live references: the ledgers that Pulsar's metadata names, read from all metadata roots at once.

A failed, partial or unparsable read never means "not referenced": it is UnknownReferences.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from bookwarden.clusters.bookkeeper.bookies.last_entries import LastEntries
from bookwarden.clusters.pulsar.metadata.paths import MANAGED_LEDGERS_ROOT
from bookwarden.clusters.pulsar.references.nodes import (
    ManagedLedgerNode,
    NodeValue,
    ReferenceNode,
    managed_ledger_node,
    node_of,
    read_each,
)
from bookwarden.clusters.pulsar.references.shadows import ShadowDoubt, Shadows, ShadowTopics
from bookwarden.clusters.pulsar.references.unnamed_use import UnnamedUses
from bookwarden.clusters.pulsar.rest.brokers import Brokers
from bookwarden.errors import ConfigError, FormatError, StoreAccessError, StoreError
from bookwarden.ledgers.kinds import BucketHolder, CompactedHolder, Holder, ManagedLedgerHolder
from bookwarden.ledgers.live_references import HolderNode, LiveReferences, References, ShadowList, UnknownReferences
from bookwarden.ledgers.managed_ledger import CursorInfo, LedgerInfo, ManagedLedgerInfo
from bookwarden.ledgers.metadata import Condition
from bookwarden.ledgers.references import Doubt, NodeReferences, ReferenceIndex
from bookwarden.ledgers.shared_doubts import unreadable_node
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.paths import validate_path

logger = logging.getLogger(__name__)
# The references of one node in each root; None where it has no such node.
_OfRoots = Sequence[NodeReferences | None]


class _Needed(NamedTuple):
    """The nodes that may refer to a holder's ledgers: its own, the first above all, and those of other topics."""

    own: tuple[ReferenceNode, ...]
    others: tuple[ManagedLedgerNode, ...]


class MetadataReferences:
    """Reads the references of holders; a ledger counts as referenced if any of the metadata roots names it.

    ``brokers`` are those of the first root: without them no ledger of a compacted view counts as unreferenced while
    its topic exists. ``entries`` reads the ledgers of open cursors; without it the brokers' word is taken.
    ``shadow_refresh`` is the seconds after which shadow topics are searched again; 0 searches none.
    ``seen_from_ledgers`` is, for each root, its paths' prefix in the store of BookKeeper's metadata, None for a root
    that this store's transactions do not reach; without it no reading has conditions for the delete.
    """

    def __init__(
        self,
        stores: Sequence[MetadataStore],
        brokers: Brokers | None = None,
        entries: LastEntries | None = None,
        *,
        shadow_refresh: float = 0.0,
        seen_from_ledgers: Sequence[str | None] | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        if not stores:
            raise ConfigError("no metadata store is configured: without one no reference can be read")
        self._stores = tuple(stores)
        # Roots are numbered: their URLs are never shown.
        self._roots = tuple(str(number) for number in range(len(stores)))
        self._shadows = (
            [ShadowTopics(store, shadow_refresh, clock=steady) for store in stores] if shadow_refresh > 0 else []
        )
        self._seen_from_ledgers = tuple(seen_from_ledgers or [None] * len(stores))
        self._unnamed_uses = UnnamedUses(self._stores, brokers, entries)
        self._logged_doubts: list[ShadowDoubt] = []

    def read(
        self, holders: Sequence[Holder], ledgers: Mapping[Holder, Collection[int]] | None = None
    ) -> Mapping[Holder, References]:
        """Read each holder's references, never older than this call; a doubt about one is UnknownReferences.

        A managed ledger that listed one of these ``ledgers`` at the last search for shadows is read like a shadow, also
        for a holder that is no managed ledger, since a ledger may have another one's metadata.

        Raises StoreError when a metadata root does not answer, or is no Pulsar's: then no references are known at all.
        """
        references: dict[Holder, References] = {}
        nodes: dict[Holder, _Needed] = {}
        distinct = list(dict.fromkeys(holders))
        shadows = [root.known() for root in self._shadows] if ledgers or _any_topic(distinct) else []
        doubts = self._log_doubts([doubt for root in shadows for doubt in root.doubts])
        for holder in distinct:
            try:
                own = _nodes_of(holder)
                nodes[holder] = _Needed(own, _nodes_of_others(holder, own, shadows, (ledgers or {}).get(holder, ())))
            except FormatError as error:
                references[holder] = UnknownReferences(str(error))
        distinct_nodes = list(dict.fromkeys(chain.from_iterable(chain(*nodes.values()))))
        for holder, path in _of_two_kinds(nodes, distinct_nodes):
            references[holder] = UnknownReferences(f"{path} would be the node of a topic and that of a cursor at once")
            del nodes[holder]
        if not nodes:
            return references
        index, conditions = self._read(distinct_nodes)
        for holder, needed in nodes.items():
            found = self._references(holder, needed, index)
            elsewhere = _doubt_elsewhere(holder, needed, doubts) if doubts else None
            if elsewhere is not None and isinstance(found, LiveReferences):
                shared = unreadable_node(elsewhere.path, elsewhere.reason)
                found = UnknownReferences(str(shared), elsewhere=True, shared=shared)
            elif isinstance(found, LiveReferences):
                demanded = tuple(chain.from_iterable(conditions.get(node.path, ()) for node in chain(*needed)))
                found = replace(found, conditions=demanded) if demanded else found
            references[holder] = found
        return references

    def nodes(self, holders: Sequence[Holder]) -> Mapping[Holder, tuple[HolderNode, ...] | Doubt]:
        """Read the node that names each holder's ledgers first, in each root that has it; never older than this call.

        A node that cannot be read or parsed is a doubt. StoreError as for `read`.
        """
        needed = {holder: _nodes_of(holder) for holder in dict.fromkeys(holders)}
        index, _ = self._read(list(dict.fromkeys(chain.from_iterable(needed.values()))))
        found: dict[Holder, tuple[HolderNode, ...] | Doubt] = {}
        for holder, nodes in needed.items():
            read = [index.at(node.path) for node in nodes]
            doubts = (node.doubt for node in chain.from_iterable(read) if node is not None and node.doubt is not None)
            found[holder] = next(doubts, None) or _holder_nodes(read)
        return found

    def _log_doubts(self, doubts: list[ShadowDoubt]) -> list[ShadowDoubt]:
        """Log the doubts about shadow topics once as long as they do not change; return those not taken as none."""
        left = [doubt for doubt in doubts if doubt.taken is None]
        if doubts != self._logged_doubts:
            if left:
                logger.warning(
                    "%d managed ledgers cannot be read and may be shadow topics: marks of all data ledgers wait for "
                    "them; the first: %s",
                    len(left),
                    left[0],
                )
            for doubt in doubts:
                if doubt.taken is not None:
                    logger.warning("%s: taken as no shadow topic by %s (%s)", doubt, doubt.taken.by, doubt.taken.why)
        self._logged_doubts = doubts
        return left

    def _read(self, nodes: Sequence[ReferenceNode]) -> tuple[ReferenceIndex, dict[str, list[Condition]]]:
        """Read these nodes in all roots, and make the conditions, by path, that they have not changed."""
        index = ReferenceIndex(keep_nodes=True)
        conditions: defaultdict[str, list[Condition]] = defaultdict(list)
        # All stores must answer before anything is decoded: a batch without one of them is useless.
        values = [_values(store, nodes) for store in self._stores]
        for root, found, seen_from in zip(self._roots, values, self._seen_from_ledgers, strict=True):
            for node, value in zip(nodes, found, strict=True):
                if value is None:
                    index.note_absent(node.path, root)
                elif isinstance(value, StoreAccessError):
                    doubt = Doubt(node.path, root, str(value))
                    index.add_node(NodeReferences(node.path, root, doubt=doubt))
                else:
                    index.add_node(node.read(value, root))
                    if seen_from is not None:
                        conditions[node.path].append(Condition(f"{seen_from}{node.path}", value.version))
        return index, conditions

    def _references(self, holder: Holder, needed: _Needed, index: ReferenceIndex) -> References:
        own = [index.at(node.path) for node in needed.own]
        others = [index.at(node.path) for node in needed.others]
        for of_others, found in ((False, own), (True, others)):
            for node in chain.from_iterable(zip(*found, strict=True)):
                if node is not None and node.doubt is not None:
                    return UnknownReferences(f"{node.doubt.path}: {node.doubt.reason}", elsewhere=of_others)
        references = self._own_references(holder, own, others)
        if not references.nodes and references.exists:
            references = replace(references, nodes=_holder_nodes(own))
        return replace(references, shadows=_shadow_lists(needed.others, others)) if others else references

    def _own_references(self, holder: Holder, own: Sequence[_OfRoots], others: Sequence[_OfRoots]) -> LiveReferences:
        exists = any(node is not None for node in own[0])
        if isinstance(holder, ManagedLedgerHolder):
            found = [node.managed_ledger for root in chain(own, others) for node in root if node is not None]
            lists = [info for info in found if info is not None]
            with_copies = tuple(chain.from_iterable(info.with_copies for info in lists))
            return LiveReferences(
                _named(own[0]),
                exists,
                offloaded=frozenset[UUID]().union(*(one.offload.uuids for one in with_copies if one.offload)),
                with_copies=with_copies,
                left_behind=_left_behind(lists) if with_copies else {},
                puzzling=frozenset[int]().union(*(info.puzzling for info in lists)),
                names_nothing=any(node is not None and not node.ledger_ids for node in own[0]),
                nodes=_holder_nodes(own),
            )
        named = _named(chain(*own))
        if isinstance(holder, CompactedHolder):
            return self._unnamed_uses.of_compacted(holder, named, _cursors(*own))
        if isinstance(holder, BucketHolder):
            listed = {number: node.ledger_ids for number, node in enumerate(own[1]) if node is not None}
            return self._unnamed_uses.of_buckets(holder, named, _cursors(*own), listed)
        return LiveReferences(named, exists)


def _values(store: MetadataStore, nodes: Sequence[ReferenceNode]) -> list[NodeValue]:
    store.sync()
    # Without any managed ledgers the URL is wrong, and every ledger would seem unreferenced.
    *values, top = read_each(store, [*(node.path for node in nodes), MANAGED_LEDGERS_ROOT])
    if isinstance(top, StoreAccessError):
        raise top
    if top is None:
        raise StoreError(
            f"a metadata store has no node {MANAGED_LEDGERS_ROOT}, so it is no Pulsar's: "
            "check the metadata store URLs and the path behind their hosts"
        )
    return values


def _any_topic(holders: Sequence[Holder]) -> bool:
    return any(isinstance(holder, ManagedLedgerHolder) for holder in holders)


def _of_two_kinds(nodes: Mapping[Holder, _Needed], distinct: Sequence[ReferenceNode]) -> list[tuple[Holder, str]]:
    """Find the holders with a node that is of another kind for another holder, as a topic "persistent" allows."""
    counts = Counter(node.path for node in distinct)
    if len(counts) == len(distinct):
        return []
    found = (
        (holder, node.path) for holder, needed in nodes.items() for node in chain(*needed) if counts[node.path] > 1
    )
    return list(dict(found).items())


def _nodes_of(holder: Holder) -> tuple[ReferenceNode, ...]:
    """List the nodes that may refer to the holder's ledgers, its own first."""
    nodes = tuple([node_of(other) for other in holder.named_by()])
    for node in nodes:
        validate_path(node.path)
    return nodes


def _nodes_of_others(
    holder: Holder, own: Sequence[ReferenceNode], shadows: Sequence[Shadows], ledger_ids: Iterable[int]
) -> tuple[ManagedLedgerNode, ...]:
    """List the nodes of a topic's shadows, and of any other topic that lists one of these ledgers."""
    names: dict[str, None] = {}
    if isinstance(holder, ManagedLedgerHolder):
        names |= dict.fromkeys(name for root in shadows for name in root.by_source.get(holder.name, ()))
    names |= dict.fromkeys(name for root in shadows for ledger_id in ledger_ids for name in root.listing(ledger_id))
    return tuple([node for node in map(managed_ledger_node, names) if node not in own])


def _doubt_elsewhere(holder: Holder, needed: _Needed, doubts: Sequence[ShadowDoubt]) -> ShadowDoubt | None:
    """Find a doubt about a node other than the topic's own, which was just read."""
    if not isinstance(holder, ManagedLedgerHolder):
        return None
    return next((doubt for doubt in doubts if doubt.path != needed.own[0].path), None)


def _holder_nodes(own: Sequence[_OfRoots]) -> tuple[HolderNode, ...]:
    """Return the first of these nodes, as each root has it; the second is that of a cursor's topic."""
    topics = own[1] if len(own) > 1 else [None] * len(own[0])
    return tuple(
        [
            HolderNode(node.path, node.info, frozenset() if topic is None else topic.ledger_ids)
            for node, topic in zip(own[0], topics, strict=True)
            if node is not None and node.info is not None
        ]
    )


def _named(nodes: Iterable[NodeReferences | None]) -> frozenset[int]:
    found = [node for node in nodes if node is not None]
    # Mostly there is one node, in one root.
    return found[0].ledger_ids if len(found) == 1 else frozenset[int]().union(*(node.ledger_ids for node in found))


def _left_behind(lists: Sequence[ManagedLedgerInfo]) -> dict[int, LedgerInfo]:
    """Find the ledgers of which only the offloaded copy is left, as all lists that name them agree."""
    flagged: dict[int, list[LedgerInfo]] = {}
    for ledger in chain.from_iterable(info.with_copies for info in lists):
        if ledger.offload is not None and ledger.offload.bookkeeper_deleted:
            flagged.setdefault(ledger.ledger_id, []).append(ledger)
    named = [info.ledger_ids for info in lists] if flagged else []
    return {
        ledger_id: first
        for ledger_id, (first, *others) in flagged.items()
        if 1 + len(others) == sum(ledger_id in ids for ids in named) and all(other == first for other in others)
    }


def _shadow_lists(shadows: Sequence[ReferenceNode], found: Sequence[_OfRoots]) -> tuple[ShadowList, ...]:
    named = zip(shadows, found, strict=True)
    return tuple([ShadowList(node.name, _named(of)) for node, of in named if isinstance(node, ManagedLedgerNode)])


def _cursors(cursors: _OfRoots, managed_ledgers: _OfRoots) -> dict[int, CursorInfo | None]:
    """Return the cursor by the number of each root that has the topic; None where there is no such cursor."""
    return {
        number: cursor.cursor if cursor is not None else None
        for number, (cursor, managed_ledger) in enumerate(zip(cursors, managed_ledgers, strict=True))
        if managed_ledger is not None
    }
