"""Classify the offloaded copies that a scan finds in the stores: pure functions of the scan's knowledge.

Only the UUID names a copy, in the node of a managed ledger, where it stands before the first byte is written. So a copy
that was listed before the nodes were read, and that none of them names, is referenced nowhere, provided that every node
was read. Its former owner is named by the copy itself, or by BookKeeper while that has the ledger.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from bookwarden.ledgers.kinds import LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.list_gaps import ListStatus, list_status_of
from bookwarden.ledgers.offloaded_copies import AbsentCopy, CopyReading, PresentCopy, UnreadableCopy
from bookwarden.ledgers.references import Doubt, HoldersBelow
from bookwarden.orphans.classify import Knowledge, is_alive, is_holey, why_foreign
from bookwarden.orphans.owners import Owner, owner_of


class CopyClass(enum.Enum):
    """The one class that a scan puts a copy, or another object, in; the values are stored and must not change."""

    REFERENCED = "referenced"
    ORPHAN = "orphan"
    TOO_YOUNG = "too young"
    UNKNOWN_REFERENCES = "references unknown"
    UNKNOWN_NAME = "unknown name"
    UNKNOWN_OWNER = "unknown owner"
    FOREIGN = "foreign"
    INSIDE_LIST = "inside the list"
    GONE = "gone since it was listed"


class CopyCause(enum.Enum):
    """The probable cause of an orphaned copy."""

    FAILED = "offload failed or replaced"
    TRIM = "trimmed, never deleted"
    TOPIC_DELETED = "topic deleted"
    NAMESPACE_DELETED = "namespace deleted"


class FoundCopy(NamedTuple):
    """All that a store has of one copy: data, index and unfinished uploads."""

    store: str  #: As the settings name it.
    uuid: UUID | None  #: Read off the names; None for an object that is not part of a copy.
    ledger_id: int | None  #: Read off the names; None where they have none.
    key: str  #: The first of the names.
    objects: int  #: Number of objects, of data and index.
    uploads: int  #: Number of unfinished uploads.
    length: int  #: In bytes, over all of them.
    modified_ms: int  #: The latest time of any of them, in ms since the epoch.
    referenced: bool  #: Whether a managed ledger names the UUID.
    kind: str | None = None  #: As in ListedLedger; None where BookKeeper has no such ledger.
    holder: str | None = None  #: As in ListedLedger; None where BookKeeper has no such ledger.
    ledger_named: bool = False  #: Whether a place names the ledger.


class ClassifiedCopy(NamedTuple):
    """The class of a copy; ``cause`` and ``owner`` (the managed ledger) are those of an orphan.

    ``conflict`` says that the store has a copy of a ledger whose id is another's here: another cluster writes there.
    """

    copy_class: CopyClass
    cause: CopyCause | None = None
    owner: str | None = None
    detail: str = ""
    conflict: bool = False


def doubt_about_copies(doubts: Iterable[Doubt]) -> Doubt | None:
    """Return a doubt about any managed ledger: it may name any copy, since a copy's name does not tell its owner."""
    return next((doubt for doubt in doubts if not doubt.about or any(map(_is_of_topics, doubt.about))), None)


def class_by_name(copy: FoundCopy, knowledge: Knowledge, doubt: Doubt | None) -> ClassifiedCopy | None:
    """Classify a copy without knowing its owner; None if that has to be known.

    ``doubt`` is that of `doubt_about_copies`, over all that the scan could not read.
    """
    if copy.uuid is None:
        return ClassifiedCopy(CopyClass.UNKNOWN_NAME)
    if copy.referenced:
        return ClassifiedCopy(CopyClass.REFERENCED)
    if doubt is not None:
        return ClassifiedCopy(
            CopyClass.UNKNOWN_REFERENCES, detail=f"{doubt.path} in {doubt.root} may name it: {doubt.reason}"
        )
    if not 0 < copy.modified_ms <= knowledge.cutoff_ms:
        return ClassifiedCopy(CopyClass.TOO_YOUNG)
    if copy.ledger_id is None:
        return _without_owner("the names of the former streaming offload tell no ledger")
    return None


def class_by_owner(copy: FoundCopy, reading: CopyReading, knowledge: Knowledge) -> ClassifiedCopy:
    """Classify a copy that nothing names, by what was read of its data."""
    if isinstance(reading, UnreadableCopy):
        return _without_owner(f"it could not be looked at: {reading.reason}")
    if isinstance(reading, AbsentCopy) and not copy.uploads and not copy.key.endswith("-index"):
        return ClassifiedCopy(CopyClass.GONE)
    if copy.holder is not None:
        own = reading.owner if isinstance(reading, PresentCopy) else None
        if copy.kind != LedgerComponent.MANAGED_LEDGER.name or own not in (None, copy.holder):
            text = f"it names {own or 'no owner'}, and BookKeeper's ledger {copy.ledger_id} is of {copy.holder}"
            return ClassifiedCopy(CopyClass.UNKNOWN_OWNER, detail=text, conflict=True)
    named = owner_named(copy, reading)
    if named is None:
        return _without_owner("it names no managed ledger, and BookKeeper no longer has the ledger")
    owner = owner_of(LedgerComponent.MANAGED_LEDGER.name, named)
    if owner is None:
        return _without_owner(f"it names {named!r}, which is no managed ledger of a topic")
    return (
        _kept(owner, knowledge)
        or _of_hole(copy, owner, knowledge)
        or ClassifiedCopy(CopyClass.ORPHAN, _cause(copy, owner, knowledge), named)
    )


def owner_named(copy: FoundCopy, reading: CopyReading) -> str | None:
    """Return the copy's owner, as it says itself or BookKeeper's metadata of its ledger; None where neither does."""
    own = reading.owner if isinstance(reading, PresentCopy) else None
    return own or (copy.holder if copy.kind == LedgerComponent.MANAGED_LEDGER.name else None)


def kept_in_shared_stores(
    classified: Sequence[tuple[FoundCopy, ClassifiedCopy]],
) -> Iterator[tuple[FoundCopy, ClassifiedCopy]]:
    """Keep the orphans of stores with a conflict: another cluster writes there, and may have topics of these names."""
    shared = {copy.store: found.detail for copy, found in classified if found.conflict}
    for copy, found in classified:
        if found.copy_class is CopyClass.ORPHAN and copy.store in shared:
            detail = f"another cluster writes to {copy.store}, where of another copy: {shared[copy.store]}"
            yield copy, ClassifiedCopy(CopyClass.FOREIGN, detail=detail)
        else:
            yield copy, found


def _kept(owner: Owner, knowledge: Knowledge) -> ClassifiedCopy | None:
    foreign = why_foreign(owner, knowledge)
    if foreign is not None:
        return ClassifiedCopy(CopyClass.FOREIGN, detail=foreign)
    if owner.topic in knowledge.alive:
        return ClassifiedCopy(CopyClass.TOO_YOUNG, detail=is_alive("topic", owner.topic))
    doubt = knowledge.doubt_about(owner.holder)
    if doubt is not None:
        detail = f"{doubt.path} in {doubt.root}: {doubt.reason}"
        return ClassifiedCopy(CopyClass.UNKNOWN_REFERENCES, detail=detail)
    return None


def _of_hole(copy: FoundCopy, owner: Owner, knowledge: Knowledge) -> ClassifiedCopy | None:
    """Keep the copy of a ledger that its topic's list lost, maybe its last data, and the topic's other copies."""
    if copy.ledger_named or copy.ledger_id is None or owner.topic is None:
        return None
    if list_status_of(copy.ledger_id, knowledge.first_listed.get(owner.topic), True) is not ListStatus.LET_GO:
        detail = f"no trim can have taken ledger {copy.ledger_id} off the list of {owner.topic}"
        return ClassifiedCopy(CopyClass.INSIDE_LIST, detail=detail)
    if owner.topic in knowledge.holey:
        return ClassifiedCopy(CopyClass.UNKNOWN_REFERENCES, detail=is_holey(owner.topic))
    return None


def _cause(copy: FoundCopy, owner: Owner, knowledge: Knowledge) -> CopyCause:
    if owner.topic in knowledge.existing:
        return CopyCause.FAILED if copy.ledger_named or copy.uploads else CopyCause.TRIM
    return CopyCause.TOPIC_DELETED if owner.namespace in knowledge.namespaces else CopyCause.NAMESPACE_DELETED


def _without_owner(detail: str) -> ClassifiedCopy:
    return ClassifiedCopy(CopyClass.UNKNOWN_OWNER, detail=detail)


def _is_of_topics(about: object) -> bool:
    if isinstance(about, HoldersBelow):
        return ManagedLedgerHolder in about.kinds
    return about is ManagedLedgerHolder or isinstance(about, ManagedLedgerHolder)
