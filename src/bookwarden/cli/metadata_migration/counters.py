"""`bookwarden metadata-migration counters`: counters that no copy carries over, of ledger ids above all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import click

from bookwarden.cli.metadata_migration.options import source_option
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Facts, Note, Part, Table
from bookwarden.cli.shell.steps import node_progress
from bookwarden.errors import StoreError
from bookwarden.exit_codes import COUNTERS_BEHIND
from bookwarden.metadata_migration.counters import Counter, Counters
from bookwarden.wiring.metadata_migration import MigrationStores, counters_of

_EPILOG = """\b
Exit codes: 0 the target counts on from where the source was; 26 it does not yet.

\b
Why, and what may happen before it is done: docs/metadata-migration.md, 'Counters'."""


@click.command(epilog=_EPILOG)
@source_option
@click.option("--execute", is_flag=True, help="Let the target's counters pass what the source gave.")
@click.option(
    "--count-up",
    is_flag=True,
    help="With --execute, for Oxia before 0.15: write a counter once for each number, where it cannot be set.",
)
@pass_invocation
def counters(invocation: Invocation, source: str | None, execute: bool, count_up: bool) -> None:
    """Keep a migrated store from giving a ledger id twice.

    Run it with --execute right after COMPLETED. Without, it reads only. May be repeated, and interrupted, at any time.
    """
    if count_up and not execute:
        raise click.UsageError("--count-up is for --execute")
    with MigrationStores(invocation.settings, source) as opened:
        stores = counters_of(opened)
        before = after = stores.examine()
        if execute:
            with node_progress(invocation, f"raising the counters of {stores.target_url}", "passed", "numbers") as tell:
                stores.advance(before, count_up=count_up, progress=tell)
            after = stores.examine()
        invocation.write(_describe(stores, before, after, executed=execute))
    behind = sum(counter.behind for counter in after)
    if behind and execute and not count_up:
        raise StoreError(
            f"the counters of {stores.target_url} could not be set: its servers are older than 0.15. --execute "
            f"--count-up writes them {behind:,} times instead; not on 0.14.0 or 0.14.1 while brokers write, which may "
            "end all writes there (docs/oxia.md)"
        )
    click.get_current_context().exit(COUNTERS_BEHIND if behind else 0)


def _describe(stores: Counters, before: Sequence[Counter], after: Sequence[Counter], *, executed: bool) -> Document:
    former = {counter.path: counter.next_number for counter in before}
    data = {
        "source": stores.source_url,
        "target": stores.target_url,
        "ledgers_elsewhere": stores.ledgers_elsewhere,
        "counters": [
            {
                "name": one.name,
                "path": one.path,
                "source_next": None if one.source_next is None else one.base + one.source_next,
                "next_before": one.base + former.get(one.path, one.next_number),
                "next": one.base + one.next_number,
                "behind": one.behind,
            }
            for one in after
        ],
    }
    numbers = ("source's next", "target's next", "behind by")
    table = Table(
        (Column("counter"), Column("node"), *(Column(name, right=True) for name in numbers)),
        tuple(
            (
                one.name,
                one.path,
                "-" if one.source_next is None else str(one.base + one.source_next),
                str(one.base + one.next_number),
                f"{one.behind:,}",
            )
            for one in after
        ),
        empty="The target counts nothing yet: look again once a topic was opened.",
    )
    parts: list[Part] = [Facts((("source", stores.source_url), ("target", stores.target_url))), table]
    parts += [Note(text) for text in _notes(after)]
    if stores.ledgers_elsewhere is not None:
        parts.append(Note(f"Ledgers are counted in {stores.ledgers_elsewhere}, which was not moved with this store."))
    if not executed and any(counter.behind for counter in after):
        parts.append(Note("--execute lets the counters pass them."))
    return Document(data, tuple(parts))


def _notes(counters: Sequence[Counter]) -> Iterator[str]:
    if not any(counter.behind for counter in counters):
        yield "The target gives nothing that the source gave."
        return
    for one in counters:
        if one.behind:
            last = one.base + one.safe_number - 1
            yield f"The next {one.name}, up to {last}, were given before the move. {_CONSEQUENCES[one.name]}"


_CONSEQUENCES: Final = {
    "ledger ids": "Where such a ledger is still there its id is refused, and a topic is not opened; where it was "
    "deleted, bookies may still have its entries.",
    "producer names": "A broker that is started gives producers without a name one that another may have.",
}
