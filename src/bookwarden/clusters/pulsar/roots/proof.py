"""Proof that the configured metadata roots are all that share their BookKeeper, and that they do share it.

Two clusters may share one BookKeeper, and a ledger's own metadata does not distinguish them. A root that is not
configured, at another chroot of the ensemble, may have the references to half of all ledgers.

That a root shares a BookKeeper is proven by ledgers that the root names, looked up there. An id alone proves nothing,
since every BookKeeper counts from 0; so the ledger's metadata must name the holder, and its size and time must fit.
Two clusters may even have topics of the same names, each over a BookKeeper of its own: then a ledger that our own root
names in the same place is ours, whatever the other root says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NamedTuple

from bookwarden.clusters.bookkeeper.catalog import ReadsLedgers
from bookwarden.clusters.bookkeeper.ledger_ids import largest_ledger_id
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.clusters.pulsar.metadata.paths import MANAGED_LEDGERS_ROOT
from bookwarden.clusters.pulsar.roots.sample import NamedLedger, RootSample, sample_root
from bookwarden.errors import ConfigError, RefusedError, StoreAccessError
from bookwarden.ledgers.custom_metadata import custom_metadata_mismatch
from bookwarden.ledgers.metadata import LedgerState, StoredLedger, UnreadableLedger
from bookwarden.ledgers.pending_deletion import MAX_LEDGER_ID
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import split_chroot, with_chroot

_LOG = logging.getLogger(__name__)
# The clocks of two stores, and of a broker, may differ by this much.
_CLOCKS_DIFFER_MS: Final = 600_000
# How deep a chroot may lie, as in zk:host/company/pulsar-1.
_DEPTH: Final = 2
_ASKED_AT_ONCE: Final = 1_000
# Nodes of Pulsar, BookKeeper and ZooKeeper itself: no chroot is below them, and some have millions of names.
_NO_CHROOTS: Final = frozenset(
    {
        MANAGED_LEDGERS_ROOT.strip("/"),
        *("admin", "bookies", "counters", "ledgers", "loadbalance", "namespace", "schemas", "stream"),
        *("zookeeper", "brokers", "consumers", "kafka-acl", "hadoop-ha", "hbase", "solr"),
    }
)
# Called with a node that may not be read, and the error.
Refused = Callable[[str, StoreAccessError], None]
_UNSEEN = (
    "a Pulsar cluster that shares this BookKeeper may be there, and what only it names would look like an orphan. Let "
    "bookwarden read it, name the root in metadata_store.separate_roots if its BookKeeper is another one, or set "
    "metadata_store.allow_unseen_roots if you know that none is there that shares this BookKeeper"
)
# Fewer prove nothing about a partly hidden or damaged root: that part may be most of it.
_FEW: Final = 10
# Topics of which the newest ledgers tell a copy of a BookKeeper from itself.
_ENOUGH_TOPICS: Final = 20


class SampleLookup(NamedTuple):
    """A sample looked up in this BookKeeper: the number of its ledgers, and those that were found.

    ``unreadable`` are ids whose metadata could not be understood, so that they may be these ledgers or others.
    """

    ledgers: int
    found: tuple[NamedLedger, ...]
    unreadable: tuple[NamedLedger, ...] = ()


def look_up(sample: Sequence[NamedLedger], catalog: ReadsLedgers) -> SampleLookup:
    """Look up exactly these ledgers; StoreError where the BookKeeper's store does not answer."""
    readings = catalog.read_many([named.ledger_id for named in sample])
    pairs = list(zip(sample, readings, strict=True))
    found = [named for named, reading in pairs if isinstance(reading, StoredLedger) and is_the_same(named, reading)]
    unreadable = [named for named, reading in pairs if isinstance(reading, UnreadableLedger)]
    return SampleLookup(len(sample), tuple(found), tuple(unreadable))


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
) -> tuple[SampleLookup, NamedLedger | None]:
    """Look up what another root names; return a ledger that proves that it is over this BookKeeper, None without one.

    ``ours`` are the configured roots. Raises StoreError where one of them, or the BookKeeper's, does not answer.
    """
    looked_up = look_up(sample, catalog)
    evidence = not_named_by(ours.values(), looked_up.found) if looked_up.found else []
    return looked_up, evidence[0] if evidence else None


def roots_on(ensemble: MetadataStore, refused: Refused | None = None) -> list[str]:
    """List the chroots with managed ledgers, as paths in a store without a chroot; "" is the root itself.

    Chroots deeper than two names are not found. Raises StoreError where the store does not answer, or refuses; with
    ``refused``, which is called with it, a refused node is omitted.
    """
    ensemble.sync()
    return sorted(_among(ensemble, [""], _DEPTH, refused))


def _among(store: MetadataStore, paths: Sequence[str], depth: int, refused: Refused | None) -> Iterator[str]:
    for at in range(0, len(paths), _ASKED_AT_ONCE):
        yield from _with_managed_ledgers(store, paths[at : at + _ASKED_AT_ONCE])
    if depth:
        below = [f"{path}/{name}" for path in paths for name in _names(store, path, refused) if name not in _NO_CHROOTS]
        yield from _among(store, below, depth - 1, refused)


def _with_managed_ledgers(store: MetadataStore, paths: Sequence[str]) -> list[str]:
    """Return the paths with managed ledgers below them; a node that may not be read counts as there."""
    try:
        nodes = store.get_many([f"{path}{MANAGED_LEDGERS_ROOT}" for path in paths])
    except StoreAccessError:
        if len(paths) == 1:
            return list(paths)
        half = len(paths) // 2
        return _with_managed_ledgers(store, paths[:half]) + _with_managed_ledgers(store, paths[half:])
    return [path for path, node in zip(paths, nodes, strict=True) if node is not None]


def _names(store: MetadataStore, path: str, refused: Refused | None) -> list[str]:
    try:
        return store.children_of(path or "/")
    except StoreAccessError as error:
        if refused is None:
            raise
        refused(path or "/", error)
        return []


class _Ensemble(NamedTuple):
    """An ensemble, and the chroots on it that the settings name."""

    url: str
    configured: frozenset[str]
    separate: frozenset[str]


@dataclass(frozen=True, slots=True)
class RootsProof:
    """The proof for the roots of the settings."""

    stores: Mapping[str, MetadataStore]  #: The open roots, by URL.
    catalog: ReadsLedgers  #: Of the BookKeeper that the settings name.
    place: LedgersRoot  #: Of that BookKeeper.
    open_store: Callable[[str], MetadataStore]  #: Opens the store of any URL that is not in ``stores``.
    separate: Sequence[str] = ()  #: URLs of roots that have another BookKeeper.
    allow_unseen: bool = False  #: Hidden nodes are no reason to refuse.
    #: Called before the roots are searched; raises RefusedError where that would not tell enough.
    require_first: Callable[[], object] = lambda: None
    #: Reads the URLs of stores that further registered bookie clusters have of their own.
    further_urls: Callable[[], Sequence[str]] = tuple
    #: Raises NoBookieError where that BookKeeper is not in service; a snapshot's cannot tell.
    require_bookies: Callable[[], object] = lambda: None

    def require(self) -> list[str]:
        """Require that the roots belong to the BookKeeper, and are all that do; the notes of `require_all_roots`.

        Raises as `require_roots_of_bookkeeper` and `require_all_roots` do.
        """
        self.require_first()
        self.require_roots_of_bookkeeper()
        return self.require_all_roots()

    def require_all_roots(self) -> list[str]:
        """Raise RefusedError where a root that the settings do not name shares their BookKeeper, or may.

        The ensembles of the settings and of further registered bookie clusters are searched. Returns notes for the
        operator: roots that do not share it, and points to check. StoreError where one does not answer.
        """
        self.require_first()
        notes: list[str] = []
        for ensemble in self._ensembles():
            with closing(self.open_store(ensemble.url)) as store:
                roots = _roots_seen(ensemble, store, notes, allowed=self.allow_unseen)
            for chroot in roots:
                if chroot in ensemble.configured:
                    continue
                url = with_chroot(ensemble.url, chroot)
                if chroot in ensemble.separate:
                    notes.append(f"{url} has a BookKeeper of its own, as metadata_store.separate_roots says")
                    continue
                with closing(self.open_store(url)) as root:
                    notes.append(self._describe_root(url, root))
        return [*notes, *self._unexplained_clusters()]

    def require_roots_of_bookkeeper(self) -> None:
        """Raise ConfigError if a root names ledgers, and too few of those looked up are in the BookKeeper.

        None of them is in an empty BookKeeper or another's. In one that was restored from a backup, or copied, the
        newest ledgers of most topics are missing. StoreError where a root, or BookKeeper's store, does not answer;
        NoBookieError where no bookie is registered.
        """
        for url, store in self.stores.items():
            sample = sample_root(store).ledgers
            looked_up = look_up(sample, self.catalog)
            closed = [named for named in sample if named.entries]
            if closed and not looked_up.found and not looked_up.unreadable:
                raise ConfigError(
                    f"none of {looked_up.ledgers:,} ledgers that {url} names is in the BookKeeper at {self.place.url}, "
                    f"{self.place.ledgers_root}, such as {_name_of(closed[0])}: they do not belong together. Check "
                    "metadata_store.urls, bookkeeper_url and ledgers_root; take a root that is no longer in use out of "
                    "urls"
                )
            self._require_newest(url, store, sample, looked_up)
            _LOG.info("%d of %d ledgers that %s names were found", len(looked_up.found), looked_up.ledgers, url)
        self.require_bookies()

    def _require_newest(
        self, url: str, store: MetadataStore, sample: Sequence[NamedLedger], looked_up: SampleLookup
    ) -> None:
        newest = [named for named in sample if named.is_newest_closed]
        known = {*looked_up.found, *looked_up.unreadable}
        missing = [named for named in newest if named not in known]
        if len(newest) < _ENOUGH_TOPICS or 2 * len(missing) <= len(newest):
            return
        # A topic may have been trimmed or deleted since its node was read.
        still_named = named_by(store, missing)
        again = look_up(still_named, self.catalog)
        missing = [named for named in still_named if named not in {*again.found, *again.unreadable}]
        if 2 * len(missing) > len(newest):
            raise ConfigError(
                f"the newest closed ledgers of {len(missing):,} of {len(newest):,} topics that {url} names are not in "
                f"the BookKeeper at {self.place.url}, {self.place.ledgers_root}, such as {_name_of(missing[0])}: it is "
                "an older copy of the right one, or another. Check metadata_store.urls, bookkeeper_url and "
                "ledgers_root; if BookKeeper's metadata was restored from a backup, see docs/safety.md"
            )

    def _ensembles(self) -> Iterator[_Ensemble]:
        urls = [split_chroot(url) for url in self.stores]
        separate = [split_chroot(url) for url in self.separate]
        others = (split_chroot(url)[0] for url in (self.place.url, *self.further_urls()))
        for ensemble in dict.fromkeys([*(url for url, _ in urls), *others]):
            yield _Ensemble(ensemble, _chroots(urls, ensemble), _chroots(separate, ensemble))

    def _describe_root(self, url: str, root: MetadataStore) -> str:
        """Describe a root that the settings do not name; RefusedError where it shares the BookKeeper, or may."""
        try:
            sample = sample_root(root)
        except StoreAccessError as error:
            if self.allow_unseen:
                return f"{url} may not be read ({error})"
            raise RefusedError(f"{url} has managed ledgers, and may not be read ({error}): {_UNSEEN}") from error
        return judged(url, sample, self.catalog, self.stores, allowed=self.allow_unseen)

    def _unexplained_clusters(self) -> Iterator[str]:
        """Yield a warning where the roots know more clusters than there are roots: some are for geo-replication."""
        stores = self.stores.values()
        names = sorted({name for store in stores for name in store.children_of("/admin/clusters")} - {"global"})
        if len(names) > len({split_chroot(url) for url in self.stores}):
            yield (
                f"metadata_store.urls has {len(self.stores)} roots, and these know the clusters {', '.join(names)}: "
                "check that none of the others uses this BookKeeper"
            )


def require_some_ledger(stores: Mapping[str, MetadataStore], bookkeeper: MetadataStore, place: LedgersRoot) -> None:
    """Raise ConfigError if a root, by its URL in ``stores``, names ledgers, and the BookKeeper at this place has none.

    This asks less than `RootsProof`, so that it holds after most ledgers were deleted that are still named.
    """
    if largest_ledger_id(bookkeeper, place.ledgers_root, 0, MAX_LEDGER_ID + 1) is not None:
        return
    for url, store in stores.items():
        closed = [named for named in sample_root(store).ledgers if named.entries]
        if closed:
            raise ConfigError(
                f"the BookKeeper at {place.url}, {place.ledgers_root}, has no ledger at all, and {url} names some, such"
                f" as {_name_of(closed[0])}: it is another one. Check metadata_store.bookkeeper_url and ledgers_root"
            )


def _chroots(urls: list[tuple[str, str]], ensemble: str) -> frozenset[str]:
    return frozenset(chroot for url, chroot in urls if url == ensemble)


def _roots_seen(ensemble: _Ensemble, store: MetadataStore, notes: list[str], *, allowed: bool) -> list[str]:
    hidden: list[str] = []

    def refused(path: str, error: StoreAccessError) -> None:
        if path not in ensemble.configured | ensemble.separate:
            hidden.append(f"{path} on {ensemble.url} may not be looked at ({error})")

    roots = roots_on(store, refused)
    if hidden and not allowed:
        raise RefusedError(f"{hidden[0]}: {_UNSEEN}")
    notes += hidden
    return roots


def judged(
    url: str, sample: RootSample, catalog: ReadsLedgers, ours: Mapping[str, MetadataStore], *, allowed: bool
) -> str:
    """Describe the root of which this is a sample; RefusedError where it shares the BookKeeper, or may."""
    looked_up, evidence = shared_ledger(sample.ledgers, catalog, ours)
    if evidence is not None:
        raise RefusedError(
            f"{url} is the metadata root of a Pulsar cluster that shares this BookKeeper, and metadata_store.urls does "
            f"not name it: {_name_of(evidence)}, which it names, is in this BookKeeper and is that holder's. Add the "
            "root there, since what only it names would look like an orphan; or, if its BookKeeper is another one, "
            "to metadata_store.separate_roots"
        )
    unknown = _unknown(looked_up, sample)
    if unknown and not allowed:
        raise RefusedError(f"{url} has managed ledgers, and {unknown}: {_UNSEEN}")
    if not looked_up.ledgers:
        return f"{url} has managed ledgers, and {unknown or 'names no ledger'}; metadata_store.urls does not name it"
    return (
        f"{url} is another metadata root: {looked_up.ledgers:,} ledgers that it names were looked up, and none is in "
        "this BookKeeper that the roots in metadata_store.urls do not name"
    )


def _unknown(looked_up: SampleLookup, sample: RootSample) -> str:
    """Explain why nothing can be concluded about a root; "" if something can."""
    if not looked_up.ledgers and not sample.whole:
        return "it could not be seen whether it names ledgers"
    if looked_up.ledgers < _FEW and not sample.whole:
        return f"not all of it could be read; {looked_up.ledgers} ledgers, which were looked up, are too few to tell"
    if looked_up.ledgers and len(looked_up.unreadable) == looked_up.ledgers:
        return (
            f"the metadata of all ledgers that were looked up is unreadable, such as of {_name_of(sample.ledgers[0])}"
        )
    return ""


def _name_of(named: NamedLedger) -> str:
    return f"ledger {named.ledger_id} of {named.holder}"
