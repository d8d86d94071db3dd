"""Findings of a comparison, gathered from all its threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bookwarden.migration.comparison.differences import Difference, DifferenceClass

# So many nodes with equal bytes tell whether the target took over the source's versions.
_JUDGED_BY: Final = 1_000

DifferenceSink = Callable[[Sequence[Difference]], object]


class VersionRule(Enum):
    """What another version, or number of modifications, of a node with equal bytes counts for.

    AUTO: a difference, unless most nodes have another one: then the target has versions of its own, and that is told
    once. REQUIRED: always a difference. IGNORED: never.
    """

    AUTO = "auto"
    REQUIRED = "required"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class Report:
    """What was compared, in nodes: ``compared`` are persistent in the source or the target.

    ``ephemeral`` are nodes that end with a session and were passed over. ``counts`` has every class, ``first`` the
    differences that were found first of each, by path. ``other_versions`` have equal bytes and another version, or
    number of modifications, than in the source; they are differences only if ``versions_kept``, which is None where
    nobody asked.
    """

    compared: int
    equal: int
    ephemeral: int
    counts: Mapping[DifferenceClass, int]
    first: Mapping[DifferenceClass, tuple[Difference, ...]]
    other_versions: int
    versions_kept: bool | None

    @property
    def faults(self) -> int:
        """How many nodes differ in a way that a good migration does not leave."""
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
        """Whether nodes with another version are to be named, and not only counted; once they are not it stays so."""
        return not self._is_judged or bool(self._versions_kept)

    def add(self, compared: int, ephemeral: int, differences: Sequence[Difference], other_versions: int = 0) -> int:
        """Take over what was found of some nodes; return how many were compared so far.

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
        """Take the target for one with versions of its own if more nodes have another one than the source's."""
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
