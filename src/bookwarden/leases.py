"""Leases: what one process holds and others leave alone, with a record of the holder, renewed while it works.

Where the record is kept, and what its loss means, is each lease's own: the sweep's is an ephemeral node, the scan's a
file; others are the nodes of `metastore.record_lease`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

from bookwarden.processes import described_here


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds between renewals, until a holder that cannot renew stops, and until others take the lease over."""

    renew_s: float = 5.0
    lease_s: float = 30.0
    given_up_s: float = 45.0


def holder_here() -> dict[str, Any]:
    """Describe this process as a holder, in JSON values: as `described_here`, when it began (UTC), and a unique id."""
    began = datetime.now(timezone.utc).isoformat(sep=" ", timespec="seconds")
    return {**described_here(), "began": began, "id": uuid.uuid4().hex}


def describe_holder(record: object) -> str:
    """Return the host, the process and since when, of any record that was read."""
    if isinstance(record, Mapping) and {"host", "pid", "began"} <= record.keys():
        return f"{record['host']} as process {record['pid']} since {record['began']}"
    return "a host that its record does not name"


class Renewal:
    """A thread that calls ``renew`` each ``every_s`` seconds during a with statement, until it returns False.

    At the end it waits up to ``end_wait_s`` seconds for a call under way; None waits for it however long it takes.
    """

    def __init__(
        self, renew: Callable[[], bool], every_s: float, *, name: str, end_wait_s: float | None = None
    ) -> None:
        self._renew = renew
        self._every_s = every_s
        self._end_wait_s = end_wait_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop calling ``renew``."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(self._end_wait_s)

    def __enter__(self) -> Renewal:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s) and self._renew():
            pass
