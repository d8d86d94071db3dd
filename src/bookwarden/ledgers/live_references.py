"""References of a holder, read just now: what it names, and what it may be using unnamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from bookwarden.ledgers.left_behind import why_not_offloaded
from bookwarden.ledgers.list_gaps import NAMES_NOTHING
from bookwarden.ledgers.managed_ledger import LedgerInfo, NodeInfo
from bookwarden.ledgers.metadata import Conditions, LedgerMetadata
from bookwarden.ledgers.shared_doubts import SharedDoubt


@dataclass(frozen=True, slots=True)
class UnnamedUse:
    """Ledgers that their holder may be using although nothing names them, as a compaction under way does."""

    reason: str  #: For people.
    before_ledger: int | None = None  #: Ledgers with smaller ids are certainly not in use; None rules out none.
    before_ms: int | None = None  #: Nor are those created earlier, in ms since the epoch; None rules out none.
    lasting: bool = False  #: It does not end by itself: there is nothing to wait for.
    changed_lately: bool = False  #: Only a ledger whose metadata was written within the grace may be in use.

    def rules_out(self, ledger_id: int, created_ms: int, *, unchanged: bool) -> bool:
        """Return whether this ledger is certainly not in use; ``unchanged`` says that the grace is over."""
        by_id = self.before_ledger is not None and ledger_id < self.before_ledger
        by_time = self.before_ms is not None and created_ms < self.before_ms
        return by_id or by_time or (self.changed_lately and unchanged)


class HolderNode(NamedTuple):
    """The node that names a holder's ledgers first, as it is in one of the roots."""

    path: str
    info: NodeInfo
    listed: frozenset[int] = frozenset()  #: Of a cursor's node: the ledgers that its topic lists.


@dataclass(frozen=True, slots=True)
class ShadowList:
    """The ledgers that a shadow topic lists, taken over from its source."""

    managed_ledger: str
    ledger_ids: frozenset[int]


# The marks of a topic come together, and its list may have tens of thousands of ids.
@lru_cache(maxsize=64)
def _smallest(ledger_ids: frozenset[int]) -> int:
    return min(ledger_ids, default=NAMES_NOTHING)


@dataclass(frozen=True, slots=True)
class LiveReferences:
    """The ledgers that a holder names, read just now; a holder that does not exist names none."""

    ledger_ids: frozenset[int]  #: Without those that only its shadows list.
    exists: bool  #: A node of the holder is there in some root.
    unnamed_use: UnnamedUse | None = None  #: None where a ledger that is not named is not in use either.
    shadows: tuple[ShadowList, ...] = ()  #: Shadow topics of the holder.
    offloaded: frozenset[UUID] = frozenset()  #: Offloaded copies that the holder or a shadow names, finished or not.
    with_copies: tuple[LedgerInfo, ...] = ()  #: The ledgers that they name these copies with.
    #: Gone from BookKeeper by all these lists alike, so that only the offloaded copy is left (bookkeeperDeleted).
    left_behind: Mapping[int, LedgerInfo] = field(default_factory=dict)
    #: The nodes that this was read from and their versions, for the transaction that deletes a ledger to demand;
    #: a node that does not exist cannot be demanded.
    conditions: Conditions = ()
    puzzling: frozenset[int] = frozenset()  #: Ledgers of which these lists say something unknown to us.
    names_nothing: bool = False  #: The holder's node is there in some root, and names no ledger.
    #: The holder's own, from which the rest was read; one for each root that has it.
    nodes: tuple[HolderNode, ...] = field(default=(), compare=False)

    @property
    def first_listed(self) -> int | None:
        """The smallest id that the holder names, as `list_status_of` takes it."""
        if not self.exists:
            return None
        return NAMES_NOTHING if self.names_nothing else _smallest(self.ledger_ids)

    def names(self, ledger_id: int) -> bool:
        """Return whether the holder, or a shadow topic of it, names the ledger."""
        return ledger_id in self.ledger_ids or self.naming_shadow(ledger_id) is not None

    def needs(self, ledger_id: int, metadata: LedgerMetadata) -> bool:
        """Return whether brokers want to find a ledger in a bookie cluster that has it with this metadata.

        They do not where nothing names it, or what does names a whole offloaded copy in its place.
        """
        left = None if ledger_id in self.puzzling else self.left_behind.get(ledger_id)
        return self.names(ledger_id) and (left is None or why_not_offloaded(left, metadata) is not None)

    def naming_shadow(self, ledger_id: int) -> str | None:
        """Return the managed ledger of a shadow topic that lists the ledger."""
        return next((shadow.managed_ledger for shadow in self.shadows if ledger_id in shadow.ledger_ids), None)


@dataclass(frozen=True, slots=True)
class UnknownReferences:
    """A holder's references could not be read or understood: nothing may be concluded from it.

    ``elsewhere``: the holder's own nodes are sound, and another's may name its ledgers too. ``shared`` is the doubt if
    it is about many holders alike.
    """

    reason: str
    elsewhere: bool = False
    shared: SharedDoubt | None = None


References = LiveReferences | UnknownReferences
