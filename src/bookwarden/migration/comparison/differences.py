"""Differences of one node of a copy."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from bookwarden.metastore.interface import Versioned


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


class Side(NamedTuple):
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
    source: Side | None
    target: Side | None
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


def _side(node: Versioned | None) -> Side | None:
    if node is None:
        return None
    return Side(node.version, modifications_of(node), len(node.value), node.created_ms, node.modified_ms)


def _first_differing(one: bytes, other: bytes) -> int:
    shared = min(len(one), len(other))
    return next((offset for offset in range(shared) if one[offset] != other[offset]), shared)
