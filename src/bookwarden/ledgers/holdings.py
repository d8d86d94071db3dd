"""Holdings of bookies: whether one holds an entry, as far as it is known."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Presence(enum.Enum):
    """What a bookie said of an entry."""

    HELD = "held"
    NOT_HELD = "not held"
    UNKNOWN = "did not answer"


@dataclass(frozen=True, slots=True)
class Holding:
    """Whether a bookie holds an entry; where that is unknown, ``reason`` says why."""

    presence: Presence
    reason: str = ""
