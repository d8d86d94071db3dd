"""Records that one process holds and renews, a node each: the newest order to switch, the newest build, a rehearsal's.

Others leave the work to its holder until the record was not renewed for a while.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from bookwarden.errors import (
    FormatError,
    LostRaceError,
    OutcomeUnknownError,
    RefusedError,
    StoreError,
    StoreUnavailableError,
)
from bookwarden.leases import LeaseTimes, Renewal, describe_holder, holder_here
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.processes import has_certainly_ended

_LOOK_EVERY_S: Final = 0.5
_TRIES: Final = 3
_OF_THE_HOLDER: Final = frozenset({"holder", "isHeld"})


class LeaseMessages(NamedTuple):
    """The words of a lease's errors."""

    work: str  #: The work, as in "WORK is carried out by".
    verb: str  #: As in "another process VERB".
    go_on: str  #: The advice where it could not be renewed.
    look: str  #: The advice where another process came first.


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record as it was read. ``is_free``: its holder let go of it, or ran on this machine and has ended."""

    fields: Mapping[str, Any]  #: Values of JSON, without those about the holder.
    version: int
    holder: str
    is_free: bool


class HeldRecord(Protocol):
    """A record that was found, whatever it is of."""

    @property
    def version(self) -> int:
        """Of its node."""

    @property
    def holder(self) -> str:
        """The process that wrote it, for people."""

    @property
    def is_free(self) -> bool:
        """As for FoundRecord."""


_Found = TypeVar("_Found", bound=HeldRecord)


def find_record(store: MetadataStore, path: str, what: str) -> FoundRecord | None:
    """Read a record of ``what``, as "an order"; None if there is none yet, FormatError if it is something else."""
    node = store.get(path)
    return None if node is None else parse_record(node, path, what)


def parse_record(node: Versioned, path: str, what: str) -> FoundRecord:
    """Return the record that a node is, as `find_record` does."""
    try:
        fields: Any = json.loads(node.value)
        holder = fields["holder"]
        is_free = fields["isHeld"] is not True or has_certainly_ended(holder)
        kept = {name: value for name, value in fields.items() if name not in _OF_THE_HOLDER}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise not_a_record(path, what, error) from error
    return FoundRecord(kept, node.version, describe_holder(holder), is_free)


def not_a_record(path: str, what: str, error: Exception) -> FormatError:
    """Return the error for a node that should be a record of ``what``."""
    return FormatError(f"{path} is no record of {what}: {error}; find out who wrote it")


class RecordLease:
    """Holds a record in a with statement, in which `hold` comes first; thread-safe."""

    def __init__(self, store: MetadataStore, path: str, words: LeaseMessages, times: LeaseTimes | None = None) -> None:
        self._store = store
        self._path = path
        self._words = words
        self._times = times or LeaseTimes()
        self._holder = holder_here()
        self._lock = threading.RLock()
        self._fields: Mapping[str, Any] | None = None
        self._version = -1
        self._held_since = 0.0
        self._taken_by: str | None = None
        self._renewal = Renewal(self._renew, self._times.renew_s, name="record-lease")

    def hold(self, fields: Mapping[str, Any], version: int | None) -> None:
        """Write it over this version, or create it for None; RefusedError if another process came first."""
        value = self._value(fields, is_held=True)
        with self._lock:
            try:
                if version is None:
                    self._create(value)
                else:
                    self._version = self._put(value, version)
            except LostRaceError as error:
                raise RefusedError(f"another process has just written {self._path}: {self._words.look}") from error
            self._fields = fields
            self._held_since = time.monotonic()

    def write(self, fields: Mapping[str, Any]) -> None:
        """Write it as it is now, before that is acted on; raises as `require`."""
        with self._lock:
            self.require()
            try:
                self._version = self._put(self._value(fields, is_held=True), self._version)
            except LostRaceError as error:
                self._taken_by = str(error)
            self.require()
            self._fields = fields
            self._held_since = time.monotonic()

    def renew_with(self, fields: Mapping[str, Any]) -> None:
        """Have this written by the next renewal."""
        with self._lock:
            self._fields = fields

    def remove(self) -> None:
        """Delete the record, which is no longer held; raises as `require`, and RefusedError where it has changed."""
        self._renewal.stop()
        self.require()
        (result,) = self._store.delete_many([(self._path, self._version)])
        if result not in (DeleteResult.DELETED, DeleteResult.ABSENT):
            raise RefusedError(f"{self._path} was changed by another client, and is not removed: look at it")
        self._fields = None

    def require(self) -> None:
        """Raise RefusedError if another process has the record, StoreUnavailableError if that may be."""
        if self._taken_by:
            raise RefusedError(f"another process {self._words.verb} ({self._taken_by}): this one leaves it to that")
        silent = time.monotonic() - self._held_since
        if silent > self._times.lease_s:
            raise StoreUnavailableError(f"{self._path} could not be written for {silent:.0f} s: {self._words.go_on}")

    def wait_until_given_up(
        self, found: _Found, find: Callable[[], _Found | None], refusal: str, say: Callable[[str], object]
    ) -> _Found | None:
        """Watch a record that another process holds until that has certainly given up; return it as it is then.

        RefusedError with this text if it is renewed.
        """
        deadline = time.monotonic() + self._times.given_up_s
        given_up_s = self._times.given_up_s
        say(f"{self._words.work} is carried out by {found.holder}: waiting up to {given_up_s:.0f} s for its end")
        while time.monotonic() < deadline:
            time.sleep(min(_LOOK_EVERY_S, self._times.renew_s))
            now = find()
            if now is None or now.is_free:
                return now
            if now.version != found.version:
                raise RefusedError(refusal)
        return found

    def __enter__(self) -> RecordLease:
        self._renewal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewal.stop()
        with self._lock:
            if self._fields is not None and not self._taken_by:
                # Another process then needs not wait to see that this one has ended.
                with suppress(StoreError):
                    self._put(self._value(self._fields, is_held=False), self._version)

    def _value(self, fields: Mapping[str, Any], *, is_held: bool) -> bytes:
        return json.dumps({**fields, "holder": self._holder, "isHeld": is_held}, indent=1).encode()

    def _create(self, value: bytes) -> None:
        with suppress(OutcomeUnknownError):
            self._store.create(self._path, value, make_parents=True)
        node = self._store.get(self._path)
        if node is None or not self._is_ours(node.value):
            raise LostRaceError(f"{self._path} was written by another client")
        self._version = node.version

    def _put(self, value: bytes, version: int) -> int:
        """Write over this version, or over what we wrote ourselves without getting to know it; return the new one."""
        for _ in range(_TRIES):
            try:
                return self._store.put(self._path, value, version)
            except OutcomeUnknownError:
                # If it was written all the same, the next try finds our own record with another version.
                continue
            except LostRaceError:
                node = self._store.get(self._path)
                if node is None or not self._is_ours(node.value):
                    raise
                if node.value == value:
                    return node.version
                version = node.version
        raise StoreUnavailableError(f"{self._path} could not be written: the connection broke each time")

    def _is_ours(self, value: bytes) -> bool:
        return self._holder["id"].encode() in value

    def _renew(self) -> bool:
        with self._lock:
            if self._fields is None or self._taken_by:
                return not self._taken_by
            begun = time.monotonic()
            try:
                self._version = self._put(self._value(self._fields, is_held=True), self._version)
            except LostRaceError as error:
                self._taken_by = str(error)
            except StoreError:
                # Only the missed renewal counts, not its reason; the next attempt may succeed.
                return True
            else:
                self._held_since = begun
            return not self._taken_by
