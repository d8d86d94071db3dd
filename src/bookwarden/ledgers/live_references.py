"""References of a holder, read just now: what it names, and what it may be using unnamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from uuid import UUID

from bookwarden.ledgers.holes import NAMES_NOTHING
from bookwarden.ledgers.managed_ledger import LedgerInfo
from bookwarden.ledgers.metadata import Conditions


@dataclass(frozen=True, slots=True)
class UnnamedUse:
    """Ledgers that their holder may be using although nothing names them, as a compaction under way does.

    Certainly not in use are those with a smaller id than ``before_ledger``, and those created earlier than
    ``before_ms`` (milliseconds since the epoch); None rules out none. ``reason`` is for people. ``lasting``: it does
    not end by itself, so that there is nothing to wait for.
    """

    reason: str
    before_ledger: int | None = None
    before_ms: int | None = None
    lasting: bool = False

    def rules_out(self, ledger_id: int, created_ms: int) -> bool:
        """Whether this ledger is certainly not in use."""
        by_id = self.before_ledger is not None and ledger_id < self.before_ledger
        return by_id or (self.before_ms is not None and created_ms < self.before_ms)


@dataclass(frozen=True, slots=True)
class ShadowList:
    """The ledgers that a shadow topic lists; it has them from its source."""

    managed_ledger: str
    ledger_ids: frozenset[int]


# The marks of a topic come together, and its list may have tens of thousands of ids.
@lru_cache(maxsize=64)
def _smallest(ledger_ids: frozenset[int]) -> int:
    return min(ledger_ids, default=NAMES_NOTHING)


@dataclass(frozen=True, slots=True)
class LiveReferences:
    """The ledgers that a holder names, read just now; a holder that does not exist names none.

    ``ledger_ids`` are without those that only its ``shadows`` list. ``unnamed_use`` is None where what is not named
    is not in use either. ``offloaded`` are the offloaded copies that the holder or a shadow names, finished or not, and
    ``with_copies`` the ledgers that they name them with. ``left_behind`` are the ledgers that all of these lists alike
    say are gone from BookKeeper, so that the offloaded copy is the only one (bookkeeperDeleted). Of the ``puzzling``
    ledgers these lists say something that is unknown to us.
    ``conditions`` are the nodes that this was read from, with their versions, as far as the transaction that deletes a
    ledger can demand that they are still so: a node that does not exist cannot be demanded.
    ``names_nothing`` says that the holder's node is there in some root, and names no ledger.
    """

    ledger_ids: frozenset[int]
    exists: bool
    unnamed_use: UnnamedUse | None = None
    shadows: tuple[ShadowList, ...] = ()
    offloaded: frozenset[UUID] = frozenset()
    with_copies: tuple[LedgerInfo, ...] = ()
    left_behind: Mapping[int, LedgerInfo] = field(default_factory=dict)
    conditions: Conditions = ()
    puzzling: frozenset[int] = frozenset()
    names_nothing: bool = False

    @property
    def first_listed(self) -> int | None:
        """The smallest id that the holder names, as `ledgers.holes.standing_of` takes it."""
        if not self.exists:
            return None
        return NAMES_NOTHING if self.names_nothing else _smallest(self.ledger_ids)

    def names(self, ledger_id: int) -> bool:
        """Whether the holder, or a shadow topic of it, names the ledger."""
        return ledger_id in self.ledger_ids or self.naming_shadow(ledger_id) is not None

    def naming_shadow(self, ledger_id: int) -> str | None:
        """Return the managed ledger of a shadow topic that lists the ledger."""
        return next((shadow.managed_ledger for shadow in self.shadows if ledger_id in shadow.ledger_ids), None)


@dataclass(frozen=True, slots=True)
class UnknownReferences:
    """A holder's references could not be read or understood: nothing may be concluded from it.

    ``elsewhere``: the holder's own nodes are sound, and another's may name its ledgers too.
    """

    reason: str
    elsewhere: bool = False


References = LiveReferences | UnknownReferences
