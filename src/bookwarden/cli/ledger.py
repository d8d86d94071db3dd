"""Commands that look at single ledgers."""

from __future__ import annotations

import time
from typing import Any

import click

from bookwarden.cli.invocation import Invocation, pass_invocation
from bookwarden.cli.output import Column, Document, Facts, Part, Table, moment
from bookwarden.cli.references import place_tables, reference_data, reference_pairs
from bookwarden.context import MetadataContext, policy_of
from bookwarden.deletion.explaining import Explanation, explain_ledger, find_everywhere
from bookwarden.ledgers.metadata import AbsentLedger, LedgerMetadata, StoredLedger, UnreadableLedger

_everywhere = click.option(
    "--everywhere", is_flag=True, help="Look for it in all of the metadata: every topic, schema and log of every root."
)


@click.group(epilog="Example:  bookwarden ledger explain 4711")
def ledger() -> None:
    """Look at single ledgers."""


@ledger.command()
@click.argument("ledger_id", metavar="ID", type=click.IntRange(min=0))
@_everywhere
@pass_invocation
def explain(invocation: Invocation, ledger_id: int, everywhere: bool) -> None:
    """Say what a ledger is, and whether the sweep would delete it.

    Shows what BookKeeper knows of it, whether its holder refers to it, and what the sweep would do with a mark of it,
    and why. Changes nothing.
    """
    settings = invocation.settings
    with MetadataContext(settings) as metadata:
        now_ms = int(time.time() * 1000)
        found = explain_ledger(ledger_id, metadata.catalog, metadata.references, policy_of(settings), now_ms)
        if everywhere:
            found = find_everywhere(found, metadata.reference_scan)
    invocation.write(_describe(found))


def _describe(found: Explanation) -> Document:
    verdict = [("with a mark of it", found.verdict)]
    if found.reason:
        verdict.append(("because", found.reason))
    parts: list[Part] = [_ledger_facts(found)]
    if isinstance(found.reading, StoredLedger):
        parts += [_custom_table(found.reading.metadata), _segments_table(found.reading.metadata)]
        parts.append(Facts(reference_pairs(found), title="References"))
    parts += place_tables(found)
    parts.append(Facts(tuple(verdict), title="The sweep"))
    return Document(_data(found), tuple(parts))


def _ledger_facts(found: Explanation) -> Facts:
    reading = found.reading
    title = f"Ledger {reading.ledger_id}"
    if isinstance(reading, AbsentLedger):
        return Facts((("state", "absent: BookKeeper has no metadata of it"),), title)
    if isinstance(reading, UnreadableLedger):
        return Facts((("state", "unreadable"), ("problem", reading.reason)), title)
    metadata = reading.metadata
    quorum = f"ensemble {metadata.ensemble_size}, write quorum {metadata.write_quorum}, ack {metadata.ack_quorum}"
    last = metadata.last_entry_id
    return Facts(
        (
            ("state", metadata.state.name.lower().replace("_", " ")),
            ("entries", "not known while it is open" if last is None else f"{last + 1:,}"),
            ("size", "not known while it is open" if last is None else f"{metadata.length:,} bytes"),
            ("created", moment(metadata.ctime_ms or reading.created_ms)),
            ("replication", quorum),
            ("digest", metadata.digest_type or "-"),
            ("metadata node", f"{reading.path} (version {reading.version}, format {metadata.format_version})"),
        ),
        title,
    )


def _custom_table(metadata: LedgerMetadata) -> Table:
    rows = tuple(
        (name, value.decode("utf-8", errors="backslashreplace")) for name, value in sorted(metadata.custom.items())
    )
    return Table((Column("custom metadata"), Column("value", whole=False)), rows, empty="No custom metadata.")


def _segments_table(metadata: LedgerMetadata) -> Table:
    rows = tuple((str(segment.first_entry_id), ", ".join(segment.ensemble)) for segment in metadata.segments)
    return Table((Column("from entry", right=True), Column("bookies", whole=False)), rows, empty="No bookies.")


def _data(found: Explanation) -> dict[str, Any]:
    reading = found.reading
    stored = reading if isinstance(reading, StoredLedger) else None
    return {
        "ledger_id": reading.ledger_id,
        "present": None if isinstance(reading, UnreadableLedger) else stored is not None,
        "path": stored.path if stored else None,
        "version": stored.version if stored else None,
        "created_at": (stored.metadata.ctime_ms or stored.created_ms) if stored else None,
        "metadata": _metadata_data(stored.metadata) if stored else None,
        **reference_data(found),
        "outcome": found.outcome,
        "verdict": found.verdict,
        "reason": found.reason,
    }


def _metadata_data(metadata: LedgerMetadata) -> dict[str, Any]:
    return {
        "state": metadata.state.name,
        "length": metadata.length,
        "last_entry_id": metadata.last_entry_id,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "digest_type": metadata.digest_type,
        "format_version": metadata.format_version,
        "segments": metadata.segments,
        "custom": dict(metadata.custom),
    }
