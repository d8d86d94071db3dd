"""Garbage collections of bookies, as these tell of them, and what the journal has as deleted since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from bookwarden.deletion.journal.entries import UndoStep
from bookwarden.deletion.journal.reading import Deletion, SelectedDeletions, Selection
from bookwarden.errors import FileError, FormatError, MissingExtraError, NotFoundError, StoreError
from bookwarden.ledgers.disk_use import BookieUse, disk_bytes, shares
from bookwarden.wire.ledger_metadata import decode_ledger_metadata
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.journal import journal_reader_of


def with_reports(bookies: Sequence[BookieUse], cluster: Cluster) -> tuple[tuple[BookieUse, ...], str]:
    """Return the bookies with all that is known of their collections, and why the journal could not be read, or ""."""
    registered = {one.name: one for one in cluster.bookkeeper.registered()}
    reports = cluster.bookkeeper.reports(list(registered.values()))
    since = {name: one.compacted_ms for name, one in reports.items() if one.compacted_ms is not None}
    deleted, error = Counter[str](), ""
    if since:
        selection = Selection(since_ms=min(since.values()))
        try:
            with closing(journal_reader_of(cluster.settings.sweep, since_ms=min(since.values()))) as journal:
                deleted = deleted_bytes(SelectedDeletions(journal, selection), since)
        except (FileError, FormatError, MissingExtraError, NotFoundError, StoreError) as cause:
            error = str(cause)
    found = tuple(
        one._replace(
            is_read_only=registered[one.name].is_read_only if one.name in registered else None,
            deleted_bytes=None if error or one.name not in since else deleted[one.name],
            report=reports.get(one.name),
        )
        for one in bookies
    )
    return found, error


def deleted_bytes(deletions: Iterable[Deletion], since: Mapping[str, int]) -> Counter[str]:
    """Add up what these ledgers had on each bookie that is given here, if deleted since then (ms), and not restored."""
    sizes = Counter[str]()
    for deletion in deletions:
        if deletion.undone is UndoStep.RESTORED:
            continue
        metadata = decode_ledger_metadata(deletion.entry.raw)
        entries = 0 if metadata.last_entry_id is None else metadata.last_entry_id + 1
        size = disk_bytes(metadata.write_quorum, metadata.length, entries)
        for bookie, part in shares(metadata.segments, entries):
            if bookie in since and deletion.entry.journaled_at >= since[bookie]:
                sizes[bookie] += round(part * size)
    return sizes
