"""`bookwarden metadata-migration ledger-ids`: the counter of ledger ids, which no copy carries over."""

from __future__ import annotations

from typing import Any, Final

import click

from bookwarden.cli.invocation import Invocation, pass_invocation
from bookwarden.cli.migration_status import output_option, source_option
from bookwarden.cli.node_progress import node_progress
from bookwarden.cli.output import Document, Facts, Note, counted
from bookwarden.errors import StoreError
from bookwarden.ledger_ids_context import LedgerIdsContext
from bookwarden.ledgers.numbering import LedgerNumbers
from bookwarden.migration.ledger_ids import LedgerIds

COUNTER_BEHIND: Final = 26

_EPILOG = """\b
Exit codes: 0 new ledgers get ids that none had; 26 they do not yet.

\b
Why, and what may happen before it is done: docs/metadata-migration.md, 'Ledger ids'."""


@click.command("ledger-ids", epilog=_EPILOG)
@source_option
@click.option("--execute", is_flag=True, help="Let the target's counter pass the ids that were given.")
@click.option(
    "--count-up",
    is_flag=True,
    help="With --execute, for Oxia before 0.15: write the counter once for each id, where it cannot be set.",
)
@output_option
@pass_invocation
def ledger_ids(invocation: Invocation, source: str | None, execute: bool, count_up: bool, output: str | None) -> None:
    """Keep a migrated store from giving a ledger id twice.

    Run it with --execute right after COMPLETED. Without, it reads only. May be repeated, and interrupted, at any time.
    """
    if output is not None:
        invocation.output = output
    if count_up and not execute:
        raise click.UsageError("--count-up is for --execute")
    with LedgerIdsContext(invocation.settings, source=source) as context:
        before = context.examine()
        reached: int | None = None
        if execute:
            with node_progress(invocation, f"raising the counter of {context.target_url}", "passed", "ids") as tell:
                reached = context.advance(before, count_up=count_up, progress=tell)
        after = context.examine() if reached is not None else before
        invocation.write(_describe(context, before, after))
    if execute and after.behind and not count_up:
        raise StoreError(_too_old(context.target_url, after))
    click.get_current_context().exit(COUNTER_BEHIND if after.behind else 0)


def _describe(context: LedgerIdsContext, before: LedgerIds, after: LedgerIds) -> Document:
    largest = after.largest_id
    data = {
        "source": context.source_url,
        "target": context.target_url,
        "source_counter": _data_of(before.source),
        "target_counter_before": _data_of(before.target),
        "target_counter": _data_of(after.target),
        "largest_ledger_id": largest,
        "behind": after.behind,
    }
    pairs = (
        ("source", context.source_url),
        ("target", context.target_url),
        ("the source's next ledger", _text_of(before.source)),
        ("the target's next ledger", _text_of(after.target)),
        ("before", _text_of(before.target)),
        ("largest ledger there", "none" if largest is None else str(largest)),
    )
    shown = pairs if after.target != before.target else tuple(pair for pair in pairs if pair[0] != "before")
    return Document(data, (Facts(shown), Note(_said(after))))


def _said(ids: LedgerIds) -> str:
    if ids.target is None:
        return "No ledger was numbered in the target yet, and it has no counter: look again once a topic was opened."
    if not ids.behind:
        return "New ledgers get ids that no ledger had."
    return (
        f"The next {counted(ids.behind, 'id')}, up to {ids.target.id_of(ids.safe_number) - 1}, were given before the "
        "move. Where the ledger is still there its id is refused, and a topic is not opened; where it was deleted, "
        "bookies may still have its entries. --execute lets the counter pass them."
    )


def _too_old(target_url: str, ids: LedgerIds) -> str:
    return (
        f"the counter of {target_url} could not be set: its servers are older than 0.15. --execute --count-up writes "
        f"it {ids.behind:,} times instead; not on 0.14.0 or 0.14.1 while brokers write, which may end all writes there "
        "(docs/oxia.md)"
    )


def _data_of(numbers: LedgerNumbers | None) -> dict[str, Any] | None:
    if numbers is None:
        return None
    return {"path": numbers.path, "next_number": numbers.next_number, "next_id": numbers.next_id}


def _text_of(numbers: LedgerNumbers | None) -> str:
    return "none was numbered" if numbers is None else f"{numbers.next_id}, by {numbers.path}"
