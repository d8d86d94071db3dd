"""Brokers that mark what they drop (docs/broker-marks.md): follow looks after them, and counts what is marked twice."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from bookwarden.clusters.pulsar.broker_marks import MarkingBrokers, Outbox
from bookwarden.clusters.pulsar.rest.topic_positions import EntriesBehind
from bookwarden.errors import FormatError, NotFoundError, PulsarError, StoreError
from bookwarden.ledgers.pending_deletion import PendingDeletion, Request
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.broker_marks import TWO_PHASE, decode_outbox_node
from bookwarden.wire.trash import has_records

logger = logging.getLogger(__name__)
# A broker that marks sends its own mark four minutes after a drop, and tries again then.
BROKERS_FIRST_MS: Final = 300_000
_REFRESH_S: Final = 30.0
# Entries of the deletion topics, each with a mark or a batch of marks.
_MOST_IN_FLIGHT: Final = 10_000


class BrokersThatMark:
    """The brokers of all metadata roots, by URL of the root.

    ``entries_in_flight`` counts the entries of the deletion topics, by partition, and ``requests_in_flight`` reads what
    their marks ask for; both may raise PulsarError, NotFoundError and FormatError.
    ``delete_delay_s`` is how long the sweep waits before a delete.
    """

    def __init__(
        self,
        stores: Mapping[str, MetadataStore],
        entries_in_flight: Callable[[], Mapping[str, EntriesBehind]],
        requests_in_flight: Callable[[], Collection[Request]],
        clock: Callable[[], float] = time.monotonic,
        *,
        delete_delay_s: float = 0.0,
    ) -> None:
        self._stores = stores
        self._entries_in_flight = entries_in_flight
        self._requests_in_flight = requests_in_flight
        self._clock = clock
        #: The longest time that brokers have before what they drop is looked at.
        self.longest_ms = BROKERS_FIRST_MS + int(delete_delay_s * 1000)
        self._roots: dict[str, int] = {}
        self._read_at = float("-inf")

    def roots(self) -> Mapping[str, int]:
        """Return the roots of which a live broker marks, and how many ms it has for that.

        Where the sweep alone deletes, that is its delay more. Read every half minute; where that fails as before.
        """
        if self._clock() - self._read_at > _REFRESH_S:
            self._read_at = self._clock()
            times = {root: self._time_of(root, store) for root, store in self._stores.items()}
            self._roots = {root: time_ms for root, time_ms in times.items() if time_ms}
        return self._roots

    def doubles(self, marks: Sequence[PendingDeletion]) -> frozenset[Request]:
        """Return what of these is in an outbox or in flight already; what cannot be read has none of them.

        The outboxes, and the deletion topics if they are not too long, are read as a whole; where no broker marks
        nothing is.
        """
        if not marks or not self.roots():
            return frozenset()
        wanted = {mark.request for mark in marks}
        found: set[Request] = set()
        try:
            for store in self._stores.values():
                found |= wanted & _in_outbox(store)
            found |= wanted & set(self._marked())
        except (StoreError, PulsarError, NotFoundError, FormatError) as error:
            logger.warning("which of %d marks were made by brokers already is not known: %s", len(marks), error)
        return frozenset(found)

    def _marked(self) -> Collection[Request]:
        entries = sum(behind.entries for behind in self._entries_in_flight().values())
        if entries > _MOST_IN_FLIGHT:
            raise PulsarError(f"{entries:,} entries are in flight, more than are read for a count")
        return self._requests_in_flight()

    def _time_of(self, root: str, store: MetadataStore) -> int:
        try:
            modes = {broker.marking.mode for broker in MarkingBrokers(store).read() if broker.marking and broker.marks}
        except StoreError as error:
            logger.warning("whether brokers of %s mark cannot be seen: %s", root, error)
            return self._roots.get(root, 0)
        return self.longest_ms if TWO_PHASE in modes else BROKERS_FIRST_MS if modes else 0


def _in_outbox(store: MetadataStore) -> set[Request]:
    outbox, found = Outbox(store), set[Request]()
    for folder in outbox.folders():
        for nodes in outbox.read(folder):
            for each in nodes:
                if has_records(each.node.value):
                    continue
                try:
                    found |= {mark.request for mark in decode_outbox_node(each.node.value, "")}
                except FormatError as error:
                    logger.warning("%s is not understood: %s", each.path, error)
    return found
