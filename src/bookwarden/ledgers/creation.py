"""What becomes of nodes that are created many at a time."""

from __future__ import annotations

import enum
from typing import NamedTuple


class NewNode(NamedTuple):
    """A node to create; ``version`` is how often its value was written again, for stores that let a writer say so."""

    path: str
    value: bytes
    version: int = 0


class CreateResult(enum.Enum):
    """What became of one node; only CREATED changed anything."""

    CREATED = "created"
    EXISTS = "exists already"
    TOO_LARGE = "too large"
    BAD_NAME = "bad name"
