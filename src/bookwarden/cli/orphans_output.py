"""Output of plans of orphan scans, and of applying them, for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bookwarden.cli.shell.output import Cells, Column, Document, Facts, Note, Part, Table, counted, moment, table_of
from bookwarden.findings import size_text
from bookwarden.orphans.applying import ApplyResult
from bookwarden.orphans.classes import Cause, LedgerClass
from bookwarden.orphans.copy_plan import CopyCandidate
from bookwarden.orphans.plan import Candidate, PlanManifest
from bookwarden.orphans.progress import ApplyProgress
from bookwarden.orphans.summary import BYTES_LABEL, ClassCount, InsideList, Summary

_SHOWN_NAMESPACES = 20
_SHOWN_MISSING = 20
_NOTHING_CHANGED = "Nothing was changed: add --execute to mark them."
_LOST_TOPICS = (
    "A topic that lost its node by mistake looks deleted: `bookwarden trash restore TOPIC --from-ledgers` "
    "says what of it could come back."
)
_CLASS_COLUMNS = (Column("class"), Column("ledgers", right=True), Column(BYTES_LABEL, right=True))


def describe_plan(
    plan: PlanManifest,
    summary: Summary,
    candidates: Sequence[Candidate] = (),
    copies: Sequence[CopyCandidate] = (),
    applied: tuple[ApplyProgress, ApplyProgress] | None = None,
    notes: Sequence[str] = (),
) -> Document:
    """Describe a scan's findings and its plan; ``applied`` is the progress of its ledgers and of its copies.

    ``notes`` are further points for an operator to check.
    """
    parts: list[Part] = [_facts(plan, summary, applied), *_fuzzy(summary), _classes(summary)]
    parts += [
        _counts("orphans by cause", "cause", summary.by_cause),
        _counts("orphans by namespace", "namespace", _orphans(summary.by_namespace)[:_SHOWN_NAMESPACES]),
        _counts("orphans by age", "age", _orphans(summary.by_age)),
        _objects(summary),
    ]
    parts += (
        _missing(summary)
        + _outdated(summary)
        + _inside_lists(summary)
        + _doubts(summary)
        + _foreign(summary)
        + _emptied(plan)
    )
    parts += _candidates(candidates) + _copies(copies)
    parts += [Note(f"To check: {note}.") for note in notes]
    if any(count.key == Cause.TOPIC_DELETED.value for count in summary.by_cause):
        parts.append(Note(_LOST_TOPICS))
    parts.append(Note(_verdict(plan, summary)))
    progress, copy_progress = applied or (None, None)
    data = {
        "plan": plan,
        "summary": summary,
        "to_check": list(notes),
        "candidates": [candidate._asdict() for candidate in candidates],
        "copies": [{**copy._asdict(), "uuid": str(copy.uuid)} for copy in copies],
        "progress": progress,
        "copy_progress": copy_progress,
    }
    return Document(data, tuple(_shown(parts)))


def describe_plans(
    plans: Sequence[tuple[PlanManifest, ApplyProgress]],
    unfinished: Sequence[str],
    damaged: Sequence[tuple[str, str]] = (),
) -> Document:
    """List plans, the latest first, scans that have none yet, and the damage of plans, by the plan's id."""
    cells: Cells[tuple[PlanManifest, ApplyProgress]] = {
        Column("plan"): lambda one: one[0].plan_id,
        Column("made"): lambda one: moment(one[0].created_ms),
        Column("ledgers", right=True): lambda one: f"{one[0].counts.ledgers:,}",
        Column("orphans", right=True): lambda one: f"{one[0].counts.candidates:,}",
        Column(BYTES_LABEL, right=True): lambda one: size_text(one[0].counts.candidate_bytes),
        Column("missing", right=True): lambda one: f"{one[0].counts.missing:,}",
        Column("marked", right=True): lambda one: f"{one[1].marked:,}",
    }
    no_plan = "There is no plan: `bookwarden orphans scan` makes one."
    parts: list[Part] = [table_of(reversed(plans), cells, empty=no_plan)]
    if unfinished:
        parts.append(Table((Column("scan without a plan"),), tuple((scan,) for scan in reversed(unfinished))))
        parts.append(Note("`bookwarden orphans scan --resume SCAN` goes on with one of these."))
    if damaged:
        parts.append(Table((Column("damaged plan"), Column("why", whole=False)), tuple(reversed(damaged))))
    data = {
        "plans": [{"plan": plan, "progress": progress} for plan, progress in plans],
        "unfinished": unfinished,
        "damaged": dict(damaged),
    }
    return Document(data, tuple(parts))


def describe_applied(result: ApplyResult, copies: ApplyResult | None = None, refused: str = "") -> Document:
    """Describe the result for a plan's ledgers, and for its offloaded copies, or why these were refused."""
    parts = _applied("ledger", result)
    data: dict[str, Any] = {**_fields(result), "done": result.done, "left": result.left}
    if copies is not None:
        parts += [Note("offloaded copies:"), *_applied("copy of ledger", copies)]
        data["copies"] = {**_fields(copies), "done": copies.done, "left": copies.left}
    if refused:
        parts.append(Note(f"The offloaded copies were not applied: {refused}"))
        data["copies_refused"] = refused
    due = result.marked + (copies.marked if copies else 0)
    planned = _NOTHING_CHANGED if due else "Nothing was changed, and there is nothing to mark now."
    text = "The sweep verifies each mark again before it deletes." if result.executed else planned
    parts.append(Note(text))
    return Document(data, tuple(parts))


def _applied(what: str, result: ApplyResult) -> list[Part]:
    would = "" if result.executed else "would be "
    pairs = [
        ("plan", result.plan_id),
        ("candidates", f"{result.candidates:,}"),
        (f"{would}marked", f"{result.marked:,}, {size_text(result.marked_bytes)}"),
        ("by earlier runs", f"{result.earlier:,}"),
        ("not confirmed", f"{len(result.failed):,}"),
        ("changed since", f"{result.dropped_total:,}"),
        ("held back", f"{result.held_back_total:,}"),
        ("not come to", f"{result.left:,}"),
    ]
    columns = (Column("candidates", right=True), Column("held back", whole=False))
    rows = tuple((f"{number:,}", reason) for reason, number in sorted(result.held_back_by.items()))
    parts: list[Part] = [Facts(tuple(pairs))]
    if rows:
        parts.append(Table(columns, rows))
    named = tuple((str(ledger_id), reason) for ledger_id, reason in (*result.failed, *result.dropped)[:100])
    if named:
        parts.append(Table((Column(what, right=True), Column("not marked", whole=False)), named))
    if result.stopped:
        parts.append(Note(result.stopped))
    if result.not_compared:
        parts.append(
            Note(f"What is in flight was not read, so what waits already is marked again: {result.not_compared}")
        )
    return parts


def _facts(plan: PlanManifest, summary: Summary, applied: tuple[ApplyProgress, ApplyProgress] | None) -> Facts:
    pairs = [
        ("plan", plan.plan_id),
        ("scan", plan.scan_id),
        ("read from", moment(plan.begun_ms)),
        ("cutoff", moment(plan.cutoff_ms)),
        ("cluster", plan.cluster.instance_id or "unknown: it has no INSTANCEID"),
        ("metadata roots", ", ".join(plan.cluster.roots)),
        ("ledgers", f"{summary.ledgers:,}, {size_text(summary.logical_bytes)}"),
        ("references", f"{plan.counts.references:,}"),
    ]
    for what, progress in zip(("applied", "copies applied"), applied or (), strict=False):
        if progress.updated_ms:
            pairs.append((what, f"{progress.marked:,} marked, last {moment(progress.updated_ms)}"))
    return Facts(tuple(pairs))


def _fuzzy(summary: Summary) -> list[Part]:
    if summary.fuzzy is None:
        return []
    return [
        Note(
            f"Not the state of one moment: {summary.fuzzy}. Do not believe a ledger that is called missing before "
            "`bookwarden ledger explain`; see docs/orphans.md."
        )
    ]


def _classes(summary: Summary) -> Table:
    rows = []
    for ledger_class in LedgerClass:
        ledgers, length = summary.total(ledger_class)
        if ledgers:
            shown = "-" if ledger_class is LedgerClass.MISSING else size_text(length)
            rows.append((ledger_class.value, f"{ledgers:,}", shown))
    return Table(_CLASS_COLUMNS, tuple(rows), empty="BookKeeper has no ledgers.")


def _orphans(counts: Sequence[ClassCount]) -> list[ClassCount]:
    return [count for count in counts if count.ledger_class == LedgerClass.ORPHAN.value]


def _counts(title: str, heading: str, counts: Sequence[ClassCount]) -> Table:
    columns = (Column(heading, whole=False), *_CLASS_COLUMNS[1:])
    rows = tuple((count.key, f"{count.ledgers:,}", size_text(count.logical_bytes)) for count in counts)
    return Table(columns, rows, title=title)


def _objects(summary: Summary) -> Table:
    cells: Cells[ClassCount] = {
        Column("store", whole=False): lambda one: one.key,
        Column("class"): lambda one: one.ledger_class,
        Column("objects and uploads", right=True): lambda one: f"{one.ledgers:,}",
        Column("bytes", right=True): lambda one: size_text(one.logical_bytes),
    }
    return table_of(summary.objects, cells, title="offloaded copies")


def _missing(summary: Summary) -> list[Part]:
    rows = tuple((str(one.ledger_id), "; ".join(one.places)) for one in summary.missing[:_SHOWN_MISSING])
    columns = (Column("ledger", right=True), Column("named by", whole=False))
    return [Table(columns, rows, title=f"missing: {summary.missing_total:,}")]


def _outdated(summary: Summary) -> list[Part]:
    rows = tuple((str(one.ledger_id), "; ".join(one.places)) for one in summary.outdated[:_SHOWN_MISSING])
    columns = (Column("ledger", right=True), Column("still named by", whole=False))
    title = f"outdated entries of shadow topics: {summary.outdated_total:,} (no data is lost; an unload clears them)"
    return [Table(columns, rows, title=title)]


def _inside_lists(summary: Summary) -> list[Part]:
    cells: Cells[InsideList] = {
        Column("ledger", right=True): lambda one: str(one.ledger_id),
        Column(BYTES_LABEL, right=True): lambda one: size_text(one.logical_bytes),
        Column("topic", whole=False, topics=True): lambda one: one.topic,
        Column("why it is no trim's", whole=False): lambda one: one.reason,
    }
    ledgers, size = summary.total(LedgerClass.INSIDE_LIST)
    title = f"inside the list: {ledgers:,}, {size_text(size)}"
    return [table_of(summary.inside_lists[:_SHOWN_MISSING], cells, title=title)]


def _doubts(summary: Summary) -> list[Part]:
    columns = (Column("not read", whole=False), Column("metadata root"), Column("reason", whole=False))
    rows = tuple((doubt.path, doubt.root, doubt.reason) for doubt in summary.doubts[:_SHOWN_MISSING])
    return [Table(columns, rows, title=f"places that could not be read: {summary.doubts_total:,}")]


def _foreign(summary: Summary) -> list[Part]:
    columns = (Column("foreign", whole=False), *_CLASS_COLUMNS[1:], Column("such as"))
    rows = tuple(
        (one.owner, f"{one.ledgers:,}", size_text(one.logical_bytes), ", ".join(map(str, one.ledger_ids[:3])))
        for one in summary.foreign
    )
    return [Table(columns, rows, title="kept, since they are not this cluster's")]


def _emptied(plan: PlanManifest) -> list[Part]:
    columns = (Column("exists, and would have no ledger left", whole=False), Column("orphans", right=True))
    rows = tuple((f"{one.scope} {one.name}", f"{one.candidates:,}") for one in plan.emptied)
    return [Table(columns, rows, title="apply holds these back without --allow-emptied")]


def _candidates(candidates: Sequence[Candidate]) -> list[Part]:
    cells: Cells[Candidate] = {
        Column("ledger", right=True): lambda one: str(one.ledger_id),
        Column("cause"): lambda one: one.cause,
        Column(BYTES_LABEL, right=True): lambda one: size_text(one.length),
        Column("created"): lambda one: moment(max(one.created_ms, one.ctime_ms or 0)),
        Column("an orphan since"): lambda one: moment(one.first_seen_ms),
        Column("holder", whole=False): lambda one: one.holder,
    }
    return [table_of(candidates, cells, title="the first candidates")]


def _copies(copies: Sequence[CopyCandidate]) -> list[Part]:
    cells: Cells[CopyCandidate] = {
        Column("copy"): lambda one: str(one.uuid),
        Column("ledger", right=True): lambda one: str(one.ledger_id),
        Column("cause"): lambda one: one.cause,
        Column("objects", right=True): lambda one: f"{one.objects:,}",
        Column("uploads", right=True): lambda one: f"{one.uploads:,}",
        Column("bytes", right=True): lambda one: size_text(one.length),
        Column("last written"): lambda one: moment(one.modified_ms),
        Column("an orphan since"): lambda one: moment(one.first_seen_ms),
        Column("store", whole=False): lambda one: " ".join(part for part in one.location if part),
        Column("managed ledger", whole=False): lambda one: one.managed_ledger,
    }
    return [table_of(copies, cells, title="the first offloaded copies")]


def _shown(parts: list[Part]) -> list[Part]:
    """Omit empty tables that have a title."""
    return [part for part in parts if not (isinstance(part, Table) and part.title and not part.rows)]


def _verdict(plan: PlanManifest, summary: Summary) -> str:
    orphans = counted(plan.counts.candidates, "orphan")
    text = f"{orphans}, {size_text(plan.counts.candidate_bytes)}. "
    if summary.missing_total:
        text = (
            f"{counted(summary.missing_total, 'ledger')} named and not there: data is lost, see docs/orphans.md. {text}"
        )
    inside, size = summary.total(LedgerClass.INSIDE_LIST)
    if inside:
        text = (
            f"{counted(inside, 'ledger')} with {size_text(size)} lost by the list of a topic: acknowledged messages "
            f"are out of reach, see docs/orphans.md. {text}"
        )
    if plan.copy_candidates:
        copy_bytes = sum(store.candidate_bytes for store in plan.copies)
        copies = counted(plan.copy_candidates, "orphaned offloaded copy", "orphaned offloaded copies")
        text += f"{copies}, {size_text(copy_bytes)}. "
    if not plan.counts.candidates and not plan.copy_candidates:
        return f"{text}There is nothing to apply."
    return f"{text}Nothing was changed: `bookwarden orphans apply --plan {plan.plan_id}` says what it would mark."


def _fields(result: ApplyResult) -> dict[str, Any]:
    return {name: getattr(result, name) for name in result.__dataclass_fields__}
