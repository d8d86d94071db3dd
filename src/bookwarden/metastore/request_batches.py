"""How what is to be read or deleted is cut into requests that a server takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

# What an operation takes of a request besides its path, at most: headers, type, version, lengths.
OPERATION_OVERHEAD: Final = 32
# What frames, ids and headers take of a request besides its operations.
REQUEST_MARGIN: Final = 1024


def split(items: Sequence[T], size: int, max_bytes: int, path_of: Callable[[T], str]) -> Iterator[list[T]]:
    """Cut into batches of at most ``size`` items whose request stays below ``max_bytes``."""
    budget = max_bytes - REQUEST_MARGIN
    batch: list[T] = []
    used = 0
    for item in items:
        cost = len(path_of(item).encode("utf-8")) + OPERATION_OVERHEAD
        if batch and (len(batch) >= size or used + cost > budget):
            yield batch
            batch, used = [], 0
        batch.append(item)
        used += cost
    if batch:
        yield batch


def halves(batch: list[T]) -> list[list[T]]:
    """Cut a batch whose connection broke in two: it may be more than the server takes at once."""
    middle = len(batch) // 2
    return [batch[:middle], batch[middle:]] if middle else [batch]
