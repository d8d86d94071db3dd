"""Messages sent at a given rate, and how long their confirmations take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pulsar

from bookwarden.errors import ServerError

PER_SECOND = 200
_PATIENCE_S = 60.0
_PAYLOAD = b"x" * 1024


def latencies(producer: Any, count: int, per_second: float = PER_SECOND) -> list[float]:
    """Send messages of 1 KiB; return the seconds until each was confirmed. ServerError if one was not."""
    found: list[float] = []
    failed: list[object] = []
    complete = threading.Event()

    def on_answer(begin: float) -> Callable[[Any, Any], None]:
        def answered(result: Any, _message_id: Any) -> None:
            found.append(time.monotonic() - begin)
            if result != pulsar.Result.Ok:
                failed.append(result)
            if len(found) == count:
                complete.set()

        return answered

    start = time.monotonic()
    for number in range(count):
        time.sleep(max(start + number / per_second - time.monotonic(), 0))
        producer.send_async(_PAYLOAD, on_answer(time.monotonic()))
    if not complete.wait(_PATIENCE_S) or failed:
        raise ServerError(
            f"{count - len(found)} messages were not confirmed, {len(failed)} failed: {sorted(map(str, set(failed)))}"
        )
    return found


def quantile(values: Sequence[float], share: int) -> float:
    """Return the value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) * share // 100, len(ordered) - 1)]
