"""Holders of ledgers whose custom metadata names none, as of ancient brokers, found by the nodes that name them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Final

from bookwarden.clusters.pulsar.references.pieces import PieceOfReferences
from bookwarden.ledgers.kinds import KINDS, Holder, PlaceKind
from bookwarden.ledgers.references import LedgerNamers

logger = logging.getLogger(__name__)
_KINDS: Final = {place.value: kind for kind in KINDS for place in kind.places}
_SHADOW: Final = PlaceKind.SHADOW_TOPIC.value


class NamedHolders:
    """One look at everything that names ledgers, taken when the first holder is asked for; for one thread.

    ``read`` reads all references again.
    """

    def __init__(self, read: Callable[[], Iterable[PieceOfReferences]]) -> None:
        self._read = read
        self._namers: LedgerNamers[Holder | None] | None = None

    def holder_of(self, ledger_id: int) -> Holder | None:
        """Return the one holder that names the ledger; None where none does, several do, or that is in doubt.

        It may name the ledger no more. Raises StoreError where a metadata root does not answer.
        """
        if self._namers is None:
            self._namers = self._look()
        found = set(self._namers.of(ledger_id))
        return found.pop() if len(found) == 1 else None

    def _look(self) -> LedgerNamers[Holder | None]:
        namers = LedgerNamers[Holder | None]()
        doubts = 0
        for piece in self._read():
            doubts += len(piece.doubts)
            # Of a shadow topic's list the source is the holder. The rows of a node come together.
            rows = (row for row in piece.rows if row.place != _SHADOW)
            for place, of_place in groupby(rows, lambda row: (row.place, row.holder, row.gone)):
                namers.add(_holder_in(*place), [row.ledger_id for row in of_place if row.ledger_id is not None])
        if doubts:
            logger.warning("%d nodes that may name ledgers cannot be read: no holder is taken from nodes", doubts)
            return LedgerNamers()
        return namers


def _holder_in(place: str, text: str, gone: bool) -> Holder | None:
    """Return the holder that the place belongs to; None for a log of Functions, and where the ledger may be gone."""
    kind = _KINDS.get(place)
    return None if kind is None or gone else kind.of_text(text)
