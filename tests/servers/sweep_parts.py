"""A sweep, and what verifies marks, of the parts that a test has; the guards are asked in the product's order."""

from __future__ import annotations

import time
from collections.abc import Callable

from bookwarden.bookie_clusters.promoted import Promotions
from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.clusters.bookkeeper.bookies.proof import WholeLedgers
from bookwarden.clusters.bookkeeper.returning_ids import ReturningIds
from bookwarden.clusters.bookkeeper.undone import UndoneLedgers
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.messages.retries import RetrySender
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.explaining import Explanation, explain_ledger
from bookwarden.deletion.journal.entries import Journal
from bookwarden.deletion.node_check import NodeCheck
from bookwarden.deletion.phase_two.copy_deletion import CopyDeleter, CopyOwnerGuard
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.deletion.phase_two.guards import Guard, LeftBehindGuard, NodeGuard, ReusedIdGuard, UndoneGuard
from bookwarden.deletion.phase_two.held_marks import HeldMarks
from bookwarden.deletion.phase_two.ledger_deletion import LedgerDeleter
from bookwarden.deletion.phase_two.sent_on import Sendings, SentRecords
from bookwarden.deletion.phase_two.superseded import SupersededGuard
from bookwarden.deletion.phase_two.sweeping import Acts, Sweep, SweepLimits
from bookwarden.deletion.phase_two.verifying import Verifier
from bookwarden.deletion.ports import BookieClusters, LedgerCatalog, NoBookieClusters
from bookwarden.metastore.following.store import Migrations


def verifier_with(
    catalog: LedgerCatalog,
    references: MetadataReferences,
    policy: DeletionPolicy,
    *,
    copies: OffloadStores | None = None,
    entries: DecodedEntries | None = None,
    nodes: NodeCheck | None = None,
    undone: UndoneLedgers | None = None,
    ids: ReturningIds | None = None,
    clusters: BookieClusters | None = None,
    proof: WholeLedgers | None = None,
    promotions: Promotions | None = None,
    verify_owner: bool = True,
    clock: Callable[[], float] = time.time,
    clock_of: Callable[[str | None], float] | None = None,
) -> Verifier:
    """Verify with these parts; `test_guards` holds the order of the guards against that of the wiring."""
    stores = copies or OffloadStores()
    clusters = clusters or NoBookieClusters()
    guards: list[Guard] = [
        NodeGuard(nodes or NodeCheck(catalog, entries, lambda: stores), entries),
        CopyOwnerGuard(lambda: stores, verify_owner=verify_owner),
        LeftBehindGuard(lambda: stores, references),
        SupersededGuard(clusters, proof, promotions and promotions.newest),
        *_guards_of_ids(undone, ids),
    ]
    return Verifier(catalog, references, policy, guards, clusters=clusters, clock=clock, clock_of=clock_of)


def sweep_with(
    catalog: LedgerCatalog,
    references: MetadataReferences,
    journal: Journal,
    outbox: RetrySender,
    policy: DeletionPolicy,
    limits: SweepLimits,
    *,
    copies: OffloadStores | None = None,
    undone: UndoneLedgers | None = None,
    clusters: BookieClusters | None = None,
    proof: WholeLedgers | None = None,
    promotions: Promotions | None = None,
    migrations: Migrations | None = None,
    sent: SentRecords | None = None,
    held: HeldMarks | None = None,
    dry_run: bool = False,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
    why_letters_are_lost: Callable[[], str | None] = lambda: None,
    require_bookies: Callable[[], object] = lambda: None,
    entries: DecodedEntries | None = None,
    nodes: NodeCheck | None = None,
    ids: ReturningIds | None = None,
    verify_owner: bool = True,
    clock_of: Callable[[str | None], float] | None = None,
) -> Sweep:
    """Sweep with these parts, as `sweep_of` does with those of the settings."""
    clusters = clusters or NoBookieClusters()
    acts = Acts(
        CopyDeleter(copies or OffloadStores(), journal, policy, clock),
        LedgerDeleter(
            *(catalog, journal, policy, clock),
            clusters=clusters,
            superseded=SupersededGuard(clusters, proof, promotions and promotions.newest),
            again=_guards_of_ids(undone, ids),
        ),
        Sendings(outbox, sent, policy.retry_delay, why_letters_are_lost),
        migrations or Migrations(),
        held or HeldMarks(),
    )
    verifier = verifier_with(
        *(catalog, references, policy),
        copies=copies,
        entries=entries,
        nodes=nodes,
        undone=undone,
        ids=ids,
        clusters=clusters,
        proof=proof,
        promotions=promotions,
        verify_owner=verify_owner,
        clock=clock,
        clock_of=clock_of,
    )
    return Sweep(verifier, None if dry_run else acts, limits, require_bookies=require_bookies, pause=pause)


def explain_with(
    ledger_id: int,
    catalog: LedgerCatalog,
    references: MetadataReferences,
    policy: DeletionPolicy,
    now_ms: int,
    *,
    copies: OffloadStores | None = None,
    entries: DecodedEntries | None = None,
) -> Explanation:
    """Explain a ledger with these parts, as of this time."""
    verifier = verifier_with(catalog, references, policy, copies=copies, entries=entries, clock=lambda: now_ms / 1000)
    return explain_ledger(ledger_id, verifier)


def _guards_of_ids(undone: UndoneLedgers | None, ids: ReturningIds | None) -> list[Guard]:
    return [*([] if undone is None else [UndoneGuard(undone)]), *([] if ids is None else [ReusedIdGuard(ids)])]
