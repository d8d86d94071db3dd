"""The offloaded copies of a plan: the orphans among them, and the number of copies in each store."""

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
    """An orphaned copy of a plan."""

    number: int  #: Its place in the plan, from 0.
    driver: str  #: The store's driver, as the settings name it.
    bucket: str  #: As the settings name it.
    region: str  #: As the settings name it; "" if they do not.
    endpoint: str  #: As the settings name it; "" if they do not.
    uuid: UUID  #: The copy's own, in its objects' names.
    ledger_id: int  #: The ledger that was offloaded.
    managed_ledger: str  #: The name of its owner.
    cause: str  #: The value of a CopyCause.
    objects: int  #: Number of objects, of data and index.
    uploads: int  #: Number of unfinished uploads.
    length: int  #: In bytes.
    modified_ms: int  #: The latest time of any object or upload, in ms since the epoch.
    first_seen_ms: int  #: As in Candidate.

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
    """Counts of one store: its copies, and the plan's candidates among them with their bytes."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    store: str
    copies: int
    candidates: int
    candidate_bytes: int


def numbered(
    candidates: Iterable[CopyCandidate], before: Iterable[CopyCandidate], created_ms: int
) -> Iterator[CopyCandidate]:
    """Yield the copies in the plan's order, each with the time since which it has been an orphan in every plan.

    ``before`` are those of the newest earlier plan of the cluster. For a copy written since, the time starts over.
    """
    earlier = {_same(one): one.first_seen_ms for one in before}
    ordered = sorted(candidates, key=lambda one: (one.uuid, one.ledger_id, one.location))
    for number, candidate in enumerate(ordered):
        seen_ms = min(earlier.get(_same(candidate), created_ms), created_ms)
        yield candidate._replace(number=number, first_seen_ms=seen_ms)


def _same(candidate: CopyCandidate) -> tuple[StoreLocation, UUID, int, int]:
    return candidate.location, candidate.uuid, candidate.ledger_id, candidate.modified_ms
