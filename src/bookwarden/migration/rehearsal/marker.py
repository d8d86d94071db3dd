"""The marker: a node by which a rehearsal holds its scratch namespace, and a later one recognizes what it left.

It is created before anything else, in an empty namespace, and deleted when everything else is gone. Its holder renews
it every few seconds, and stops writing anything when it could not for longer than a lease. So the contents of a
namespace with a marker were made by rehearsals, between the marker's creation and a lease after its last renewal.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, NamedTuple

from bookwarden.errors import LostRaceError, OutcomeUnknownError, RefusedError, StoreError, StoreUnavailableError
from bookwarden.leases import LeaseTimes, Renewal, describe_holder, holder_here
from bookwarden.metastore.interface import ScratchStore, Versioned
from bookwarden.processes import has_certainly_ended

MARKER: Final = "/bookwarden-rehearsal"
_WHAT: Final = "scratch copy of bookwarden metadata-migration rehearse"
# The clocks of a namespace's servers may differ by this much.
_SKEW_MS: Final = 60_000


class FoundMarker(NamedTuple):
    """A marker as it was read. ``until_ms`` is its last renewal by the rehearsal that made the copy.

    ``is_done``: its holder writes nothing more, since it says so, or ran on this machine and has ended.
    """

    version: int
    begun_ms: int
    until_ms: int
    holder: str
    is_done: bool

    def may_have_made(self, node: Versioned, lease_s: float) -> bool:
        """Return whether the node is as a rehearsal leaves it: persistent, never written again, and of its time."""
        last_ms = self.until_ms + int(lease_s * 1000) + _SKEW_MS
        in_time = self.begun_ms - _SKEW_MS <= node.created_ms <= last_ms
        return in_time and not node.ephemeral and node.modified_ms == node.created_ms


def find_marker(store: ScratchStore) -> FoundMarker | None:
    """Read the marker; None if there is none. RefusedError if something else has its name."""
    (node,) = store.get_many([MARKER])
    if node is None:
        return None
    try:
        found: Any = json.loads(node.value)
        if found["what"] != _WHAT or node.ephemeral or not {"host", "pid"} <= found.keys():
            raise ValueError("another node")
        until_ms = found["until_ms"]
        return FoundMarker(
            node.version,
            node.created_ms,
            node.modified_ms if until_ms is None else int(until_ms),
            describe_holder(found),
            bool(found["done"]) or has_certainly_ended(found),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise RefusedError(f"{MARKER} is there and was not written by a rehearsal: name another namespace") from error


class Hold:
    """Holds a scratch namespace in a with statement, by a thread that renews the marker.

    ``until_ms`` is that of a marker that was taken over to remove its copy.
    """

    def __init__(self, store: ScratchStore, times: LeaseTimes, until_ms: int | None = None) -> None:
        self._store = store
        self._times = times
        self._described = {
            **holder_here(),
            "what": _WHAT,
            "until_ms": until_ms,
            "done": False,
        }
        self._version = -1
        self._held_since = time.monotonic()
        self._taken_by: str | None = None
        self._is_released = False
        self._renewal = Renewal(self._keep, times.renew_s, name="rehearsal-marker")

    @property
    def _value(self) -> bytes:
        return json.dumps(self._described).encode()

    def create(self) -> Hold:
        """Take an empty namespace; RefusedError if another rehearsal came first."""
        try:
            self._store.create(MARKER, self._value)
        except LostRaceError as error:
            raise RefusedError("another rehearsal has just begun in this namespace: name another") from error
        (node,) = self._store.get_many([MARKER])
        if node is None or node.value != self._value:
            raise RefusedError(f"{MARKER} was replaced as soon as it was made: somebody else uses this namespace")
        self._version = node.version
        return self

    def take_over(self, version: int) -> Hold:
        """Take the namespace over from another rehearsal; RefusedError if that is alive."""
        try:
            self._version = self._store.put(MARKER, self._value, version)
        except LostRaceError as error:
            raise RefusedError(f"the rehearsal that {MARKER} belongs to goes on: wait for its end") from error
        return self

    def withdraw(self) -> None:
        """Delete the marker before anything else was made, unless it is no longer ours."""
        self._store.delete_many([(MARKER, self._version)])

    def require(self) -> None:
        """Raise RefusedError unless the namespace is certainly ours; call it before each write."""
        if self._taken_by:
            raise RefusedError(f"{MARKER} was written by somebody else ({self._taken_by}): this rehearsal ends")
        silent = time.monotonic() - self._held_since
        if silent > self._times.lease_s:
            raise StoreUnavailableError(
                f"{MARKER} could not be written for {silent:.0f} s: the target is too slow or away; nothing more is "
                "written to it, run again with --clean"
            )

    def release(self) -> int:
        """Stop renewing the marker; return its version."""
        self._renewal.stop()
        self.require()
        self._is_released = True
        return self._version

    def __enter__(self) -> Hold:
        self._held_since = time.monotonic()
        self._renewal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewal.stop()
        if not self._is_released and not self._taken_by:
            # It says that nothing more is written, so no other rehearsal has to wait to be sure.
            self._described["done"] = True
            with suppress(StoreError):
                self._renew()

    def _keep(self) -> bool:
        if not self._taken_by:
            self._renew()
        return not self._taken_by

    def _renew(self) -> None:
        begin = time.monotonic()
        try:
            self._version = self._store.put(MARKER, self._value, self._version)
        except LostRaceError as error:
            self._taken_by = str(error)
        except OutcomeUnknownError:
            self._read_back(begin)
        except StoreUnavailableError:
            # Only the missed renewal counts, not its reason; the next attempt may succeed.
            return
        else:
            self._held_since = begin

    def _read_back(self, begin: float) -> None:
        (node,) = self._store.get_many([MARKER])
        if node is None or node.value != self._value:
            self._taken_by = "after a connection that broke"
            return
        self._version, self._held_since = node.version, begin


def wait_until_given_up(
    store: ScratchStore, found: FoundMarker, times: LeaseTimes, say: Callable[[str], object]
) -> FoundMarker:
    """Return the marker once it was not renewed for a while; RefusedError if it is."""
    if found.is_done:
        return found
    say(f"{MARKER} is of a rehearsal on {found.holder}: waiting {times.given_up_s:.0f} s to see that it has ended")
    time.sleep(times.given_up_s)
    again = find_marker(store)
    if again is None or again.version != found.version:
        raise RefusedError(f"the rehearsal on {found.holder} goes on in this namespace: wait for its end")
    return again
