"""A scratch namespace: taken if it is empty, held by a marker, and removed only if all of it must be a rehearsal's.

The marker is a node by which a rehearsal holds its namespace, and a later one recognizes what it left.
It is created before anything else, in an empty namespace, and deleted when everything else is gone. Its holder renews
it every few seconds, and stops writing anything when it could not for longer than a lease. So the contents of a
namespace with a marker were made by rehearsals, between the marker's creation and a lease after its last renewal.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Any, Final, NamedTuple

from bookwarden.errors import (
    ConfigError,
    LostRaceError,
    OutcomeUnknownError,
    RefusedError,
    StoreError,
    StoreUnavailableError,
)
from bookwarden.leases import LeaseTimes, Renewal, describe_holder, holder_here
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metadata_migration.walking import TreeWalk
from bookwarden.metastore.following.flag import MigrationState
from bookwarden.metastore.interface import ScratchStore, Versioned
from bookwarden.metastore.urls import scheme_of, split_chroot
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


class ScratchLease:
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

    def create(self) -> ScratchLease:
        """Take an empty namespace; RefusedError if another rehearsal came first."""
        try:
            self._store.create(MARKER, self._value)
        except LostRaceError as error:
            raise RefusedError("another rehearsal has just begun in this namespace: name another") from error
        (node,) = self._store.get_many([MARKER])
        if node is None or node.value != self._value:
            raise RefusedError(f"{MARKER} was replaced as soon as it was made: another client uses this namespace")
        self._version = node.version
        return self

    def take_over(self, version: int) -> ScratchLease:
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
            raise RefusedError(f"{MARKER} was written by another client ({self._taken_by}): this rehearsal ends")
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

    def __enter__(self) -> ScratchLease:
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


# Pulsar's own nodes about a migration. A rehearsal makes none, so a store that has them was migrated to.
COORDINATOR: Final = "/pulsar/migration-coordinator"

_BATCH: Final = 1_000
_IDLE: Final = ("NOT_STARTED", "FAILED")
_GONE = (DeleteResult.DELETED, DeleteResult.ABSENT)


def require_scratch(target: str, in_use: Iterable[str]) -> None:
    """Raise ConfigError for a target that is no Oxia, and RefusedError for one in a store that is in use."""
    if scheme_of(target) not in ("oxia", "memory"):
        raise ConfigError(f"{target} is no target of a migration: Pulsar moves metadata to oxia:// alone")
    if any(split_chroot(url)[0] == split_chroot(target)[0] for url in in_use):
        raise RefusedError(f"{target} is a store in use: name a scratch namespace, made for the rehearsal alone")


def require_idle(flag: MigrationState | None, source_url: str, target: str) -> None:
    """Raise RefusedError where the flag of the source names this target, or says that the source moves, or moved."""
    if flag is not None and flag.target_url and split_chroot(flag.target_url)[0] == split_chroot(target)[0]:
        raise RefusedError(
            f"{target} is what the migration flag of {source_url} names ({flag.phase}): name a scratch namespace that "
            "no cluster is moved to"
        )
    if flag is not None and flag.phase not in _IDLE:
        raise RefusedError(
            f"the metadata of {source_url} is being migrated, or was ({flag.phase}): there is nothing to rehearse"
        )


def claim(store: ScratchStore, times: LeaseTimes) -> ScratchLease:
    """Take a namespace that is empty; RefusedError for another."""
    store.sync()
    _require_alone(store, [])
    hold = ScratchLease(store, times).create()
    try:
        _require_alone(store, [MARKER[1:]])
    except BaseException:
        # A process that came in between should not find our node.
        hold.withdraw()
        raise
    return hold


def clean(store: ScratchStore, times: LeaseTimes, say: Callable[[str], object]) -> int:
    """Remove what an earlier rehearsal left, its marker last; return how many nodes, 0 where there is no marker.

    Raises RefusedError, and removes nothing, where anything cannot be a rehearsal's.
    """
    store.sync()
    found = find_marker(store)
    if found is None:
        return 0
    found = wait_until_given_up(store, found, times, say)
    with ScratchLease(store, times, found.until_ms).take_over(found.version) as hold:
        return _Removal(store, found, hold, times).run()


def clean_own(store: ScratchStore, hold: ScratchLease, times: LeaseTimes) -> int:
    """Remove the copy of the marker's holder, as `clean` does."""
    found = find_marker(store)
    if found is None:
        raise RefusedError(f"{MARKER} was deleted by another client: nothing is removed")
    return _Removal(store, found, hold, times).run()


def _require_alone(store: ScratchStore, expected: Sequence[str]) -> None:
    (names,) = store.list_many(["/"])
    others = [name for name in names if name not in expected]
    if not others:
        return
    if MARKER[1:] in others:
        raise RefusedError(f"an earlier rehearsal left its copy in this namespace ({MARKER}): remove it with --clean")
    raise RefusedError(
        f"the target is not empty: it has /{others[0]}"
        + (f" and {len(others) - 1} more nodes at its top" if len(others) > 1 else "")
        + ": name a namespace that was made for this alone"
    )


class _Removal:
    """Removes a copy from the leaves up, after a check of all of it; each node by the version that was checked."""

    def __init__(self, store: ScratchStore, found: FoundMarker, hold: ScratchLease, times: LeaseTimes) -> None:
        self._store = store
        self._found = found
        self._hold = hold
        self._lease_s = times.lease_s

    def run(self) -> int:
        """Remove everything; return how many nodes, without the marker."""
        TreeWalk([self._store], lambda paths, nodes: self._require_ours(paths, nodes[0]), passed_over=[MARKER]).run()
        removed = self._remove_below(["/"])
        _require_alone(self._store, [MARKER[1:]])
        (result,) = self._store.delete_many([(MARKER, self._hold.release())])
        if result not in _GONE:
            raise RefusedError(f"{MARKER} was changed by another client while the copy was removed: look at it")
        return removed

    def _require_ours(self, paths: Sequence[str], nodes: Sequence[Versioned | None]) -> None:
        for path, node in zip(paths, nodes, strict=True):
            ours = node is None or self._found.may_have_made(node, self._lease_s)
            if not ours or f"{path}/".startswith(f"{COORDINATOR}/"):
                raise RefusedError(
                    f"{path} of the target was not made by the rehearsal, or was written since: another client uses "
                    "this namespace, and nothing of it is removed any more"
                )

    def _remove_below(self, directories: Sequence[str]) -> int:
        removed = 0
        paths = self._paths_in(directories)
        while batch := list(islice(paths, _BATCH)):
            parents = self._store.parents_among(batch)
            if parents:
                removed += self._remove_below([path for path in batch if path in parents])
            removed += self._remove(batch)
        return removed

    def _paths_in(self, directories: Sequence[str]) -> Iterator[str]:
        for directory in directories:
            prefix = directory if directory == "/" else f"{directory}/"
            yield from (prefix + name for name in self._store.list_many([directory])[0] if prefix + name != MARKER)

    def _remove(self, paths: Sequence[str]) -> int:
        nodes = self._store.get_many(paths)
        self._require_ours(paths, nodes)
        self._hold.require()
        there = [(path, node.version) for path, node in zip(paths, nodes, strict=True) if node is not None]
        results = self._store.delete_many(there)
        for (path, _), result in zip(there, results, strict=True):
            if result is DeleteResult.LOST_RACE:
                raise RefusedError(
                    f"{path} of the target was changed while the copy was removed: another client uses it"
                )
            if result not in _GONE:
                raise StoreError(f"it is not known whether {path} of the target was removed: run again with --clean")
        return len(there)
