"""The space on bookies' disks, as bookies tell it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

# Less free than this part of its disks, and a bookie soon takes no more (diskUsageThreshold is 0.95 by default).
_LEAST_FREE: Final = 0.15


class DiskSpace(NamedTuple):
    """The bytes of a bookie's disks, and those free; None where it did not report them, for the reason in ``error``."""

    total: int | None = None
    free: int | None = None
    error: str = ""


class DisksTold(NamedTuple):
    """The answers of several bookies together."""

    full: list[str]  #: Sentences on bookies that soon take no more.
    silent: list[str]  #: Why others did not report theirs.
    free: int  #: Bytes of those that did.


def summed(disks: Mapping[str, DiskSpace]) -> DisksTold:
    """Part bookies, given by id, by what they tell."""
    full, silent, free_bytes = [], [], 0
    for bookie, (total, free, error) in sorted(disks.items()):
        if total is None or free is None:
            silent.append(f"{bookie}: {error}")
            continue
        free_bytes += free
        if free < total * _LEAST_FREE:
            full.append(f"{bookie} has {free / 1e9:,.1f} of {total / 1e9:,.1f} GB free")
    return DisksTold(full, silent, free_bytes)
