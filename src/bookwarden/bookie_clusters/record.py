"""The record of the newest order to switch, a node that one process holds and renews.

The registry is changed by compare-and-set, and so is a copy of a ledger, so no safety depends on the lease: it keeps
two commands from working at the same thing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bookwarden.bookie_clusters.order import Order
from bookwarden.errors import FormatError
from bookwarden.leases import LeaseTimes
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.record_lease import LeaseMessages, RecordLease, find_record, not_a_record
from bookwarden.records import record_fields, record_of

ORDER_PATH: Final = "/bookwarden/bookie-clusters-switch"

_OF_ORDERS: Final = LeaseMessages(
    "A switch",
    "carries out this order",
    "carry on with `bookie-clusters switch --resume`",
    "look at `bookie-clusters status`",
)


@dataclass(frozen=True, slots=True)
class FoundOrder:
    """The record of an order as it was read. ``is_free`` is as for FoundRecord."""

    order: Order
    version: int
    holder: str
    is_free: bool


def find_order(store: MetadataStore) -> FoundOrder | None:
    """Read the record; None if no order was given yet, FormatError if it is none."""
    found = find_record(store, ORDER_PATH, "an order")
    if found is None:
        return None
    try:
        order = record_of(Order, found.fields)
    except FormatError as error:
        raise not_a_record(ORDER_PATH, "an order", error) from error
    return FoundOrder(order, found.version, found.holder, found.is_free)


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
        self.hold(record_fields(order), None if found is None else found.version)

    def advance(self, order: Order) -> None:
        """Keep the order as it is now, before it is acted on; raises as `require`."""
        self.write(record_fields(order))

    def __enter__(self) -> OrderLease:
        super().__enter__()
        return self
