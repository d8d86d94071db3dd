"""Shared doubts: each concerns marks of any number of holders, and ends for all of them at once."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class DoubtCause(enum.Enum):
    """The cause of a shared doubt; its value is a label of metrics."""

    UNREADABLE_NODE = "unreadable node"
    RETURNING_IDS = "returning ids"


@dataclass(frozen=True, slots=True)
class SharedDoubt:
    """A reason to keep the ledgers of many marks, none of which is at fault."""

    cause: DoubtCause
    path: str  #: The node that ends the doubt when it is mended.
    reason: str  #: Names the path, and what to do.

    def __str__(self) -> str:
        return self.reason


def unreadable_node(path: str, problem: str) -> SharedDoubt:
    """Return the doubt about a managed ledger's node that cannot be read, and may be that of a shadow topic."""
    return SharedDoubt(
        DoubtCause.UNREADABLE_NODE,
        path,
        f"{path}: {problem}: it may be a shadow topic, which may list any topic's ledgers; "
        "mend the node, or see `bookwarden no-shadow`",
    )
