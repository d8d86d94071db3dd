"""Records that one process holds and renews, a node each: of the newest order to switch, and of the newest build.

Others leave the work to its holder until the record was not renewed for a while. The registry is changed by
compare-and-set, and so is a copy of a ledger, so no safety depends on the lease: it keeps two commands from working at
the same thing.
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

from bookwarden.bookie_clusters.order import Order, order_fields, parse_order
from bookwarden.errors import (
    FormatError,
    LostRaceError,
    OutcomeUnknownError,
    RefusedError,
    StoreError,
    StoreUnavailableError,
)
from bookwarden.leases import LeaseTimes, Renewal, describe_holder, holder_here
from bookwarden.metastore.interface import MetadataStore
from bookwarden.processes import has_certainly_ended

ORDER_PATH: Final = "/bookwarden/bookie-clusters-switch"
_LOOK_EVERY_S: Final = 0.5
_TRIES: Final = 3
_OF_THE_HOLDER: Final = frozenset({"holder", "isHeld"})


class LeaseMessages(NamedTuple):
    """The words of a lease's errors."""

    work: str  #: The work, as in "WORK is carried out by".
    verb: str  #: As in "another process VERB".
    go_on: str  #: The advice where it could not be renewed.


_OF_ORDERS: Final = LeaseMessages(
    "A switch", "carries out this order", "carry on with `bookie-clusters switch --resume`"
)


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record as it was read. ``is_free``: its holder let go of it, or ran on this machine and has ended."""

    fields: Mapping[str, Any]  #: Values of JSON, without those about the holder.
    version: int
    holder: str
    is_free: bool


@dataclass(frozen=True, slots=True)
class FoundOrder:
    """The record of an order as it was read. ``is_free`` is as for FoundRecord."""

    order: Order
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
    if node is None:
        return None
    try:
        fields: Any = json.loads(node.value)
        holder = fields["holder"]
        is_free = fields["isHeld"] is not True or has_certainly_ended(holder)
        kept = {name: value for name, value in fields.items() if name not in _OF_THE_HOLDER}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_record(path, what, error) from error
    return FoundRecord(kept, node.version, describe_holder(holder), is_free)


def find_order(store: MetadataStore) -> FoundOrder | None:
    """Read the record; None if no order was given yet, FormatError if it is none."""
    found = find_record(store, ORDER_PATH, "an order")
    if found is None:
        return None
    try:
        order = parse_order(found.fields)
    except FormatError as error:
        raise _no_record(ORDER_PATH, "an order", error) from error
    return FoundOrder(order, found.version, found.holder, found.is_free)


def _no_record(path: str, what: str, error: Exception) -> FormatError:
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
                raise RefusedError(
                    f"another process has just written {self._path}: look at `bookie-clusters status`"
                ) from error
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
            raise LostRaceError(f"{self._path} was written by somebody else")
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


class OrderLease(RecordLease):
    """Holds the record of the newest order in a with statement, in which `take` comes first; thread-safe."""

    def __init__(self, store: MetadataStore, times: LeaseTimes | None = None) -> None:
        super().__init__(store, ORDER_PATH, _OF_ORDERS, times)

    def take(self, order: Order, found: FoundOrder | None, say: Callable[[str], object] = lambda _: None) -> None:
        """Write this order over the found one; RefusedError if another process works, or came first.

        A record that is held is watched first, until its holder has certainly given up.
        """
        if found is not None and not found.is_free:
            refusal = (
                f"a switch to {found.order.target} is under way, carried out by {found.holder}: wait for its end, "
                "see `bookie-clusters status --watch`"
            )
            found = self.wait_until_given_up(found, lambda: find_order(self._store), refusal, say)
        self.hold(order_fields(order), None if found is None else found.version)

    def advance(self, order: Order) -> None:
        """Keep the order as it is now, before it is acted on; raises as `require`."""
        self.write(order_fields(order))

    def __enter__(self) -> OrderLease:
        super().__enter__()
        return self
