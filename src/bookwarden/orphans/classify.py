"""Classify a ledger that no place names: a pure function of its row and of the scan's knowledge.

Doubt never makes an orphan: an orphan is Pulsar's, of a known kind and tenant, was created before the cutoff by both
of its times, and every place that could name it was read. The same holds for a ledger that was left behind: every
place that names it says that its broker deleted it.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

from bookwarden.ledgers.custom_metadata import APPLICATION, TRIAL_KEY
from bookwarden.ledgers.kinds import Holder, LedgerComponent, ManagedLedgerHolder, PlaceKind
from bookwarden.ledgers.list_gaps import ListStatus, list_status_of
from bookwarden.ledgers.listing import ListedLedger
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.ledgers.references import Doubt
from bookwarden.orphans.causes import cause_of
from bookwarden.orphans.classes import Cause, LedgerClass
from bookwarden.orphans.owners import Owner, owner_of

_PULSARS = f"{APPLICATION}=pulsar"
_CLOSED: Final = LedgerState.CLOSED.name
_OF_LOGS = frozenset({PlaceKind.LOG_SEGMENT.value, PlaceKind.LOG_ALLOCATION.value})


class LedgerVerdict(NamedTuple):
    """The class of a ledger, for a candidate its cause, and details for people."""

    ledger_class: LedgerClass
    cause: Cause | None = None
    detail: str = ""


_ORPHANS = {cause: LedgerVerdict(LedgerClass.ORPHAN, cause) for cause in Cause}
# No place of another kind can say that its ledger was deleted.
_LEFT = {
    LedgerComponent.MANAGED_LEDGER.name: Cause.OFFLOADED,
    LedgerComponent.COMPACTED_LEDGER.name: Cause.REPLACED,
}
_TOO_YOUNG = LedgerVerdict(LedgerClass.TOO_YOUNG)
_IN_TRASH = LedgerVerdict(LedgerClass.IN_TRASH)
_OF_NO_AGE = LedgerVerdict(LedgerClass.TOO_YOUNG, detail="neither its metadata nor its node tells when it was created")


@dataclass(frozen=True)
class Knowledge:
    """The facts of all metadata roots by which a scan classifies ledgers, besides rows and references; picklable."""

    cutoff_ms: int  #: A ledger created later is too young, in ms since the epoch.
    tenants: Container[str]  #: Tenants with policies, or of a reference.
    namespaces: Container[str]  #: Namespaces with policies, or of a reference.
    existing: Container[str]  #: Texts of the holders that exist: managed ledgers, cursors and schemas.
    doubts: tuple[Doubt, ...] = ()  #: The places that could not be read.
    #: Topics and namespaces by `sign_of_life`: no root has them, yet a cluster may be writing to them.
    alive: Container[str] = frozenset()
    #: By topic, the smallest id that it lists in any root, for `list_status_of`.
    first_listed: Mapping[str, int] = field(default_factory=dict)
    #: Topics with ledgers inside their lists: badly written, or of another cluster with topics of these names.
    holey: Container[str] = frozenset()
    #: Ledgers that brokers keep in the trash: the sweep deletes them when their time there is over.
    trashed: Container[int] = frozenset()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is computed."""
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def doubt_about(self, holder: Holder) -> Doubt | None:
        """Return a doubt that concerns the holder."""
        exact, wide = self._doubts_by_reach
        if not exact and not wide:
            return None
        return exact.get(holder) or next((doubt for doubt in wide if doubt.concerns(holder)), None)

    @cached_property
    def _doubts_by_reach(self) -> tuple[dict[Holder, Doubt], list[Doubt]]:
        """Split the doubts: by holder where they name one, and in a list those that reach further."""
        exact: dict[Holder, Doubt] = {}
        wide = []
        for doubt in self.doubts:
            holders = [about for about in doubt.about if isinstance(about, Holder)]
            exact.update((holder, doubt) for holder in holders)
            if not holders or len(holders) < len(doubt.about):
                wide.append(doubt)
        return exact, wide


def born_ms(row: ListedLedger) -> int:
    """Return the later of the two times of the ledger's creation, in milliseconds since the epoch."""
    ctime_ms = row.ctime_ms
    return row.created_ms if ctime_ms is None or ctime_ms < row.created_ms else ctime_ms


def age_ms(row: ListedLedger, now_ms: int) -> int:
    """Return how long ago the ledger was created, by the later of its two times; negative for a time in the future."""
    return now_ms - born_ms(row)


def classify(row: ListedLedger, knowledge: Knowledge) -> LedgerVerdict:
    """Classify a ledger that no place names."""
    if row.problem is not None:
        return LedgerVerdict(LedgerClass.UNPARSABLE, detail=row.problem)
    if row.kind is None or row.holder is None:
        return _of_no_holder(row)
    owner = owner_of(row.kind, row.holder)
    if owner is None:
        detail = f"its custom metadata names {row.holder!r}, which is no holder of the kind {row.kind}"
        return LedgerVerdict(LedgerClass.UNKNOWN_OWNER, detail=detail)
    kept = _kept(row, owner, knowledge)
    if kept is not None:
        return kept
    gap = _why_gap(row, owner, knowledge)
    if gap is not None:
        return LedgerVerdict(LedgerClass.INSIDE_LIST, detail=gap)
    if owner.topic in knowledge.holey:
        return LedgerVerdict(LedgerClass.UNKNOWN_REFERENCES, detail=is_holey(owner.topic))
    return _ORPHANS[cause_of(row, owner, knowledge.namespaces, knowledge.existing)]


def classify_left(row: ListedLedger, places: Collection[str], knowledge: Knowledge) -> LedgerVerdict:
    """Classify a ledger whose broker deleted it, as every place that names it says."""
    named = classify_named(row, places)
    if named.ledger_class is not LedgerClass.REFERENCED or row.kind is None or row.holder is None:
        return named
    owner = owner_of(row.kind, row.holder)
    cause = _LEFT.get(row.kind)
    if owner is None or cause is None or _kept(row, owner, knowledge) is not None:
        return named
    return LedgerVerdict(LedgerClass.LEFT_BEHIND, cause)


def _kept(row: ListedLedger, owner: Owner, knowledge: Knowledge) -> LedgerVerdict | None:
    """Return the class of one that is kept, too young, or maybe another's or referenced; None for a candidate."""
    if row.ledger_id in knowledge.trashed:
        return _IN_TRASH
    foreign = why_foreign(owner, knowledge)
    if foreign is not None:
        return LedgerVerdict(LedgerClass.FOREIGN, detail=foreign)
    doubt = knowledge.doubt_about(owner.holder)
    if doubt is not None:
        return LedgerVerdict(LedgerClass.UNKNOWN_REFERENCES, detail=f"{doubt.path} in {doubt.root}: {doubt.reason}")
    born = born_ms(row)
    if not 0 < born <= knowledge.cutoff_ms:
        return _TOO_YOUNG if born > 0 else _OF_NO_AGE
    if owner.topic in knowledge.alive:
        return LedgerVerdict(LedgerClass.TOO_YOUNG, detail=is_alive("topic", owner.topic))
    return None


def _why_gap(row: ListedLedger, owner: Owner, knowledge: Knowledge) -> str | None:
    """Return why no trim can have removed the ledger from its list; None if one can, or if it may have no entry."""
    if not isinstance(owner.holder, ManagedLedgerHolder):
        return None
    first = knowledge.first_listed.get(owner.holder.name)
    # An entry always has a length. An open ledger's is not known yet, and the sweep asks the bookies.
    status = list_status_of(row.ledger_id, first, row.length > 0 if row.state == _CLOSED else None)
    if status is ListStatus.INSIDE:
        return f"its topic lists older ledgers, from {first} on"
    return "its topic lists no ledger at all" if status is ListStatus.OF_NO_LIST else None


def why_foreign(owner: Owner, knowledge: Knowledge) -> str | None:
    """Return why the owner's ledgers may be another cluster's; None without a sign of that."""
    if owner.tenant not in knowledge.tenants and owner.namespace not in knowledge.namespaces:
        return f"no configured metadata root has the tenant {owner.tenant}"
    return is_alive("namespace", owner.namespace) if owner.namespace in knowledge.alive else None


def classify_named(row: ListedLedger, places: Collection[str]) -> LedgerVerdict:
    """Classify a ledger that places name; `places` are the values of their PlaceKinds."""
    if row.problem is not None:
        return LedgerVerdict(LedgerClass.UNPARSABLE, detail=row.problem)
    if row.kind is None and _OF_LOGS.issuperset(places):
        return LedgerVerdict(LedgerClass.FOREIGN, detail="DistributedLog's")
    return LedgerVerdict(LedgerClass.REFERENCED)


def sign_of_life(owner: Owner | None, knowledge: Knowledge) -> str | None:
    """Return the topic or namespace, unknown to every root, of the owner of a ledger that was created after the cutoff.

    No place names that ledger. Two clusters over one BookKeeper may have namespaces of the same names, so an unknown
    topic that still gets ledgers may well be the other's. A partitioned topic exists if its schema does.
    """
    if owner is None or owner.topic in knowledge.existing or str(owner.holder) in knowledge.existing:
        return None
    return owner.topic if owner.namespace in knowledge.namespaces else owner.namespace


def _of_no_holder(row: ListedLedger) -> LedgerVerdict:
    # Either class keeps the ledger, so reading the text for people is enough.
    custom = row.custom or ""
    if f"{TRIAL_KEY}=" in custom:
        return LedgerVerdict(LedgerClass.FOREIGN, detail=f"left by a precheck, and removed by the next one: {custom}")
    if _PULSARS in custom.split(", "):
        return LedgerVerdict(LedgerClass.UNKNOWN_OWNER, detail=custom)
    return LedgerVerdict(LedgerClass.FOREIGN, detail=custom or "no custom metadata")


def is_holey(topic: str) -> str:
    """Explain why nothing of a topic of `Knowledge.holey` is planned."""
    return (
        f"other ledgers of {topic} with data are missing inside its list: the list was written badly, or another "
        "cluster has a topic of this name"
    )


def is_alive(what: str, name: str) -> str:
    """Explain what shows a topic or namespace of `Knowledge.alive` to be alive."""
    return (
        f"no configured metadata root has the {what} {name}, and yet ledgers were created for it after the cutoff: "
        "it was deleted lately, or is another cluster's"
    )
