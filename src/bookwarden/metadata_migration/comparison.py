"""Two metadata stores compared node by node: differences, the report, and its rows; is the target as the source was?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from bookwarden.errors import ConfigError, RefusedError
from bookwarden.metadata_migration.walking import TreeWalk
from bookwarden.metastore.following.flag import MIGRATION_PATH, MigrationState
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.urls import split_chroot


class DifferenceClass(Enum):
    """The kind of difference between a node of the target and that of the source."""

    MISSING = "missing"
    EXTRA = "extra"
    BYTES = "bytes"
    # The bytes are equal, but not the version or the number of modifications.
    VERSION = "version"
    # The source's node was written after the switch, by a process that has not followed to the target.
    LATE_SOURCE = "written to the source after the switch"
    # The target's node was written after the switch, which is what a running cluster does.
    CHANGED = "changed after the switch"

    @property
    def is_fault(self) -> bool:
        """Whether a good migration leaves no such difference."""
        return self is not DifferenceClass.CHANGED


class NodeSummary(NamedTuple):
    """A node without its value; ``size`` in bytes, times in milliseconds by the store's clock."""

    version: int
    modifications: int
    size: int
    created_ms: int
    modified_ms: int


class Difference(NamedTuple):
    """A node that differs; a side is None where there is no persistent node.

    ``first_byte`` is the offset of the first byte that differs, if bytes do.
    """

    kind: DifferenceClass
    path: str
    source: NodeSummary | None
    target: NodeSummary | None
    first_byte: int | None = None


def compare_nodes(
    path: str, source: Versioned | None, target: Versioned | None, switched_ms: int | None
) -> Difference | None:
    """Return how two persistent nodes differ, None if they do not; a side is None for an absent node.

    ``switched_ms`` is when the target was put in the source's place, if it was.
    """
    kind, first_byte = _plain_difference(source, target)
    if kind is None:
        return None
    if switched_ms is not None:
        if source is not None and source.modified_ms > switched_ms:
            kind = DifferenceClass.LATE_SOURCE
        elif target is not None and target.modified_ms > switched_ms:
            kind = DifferenceClass.CHANGED
    return Difference(kind, path, _side(source), _side(target), first_byte)


def is_other_version(source: Versioned | None, target: Versioned | None, switched_ms: int | None) -> bool:
    """Return whether two persistent nodes differ in the version alone: `compare_nodes` at less cost."""
    if source is None or target is None or source.value != target.value or _same_version(source, target):
        return False
    return switched_ms is None or (source.modified_ms <= switched_ms and target.modified_ms <= switched_ms)


def _plain_difference(source: Versioned | None, target: Versioned | None) -> tuple[DifferenceClass | None, int | None]:
    if source is None or target is None:
        if source is target:
            return None, None
        return (DifferenceClass.EXTRA if source is None else DifferenceClass.MISSING), None
    if source.value != target.value:
        return DifferenceClass.BYTES, _first_differing(source.value, target.value)
    return (None if _same_version(source, target) else DifferenceClass.VERSION), None


def _same_version(source: Versioned, target: Versioned) -> bool:
    return source.version == target.version and modifications_of(source) == modifications_of(target)


def modifications_of(node: Versioned) -> int:
    """Return how often a node's value was replaced: ZooKeeper's version counts that, and Oxia's is another number."""
    return node.version if node.modifications is None else node.modifications


def _side(node: Versioned | None) -> NodeSummary | None:
    if node is None:
        return None
    return NodeSummary(node.version, modifications_of(node), len(node.value), node.created_ms, node.modified_ms)


def _first_differing(one: bytes, other: bytes) -> int:
    shared = min(len(one), len(other))
    return next((offset for offset in range(shared) if one[offset] != other[offset]), shared)


_STORES: Final = ("source", "target")

TEXT_COLUMNS: Final = ("class", "path")
# None for a side without a node, and where no byte differs.
NUMBER_COLUMNS: Final = ("first_byte", *(f"{store}_{field}" for store in _STORES for field in NodeSummary._fields))


def row_of(difference: Difference) -> dict[str, Any]:
    """Convert a difference to a flat row."""
    row: dict[str, Any] = {"class": difference.kind.value, "path": difference.path, "first_byte": difference.first_byte}
    for name, side in zip(_STORES, (difference.source, difference.target), strict=True):
        row |= {f"{name}_{field}": None if side is None else getattr(side, field) for field in NodeSummary._fields}
    return row


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


class DifferenceCounts:
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


# ZooKeeper's own nodes, which Pulsar also copies from a store without a chroot.
ZOOKEEPERS_OWN: Final = "/zookeeper"


class Comparison:
    """Compares persistent nodes of two stores; reads only.

    ``passed_over`` are paths that are not compared, with all below them. ``switched_ms`` is when the target
    replaced the source, None if it has not. ``keep`` differences of each class are kept; ``sink`` gets all of them in
    the order of their discovery, from one thread at a time. ``progress`` is called with the number of nodes compared
    so far. Ephemeral nodes count as absent.
    """

    def __init__(
        self,
        source: MetadataStore,
        target: MetadataStore,
        *,
        passed_over: Collection[str] = (ZOOKEEPERS_OWN,),
        switched_ms: int | None = None,
        versions: VersionRule = VersionRule.AUTO,
        keep: int = 20,
        sink: DifferenceSink = lambda _: None,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._walk = TreeWalk((source, target), self._compare, passed_over=passed_over)
        self._switched_ms = switched_ms
        self._findings = DifferenceCounts(keep=keep, versions=versions, sink=sink)
        self._progress = progress

    def run(self) -> Report:
        """Compare everything, once; raises the errors of the stores and of the sink."""
        self._walk.run()
        return self._findings.report()

    def _compare(self, paths: Sequence[str], nodes: Sequence[Sequence[Versioned | None]]) -> None:
        compared = ephemeral = other_versions = 0
        differences: list[Difference] = []
        switched_ms, wants_versions = self._switched_ms, self._findings.wants_versions
        for path, source, target in zip(paths, *nodes, strict=True):
            kept_source, kept_target = _persistent(source), _persistent(target)
            if kept_source is None and kept_target is None:
                ephemeral += source is not None or target is not None
                continue
            compared += 1
            if not wants_versions and is_other_version(kept_source, kept_target, switched_ms):
                other_versions += 1
                continue
            difference = compare_nodes(path, kept_source, kept_target, switched_ms)
            if difference is not None:
                differences.append(difference)
        self._progress(self._findings.add(compared, ephemeral, differences, other_versions))


def _persistent(node: Versioned | None) -> Versioned | None:
    return None if node is None or node.ephemeral else node


def copy_of(flag: MigrationState | None, source_url: str, target: str | None) -> str:
    """Return the URL of the copy of a source: the one given, or else what the source's flag names.

    Raises ConfigError where there is nothing to compare, and RefusedError where the flag names a target that is not
    complete.
    """
    found = target or _target_of(flag, source_url)
    if split_chroot(source_url) == split_chroot(found):
        raise ConfigError(f"{found} would be compared with itself: name two stores")
    return found


def _target_of(flag: MigrationState | None, source_url: str) -> str:
    if flag is None or not flag.target_url:
        raise ConfigError(f"{source_url} has no {MIGRATION_PATH} that names a target: name one with --target")
    if not flag.is_completed:
        raise RefusedError(
            f"the migration of {source_url} to {flag.target_url} is {flag.phase}, not COMPLETED, and its target is not "
            "complete: wait for it, or name the target with --target to compare it all the same"
        )
    return flag.target_url
