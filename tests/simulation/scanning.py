"""The orphan scan without Spark: the product's readers, classes, guards and plans, joined in this process.

What `pipelines` does with tables is done here with dictionaries; every decision is the product's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.listing import LedgerListing
from bookwarden.clusters.pulsar.metadata.namespaces import known_namespaces, known_tenants
from bookwarden.clusters.pulsar.references.pieces import PieceOfNodes, ReferencePieces
from bookwarden.clusters.pulsar.roots.proof import judged, roots_on
from bookwarden.clusters.pulsar.roots.sample import sample_root
from bookwarden.ledgers.kinds import BucketHolder, CursorHolder, LedgerComponent, PlaceKind
from bookwarden.ledgers.list_gaps import NAMES_NOTHING, ListStatus, list_status_of
from bookwarden.ledgers.listing import ListedLedger, ListedReference
from bookwarden.ledgers.references import Doubt
from bookwarden.metastore.interface import MetadataStore
from bookwarden.orphans.classes import PLANNED
from bookwarden.orphans.classify import (
    Knowledge,
    LedgerVerdict,
    born_ms,
    classify,
    classify_left,
    classify_named,
    sign_of_life,
)
from bookwarden.orphans.guards import GuardLimits, cutoff_of
from bookwarden.orphans.owners import owner_of
from bookwarden.orphans.plan import Candidate, EmptiedScope, FileDigest, PlanCounts, PlanManifest, ScannedCluster
from bookwarden.orphans.progress import ApplyProgress

from .nodes import LEDGERS_ROOT

_TOPIC_PLACES = (PlaceKind.MANAGED_LEDGER.value, PlaceKind.SHADOW_TOPIC.value)
_LOG_PLACES = (PlaceKind.LOG_SEGMENT.value, PlaceKind.LOG_ALLOCATION.value)


@dataclass
class Roots:
    """The sessions of one scan: on the ensemble at a chroot, BookKeeper's store, and the configured roots by URL."""

    at: Callable[[str], MetadataStore]
    bookkeeper: MetadataStore
    by_url: dict[str, MetadataStore]
    chroots: frozenset[str]
    entries: object = None


@dataclass
class Scan:
    """What a scan found: each listed ledger in its class, and the plan."""

    classes: dict[int, LedgerVerdict]
    plan: PlanManifest
    candidates: list[Candidate]


@dataclass
class Plans:
    """Plans in memory; the manifest's files are not written, so there is nothing to verify."""

    scans: dict[str, Scan] = field(default_factory=dict)
    progresses: dict[str, ApplyProgress] = field(default_factory=dict)

    @property
    def newest(self) -> Scan | None:
        """The plan that was made last."""
        return next(reversed(self.scans.values()), None)

    def manifest(self, plan_id: str) -> PlanManifest:
        """Give a plan's manifest, as it would be read back."""
        return PlanManifest.decode(self.scans[plan_id].plan.encode())

    def verify(self, manifest: PlanManifest) -> None:
        """Find it as it was written."""

    def candidates(self, manifest: PlanManifest, size: int) -> Iterator[Sequence[Candidate]]:
        """Give the candidates."""
        found = self.scans[manifest.plan_id].candidates
        for at in range(0, len(found), size):
            yield found[at : at + size]

    def progress(self, manifest: PlanManifest) -> ApplyProgress:
        """Say how far it was applied."""
        return self.progresses.get(manifest.plan_id, ApplyProgress(manifest.plan_id))

    def record(self, manifest: PlanManifest, progress: ApplyProgress) -> None:
        """Keep how far."""
        self.progresses[manifest.plan_id] = progress


def identity_of(roots: Roots) -> ScannedCluster:
    """Read which cluster it is."""
    node = roots.bookkeeper.get(f"{LEDGERS_ROOT}/INSTANCEID")
    return ScannedCluster.of(node.value.decode() if node else "", "sim:", LEDGERS_ROOT, roots.by_url)


def scan(
    roots: Roots, plans: Plans, limits: GuardLimits, *, now_ms: int, begun_ms: int, clocks: dict[str, int]
) -> Scan:
    """Read, join and classify everything, and make a plan of it; ``now_ms`` is our clock at the end of it."""
    identity = identity_of(roots)
    require_all_roots(roots)
    cutoff_of(begun_ms, clocks, limits)
    listing = LedgerListing(roots.bookkeeper, LEDGERS_ROOT)
    first = listing.pieces()
    rows = [row for piece in first for row in listing.read_paths(listing.relist(piece).paths)]
    references, doubts = _references(roots, begun_ms - limits.max_clock_skew_ms)
    still = {path for piece in [*first, *listing.pieces(first)] for path in listing.relist(piece).paths}
    newest = max((row.created_ms for row in rows), default=None)
    cutoff_ms = cutoff_of(begun_ms, clocks, limits, newest_ms=newest)
    twins = {ledger_id for ledger_id, count in Counter(row.ledger_id for row in rows).items() if count > 1}
    there = [
        row._replace(problem=row.problem or "it has two metadata nodes") if row.ledger_id in twins else row
        for row in rows
        if row.path in still
    ]
    classes = _classified(roots, there, references, doubts, cutoff_ms)
    orphans = [row for row in there if classes[row.ledger_id].ledger_class.value in PLANNED]
    before = plans.newest
    candidates = [_candidate(row, classes[row.ledger_id], before, now_ms) for row in sorted(orphans)]
    plan_id = f"plan-{len(plans.scans)}"
    named = sum(row.ledger_id is not None for row in references)
    plan = PlanManifest(
        plan_id=plan_id,
        scan_id=plan_id,
        tool_version="simulation",
        begun_ms=begun_ms,
        created_ms=now_ms,
        cutoff_ms=cutoff_ms,
        cluster=identity,
        counts=PlanCounts(len(there), 0, named, len(candidates), 0, doubts=len(doubts)),
        candidates=(FileDigest("candidates", "", len(candidates)),) if candidates else (),
        emptied=tuple(_emptied(references, there, orphans)),
    )
    found = plans.scans[plan_id] = Scan(classes, plan, candidates)
    return found


def require_all_roots(roots: Roots) -> None:
    """Refuse where another Pulsar names a ledger of this BookKeeper."""
    for root in roots_on(roots.at("")):
        if root not in roots.chroots:
            catalog = BookKeeperCatalog(roots.bookkeeper)
            judged(root, sample_root(roots.at(root)), catalog, roots.by_url, allowed=False)


def _references(roots: Roots, begun_ms: int) -> tuple[list[ListedReference], list[Doubt]]:
    """Read all references, list them again, and read what came between."""
    reader = ReferencePieces(roots.by_url, roots.entries)
    pieces = reader.pieces()
    rows: list[ListedReference] = []
    doubts: list[Doubt] = []
    for piece in pieces:
        found = reader.read(piece)
        rows += found.rows
        doubts += found.doubts
        paths = {row.path for row in found.rows} | {doubt.path for doubt in found.doubts}
        late = reader.read_new(piece, paths, reader.relist(piece), begun_ms)
        rows += late.rows
        doubts += late.doubts
    for piece in reader.pieces(pieces):
        nothing = PieceOfNodes(frozenset(), "")
        late = reader.read_new(piece, nothing.paths, reader.relist(piece), begun_ms)
        rows += late.rows
        doubts += late.doubts
    return rows, doubts


def _classified(
    roots: Roots, rows: Sequence[ListedLedger], references: Sequence[ListedReference], doubts: list[Doubt], cutoff: int
) -> dict[int, LedgerVerdict]:
    places: dict[int, set[str]] = {}
    in_use: set[int] = set()
    for reference in references:
        if reference.ledger_id is not None:
            places.setdefault(reference.ledger_id, set()).add(reference.place)
            if not reference.gone:
                in_use.add(reference.ledger_id)
    known = _knowledge(roots, rows, references, doubts, cutoff, places)
    found = {}
    for row in rows:
        named = places.get(row.ledger_id)
        if named is None:
            found[row.ledger_id] = classify(row, known)
        elif row.ledger_id not in in_use:
            found[row.ledger_id] = classify_left(row, _TOPIC_PLACES, known)
        else:
            only_logs = all(place in _LOG_PLACES for place in named)
            found[row.ledger_id] = classify_named(row, _LOG_PLACES if only_logs else _TOPIC_PLACES)
    return found


def _knowledge(
    roots: Roots,
    rows: Sequence[ListedLedger],
    references: Sequence[ListedReference],
    doubts: list[Doubt],
    cutoff_ms: int,
    places: dict[int, set[str]],
) -> Knowledge:
    tenants: frozenset[str] = frozenset().union(*(known_tenants(store) or () for store in roots.by_url.values()))
    spaces: frozenset[str] = frozenset().union(*(known_namespaces(store) or () for store in roots.by_url.values()))
    holders = {reference.holder for reference in references}
    known = Knowledge(cutoff_ms, tenants, spaces, holders, tuple(sorted(doubts, key=lambda doubt: doubt[:3])))
    owners = {}
    for row in rows:
        unnamed = row.ledger_id not in places and row.problem is None
        owner = owner_of(row.kind, row.holder) if unnamed and row.kind and row.holder else None
        if owner is not None:
            owners[owner] = owners.get(owner, False) or born_ms(row) > cutoff_ms
    names = {str(owner.holder) for owner in owners} | {owner.topic for owner in owners if owner.topic}
    for owner in owners:
        if isinstance(owner.holder, BucketHolder):
            names.add(str(CursorHolder(owner.holder.managed_ledger, owner.holder.cursor)))
    known = replace(known, existing=frozenset(names & holders))
    signs = {sign_of_life(owner, known) for owner, lately in owners.items() if lately}
    alive = frozenset(sign for sign in signs if sign is not None)
    first = _first_listed(references)
    written = [row for row in rows if row.ledger_id not in places and row.state == "CLOSED" and row.length]
    of_topics = [row for row in written if row.kind == LedgerComponent.MANAGED_LEDGER.name and row.holder]
    holey = {row.holder or "" for row in of_topics if _lies_inside(row, first)}
    return replace(known, alive=alive, first_listed=first, holey=holey)


def _lies_inside(row: ListedLedger, first: dict[str, int]) -> bool:
    return list_status_of(row.ledger_id, first.get(row.holder or ""), True) is not ListStatus.LET_GO


def _first_listed(references: Sequence[ListedReference]) -> dict[str, int]:
    """Give the smallest id that each topic lists; a shadow's own list holds nothing against its source's ledgers."""
    first: dict[str, int] = {}
    for reference in references:
        if reference.place in _TOPIC_PLACES:
            ledger_id = NAMES_NOTHING if reference.ledger_id is None else reference.ledger_id
            first[reference.holder] = min(ledger_id, first.get(reference.holder, ledger_id))
    return first


def _candidate(row: ListedLedger, found: LedgerVerdict, before: Scan | None, now_ms: int) -> Candidate:
    first_seen = now_ms
    for old in before.candidates if before is not None else ():
        same = (old.ledger_id, old.path, old.created_ms, old.version)
        if same == (row.ledger_id, row.path, row.created_ms, row.version) and old.first_seen_ms <= now_ms:
            first_seen = old.first_seen_ms
    return Candidate(
        row.ledger_id,
        row.kind or "",
        row.holder or "",
        found.cause.value if found.cause else "",
        row.path,
        row.version,
        row.created_ms,
        row.ctime_ms,
        row.length,
        row.state,
        first_seen,
    )


def _emptied(
    references: Sequence[ListedReference], rows: Sequence[ListedLedger], orphans: Sequence[ListedLedger]
) -> Iterator[EmptiedScope]:
    there = {row.ledger_id for row in rows}
    topics = [reference for reference in references if reference.place in _TOPIC_PLACES]
    left = {one.managed_ledger for one in topics if one.gone or one.ledger_id in there}
    planned = Counter(row.holder for row in orphans if row.kind == LedgerComponent.MANAGED_LEDGER.name)
    for name in sorted({one.managed_ledger or "" for one in topics} - left):
        if planned[name]:
            yield EmptiedScope("topic", name, planned[name])
