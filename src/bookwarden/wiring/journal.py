"""Wiring of the journal, and of the record of sent messages beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bookwarden.config import SweepSettings
from bookwarden.deletion.journal.reading import JournalDamage, JournalFolder, JournalReader
from bookwarden.deletion.journal.writing import FileJournal, ObjectJournal
from bookwarden.deletion.phase_two.sent_on import FileSentRecords, ObjectSentRecords
from bookwarden.errors import MissingExtraError

if TYPE_CHECKING:
    from bookwarden.clusters.journal_objects import S3Objects


def journal_of(sweep: SweepSettings) -> FileJournal | ObjectJournal:
    """Make this process's writer of the journal; it opens a file, or connects, at its first record."""
    if "://" in sweep.journal:
        return ObjectJournal(_journal_objects(sweep.journal))
    return FileJournal(Path(sweep.journal), keep_days=sweep.journal_retention_days)


def sent_records_of(sweep: SweepSettings) -> FileSentRecords | ObjectSentRecords:
    """Make this process's record of sent messages, beside the journal."""
    journal = sweep.journal
    return ObjectSentRecords(_journal_objects(journal)) if "://" in journal else FileSentRecords(Path(journal) / "sent")


def journal_reader_of(sweep: SweepSettings, damaged: Callable[[JournalDamage], object] | None = None) -> JournalReader:
    """Return access to the whole journal; ``damaged`` is called with damaged places in it."""
    journal = sweep.journal
    return JournalReader(_journal_objects(journal) if "://" in journal else JournalFolder(Path(journal)), damaged)


def _journal_objects(location: str) -> S3Objects:
    try:
        from bookwarden.clusters.journal_objects import S3Objects
    except ImportError as error:
        raise MissingExtraError(f"sweep.journal {location} needs a library: pip install 'bookwarden[s3]'") from error
    return S3Objects(location)
