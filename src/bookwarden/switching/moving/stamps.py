"""Stamps: the key by which PIP-477 attributes a cursor's ledger, written where stock brokers keep it.

A stamp is a hint for the plug-in of that proposal. Nothing of ours reads it: the place of a ledger is where its
metadata is. Only the broker that has a topic loaded may write to its cursors, so it is asked to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from bookwarden.errors import BookwardenError, NotFoundError
from bookwarden.ledgers.managed_ledger import CursorInfo, VersionedCursor
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.switching.moving.former import ReadsLedgers

#: The proposal's key, in the properties of a cursor.
ATTRIBUTION_KEY: Final = "_pulsar.bookieClusterName"
# ManagedCursorImpl of Pulsar 4.0 keeps properties of this prefix by itself, and refuses them from others.
_INTERNAL: Final = "#pulsar.internal."


class KnowsCursors(Protocol):
    """The nodes of cursors."""

    def cursors(self, name: str) -> Mapping[str, VersionedCursor]:
        """Read all cursors of a managed ledger, by encoded name, never older than this call."""


class WritesProperties(Protocol):
    """The owners of topics."""

    def set_subscription_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        """Replace all properties of a subscription; NotFoundError if it is none."""


class NotStamped(NamedTuple):
    """A subscription that was not stamped, and why; of a whole topic its name is empty."""

    topic: str
    subscription: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stamped:
    """The result for all subscriptions of loaded topics."""

    written: int  #: How many were stamped.
    right: int  #: How many were before.
    failed: tuple[NotStamped, ...]


@dataclass(frozen=True)
class Stamping:
    """Stamps the subscriptions of loaded topics."""

    nodes: KnowsCursors
    brokers: WritesProperties
    catalog: ReadsLedgers  #: Over all registered bookie clusters.
    loaded: Callable[[], Iterable[str]]  #: Asks all brokers for the topics that they have loaded, and loads none.

    def stamp(self, active: str, per_second: float, *, sleep: Callable[[float], None] = time.sleep) -> Stamped:
        """Stamp them with the cluster that has the cursor's ledger, or the active one where a cursor has none.

        Topics go so many in a second. A failure ends nothing. Properties that others write in the same moment can be
        lost, as with any two who replace them.
        """
        written, right = 0, 0
        failed: list[NotStamped] = []
        for number, topic in enumerate(sorted(self.loaded())):
            if number:
                sleep(1 / per_second)
            try:
                name = TopicName.parse(topic).managed_ledger
                cursors = self.nodes.cursors(name)
            except BookwardenError as error:
                failed.append(NotStamped(topic, "", str(error)))
                continue
            for encoded, cursor in cursors.items():
                subscription = decode_local_name(encoded)
                try:
                    done = self._stamp(topic, name, encoded, cursor.info, active)
                except NotFoundError:
                    # A cursor of the broker's own, as for replication, or deleted meanwhile.
                    continue
                except BookwardenError as error:
                    failed.append(NotStamped(topic, subscription, str(error)))
                    continue
                if isinstance(done, str):
                    failed.append(NotStamped(topic, subscription, done))
                elif done:
                    written += 1
                else:
                    right += 1
        return Stamped(written, right, tuple(failed))

    def _stamp(self, topic: str, name: str, encoded: str, info: CursorInfo, active: str) -> bool | str:
        """Return whether it was stamped, which is not needed if it is right; else why not."""
        cluster = self._cluster_of(info, active)
        if cluster is None:
            return f"its ledger {info.cursors_ledger_id} is in no bookie cluster that is known"
        if info.cursor_properties.get(ATTRIBUTION_KEY) == cluster:
            return False
        if info.delayed_bucket_ids:
            return "it has buckets of delayed messages, which its broker notes in the same place"
        wanted = {**_of_users(info), ATTRIBUTION_KEY: cluster}
        self.brokers.set_subscription_properties(topic, decode_local_name(encoded), wanted)
        now = self.nodes.cursors(name).get(encoded)
        if now is None or _of_users(now.info) != wanted:
            return "its properties are others than were written: somebody changed them in the same moment, look at them"
        return True

    def _cluster_of(self, info: CursorInfo, active: str) -> str | None:
        if info.cursors_ledger_id is None:
            return active
        (reading,) = self.catalog.read_many([info.cursors_ledger_id])
        return reading.bookie_cluster if isinstance(reading, StoredLedger) else None


def _of_users(info: CursorInfo) -> dict[str, str]:
    return {key: value for key, value in info.cursor_properties.items() if not key.startswith(_INTERNAL)}
