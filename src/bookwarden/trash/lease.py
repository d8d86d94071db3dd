"""The decision whether brokers may go on to keep what they drop, and how much has to go for want of space; pure.

What is not known lets nothing go, and lets nothing more be kept until it is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bookwarden.disk_space import DiskSpace
from bookwarden.ledgers.received import ReceivedMark


@dataclass(frozen=True, slots=True)
class LeaseConditions:
    """The conditions of the lease besides the trash itself."""

    why_not: str = ""  #: Why brokers may keep nothing more; empty where they may.
    missing_bytes: int = 0  #: By so much bookies have less than their least free space, all together.
    overdue_s: float = 0.0  #: For so long the oldest mark is due, as far as it is known.


def judge_backlog(firsts: Iterable[ReceivedMark], now_s: float, max_overdue_s: float) -> LeaseConditions:
    """Judge whether the sweep keeps up, by the first mark of each partition that has any."""
    overdue_s = max((now_s - first.due_at / 1000 for first in firsts), default=0.0)
    if overdue_s <= max_overdue_s:
        return LeaseConditions(overdue_s=max(0.0, overdue_s))
    allowed = f"trash.max_overdue_hours is {max_overdue_s / 3600:g}"
    return LeaseConditions(f"a mark has been due for {overdue_s:,.0f} s, and {allowed}", overdue_s=overdue_s)


def judge_disks(disks: Mapping[str, DiskSpace], min_free_ratio: float) -> LeaseConditions:
    """Judge the space of bookies, given by id; those that do not tell theirs count only where none does."""
    known = {bookie: (disk.free, disk.total) for bookie, disk in disks.items() if disk.free is not None and disk.total}
    if not known:
        silent = "; ".join(f"{bookie}: {disk.error}" for bookie, disk in sorted(disks.items())[:3])
        return LeaseConditions(f"no bookie tells its free space ({silent or 'none is registered'})")
    missing = sum(max(0, int(total * min_free_ratio) - free) for free, total in known.values())
    if not missing:
        return LeaseConditions()
    free, total, fullest = min((free / total, total, bookie) for bookie, (free, total) in known.items())
    least = f"trash.min_free_disk_ratio is {min_free_ratio:g}"
    return LeaseConditions(f"{fullest} has {free:.1%} of {total / 1e9:,.1f} GB free, and {least}", missing)
