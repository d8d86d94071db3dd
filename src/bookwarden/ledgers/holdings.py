"""Holdings of bookies: whether one holds an entry, as far as it is known."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Presence(enum.Enum):
    """The answer of a bookie that was asked for an entry."""

    HELD = "held"
    NOT_HELD = "not held"
    UNKNOWN = "did not answer"


@dataclass(frozen=True, slots=True)
class Holding:
    """The holding of an entry by one bookie; ``reason`` says why it is unknown."""

    presence: Presence
    reason: str = ""
