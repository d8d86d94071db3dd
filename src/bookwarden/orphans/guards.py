"""Guards that keep a plan from being made or applied: pure checks that return what they found and what to do.

A refusal is about the whole plan. Candidates that are held back do not keep the others from being applied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bookwarden.errors import FormatError, RefusedError
from bookwarden.ledgers.names import TopicName
from bookwarden.orphans.copy_plan import CopyCandidate
from bookwarden.orphans.owners import owner_of
from bookwarden.orphans.plan import Candidate, EmptiedScope, PlanCounts, PlanManifest, ScannedCluster

_HOUR_MS = 3_600_000
_SHOWN = 5
_SCAN_AGAIN = "make a new plan with `bookwarden orphans scan`"


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """The limits of plans, from the section ``orphans`` of the settings."""

    min_age_ms: int = 72 * _HOUR_MS  #: Younger ledgers are never candidates.
    longest_compaction_ms: int = 12 * _HOUR_MS  #: No reference names the ledger of a compaction under way.
    max_share: float = 0.2  #: Of all ledgers, or of a store's copies, as candidates; 0 to 1.
    max_plan_age_ms: int = 24 * _HOUR_MS  #: A plan is refused this long after its scan began.
    seen_apart_ms: int = 24 * _HOUR_MS  #: An orphan in two scans this far apart is marked; 0 asks for one scan.
    max_clock_skew_ms: int = 300_000  #: Between any two of the clocks that a scan asks.
    max_emptied: int = 10  #: Topics, or namespaces, that are held back since they would be emptied; more refuse a plan.


class Refusal(NamedTuple):
    """A reason to refuse a plan: the finding, the limit, what to do, and the setting of that limit ("" for none)."""

    found: str
    limit: str
    advice: str
    setting: str = ""

    def __str__(self) -> str:
        setting = f" (orphans.{self.setting})" if self.setting else ""
        return f"{self.found}; {self.limit}{setting}: {self.advice}"


def cutoff_of(
    begun_ms: int,
    clocks: Mapping[str, int],
    limits: GuardLimits,
    *,
    snapshot_ms: int | None = None,
    newest_ms: int | None = None,
) -> int:
    """Return the time after which a created ledger is too young, in milliseconds since the epoch.

    ``begun_ms`` is our clock when the scan began, ``clocks`` other clocks at that time, by name. ``snapshot_ms`` is
    the latest time in the snapshot that is read, ``newest_ms`` the latest creation of any ledger listed at that time.
    The earliest of all clocks counts. Raises RefusedError where they differ by more than max_clock_skew_seconds.
    """
    times = {"this machine": begun_ms, **clocks}
    first = min(times, key=lambda name: times[name])
    last = max(times, key=lambda name: times[name])
    _check_skew(first, last, times[first], times[last], limits)
    # These may be any time in the past, but not ahead.
    for name, stamp in (("the snapshot's latest change", snapshot_ms), ("the newest ledger", newest_ms)):
        if stamp is not None:
            _check_skew(first, name, times[first], stamp, limits)
    base = times[first] if snapshot_ms is None else min(times[first], snapshot_ms)
    return base - limits.min_age_ms


def check_counts(counts: PlanCounts) -> list[Refusal]:
    """List the reasons not to make a plan of such a scan."""
    refusals = []
    if counts.references <= 0:
        found = f"no reference was found to any of {counts.ledgers:,} ledgers"
        advice = "check metadata_store.urls and the paths behind their hosts, then scan again"
        refusals.append(Refusal(found, "a cluster without any is not credible", advice))
    if not 0 <= counts.candidates <= counts.ledgers:
        found = f"the plan has {counts.candidates:,} candidates among {counts.ledgers:,} ledgers"
        refusals.append(Refusal(found, "there cannot be more than ledgers", _SCAN_AGAIN))
    return refusals


def check(
    plan: PlanManifest,
    cluster: ScannedCluster,
    limits: GuardLimits,
    now_ms: int,
    allow_emptied: Collection[str] = (),
) -> list[Refusal]:
    """List the reasons not to apply the plan now to this cluster.

    ``allow_emptied`` are topics and namespaces that may be left without ledgers; a namespace stands for its topics too.
    """
    return [
        *_check_cluster(plan, cluster),
        *_check_times(plan, limits, now_ms),
        *check_counts(plan.counts),
        *_check_share(plan.counts, limits),
        *_check_emptied(plan.emptied, allow_emptied, limits),
    ]


def check_copies(plan: PlanManifest, limits: GuardLimits) -> list[Refusal]:
    """List the further reasons not to apply the plan's offloaded copies."""
    refusals = []
    for store in plan.copies:
        if store.candidates > limits.max_share * store.copies:
            share = store.candidates / store.copies if store.copies else 1.0
            refusals.append(
                Refusal(
                    f"the plan has {store.candidates:,} of {store.copies:,} offloaded copies in {store.store}, "
                    f"{share:.1%}",
                    f"{limits.max_share:.1%} are allowed",
                    "make sure that no Pulsar cluster writes there which metadata_store.urls does not name; look at "
                    "`bookwarden orphans plan show`, and raise the setting only for this run",
                    "max_share",
                )
            )
    return refusals


def not_to_be_emptied(plan: PlanManifest, allowed: Collection[str]) -> frozenset[str]:
    """Return the topics and namespaces that the plan would empty and that were not allowed: theirs is held back."""
    names = {_managed_ledger(name) for name in allowed}
    return frozenset(one.name for one in plan.emptied if not _is_allowed(one, names))


def held_back_copy(
    candidate: CopyCandidate, plan: PlanManifest, limits: GuardLimits, emptied: Collection[str] = ()
) -> str | None:
    """Return why this offloaded copy has to wait for a later plan; None if it does not."""
    topic = candidate.managed_ledger
    return _held_back(candidate.modified_ms, candidate.first_seen_ms, plan, limits) or _of_emptied(
        (topic, _namespace(topic)), emptied
    )


def held_back(
    candidate: Candidate, plan: PlanManifest, limits: GuardLimits, emptied: Collection[str] = ()
) -> str | None:
    """Return why this candidate has to wait for a later plan; None if it does not.

    ``emptied`` are as `not_to_be_emptied` returns them.
    """
    born_ms = max(candidate.created_ms, candidate.ctime_ms or 0)
    owner = owner_of(candidate.kind, candidate.holder) if emptied else None
    return _held_back(born_ms, candidate.first_seen_ms, plan, limits) or _of_emptied(
        (owner.topic, owner.namespace) if owner is not None else (), emptied
    )


def _of_emptied(names: Iterable[str], emptied: Collection[str]) -> str | None:
    name = next((name for name in names if name in emptied), None)
    return None if name is None else f"{name} would be left with no ledger at all (--allow-emptied NAME)"


def _held_back(born_ms: int, first_seen_ms: int, plan: PlanManifest, limits: GuardLimits) -> str | None:
    if not 0 < born_ms <= plan.cutoff_ms:
        return "younger than the plan's cutoff (orphans.min_age_days)"
    if limits.seen_apart_ms > 0 and plan.begun_ms - first_seen_ms < limits.seen_apart_ms:
        return f"not an orphan in two scans {_span(limits.seen_apart_ms)} apart (orphans.seen_apart_hours)"
    return None


def _check_skew(first: str, last: str, first_ms: int, last_ms: int, limits: GuardLimits) -> None:
    skew = last_ms - first_ms
    if skew > limits.max_clock_skew_ms:
        raise RefusedError(
            f"the clock of {last} is {_span(skew)} ahead of that of {first}, and "
            f"{_span(limits.max_clock_skew_ms)} are allowed (orphans.max_clock_skew_seconds), so that no ledger's age "
            "is known: set the clocks right, then scan again"
        )


def _check_cluster(plan: PlanManifest, cluster: ScannedCluster) -> Iterator[Refusal]:
    planned = plan.cluster
    if not planned.instance_id or planned.instance_id != cluster.instance_id:
        yield Refusal(
            f"the plan is of the BookKeeper with INSTANCEID {planned.instance_id!r}",
            f"the settings name that with {cluster.instance_id!r}",
            "apply it with the settings of the cluster that was scanned",
        )
    if planned.roots != cluster.roots:
        yield Refusal(
            f"the plan was made from the metadata roots {', '.join(planned.roots)}",
            f"the settings name {', '.join(cluster.roots)}",
            "what the other roots name was not read, so " + _SCAN_AGAIN,
        )
    if (planned.bookkeeper_url, planned.ledgers_root) != (cluster.bookkeeper_url, cluster.ledgers_root):
        yield Refusal(
            f"the plan lists the ledgers at {planned.ledgers_root} of {planned.bookkeeper_url}",
            f"the settings name {cluster.ledgers_root} of {cluster.bookkeeper_url}",
            "apply it with the settings of the cluster that was scanned",
        )


def _check_times(plan: PlanManifest, limits: GuardLimits, now_ms: int) -> Iterator[Refusal]:
    age = now_ms - plan.begun_ms
    if age > limits.max_plan_age_ms:
        yield Refusal(
            f"what the plan was made from is {_span(age)} old",
            f"{_span(limits.max_plan_age_ms)} are allowed",
            _SCAN_AGAIN,
            "max_plan_age_hours",
        )
    ahead = max(plan.begun_ms, plan.created_ms) - now_ms
    if ahead > limits.max_clock_skew_ms:
        yield Refusal(
            f"the plan was made {_span(ahead)} in the future",
            f"{_span(limits.max_clock_skew_ms)} are allowed",
            "set the clocks right, then " + _SCAN_AGAIN,
            "max_clock_skew_seconds",
        )
    yield from _check_min_age(plan, limits)


def _check_min_age(plan: PlanManifest, limits: GuardLimits) -> Iterator[Refusal]:
    youngest = min(plan.begun_ms, plan.created_ms) - plan.cutoff_ms
    if youngest < limits.min_age_ms:
        yield Refusal(
            f"the plan has ledgers from an age of {_span(youngest)} on",
            f"the least is {_span(limits.min_age_ms)}",
            _SCAN_AGAIN,
            "min_age_days",
        )
    if youngest < limits.longest_compaction_ms:
        yield Refusal(
            f"the plan has ledgers from an age of {_span(youngest)} on",
            f"a compaction under way, whose ledger nothing names, may take {_span(limits.longest_compaction_ms)}",
            "raise orphans.min_age_days, then " + _SCAN_AGAIN,
            "longest_compaction_hours",
        )


def _check_share(counts: PlanCounts, limits: GuardLimits) -> Iterator[Refusal]:
    if counts.candidates > limits.max_share * counts.ledgers:
        share = counts.candidates / counts.ledgers if counts.ledgers else 1.0
        yield Refusal(
            f"the plan has {counts.candidates:,} of {counts.ledgers:,} ledgers, {share:.1%}",
            f"{limits.max_share:.1%} are allowed",
            "make sure that metadata_store.urls names every Pulsar cluster over this BookKeeper; look at `bookwarden "
            "orphans plan show`, and raise the setting only for this run",
            "max_share",
        )


def _check_emptied(emptied: Iterable[EmptiedScope], allowed: Collection[str], limits: GuardLimits) -> Iterator[Refusal]:
    names = {_managed_ledger(name) for name in allowed}
    for scope in ("topic", "namespace"):
        left = [one for one in emptied if one.scope == scope and not _is_allowed(one, names)]
        if len(left) > limits.max_emptied:
            shown = ", ".join(f"{one.name} ({one.candidates:,})" for one in left[:_SHOWN])
            more = f" and {len(left) - _SHOWN:,} more" if len(left) > _SHOWN else ""
            what = scope if len(left) == 1 else f"{scope}s"
            yield Refusal(
                f"{len(left):,} {what} would be left with no ledger at all: {shown}{more}",
                f"at most {limits.max_emptied:,} are held back while the others are applied",
                "find out why; where that is right, name each with --allow-emptied NAME",
                "max_emptied",
            )
    for one in emptied:
        if one.scope not in ("topic", "namespace"):
            yield Refusal(f"the plan would empty a {one.scope}, {one.name}", "that is not known", _SCAN_AGAIN)


def _is_allowed(emptied: EmptiedScope, names: Collection[str]) -> bool:
    if emptied.scope == "namespace":
        return emptied.name in names
    return emptied.name in names or _namespace(emptied.name) in names


def _namespace(managed_ledger: str) -> str:
    return managed_ledger.rpartition("/")[0].rpartition("/")[0]


def _managed_ledger(name: str) -> str:
    """Turn a topic's full name into that of its managed ledger; other names stay as they are."""
    if "://" not in name:
        return name
    try:
        return TopicName.parse(name).managed_ledger
    except FormatError:
        return name


def _span(milliseconds: int) -> str:
    """Render a duration for people."""
    seconds = milliseconds / 1000
    if abs(seconds) < 600:
        return f"{seconds:,.0f} s"
    if abs(seconds) < 240 * 3600:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 86_400:,.1f} days"
