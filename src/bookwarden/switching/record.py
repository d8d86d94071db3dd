"""The record of the newest order to switch: a node that the process that carries it out holds, and renews.

Others leave the order to it until it was not renewed for a while. The registry is changed by compare-and-set, so no
safety depends on the lease: it keeps two commands from working at the same thing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

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
from bookwarden.switching.order import Order, order_fields, parse_order

ORDER_PATH: Final = "/bookwarden/bookie-clusters-switch"
_LOOK_EVERY_S: Final = 0.5
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class FoundOrder:
    """The record as it was read. ``is_free``: its holder let go of it, or ran on this machine and has ended."""

    order: Order
    version: int
    holder: str
    is_free: bool


def find_order(store: MetadataStore) -> FoundOrder | None:
    """Read the record; None if no order was given yet, FormatError if it is none."""
    node = store.get(ORDER_PATH)
    if node is None:
        return None
    try:
        fields: Any = json.loads(node.value)
        order, holder = parse_order(fields), fields["holder"]
        is_free = fields["isHeld"] is not True or has_certainly_ended(holder)
    except (ValueError, KeyError, TypeError, FormatError) as error:
        raise FormatError(f"{ORDER_PATH} is no record of an order: {error}; find out who wrote it") from error
    return FoundOrder(order, node.version, describe_holder(holder), is_free)


class OrderLease:
    """Holds the record in a with statement, in which `take` comes first; thread-safe."""

    def __init__(self, store: MetadataStore, times: LeaseTimes | None = None) -> None:
        self._store = store
        self._times = times or LeaseTimes()
        self._holder = holder_here()
        self._lock = threading.RLock()
        self._order: Order | None = None
        self._version = -1
        self._held_since = 0.0
        self._taken_by: str | None = None
        self._renewal = Renewal(self._renew, self._times.renew_s, name="switch-lease")

    def take(self, order: Order, found: FoundOrder | None, say: Callable[[str], object] = lambda _: None) -> None:
        """Write this order over the found one; RefusedError if another process works, or came first.

        A record that is held is watched first, until its holder has certainly given up.
        """
        if found is not None and not found.is_free:
            found = self._wait_until_given_up(found, say)
        value = self._value(order, is_held=True)
        with self._lock:
            try:
                if found is None:
                    self._create(value)
                else:
                    self._version = self._put(value, found.version)
            except LostRaceError as error:
                raise RefusedError(
                    f"another process has just written {ORDER_PATH}: look at `bookie-clusters status`"
                ) from error
            self._order = order
            self._held_since = time.monotonic()

    def advance(self, order: Order) -> None:
        """Keep the order as it is now, before it is acted on; raises as `require`."""
        with self._lock:
            self.require()
            try:
                self._version = self._put(self._value(order, is_held=True), self._version)
            except LostRaceError as error:
                self._taken_by = str(error)
            self.require()
            self._order = order
            self._held_since = time.monotonic()

    def require(self) -> None:
        """Raise RefusedError if another process has the record, StoreUnavailableError if that may be."""
        if self._taken_by:
            raise RefusedError(f"another process carries out this order ({self._taken_by}): this one leaves it to that")
        silent = time.monotonic() - self._held_since
        if silent > self._times.lease_s:
            raise StoreUnavailableError(
                f"{ORDER_PATH} could not be written for {silent:.0f} s: carry on with `bookie-clusters switch --resume`"
            )

    def __enter__(self) -> OrderLease:
        self._renewal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewal.stop()
        with self._lock:
            if self._order is not None and not self._taken_by:
                # Another process then needs not wait to see that this one has ended.
                with suppress(StoreError):
                    self._put(self._value(self._order, is_held=False), self._version)

    def _value(self, order: Order, *, is_held: bool) -> bytes:
        return json.dumps({**order_fields(order), "holder": self._holder, "isHeld": is_held}, indent=1).encode()

    def _create(self, value: bytes) -> None:
        with suppress(OutcomeUnknownError):
            self._store.create(ORDER_PATH, value, make_parents=True)
        node = self._store.get(ORDER_PATH)
        if node is None or not self._is_ours(node.value):
            raise LostRaceError(f"{ORDER_PATH} was written by somebody else")
        self._version = node.version

    def _put(self, value: bytes, version: int) -> int:
        """Write over this version, or over what we wrote ourselves without getting to know it; return the new one."""
        for _ in range(_TRIES):
            try:
                return self._store.put(ORDER_PATH, value, version)
            except OutcomeUnknownError:
                # If it was written all the same, the next try finds our own record with another version.
                continue
            except LostRaceError:
                node = self._store.get(ORDER_PATH)
                if node is None or not self._is_ours(node.value):
                    raise
                if node.value == value:
                    return node.version
                version = node.version
        raise StoreUnavailableError(f"{ORDER_PATH} could not be written: the connection broke each time")

    def _is_ours(self, value: bytes) -> bool:
        return self._holder["id"].encode() in value

    def _renew(self) -> bool:
        with self._lock:
            if self._order is None or self._taken_by:
                return not self._taken_by
            begun = time.monotonic()
            try:
                self._version = self._put(self._value(self._order, is_held=True), self._version)
            except LostRaceError as error:
                self._taken_by = str(error)
            except StoreError:
                # Only the missed renewal counts, not its reason; the next attempt may succeed.
                return True
            else:
                self._held_since = begun
            return not self._taken_by

    def _wait_until_given_up(self, found: FoundOrder, say: Callable[[str], object]) -> FoundOrder | None:
        deadline = time.monotonic() + self._times.given_up_s
        say(f"A switch is carried out by {found.holder}: waiting up to {self._times.given_up_s:.0f} s for its end")
        while time.monotonic() < deadline:
            time.sleep(min(_LOOK_EVERY_S, self._times.renew_s))
            now = find_order(self._store)
            if now is None or now.is_free:
                return now
            if now.version != found.version:
                raise RefusedError(
                    f"a switch to {found.order.target} is under way, carried out by {found.holder}: wait for its end, "
                    "see `bookie-clusters status --watch`"
                )
        return found
