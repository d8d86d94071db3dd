"""Batches of items, cut to requests of a size that a server takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final, TypeVar

T = TypeVar("T")

# Bytes of an operation besides its path, at most: headers, type, version, lengths.
OPERATION_OVERHEAD: Final = 32
# Bytes of a request besides its operations: frames, ids and headers.
REQUEST_MARGIN: Final = 1024
_MOST_BYTES_OF_CHARACTER: Final = 4


def split(items: Sequence[T], size: int, max_bytes: int, path_of: Callable[[T], str]) -> Iterator[list[T]]:
    """Cut into batches of at most ``size`` items whose request stays below ``max_bytes``."""
    begin = 0
    while begin < len(items):
        batch = first_batch(items[begin : begin + size], max_bytes, path_of)
        yield batch
        begin += len(batch)


def first_batch(items: Sequence[T], max_bytes: int, path_of: Callable[[T], str]) -> list[T]:
    """Cut off as many items as a request below ``max_bytes`` has room for; one at least."""
    budget = max_bytes - REQUEST_MARGIN
    paths = [path_of(item) for item in items]
    # None is looked at by itself where all are short.
    if (max(map(len, paths)) * _MOST_BYTES_OF_CHARACTER + OPERATION_OVERHEAD) * len(paths) <= budget:
        return list(items)
    costs = accumulate(len(path.encode("utf-8")) + OPERATION_OVERHEAD for path in paths)
    return list(items[: max(1, sum(cost <= budget for cost in costs))])


def halves(batch: list[T]) -> list[list[T]]:
    """Halve a batch whose connection broke: it may be more than the server takes at once."""
    middle = len(batch) // 2
    return [batch[:middle], batch[middle:]] if middle else [batch]
