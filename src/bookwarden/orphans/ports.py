"""The storage of plans, as `pipelines` has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from bookwarden.orphans.copy_plan import CopyCandidate
from bookwarden.orphans.plan import Candidate, PlanManifest
from bookwarden.orphans.progress import ApplyProgress


class Plans(Protocol):
    """The manifests of plans, and their files."""

    def manifest(self, plan_id: str) -> PlanManifest:
        """Read a plan's manifest.

        Raises NotFoundError where there is no such plan, FormatError where it is altered or damaged.
        """

    def verify(self, manifest: PlanManifest) -> None:
        """Read every file of the plan; FormatError for one that is missing or not what the manifest says."""


class PlanStore(Plans, Protocol):
    """The ledgers of plans, and how far each plan's were applied."""

    def candidates(self, manifest: PlanManifest, size: int) -> Iterator[Sequence[Candidate]]:
        """Yield the candidates by growing ledger id, at most `size` at a time, from files that are verified again."""

    def progress(self, manifest: PlanManifest) -> ApplyProgress:
        """Return how far the plan was applied; FormatError where that is damaged or of another plan."""

    def record(self, manifest: PlanManifest, progress: ApplyProgress) -> None:
        """Save how far the plan is applied: durable when this returns, unchanged if it raises."""


class CopyPlanStore(Plans, Protocol):
    """The offloaded copies of plans, and how far each plan's were applied; errors as in PlanStore."""

    def copies(self, manifest: PlanManifest, size: int) -> Iterator[Sequence[CopyCandidate]]:
        """Yield the copies in their order, at most `size` at a time."""

    def copy_progress(self, manifest: PlanManifest) -> ApplyProgress:
        """Return how far the plan's copies were applied."""

    def record_copies(self, manifest: PlanManifest, progress: ApplyProgress) -> None:
        """Save how far they are applied."""


class PlansOfAll(PlanStore, CopyPlanStore, Protocol):
    """Storage of plans with their ledgers and their offloaded copies."""
