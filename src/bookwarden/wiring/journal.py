"""Wiring of the journal, and of the record of sent messages next to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bookwarden.config import SweepSettings
from bookwarden.deletion.journal.reading import JournalDamage, JournalFolder, JournalReader
from bookwarden.deletion.journal.writing import DriverFile, FileJournal, ObjectJournal
from bookwarden.deletion.phase_two.sent_on import FileSentRecords, ObjectSentRecords
from bookwarden.errors import MissingExtraError

if TYPE_CHECKING:
    from bookwarden.clusters.journal_objects import S3Objects


def journal_of(
    sweep: SweepSettings, *, store_clock: Callable[[], float] | None = None, driver_file: str = ""
) -> FileJournal | ObjectJournal:
    """Make this process's writer of the journal; it opens a file, or connects, at its first record.

    Old files are deleted by ``store_clock`` alone, the time of the metadata store, and so none without it.
    ``driver_file`` is what `DriverFile.write` returned in the driver; without it this process need prove nothing.
    """
    if "://" in sweep.journal:
        return ObjectJournal(journal_objects_of(sweep.journal))
    keep_days = None if store_clock is None else sweep.journal_retention_days
    return FileJournal(
        Path(sweep.journal), keep_days=keep_days, clock=store_clock or time.time, driver_file=driver_file
    )


def driver_file_of(sweep: SweepSettings) -> DriverFile | None:
    """Make the driver's file in the journal's folder; None where its workers need not see the same folder."""
    if "://" in sweep.journal or sweep.journal_per_machine or sweep.dry_run:
        return None
    return DriverFile(Path(sweep.journal))


def sent_records_of(sweep: SweepSettings) -> FileSentRecords | ObjectSentRecords:
    """Make this process's record of sent messages, next to the journal."""
    journal = sweep.journal
    return (
        ObjectSentRecords(journal_objects_of(journal)) if "://" in journal else FileSentRecords(Path(journal) / "sent")
    )


def journal_reader_of(
    sweep: SweepSettings, damaged: Callable[[JournalDamage], object] | None = None, *, since_ms: int = 0
) -> JournalReader:
    """Return access to the journal, all or what is since then; ``damaged`` is called with damaged places in it."""
    journal = sweep.journal
    source = journal_objects_of(journal) if "://" in journal else JournalFolder(Path(journal))
    return JournalReader(source, damaged, since_ms=since_ms)


def journal_objects_of(location: str) -> S3Objects:
    """Make the access to a journal in an object store; MissingExtraError where its library is not installed."""
    try:
        from bookwarden.clusters.journal_objects import S3Objects
    except ImportError as error:
        raise MissingExtraError(f"sweep.journal {location} needs a library: pip install 'bookwarden[s3]'") from error
    return S3Objects(location)
