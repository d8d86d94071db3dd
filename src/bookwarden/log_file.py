"""The log file of a long-running process: everything, whatever the terminal shows."""

from __future__ import annotations

import logging
import sys
from logging.handlers import WatchedFileHandler

from bookwarden.errors import FileError

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogFile(WatchedFileHandler):
    """Appends to a file, a new one where the former was moved away; one that cannot be written ends no work."""

    def __init__(self, path: str, level: int) -> None:
        """Open the file; raise FileError where it cannot be written."""
        try:
            super().__init__(path, encoding="utf-8")
        except OSError as error:
            raise FileError(f"log.file {path} cannot be written: {error.strerror}; name another, or none") from error
        self.setLevel(level)
        self.setFormatter(logging.Formatter(LOG_FORMAT))
        self._has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Write once what is wrong; logging would print a stack trace for each line."""
        error = sys.exc_info()[1]
        if not self._has_failed:
            reason = error.strerror if isinstance(error, OSError) else error
            sys.stderr.write(f"bookwarden: log.file {self.baseFilename} cannot be written: {reason}; it goes on\n")
        self._has_failed = True

    def flush(self) -> None:
        """Write what is in the buffer; at the end of the process a full disk is no error of its own."""
        try:
            super().flush()
        except OSError:
            if not self._has_failed:
                self.handleError(logging.makeLogRecord({}))
