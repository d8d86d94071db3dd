"""The demo of the main job: its servers, and a table of each ledger's end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from bookwarden.cli.shell.output import Column, Document, Facts, Note, Table
from bookwarden.config import load_settings
from bookwarden_dev.commands.dev import settings_of
from bookwarden_dev.demo.fates import Finale, LedgerRow
from bookwarden_dev.demo.page import served_page
from bookwarden_dev.demo.stage import Stage, running_stage
from bookwarden_dev.demo.story import Story
from bookwarden_dev.devcluster import ClusterOptions

# Short waiting times, for people who watch; conf/bookwarden.yaml has those for clusters.
_QUICK = {
    "two_phase_deletion_reconsume_later_in_seconds": 3.0,
    "two_phase_deletion_max_retry_delete_count": 2,
    # Longer than a slow start of Spark: the early mark must have some of it left.
    "still_referenced_grace_seconds": 3600.0,
    "unlisted_grace_seconds": 1.0,
}


def play_deletion(home: Path, say: Callable[[str], None], servers: ClusterOptions) -> Finale:
    """Run the servers in a home, of this version and with this store, and play the story."""
    with running_stage(home, say, servers) as stage:
        file = _write_settings(stage)
        settings = load_settings(file)
        with served_page(settings, say):
            finale = Story(stage, settings, file, say).play()
        say("stopping everything")
    return finale


def _write_settings(stage: Stage) -> Path:
    path = stage.cluster.home / "bookwarden.yaml"
    home = stage.cluster.home
    follow = {"checkpoint": str(home / "follow"), "outcomes": str(home / "follow-outcomes"), "grace_seconds": 3.0}
    settings = {**settings_of(stage.cluster), "offload": stage.offload_settings, "deletion": _QUICK, "follow": follow}
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def describe_deletion(finale: Finale, seconds: float) -> Document:
    """Make the table of every ledger, the other findings, and the verdict."""
    columns = (
        Column("ledger", right=True),
        Column("holder", whole=False),
        Column("kind"),
        Column("what happened", whole=False),
        Column("before", whole=False),
        Column("outcome", whole=False),
        Column("after", whole=False),
        Column("ok"),
    )
    rows = tuple(_row(ending, finale.store) for ending in finale.endings)
    table = Table(columns, rows, title="Every ledger of the demo")
    readable = ", ".join(f"{name} {found} of {expected}" for name, (found, expected) in finale.readable.items())
    letters = "; ".join(f"ledger {ledger_id}: {reason}" for ledger_id, reason in finale.dead_letters) or "none"
    facts = Facts(
        (
            ("in flight", f"{finale.in_flight} messages"),
            ("dead letters", letters),
            ("undone", _restored(finale)),
            ("read back", f"{readable} messages"),
        )
    )
    verdict = "Each ledger ended as it should" if finale.as_it_should else "NOT every ledger ended as it should"
    return Document(finale, (table, facts, Note(f"{verdict}; {seconds:.0f} s.")))


def _restored(finale: Finale) -> str:
    return "; ".join(
        f"ledger {ledger_id}: {found} of {expected} entries read from the bookie"
        for ledger_id, (found, expected) in finale.restored.items()
    )


def _row(ending: LedgerRow, store: str) -> tuple[str, ...]:
    ledger = ending.ledger
    return (
        str(ledger.ledger_id),
        ledger.holder,
        ledger.kind,
        ending.fate.story,
        _where(store, True, ledger.on_bookie, ledger.in_bucket),
        ", ".join(_outcomes(ending)) or "-",
        _where(store, ending.in_metadata, ending.on_bookie, ending.in_bucket),
        "yes" if ending.as_it_should else "NO",
    )


def _outcomes(ending: LedgerRow) -> list[str]:
    undone = [ending.undone] if ending.undone else []
    return [*ending.outcomes, *(f"copy {outcome}" for outcome in ending.copy_outcomes), *undone]


def _where(store: str, in_metadata: bool, on_bookie: bool, in_bucket: bool) -> str:
    found = ((store, in_metadata), ("bookie", on_bookie), ("bucket", in_bucket))
    return " + ".join(name for name, there in found if there) or "gone"
