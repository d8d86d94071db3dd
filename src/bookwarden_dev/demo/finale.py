"""End of the demo, compared with how it should have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bookwarden_dev.demo.fates import Ending


@dataclass(frozen=True, slots=True)
class Finale:
    """The end of the demo: every ledger, the backlog, and the messages that can still be read."""

    endings: tuple[Ending, ...]  #: One for every ledger.
    in_flight: int  #: Messages in the backlog.
    dead_letters: tuple[tuple[int | None, str], ...]  #: Ledger ids and reasons.
    damaged: tuple[int, ...]  #: The ledger ids that should be on the DLQ.
    readable: Mapping[str, tuple[int, int]]  #: By topic, the numbers of messages found and expected.
    restored: Mapping[int, tuple[int, int]]  #: By ledger that was put back, the numbers of entries found and expected.
    store: str  #: Name of the metadata store, for people.

    @property
    def as_it_should(self) -> bool:
        """Whether every ledger, the backlog, the DLQ and all messages are as they should be."""
        return (
            all(ending.as_it_should for ending in self.endings)
            and self.in_flight == 0
            and tuple(ledger_id for ledger_id, _ in self.dead_letters) == self.damaged
            and all(found == expected for found, expected in self.readable.values())
            and all(found == expected for found, expected in self.restored.values())
        )
