"""A move without the jar as JSON values, and the lines that brokers and bookwarden need after it."""

from __future__ import annotations

from typing import Any

from bookwarden.switching.offline.comparing import Standing
from bookwarden.switching.offline.move import Moved, MovePlan, Tally
from bookwarden.switching.offline.record import MoveRecord
from bookwarden.switching.offline.saved_nodes import Restoration


def broker_lines(record: MoveRecord) -> tuple[str, ...]:
    """Return the lines of broker.conf with which brokers use the target."""
    return (f"bookkeeperMetadataServiceUri={record.uri}",)


def settings_lines(record: MoveRecord) -> tuple[str, ...]:
    """Return bookwarden's own settings with which it looks there."""
    return ("metadata_store:", f"  bookkeeper_url: {record.uri}", "  ledgers_root: null")


def record_data(record: MoveRecord) -> dict[str, Any]:
    """Return where a move stands."""
    return {
        "phase": record.phase.value,
        "source": {**record.source._asdict(), "instance": record.source_instance},
        "target": {**record.target._asdict(), "instance": record.target_instance},
        "owner": record.owner,
        "saved": record.saved or None,
        "broker.conf": list(broker_lines(record)),
        "settings": list(settings_lines(record)),
    }


def plan_data(plan: MovePlan) -> dict[str, Any]:
    """Return what would be done."""
    return {
        **record_data(plan.record),
        "ready": not plan.failing,
        "brokers": list(plan.brokers),
        "ledgers": _tally_data(plan.tally),
        "nextLedgerId": plan.next_id,
        "aboveTheSource": plan.free_id,
        "checks": [
            {"name": one.check, "severity": one.verdict.value, "evidence": one.seen, "whatToDo": one.advice}
            for one in plan.findings
        ],
    }


def moved_data(moved: Moved) -> dict[str, Any]:
    """Return what was done."""
    return {
        **record_data(moved.record),
        "copied": moved.copied,
        "recovered": moved.recovered,
        "ledgers": _tally_data(moved.tally),
        "nextLedgerId": moved.next_id,
        "troubles": list(moved.troubles),
    }


def restoration_data(found: Restoration, written: int | None) -> dict[str, Any]:
    """Return how the store differs from saved nodes; ``written`` of them were put back, None by a dry run."""
    return {
        "nodes": found.nodes,
        "changed": found.changed,
        "gone": found.gone,
        "such as": list(found.shown),
        "written": written,
        "dryRun": written is None,
    }


def _tally_data(tally: Tally) -> dict[str, Any]:
    counts = {standing.value: tally.counts[standing] for standing in Standing}
    return {"named": tally.total, **counts, "missing such as": list(tally.missing)}
