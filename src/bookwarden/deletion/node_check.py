"""Check of a holder's nodes before a ledger is deleted that they do not name: can they be what brokers wrote?

The rules are in `ledgers.node_doubts`. The sweep, `ledger explain`, the orphan scan, `orphans apply` and
`mark trim --store` ask this one check. A doubt keeps the ledger. Loading the topic once has its node written again, and
`mark ledger --inside-list` deletes a ledger in spite of a doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final, NamedTuple, TypeVar

from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.ports import LedgerCatalog
from bookwarden.errors import BookieError, FormatError, NotFoundError
from bookwarden.ledgers.kinds import CompactedHolder, CursorHolder, Holder, ManagedLedgerHolder
from bookwarden.ledgers.kinds.holder import CursorsHolder
from bookwarden.ledgers.left_behind import copy_left, why_not_whole
from bookwarden.ledgers.live_references import HolderNode
from bookwarden.ledgers.managed_ledger import (
    CursorInfo,
    CursorPosition,
    LedgerInfo,
    ManagedLedgerInfo,
    NodeInfo,
    SchemaEntryIndex,
    SchemaLocator,
)
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading, StoredLedger
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.node_doubts import (
    ListFindings,
    UnnamedLedger,
    check_list,
    doubt_about_bucket,
    doubt_about_compacted,
    doubt_about_cursor,
    doubt_about_locator,
    doubt_about_position,
    doubt_about_version,
    is_newer_than_named,
    is_offloaded,
    ledgers_of_cursor,
    may_be,
    rival_of,
    suspicious_entries,
)
from bookwarden.ledgers.pending_deletion import Waiver
from bookwarden.ledgers.references import Doubt

_T = TypeVar("_T")
# Each silent bookie costs a connection's timeout; after this number of ledgers the others wait for a retry.
_MOST_SILENT: Final = 3
_NO_BOOKIES: Final = "there are no bookies to ask"


class Suspect(NamedTuple):
    """A ledger, or an offloaded copy of it, that is to go because its holder does not name it."""

    holder: Holder
    reading: LedgerReading  #: The ledger; it may be gone where its offloaded copy is to go.
    nodes: tuple[HolderNode, ...] = ()  #: As in LiveReferences; without any there is nothing to check.
    is_copy: bool = False  #: The offloaded copy is to go.
    waives: frozenset[Waiver] = frozenset()  #: Those of its mark.


class BookieReads(DecodedEntries):
    """Last entries for one step: bookies are asked as long as they answer; without any each call raises BookieError."""

    def __init__(self, entries: DecodedEntries | None) -> None:
        self._entries = entries
        self._silent = 0
        self._reason = _NO_BOOKIES

    def last_entry(self, ledger_id: int) -> bytes | None:
        """Return the last entry of a ledger."""
        if self._entries is None or self._silent >= _MOST_SILENT:
            raise BookieError(self._reason)
        try:
            return self._entries.last_entry(ledger_id)
        except (BookieError, FormatError) as error:
            self._silent += 1
            self._reason = str(error)
            raise


class NodeDoubt(NamedTuple):
    """A node that may be damaged; as text it is for people."""

    path: str  #: Of the node.
    reason: str  #: For people.

    def as_listed(self) -> Doubt:
        """Return it as a scan lists it."""
        return Doubt(self.path, "", f"it may be damaged: {self.reason}")

    def __str__(self) -> str:
        return f"the node {self.path} may be damaged: {self.reason}"


class NodeCheck:
    """Checks nodes by the ledgers that they name, at most some twenty of each.

    ``entries`` and ``copies`` are None without bookies, or stores of offloaded copies, to ask; ``owner`` returns the
    broker that has a topic, or may have it, loaded, and None if certainly none has.
    """

    def __init__(
        self,
        catalog: LedgerCatalog,
        entries: DecodedEntries | None = None,
        copies: Callable[[], OffloadStores] | None = None,
        owner: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._catalog = catalog
        self._entries = entries
        self._copies = copies
        self._owner = owner

    def doubts(self, suspects: Sequence[Suspect], bookies: BookieReads | None = None) -> list[NodeDoubt | None]:
        """Return for each why its holder's nodes may have named it before they were damaged; None without a doubt.

        Raises StoreError when BookKeeper's metadata, or the owner of a topic, cannot be read.
        """
        look = _CheckRun(self._catalog, bookies or BookieReads(self._entries), self._copies, cache(self._owner))
        return look.doubts(suspects)

    def doubt_about(self, holder: ManagedLedgerHolder, node: HolderNode) -> NodeDoubt | None:
        """Return why a topic's list may be damaged, whichever ledger it lost by that; StoreError as of `doubts`."""
        # A copy of a ledger of which nothing is known may have been any entry.
        (doubt,) = self.doubts([Suspect(holder, AbsentLedger(-1), (node,), is_copy=True)])
        return doubt

    def doubts_now(self, suspects: Sequence[Suspect], references: MetadataReferences) -> list[NodeDoubt | None]:
        """Read the nodes of these, which have none yet, and return the doubts as `doubts` does.

        A node that cannot be read or parsed is a doubt too. StoreError also when a metadata root does not answer.
        """
        if not suspects:
            return []
        found = references.nodes([one.holder for one in suspects])
        doubts: list[NodeDoubt | None] = []
        known: list[Suspect] = []
        for one in suspects:
            nodes = found[one.holder]
            doubts.append(NodeDoubt(nodes.path, nodes.reason) if isinstance(nodes, Doubt) else None)
            known.append(one._replace(nodes=() if isinstance(nodes, Doubt) else nodes))
        return [doubt or checked for doubt, checked in zip(doubts, self.doubts(known), strict=True)]


class _CheckRun:
    """One look at some nodes; each list is gone through once, and each ledger read once."""

    def __init__(
        self,
        catalog: LedgerCatalog,
        bookies: BookieReads,
        copies: Callable[[], OffloadStores] | None,
        owner: Callable[[str], str | None],
    ) -> None:
        self._catalog = catalog
        self._bookies = bookies
        self._copies = copies
        self._owner = owner
        self._suspicious: dict[int, tuple[LedgerInfo, ...]] = {}
        self._findings: dict[int, ListFindings] = {}
        self._named: dict[int, frozenset[int]] = {}
        self._readings: dict[int, LedgerReading] = {}

    def doubts(self, suspects: Sequence[Suspect]) -> list[NodeDoubt | None]:
        """Return the doubts, as `NodeCheck` does."""
        versions = [self._version_of(one) for one in suspects]
        self._read(
            ledger_id
            for one, version in zip(suspects, versions, strict=True)
            for node in one.nodes
            for ledger_id in self._looked_up_for(one, node, version)
        )
        return [self._doubt(one, version) for one, version in zip(suspects, versions, strict=True)]

    def _read(self, ledger_ids: Iterable[int]) -> None:
        unread = [ledger_id for ledger_id in dict.fromkeys(ledger_ids) if ledger_id not in self._readings]
        if unread:
            self._readings.update(zip(unread, self._catalog.read_many(unread), strict=True))

    def _names(self, info: NodeInfo, one: Suspect) -> bool:
        if id(info) not in self._named:
            self._named[id(info)] = info.ledger_ids
        return not one.is_copy and one.reading.ledger_id in self._named[id(info)]

    def _suspicious_in(self, info: ManagedLedgerInfo) -> tuple[LedgerInfo, ...]:
        if id(info) not in self._suspicious:
            self._suspicious[id(info)] = suspicious_entries(info)
        return self._suspicious[id(info)]

    def _findings_about(self, holder: Holder, info: ManagedLedgerInfo) -> ListFindings:
        if id(info) not in self._findings:
            self._findings[id(info)] = check_list(holder, info, self._suspicious_in(info), self._readings)
        return self._findings[id(info)]

    def _version_of(self, one: Suspect) -> SchemaEntryIndex | str | None:
        """Read which version of a schema is in its ledger; None if it has no entry, a text if that is not known."""
        if not any(isinstance(node.info, SchemaLocator) for node in one.nodes):
            return None
        try:
            return self._bookies.schema_entry(one.reading.ledger_id)
        except NotFoundError:
            return None
        except (BookieError, FormatError) as error:
            return f"which version of the schema the ledger has is not known: {error}"

    def _looked_up_for(self, one: Suspect, node: HolderNode, version: SchemaEntryIndex | str | None) -> Iterable[int]:
        if isinstance(node.info, ManagedLedgerInfo):
            suspicious, ledger = self._suspicious_in(node.info), UnnamedLedger.of(one.reading)
            return [entry.ledger_id for entry in suspicious if entry is node.info.ledgers[-1] or may_be(entry, ledger)]
        if isinstance(node.info, CursorInfo) and isinstance(one.holder, CursorsHolder):
            return ledgers_of_cursor(one.holder, node.info, node.listed)
        if not isinstance(node.info, SchemaLocator):
            return []
        return [rival_of(node.info, version)] if isinstance(version, SchemaEntryIndex) else []

    def _doubt(self, one: Suspect, version: SchemaEntryIndex | str | None) -> NodeDoubt | None:
        for node in one.nodes:
            reason = self._reason(one, node.info, version)
            if reason is not None:
                return NodeDoubt(node.path, reason)
        return None

    def _reason(self, one: Suspect, info: NodeInfo, version: SchemaEntryIndex | str | None) -> str | None:
        if isinstance(info, ManagedLedgerInfo):
            found = self._findings_about(one.holder, info)
            if not one.is_copy and one.reading.ledger_id < found.sound_up_to:
                return None
            # One that is named goes for another reason, such as an offloaded copy that is proven to be whole.
            return None if self._names(info, one) else self._reason_of_list(one, info, found)
        if Waiver.INSIDE_LIST in one.waives or self._names(info, one):
            return None
        if isinstance(info, CursorInfo):
            doubt = None
            if isinstance(one.holder, CursorsHolder):
                doubt = doubt_about_cursor(one.holder, info, self._readings)
            return doubt or self._why_perhaps_ahead(one, info)
        if isinstance(version, SchemaEntryIndex):
            rival = self._readings[rival_of(info, version)]
            return doubt_about_locator(info) or doubt_about_version(one.holder, info, version, rival)
        return version or doubt_about_locator(info)

    def _reason_of_list(self, one: Suspect, info: ManagedLedgerInfo, found: ListFindings) -> str | None:
        ledger = UnnamedLedger.of(one.reading)
        bare = self._why_left_bare(one, info, ledger)
        if bare is not None or Waiver.INSIDE_LIST in one.waives:
            return bare
        return (
            found.doubt_about(ledger)
            or self._why_no_copy_stands_for_it(one, info, ledger, found)
            or self._why_perhaps_written(one, info, ledger)
        )

    def _why_left_bare(self, one: Suspect, info: ManagedLedgerInfo, ledger: UnnamedLedger) -> str | None:
        """Keep the last ledger with entries of a topic whose listed ledgers are all gone from BookKeeper."""
        has_entries = not one.is_copy and bool(ledger.entries)
        if not has_entries or Waiver.EMPTIED in one.waives or not info.ledgers or info.offloaded:
            return None
        if not isinstance(self._readings[info.ledgers[-1].ledger_id], AbsentLedger):
            return None
        self._read(sorted(info.ledger_ids))
        if not all(isinstance(self._readings[entry.ledger_id], AbsentLedger) for entry in info.ledgers):
            return None
        return (
            "BookKeeper has none of the ledgers that it lists: without this one the topic would have no ledger at all "
            "(docs/orphans.md, inside the list)"
        )

    def _why_no_copy_stands_for_it(
        self, one: Suspect, info: ManagedLedgerInfo, ledger: UnnamedLedger, found: ListFindings
    ) -> str | None:
        """Examine the offloaded copies of entries that may have been the ledger, or that stand for a copy of it."""
        if one.is_copy:
            entries = [e for e in info.with_copies if e.ledger_id == ledger.ledger_id and is_offloaded(e)]
        else:
            entries = [entry for entry in found.copies if may_be(entry, ledger)]
        problems = (self._why_no_copy(one.holder, entry) for entry in entries)
        return next((problem for problem in problems if problem is not None), None)

    def _why_no_copy(self, holder: Holder, entry: LedgerInfo) -> str | None:
        if entry.offload is None:
            return None
        copy = copy_left(entry, entry.offload, str(holder))
        what = f"it names the offloaded copy {copy.uuid} of ledger {entry.ledger_id} in {copy.location}"
        if self._copies is None:
            return f"{what}, and no store of offloaded copies is set up"
        (reading,) = self._copies().examine_many([copy])
        problem = why_not_whole(copy, reading, entry.size, entry.entries - 1)
        return None if problem is None else f"{what}, which is not whole: {problem}"

    def _why_perhaps_written(self, one: Suspect, info: ManagedLedgerInfo, ledger: UnnamedLedger) -> str | None:
        """Doubt that a ledger above the list of a topic that a broker has was never listed."""
        last = info.ledgers[-1].ledger_id if info.ledgers else -1
        if one.is_copy or ledger.ledger_id < last:
            return None
        topic = str(TopicName.of_managed_ledger(one.holder.topic))
        owner = self._owner(topic)
        if owner is None:
            return None
        return (
            f"the ledger is above the last one of its list, {last}, and may be the one that broker {owner} writes to, "
            f"which has {topic} loaded, or may load it: it goes once the topic lists a newer ledger"
        )

    def _why_perhaps_ahead(self, one: Suspect, info: CursorInfo) -> str | None:
        """Doubt a cursor's node that is behind a newer ledger of its own or of a compaction, or may need a bucket."""
        is_cursors_own = isinstance(one.holder, CursorHolder)
        if not isinstance(one.holder, CursorsHolder) or (
            is_cursors_own and not is_newer_than_named(info, one.reading.ledger_id)
        ):
            return None
        custom = one.reading.metadata.custom if isinstance(one.reading, StoredLedger) else {}
        recorded = []
        if info.mark_delete is not None:
            recorded.append(CursorPosition(info.mark_delete, acknowledged=info.acknowledged))
        try:
            named = None if info.cursors_ledger_id is None else self._bookies.position(info.cursors_ledger_id)
            recorded += [] if named is None else [named]
            if isinstance(one.holder, CompactedHolder):
                reaches_to = self._bookies.compacted_to(custom)
                return doubt_about_compacted(UnnamedLedger.of(one.reading), reaches_to, recorded)
            if is_cursors_own:
                return doubt_about_position(recorded, self._bookies.position(one.reading.ledger_id))
        except NotFoundError:
            # Gone meanwhile: the delete, or the next look, finds that out.
            return None
        except (BookieError, FormatError) as error:
            return f"it does not name this ledger, and how far the cursor is is not known: {error}"
        return doubt_about_bucket(info, custom, recorded)
