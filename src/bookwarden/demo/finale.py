"""End of the demo, compared with how it should have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bookwarden.demo.fates import Ending


@dataclass(frozen=True, slots=True)
class Finale:
    """Every ledger, what is in flight, and what can still be read.

    ``dead_letters`` are ledger ids and reasons, expected are the ids of ``damaged``. ``readable`` has the messages of
    each topic, ``restored`` the entries of each ledger that was put back: those that were read, and those there were.
    ``store`` is the name of the metadata store.
    """

    endings: tuple[Ending, ...]
    in_flight: int
    dead_letters: tuple[tuple[int | None, str], ...]
    damaged: tuple[int, ...]
    readable: Mapping[str, tuple[int, int]]
    restored: Mapping[int, tuple[int, int]]
    store: str

    @property
    def as_it_should(self) -> bool:
        """Whether every ledger, the backlog, the DLQ and all that was read are as they should be."""
        return (
            all(ending.as_it_should for ending in self.endings)
            and self.in_flight == 0
            and tuple(ledger_id for ledger_id, _ in self.dead_letters) == self.damaged
            and all(found == expected for found, expected in self.readable.values())
            and all(found == expected for found, expected in self.restored.values())
        )
