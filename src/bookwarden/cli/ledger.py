"""Commands that look at single ledgers; payloads of entries are bytes, and are not converted."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, Final, NamedTuple

import click

from bookwarden.cli.shell.invocation import Invocation, parse_ledger_id, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Facts, Part, Table, moment
from bookwarden.clusters.bookkeeper.bookies.digests import Entry
from bookwarden.clusters.bookkeeper.bookies.reader import open_ledger
from bookwarden.clusters.pulsar.trash import TrashedLedgers
from bookwarden.deletion.explaining import Explanation, explain_ledger, find_everywhere, in_trash
from bookwarden.deletion.journal.reading import SelectedDeletions, Selection
from bookwarden.errors import BookwardenError, FormatError, NotFoundError
from bookwarden.ledgers.custom_metadata import is_unfinished
from bookwarden.ledgers.live_references import LiveReferences, UnknownReferences
from bookwarden.ledgers.metadata import AbsentLedger, LedgerMetadata, LedgerReading, StoredLedger, UnreadableLedger
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import verifier_of
from bookwarden.wiring.journal import journal_reader_of
from bookwarden.wiring.roots import roots_proof_of

_PLACE_COLUMNS = (Column("named by"), Column("of", whole=False), Column("node", whole=False), Column("metadata root"))
_DOUBT_COLUMNS = (Column("not read", whole=False), Column("metadata root"), Column("reason", whole=False))
_ROW: Final = 16


def reference_pairs(found: Explanation) -> tuple[tuple[str, str], ...]:
    """List the ledger's holder, and whether that still names it."""
    if found.holder is None:
        return (("holder", "none that the sweep knows"),)
    holder = ("holder", f"{found.holder.label} {found.holder}")
    references = found.references
    if isinstance(references, UnknownReferences):
        return holder, ("names it", f"unknown: {references.reason}")
    if not isinstance(references, LiveReferences):
        return (holder,)
    ledger_id = found.reading.ledger_id
    pairs = [
        holder,
        ("exists", "yes" if references.exists else "no"),
        ("names it", _how_named(ledger_id, references)),
        ("other ledgers", f"{len(references.ledger_ids - {ledger_id}):,}"),
    ]
    pairs += [
        (f"shadow {shadow.managed_ledger}", "names it" if ledger_id in shadow.ledger_ids else "does not name it")
        for shadow in references.shadows
    ]
    if references.unnamed_use is not None and not references.names(ledger_id):
        pairs.append(("in use unnamed", references.unnamed_use.reason))
    return tuple(pairs)


def _how_named(ledger_id: int, references: LiveReferences) -> str:
    if ledger_id not in references.ledger_ids:
        return "no"
    if ledger_id in references.left_behind:
        return "yes, as offloaded and deleted from BookKeeper"
    return "yes"


def place_tables(found: Explanation) -> list[Part]:
    """List all places that name the ledger, and those that could not be read, if they were looked for."""
    if found.everywhere is None:
        return []
    rows = tuple(
        (place.kind.value, place.holder, place.path, place.root)
        for place in (named.place for named in found.everywhere)
    )
    parts: list[Part] = [Table(_PLACE_COLUMNS, rows, title="Everywhere", empty="No place in the metadata names it.")]
    if found.doubts:
        doubts = tuple((doubt.path, doubt.root, doubt.reason) for doubt in found.doubts)
        parts.append(Table(_DOUBT_COLUMNS, doubts, title="Places that may name it"))
    return parts


def reference_data(found: Explanation) -> dict[str, Any]:
    """Return the same for programs."""
    live = found.references if isinstance(found.references, LiveReferences) else None
    return {
        "holder": str(found.holder) if found.holder else None,
        "holder_exists": live.exists if live else None,
        "referenced": found.referenced,
        "references_problem": found.references.reason if isinstance(found.references, UnknownReferences) else None,
        "left_behind": live is not None and found.reading.ledger_id in live.left_behind,
        "shadows": [shadow.managed_ledger for shadow in live.shadows] if live else [],
        "unnamed_use": live.unnamed_use.reason if live and live.unnamed_use else None,
        "everywhere": None if found.everywhere is None else [_place(*named.place) for named in found.everywhere],
        "doubts": [{"path": doubt.path, "root": doubt.root, "reason": doubt.reason} for doubt in found.doubts],
    }


def _place(kind: Any, holder: str, path: str, root: str) -> dict[str, Any]:
    return {"kind": kind, "holder": holder, "path": path, "root": root}


def write_entries(entries: Iterable[Entry], form: str, output: BinaryIO) -> int:
    """Write each entry in a form of ENTRY_FORMS as it arrives; return their number."""
    render, count = ENTRY_FORMS[form], 0
    for entry in entries:
        output.write(render(entry))
        count += 1
    output.flush()
    return count


def _hex(entry: Entry) -> bytes:
    head = (
        f"entry {entry.entry_id}, {len(entry.payload):,} bytes, last add confirmed {entry.last_add_confirmed}, "
        f"length of the ledger so far {entry.length:,}"
    )
    return "".join(f"{line}\n" for line in (head, *_dump(entry.payload))).encode("ascii")


def _dump(payload: bytes) -> Iterator[str]:
    for start in range(0, len(payload), _ROW):
        row = payload[start : start + _ROW]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        yield f"{start:08x}  {row.hex(' '):<{3 * _ROW}} |{text}|"


def _raw(entry: Entry) -> bytes:
    return entry.payload


def _json(entry: Entry) -> bytes:
    fields = {
        "ledger_id": entry.ledger_id,
        "entry_id": entry.entry_id,
        "last_add_confirmed": entry.last_add_confirmed,
        "length": entry.length,
        "payload_base64": base64.b64encode(entry.payload).decode("ascii"),
    }
    return json.dumps(fields).encode("ascii") + b"\n"


ENTRY_FORMS: Final[Mapping[str, Callable[[Entry], bytes]]] = {"hex": _hex, "raw": _raw, "json": _json}


_everywhere = click.option(
    "--everywhere", is_flag=True, help="Look for it in all of the metadata: every topic, schema and log of every root."
)
_LEDGER_ID = click.argument("ledger_id", metavar="ID", type=parse_ledger_id)
_ENTRY_ID = click.IntRange(min=0)

_EXAMPLES = """\b
Examples:
  bookwarden ledger explain 4711
  bookwarden ledger show 4711
  bookwarden ledger read 4711 --first 100 --limit 10"""


@click.group(epilog=_EXAMPLES)
def ledger() -> None:
    """Look at single ledgers."""


@ledger.command()
@_LEDGER_ID
@_everywhere
@pass_invocation
def explain(invocation: Invocation, ledger_id: int, everywhere: bool) -> None:
    """Show what a ledger is, and whether the sweep would delete it.

    Shows what BookKeeper knows of it, whether its holder refers to it, and what the sweep would do with a mark of it,
    and why. Changes nothing.
    """
    settings = invocation.settings
    with Cluster(settings) as cluster:
        # In another BookKeeper a ledger that is in use would seem to be gone.
        roots_proof_of(cluster).require_roots_of_bookkeeper()
        found = explain_ledger(ledger_id, verifier_of(cluster))
        found = in_trash(found, TrashedLedgers(cluster.stores.values()).read())
        if everywhere:
            found = find_everywhere(found, cluster.references.pieces)
        past = _past_of(found.reading, cluster)
    invocation.write(_describe(found, past))


class _Past(NamedTuple):
    """History of a ledger: ``deletions`` and ``undone`` for programs, ``facts`` for people."""

    deletions: list[dict[str, Any]]
    undone: dict[str, Any] | None
    facts: tuple[tuple[str, str], ...]


def _past_of(reading: LedgerReading, cluster: Cluster) -> _Past:
    """Look into the journal for a ledger that is gone, and for the record of an undo of one that is there."""
    undone = cluster.bookkeeper.undone.read_many([reading.ledger_id]).get(reading.ledger_id)
    if undone is not None and undone.is_of(reading):
        fact = f"by {undone.undo} at {moment(undone.at_ms)}: the sweep keeps it until `mark ledger {undone.ledger_id}`"
        return _Past([], {"undo": undone.undo, "at": undone.at_ms}, (("put back", fact),))
    if not isinstance(reading, AbsentLedger):
        return _Past([], None, ())
    try:
        with contextlib.closing(journal_reader_of(cluster.settings.sweep)) as journal:
            entries = [one.entry for one in SelectedDeletions(journal, Selection(None, frozenset([reading.ledger_id])))]
    except BookwardenError as error:
        return _Past([], None, (("deleted", f"not known: {error}"),))
    facts = tuple(
        ("deleted", f"by run {one.run} at {moment(one.journaled_at)}, of {one.holder}") for one in entries
    ) or (("deleted", "by no sweep that this journal knows"),)
    if entries:
        facts = (*facts, ("to put it back", f"bookwarden undo --ledger {reading.ledger_id}"))
    data = [{"run": one.run, "at": one.journaled_at, "holder": one.holder} for one in entries]
    return _Past(data, None, facts)


@ledger.command()
@_LEDGER_ID
@pass_invocation
def show(invocation: Invocation, ledger_id: int) -> None:
    """Show a ledger's metadata, without its password."""
    with Cluster(invocation.settings) as cluster:
        stored = _stored(cluster, ledger_id)
    parts = (_ledger_facts(stored), _custom_table(stored.metadata), _segments_table(stored.metadata))
    invocation.write(Document({"ledger_id": ledger_id, **_stored_data(stored)}, parts))


@ledger.command()
@_LEDGER_ID
@click.option("--first", type=_ENTRY_ID, default=0, show_default=True, help="The first entry to read.")
@click.option("--last", type=_ENTRY_ID, help="The last entry to read. Default: the last one that is confirmed.")
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of entries to read.")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(ENTRY_FORMS)),
    help="hex: a dump of each entry (default). raw: the payloads' bytes and nothing between them. json: an object "
    "for each entry, one a line, with the payload in base64 (default with -o json).",
)
@pass_invocation
def read(
    invocation: Invocation, ledger_id: int, first: int, last: int | None, limit: int | None, form: str | None
) -> None:
    """Read a ledger's entries off its bookies.

    Reading changes nothing: an open ledger is not fenced and stays open. Each entry is checked against its digest;
    a bookie that does not answer is replaced by another that has the entry.
    """
    if last is not None and first > last:
        raise click.UsageError(f"--first {first} is behind --last {last}")
    with Cluster(invocation.settings) as cluster:
        reader = open_ledger(_stored(cluster, ledger_id), cluster.bookkeeper.bookies)
        end = reader.last_confirmed() if last is None else last
        if limit is not None:
            end = min(end, first + limit - 1)
        chosen = form or ("json" if invocation.output == "json" else "hex")
        with contextlib.closing(reader.read(first, end)) as entries:
            count = write_entries(entries, chosen, sys.stdout.buffer)
    if not count:
        invocation.say(f"no entries: the last confirmed entry of ledger {ledger_id} is {end}")


def _stored(cluster: Cluster, ledger_id: int) -> StoredLedger:
    """Read the ledger's metadata; NotFoundError or FormatError if there is none to work with."""
    (reading,) = cluster.bookkeeper.catalog.read_many([ledger_id])
    if isinstance(reading, AbsentLedger):
        raise NotFoundError(f"BookKeeper has no metadata of ledger {ledger_id}: it was deleted, or never was")
    if isinstance(reading, UnreadableLedger):
        raise FormatError(f"the metadata of ledger {ledger_id} cannot be read: {reading.reason}")
    return reading


def _describe(found: Explanation, past: _Past) -> Document:
    verdict = [("with a mark of it", found.verdict)]
    if found.reason:
        verdict.append(("because", found.reason))
    parts: list[Part] = [_ledger_facts(found.reading)]
    if isinstance(found.reading, StoredLedger):
        parts += [_custom_table(found.reading.metadata), _segments_table(found.reading.metadata)]
        parts.append(Facts(reference_pairs(found), title="References"))
    if past.facts:
        parts.append(Facts(past.facts, title="What was done to it"))
    parts += place_tables(found)
    parts.append(Facts(tuple(verdict), title="The sweep"))
    return Document({**_data(found), "deletions": past.deletions, "undone": past.undone}, tuple(parts))


def _ledger_facts(reading: LedgerReading) -> Facts:
    title = f"Ledger {reading.ledger_id}"
    if isinstance(reading, AbsentLedger):
        return Facts((("state", "absent: BookKeeper has no metadata of it"),), title)
    if isinstance(reading, UnreadableLedger):
        return Facts((("state", "unreadable"), ("problem", reading.reason)), title)
    metadata = reading.metadata
    quorum = f"ensemble {metadata.ensemble_size}, write quorum {metadata.write_quorum}, ack {metadata.ack_quorum}"
    last = metadata.last_entry_id
    made = ("created", metadata.ctime_ms) if metadata.ctime_ms else ("metadata node made", reading.created_ms)
    return Facts(
        (
            ("state", metadata.state.name.lower().replace("_", " ")),
            ("entries", "not known while it is open" if last is None else f"{last + 1:,}"),
            ("size", "not known while it is open" if last is None else f"{metadata.length:,} bytes"),
            (made[0], moment(made[1])),
            ("replication", quorum),
            ("digest", metadata.digest_type or "-"),
            ("metadata node", f"{reading.path} (version {reading.version}, format {metadata.format_version})"),
            *((("bookie clusters", _places_told(reading)),) if reading.bookie_cluster else ()),
        ),
        title,
    )


def _places_told(stored: StoredLedger) -> str:
    """List the bookie clusters that have the ledger, first the one that brokers read it from, if they do."""
    first, *others = [
        f"{place.bookie_cluster} ({'an unfinished copy, ' if is_unfinished(place.metadata) else ''}{place.path})"
        for place in stored.places
    ]
    read = first if is_unfinished(stored.metadata) else f"read from {stored.bookie_cluster}"
    return "; also ".join([read, *others])


def _custom_table(metadata: LedgerMetadata) -> Table:
    rows = tuple(
        (name, value.decode("utf-8", errors="backslashreplace")) for name, value in sorted(metadata.custom.items())
    )
    return Table((Column("custom metadata"), Column("value", whole=False)), rows, empty="No custom metadata.")


def _segments_table(metadata: LedgerMetadata) -> Table:
    firsts = [segment.first_entry_id for segment in metadata.segments]
    lasts = [first - 1 for first in firsts[1:]] + [metadata.last_entry_id]
    rows = tuple(
        (str(segment.first_entry_id), "" if last is None else str(last), ", ".join(segment.ensemble))
        for segment, last in zip(metadata.segments, lasts, strict=True)
    )
    columns = (Column("from entry", right=True), Column("to entry", right=True), Column("bookies", whole=False))
    return Table(columns, rows, empty="No bookies.")


def _data(found: Explanation) -> dict[str, Any]:
    reading = found.reading
    stored = reading if isinstance(reading, StoredLedger) else None
    return {
        "ledger_id": reading.ledger_id,
        "present": None if isinstance(reading, UnreadableLedger) else stored is not None,
        **(_stored_data(stored) if stored else dict.fromkeys(("path", "version", "created_at", "metadata"))),
        **reference_data(found),
        "outcome": found.outcome,
        "verdict": found.verdict,
        "reason": found.reason,
    }


def _stored_data(stored: StoredLedger) -> dict[str, Any]:
    return {
        "path": stored.path,
        "version": stored.version,
        "created_at": stored.metadata.ctime_ms or stored.created_ms,
        "metadata": _metadata_data(stored.metadata),
        **({"bookie_clusters": [_place_data(place) for place in stored.places]} if stored.bookie_cluster else {}),
    }


def _place_data(place: StoredLedger) -> dict[str, Any]:
    return {
        "name": place.bookie_cluster,
        "path": place.path,
        "version": place.version,
        "unfinished_copy": is_unfinished(place.metadata),
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
