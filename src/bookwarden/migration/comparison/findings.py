"""Findings of a comparison, gathered from all its threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bookwarden.migration.comparison.differences import Difference, DifferenceClass

# This many nodes with equal bytes show whether the target took over the source's versions.
_JUDGED_BY: Final = 1_000

DifferenceSink = Callable[[Sequence[Difference]], object]


class VersionRule(Enum):
    """The treatment of nodes with equal bytes and another version or number of modifications.

    AUTO: a difference, unless most nodes have another one: then the target has versions of its own, which is reported
    once. REQUIRED: always a difference. IGNORED: never.
    """

    AUTO = "auto"
    REQUIRED = "required"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a comparison, in numbers of nodes."""

    compared: int  #: Persistent in the source or the target.
    equal: int  #: Including those in ``other_versions`` that are no differences.
    ephemeral: int  #: Passed over, since they end with a session.
    counts: Mapping[DifferenceClass, int]  #: Every class, also with 0.
    first: Mapping[DifferenceClass, tuple[Difference, ...]]  #: The differences found first of each class, by path.
    other_versions: int  #: Equal bytes, but another version or number of modifications.
    versions_kept: bool | None  #: Whether these are differences; None if versions were ignored.

    @property
    def faults(self) -> int:
        """Number of nodes that differ as a good migration never leaves them."""
        return sum(count for kind, count in self.counts.items() if kind.is_fault)


class Findings:
    """Counts differences, keeps the first of each class, and hands all to the sink; safe for threads.

    At most a thousand are held back, until it is known whether versions are to be compared.
    """

    def __init__(self, *, keep: int, versions: VersionRule, sink: DifferenceSink = lambda _: None) -> None:
        self._keep = keep
        self._sink = sink
        self._lock = threading.Lock()
        self._compared = self._equal = self._ephemeral = self._other_versions = 0
        self._counts = dict.fromkeys(DifferenceClass, 0)
        self._first: dict[DifferenceClass, list[Difference]] = {kind: [] for kind in DifferenceClass}
        self._versions_kept: bool | None = True if versions is VersionRule.REQUIRED else None
        self._is_judged = versions is not VersionRule.AUTO
        self._held: list[Difference] = []

    @property
    def wants_versions(self) -> bool:
        """Whether nodes with another version must be named, and not only counted; never True again after False."""
        return not self._is_judged or bool(self._versions_kept)

    def add(self, compared: int, ephemeral: int, differences: Sequence[Difference], other_versions: int = 0) -> int:
        """Add the findings about some nodes; return how many were compared so far.

        ``other_versions`` are not among the differences: they have equal bytes and another version.
        """
        with self._lock:
            others = [one for one in differences if one.kind is DifferenceClass.VERSION]
            self._compared += compared
            self._ephemeral += ephemeral
            self._equal += compared - len(differences) - other_versions
            self._other_versions += len(others) + other_versions
            self._take(one for one in differences if one.kind is not DifferenceClass.VERSION)
            if not self._is_judged:
                self._held += others
                if self._equal + len(self._held) >= _JUDGED_BY:
                    self._judge()
            elif self._versions_kept:
                self._take(others)
            return self._compared

    def report(self) -> Report:
        """Sum up."""
        with self._lock:
            if not self._is_judged:
                self._judge()
            equal = self._equal + (0 if self._versions_kept else self._other_versions)
            first = {kind: tuple(sorted(found, key=lambda one: one.path)) for kind, found in self._first.items()}
            counts = dict(self._counts)
            return Report(
                self._compared, equal, self._ephemeral, counts, first, self._other_versions, self._versions_kept
            )

    def _judge(self) -> None:
        """Decide whether the target kept the source's versions, by the majority of nodes."""
        self._is_judged = True
        self._versions_kept = self._equal >= len(self._held)
        held, self._held = self._held, []
        if self._versions_kept:
            self._take(held)

    def _take(self, differences: Iterable[Difference]) -> None:
        found = list(differences)
        for one in found:
            self._counts[one.kind] += 1
            first = self._first[one.kind]
            if len(first) < self._keep:
                first.append(one)
        if found:
            self._sink(found)
