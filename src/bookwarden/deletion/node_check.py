"""Check of a holder's nodes before a ledger is deleted that they do not name: can they be what brokers wrote?

The rules are in `ledgers.node_doubts`. The sweep, `ledger explain`, the orphan scan, `orphans apply` and
`mark trim --store` ask this one check. A doubt keeps the ledger. Loading the topic once has its node written again, and
`mark ledger --inside-list` deletes a ledger in spite of a doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from bookwarden.deletion.ports import LastEntryReader, LedgerCatalog, OffloadedCopies
from bookwarden.errors import BookieError, FormatError, NotFoundError
from bookwarden.ledgers.kinds import CursorHolder, Holder
from bookwarden.ledgers.left_behind import copy_left, why_not_whole
from bookwarden.ledgers.live_references import HolderNode
from bookwarden.ledgers.managed_ledger import (
    CursorInfo,
    CursorPosition,
    LedgerInfo,
    ManagedLedgerInfo,
    SchemaEntryIndex,
    SchemaLocator,
)
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.node_doubts import (
    UnnamedLedger,
    doubt_about_cursor,
    doubt_about_list,
    doubt_about_locator,
    doubt_about_position,
    doubt_about_version,
    is_newer_than_named,
    is_offloaded,
    ledgers_of_cursor,
    may_have_been,
    rival_of,
    suspicious_entries,
)
from bookwarden.ledgers.pending_deletion import Waiver

_T = TypeVar("_T")
# Each silent bookie costs a connection's timeout; after so many ledgers the others wait for a retry.
_MOST_SILENT: Final = 3
_NO_BOOKIES: Final = "there are no bookies to ask"


class Suspect(NamedTuple):
    """A ledger, or an offloaded copy of it, that is to go because its holder does not name it."""

    holder: Holder
    reading: LedgerReading  #: The ledger; it may be gone where its offloaded copy is to go.
    nodes: tuple[HolderNode, ...]  #: As in LiveReferences; without any there is nothing to check.
    is_copy: bool = False  #: The offloaded copy is to go.
    waives: frozenset[Waiver] = frozenset()  #: Those of its mark.


class BookieReads:
    """A LastEntryReader for one step: it asks bookies as long as they answer, and without any raises BookieError."""

    def __init__(self, entries: LastEntryReader | None) -> None:
        self._entries = entries
        self._silent = 0
        self._reason = ""

    def last_entry(self, ledger_id: int) -> bytes | None:
        """Return the last entry of a ledger."""
        return self._ask(lambda entries, asked: entries.last_entry(asked), ledger_id)

    def position(self, ledger_id: int) -> CursorPosition | None:
        """Return the last position in a cursor's ledger."""
        return self._ask(lambda entries, asked: entries.position(asked), ledger_id)

    def schema_entry(self, ledger_id: int) -> SchemaEntryIndex | None:
        """Return the versions in a schema's ledger."""
        return self._ask(lambda entries, asked: entries.schema_entry(asked), ledger_id)

    def _ask(self, read: Callable[[LastEntryReader, int], _T], ledger_id: int) -> _T:
        if self._entries is None:
            raise BookieError(_NO_BOOKIES)
        if self._silent >= _MOST_SILENT:
            raise BookieError(self._reason)
        try:
            return read(self._entries, ledger_id)
        except (BookieError, FormatError) as error:
            self._silent += 1
            self._reason = str(error)
            raise


class NodeCheck:
    """Checks nodes by the ledgers that they name, at most some twenty of each.

    ``entries`` and ``copies`` are None without bookies, or stores of offloaded copies, to ask; ``owner`` returns the
    broker that has a topic, or may have it, loaded, and None if certainly none has.
    """

    def __init__(
        self,
        catalog: LedgerCatalog,
        entries: LastEntryReader | None = None,
        copies: Callable[[], OffloadedCopies] | None = None,
        owner: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._catalog = catalog
        self._entries = entries
        self._copies = copies
        self._owner = owner

    def doubts(self, suspects: Sequence[Suspect], bookies: BookieReads | None = None) -> list[str | None]:
        """Return for each why its holder's nodes may have named it before they were damaged; None without a doubt.

        Raises StoreError when BookKeeper's metadata, or the owner of a topic, cannot be read.
        """
        bookies = bookies or BookieReads(self._entries)
        asked = [one for one in suspects if one.nodes]
        versions = [_version_of(one, bookies) for one in asked]
        wanted = [_looked_up_for(one, version) for one, version in zip(asked, versions, strict=True)]
        ids = list(dict.fromkeys(ledger_id for some in wanted for ledger_id in some))
        looked_up = self._read(ids)
        doubts = {
            id(one): self._doubt(one, version, looked_up, bookies) for one, version in zip(asked, versions, strict=True)
        }
        return [doubts.get(id(one)) for one in suspects]

    def _read(self, ledger_ids: Sequence[int]) -> dict[int, LedgerReading]:
        return dict(zip(ledger_ids, self._catalog.read_many(ledger_ids), strict=True)) if ledger_ids else {}

    def _doubt(
        self,
        one: Suspect,
        version: SchemaEntryIndex | str | None,
        looked_up: Mapping[int, LedgerReading],
        bookies: BookieReads,
    ) -> str | None:
        if isinstance(version, str):
            return version
        for node in one.nodes:
            doubt = self._doubt_about(one, node, version, looked_up, bookies)
            if doubt is not None:
                return f"the node {node.path} may be damaged: {doubt}"
        return None

    def _doubt_about(
        self,
        one: Suspect,
        node: HolderNode,
        version: SchemaEntryIndex | None,
        looked_up: Mapping[int, LedgerReading],
        bookies: BookieReads,
    ) -> str | None:
        if isinstance(node.info, ManagedLedgerInfo):
            bare = self._doubt_about_bare_topic(one, node.info, looked_up)
            if bare is not None or Waiver.INSIDE_LIST in one.waives:
                return bare
            return (
                doubt_about_list(one.holder, node.info, _unnamed(one), looked_up)
                or self._doubt_about_copies(one, node.info)
                or self._doubt_about_owner(one, node.info)
            )
        if Waiver.INSIDE_LIST in one.waives:
            return None
        if isinstance(node.info, CursorInfo):
            owner = one.holder.named_by()[0]
            return doubt_about_cursor(one.holder, owner, node.info, looked_up) or _doubt_about_position(
                one, node.info, bookies
            )
        if version is None:
            return doubt_about_locator(node.info)
        return doubt_about_locator(node.info) or doubt_about_version(
            one.holder, node.info, version, looked_up[rival_of(node.info, version)]
        )

    def _doubt_about_copies(self, one: Suspect, info: ManagedLedgerInfo) -> str | None:
        """Examine the offloaded copies that stand for the ledger: of an entry that may have been it, or of itself."""
        stands_for_it = [
            entry
            for entry in (info.ledgers if one.is_copy else suspicious_entries(info))
            if is_offloaded(entry)
            and (entry.ledger_id == one.reading.ledger_id if one.is_copy else may_have_been(entry, _unnamed(one)))
        ]
        return next(filter(None, (self._why_no_copy(one, entry) for entry in stands_for_it)), None)

    def _why_no_copy(self, one: Suspect, entry: LedgerInfo) -> str | None:
        if entry.offload is None:
            return None
        copy = copy_left(entry, entry.offload, str(one.holder))
        what = f"it names the offloaded copy {copy.uuid} of ledger {entry.ledger_id} in {copy.location}"
        if self._copies is None:
            return f"{what}, and no store of offloaded copies is set up"
        (reading,) = self._copies().examine_many([copy])
        problem = why_not_whole(copy, reading, entry.size, entry.entries - 1)
        return None if problem is None else f"{what}, which is not whole: {problem}"

    def _doubt_about_owner(self, one: Suspect, info: ManagedLedgerInfo) -> str | None:
        """Doubt that a ledger above a loaded topic's list was never listed, unless it has entries."""
        last = info.ledgers[-1].ledger_id if info.ledgers else -1
        if one.is_copy or one.reading.ledger_id < last or _unnamed(one).entries:
            return None
        topic = str(TopicName.of_managed_ledger(one.holder.topic))
        owner = self._owner(topic)
        if owner is None:
            return None
        return (
            f"the ledger is above the last one of its list, {last}, and may be the one that broker {owner} writes to, "
            f"which has {topic} loaded, or may load it: it goes once the topic lists a newer ledger"
        )

    def _doubt_about_bare_topic(
        self, one: Suspect, info: ManagedLedgerInfo, looked_up: Mapping[int, LedgerReading]
    ) -> str | None:
        """Keep the last ledger with entries of a topic whose listed ledgers are all gone from BookKeeper."""
        has_entries = not one.is_copy and bool(_unnamed(one).entries)
        if not has_entries or Waiver.EMPTIED in one.waives or not info.ledgers or info.offloaded:
            return None
        if not isinstance(looked_up[info.ledgers[-1].ledger_id], AbsentLedger):
            return None
        if not all(isinstance(reading, AbsentLedger) for reading in self._read(sorted(info.ledger_ids)).values()):
            return None
        return (
            "BookKeeper has none of the ledgers that it lists: without this one the topic would have no ledger at all "
            "(docs/orphans.md, inside the list)"
        )


def _unnamed(one: Suspect) -> UnnamedLedger:
    return UnnamedLedger.of(one.reading)


def _version_of(one: Suspect, bookies: BookieReads) -> SchemaEntryIndex | str | None:
    """Read which version of a schema is in its ledger; None if it has no entry, a text if that is not known."""
    if not any(isinstance(node.info, SchemaLocator) for node in one.nodes):
        return None
    try:
        return bookies.schema_entry(one.reading.ledger_id)
    except NotFoundError:
        return None
    except (BookieError, FormatError) as error:
        return f"which version of the schema it has is not known: {error}"


def _looked_up_for(one: Suspect, version: SchemaEntryIndex | str | None) -> Iterator[int]:
    for node in one.nodes:
        if isinstance(node.info, ManagedLedgerInfo):
            yield from (entry.ledger_id for entry in suspicious_entries(node.info))
        elif isinstance(node.info, CursorInfo):
            yield from ledgers_of_cursor(one.holder, node.info)
        elif isinstance(version, SchemaEntryIndex):
            yield rival_of(node.info, version)


def _doubt_about_position(one: Suspect, info: CursorInfo, bookies: BookieReads) -> str | None:
    if not isinstance(one.holder, CursorHolder) or not is_newer_than_named(info, one.reading.ledger_id):
        return None
    ids = [one.reading.ledger_id] + ([] if info.cursors_ledger_id is None else [info.cursors_ledger_id])
    try:
        found = [bookies.position(each) for each in ids]
    except NotFoundError:
        # Gone meanwhile: the delete, or the next look, finds that out.
        return None
    except (BookieError, FormatError) as error:
        return f"it does not name this newer ledger, and how far the cursor is in it is not known: {error}"
    own, *named = [None if position is None else position.mark_delete for position in found]
    return doubt_about_position([info.mark_delete, *named], own)
