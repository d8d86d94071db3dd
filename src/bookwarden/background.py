"""Work in threads of its own: for the length of a block, or as long as it takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_background(
    work: Callable[[threading.Event], object], name: str, *, end_seconds: float | None = None
) -> Iterator[None]:
    """Run ``work`` while the block runs; it gets an event that is set at the block's end, and has to return then.

    ``name`` is the thread's. It is waited for, ``end_seconds`` at most; the process does not wait for it.
    """
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(end_seconds)


def run_unawaited(work: Callable[[], object], name: str) -> None:
    """Run ``work`` in a thread that the process does not wait for, though it may hang in a native library."""
    threading.Thread(target=work, name=name, daemon=True).start()
