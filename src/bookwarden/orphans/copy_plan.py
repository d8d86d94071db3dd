"""The offloaded copies of a plan: which copies a scan found to be orphans, and how many there are in each store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from pydantic import ConfigDict

from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.managed_ledger import signed_halves
from bookwarden.ledgers.offloaded_copies import StoreLocation, recorded_metadata
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion

COPIES = "copies.parquet"
"""The name of the file of a plan that has its copies."""


class CopyCandidate(NamedTuple):
    """An orphaned copy of a plan; ``number`` is its place in it, from 0.

    ``driver``, ``bucket``, ``region`` and ``endpoint`` name the store as the settings do. ``managed_ledger`` is whose
    it is. ``cause`` is the value of a CopyCause, ``objects`` and ``uploads`` count what it is made of, ``length`` is
    its bytes. ``modified_ms`` is the latest time of any of it; ``first_seen_ms`` is as in Candidate.
    """

    number: int
    driver: str
    bucket: str
    region: str
    endpoint: str
    uuid: UUID
    ledger_id: int
    managed_ledger: str
    cause: str
    objects: int
    uploads: int
    length: int
    modified_ms: int
    first_seen_ms: int

    @property
    def order(self) -> int:
        """Its place among the plan's copies."""
        return self.number

    @property
    def location(self) -> StoreLocation:
        """Where it lies."""
        return StoreLocation(self.driver, self.bucket, self.region, self.endpoint)

    def mark(self, reason: str) -> PendingDeletion:
        """Make the pending deletion of the copy."""
        msb, lsb = signed_halves(self.uuid)
        return PendingDeletion(
            topic_name=self.managed_ledger,
            component=LedgerComponent.MANAGED_LEDGER,
            ledger_type=LedgerType.OFFLOAD_LEDGER,
            ledger_id=self.ledger_id,
            offload_context=OffloadContext(msb, lsb, self.driver, recorded_metadata(self.location)),
            reason=reason,
        )


@dataclass(frozen=True, slots=True)
class StoreCopies:
    """How many copies a store has, and how many of them the plan has, with their bytes."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    store: str
    copies: int
    candidates: int
    candidate_bytes: int


def numbered(
    candidates: Iterable[CopyCandidate], before: Iterable[CopyCandidate], created_ms: int
) -> Iterator[CopyCandidate]:
    """Yield the copies in the plan's order, each with the time since when it has been an orphan in every plan.

    ``before`` are those of the newest earlier plan of the cluster. A copy that was written since begins anew.
    """
    earlier = {_same(one): one.first_seen_ms for one in before}
    ordered = sorted(candidates, key=lambda one: (one.uuid, one.ledger_id, one.location))
    for number, candidate in enumerate(ordered):
        seen_ms = min(earlier.get(_same(candidate), created_ms), created_ms)
        yield candidate._replace(number=number, first_seen_ms=seen_ms)


def _same(candidate: CopyCandidate) -> tuple[StoreLocation, UUID, int, int]:
    return candidate.location, candidate.uuid, candidate.ledger_id, candidate.modified_ms
