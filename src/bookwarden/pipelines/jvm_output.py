"""The output of the JVM of a Spark that this process starts, given to Python's log.

Spark's own lines begin as log4j2.properties next to this module has it, and go to the logger ``spark``. So does what
Java prints, and stack traces. What is left are the lines of Python workers, which are ours.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import deque
from pathlib import Path
from typing import Final

#: Of Spark's own log, for a JVM: -Dlog4j2.configurationFile=...
LOG_CONFIGURATION: Final = Path(__file__).with_name("log4j2.properties")

_spark = logging.getLogger("spark")
_workers = logging.getLogger("bookwarden.workers")

_SPARKS: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\S* (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) (.*)", re.DOTALL)
_LEVELS: Final = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
# The launcher's, the JVM's, and Spark's before its log is set up, or past it.
_JAVAS: Final = re.compile(
    r"WARNING: |OpenJDK |Java HotSpot|Picked up |NOTE: |Using Spark's |Setting (default|Spark) log level |"
    r"To adjust logging level |Loading Spark |:: loading settings|SLF4J|Exception in thread |\d\d/\d\d/\d\d \d\d:"
)
# Lines of stack traces, of Python and Java, in which those of several workers may be mixed.
_TRACES: Final = re.compile(
    r"\s|Traceback \(most recent call last\):|During handling of |The above exception |Caused by: |\.\.\. \d+ more|"
    r"[\w.]*(Error|Exception|KeyboardInterrupt|SystemExit)\b"
)
_KEPT: Final = 5


class JvmOutput:
    """Reads what is written to ``file``, a descriptor for a child's output, line by line, until all writers end."""

    def __init__(self) -> None:
        reading, self.file = os.pipe()
        self._last: deque[str] = deque(maxlen=_KEPT)
        # It ends with the last process that has the pipe, which may be later than this one.
        self._thread = threading.Thread(target=self._pump, args=(reading,), name="jvm-output", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """Close our own end of the pipe, once the child has it; the second time does nothing."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def ended(self, seconds: float) -> None:
        """Wait for the last lines."""
        self.started()
        self._thread.join(seconds)

    @property
    def last(self) -> str:
        """The last line that says something; "" without one."""
        return next((line for line in reversed(self._last) if not _JAVAS.match(line)), "")

    def _pump(self, reading: int) -> None:
        with open(reading, encoding="utf-8", errors="backslashreplace") as lines:
            for line in lines:
                self._tell(line.rstrip())

    def _tell(self, line: str) -> None:
        if not line:
            return
        self._last.append(line)
        found = _SPARKS.match(line)
        if found is not None:
            _spark.log(_LEVELS[found[1]], "%s", found[2])
        elif _TRACES.match(line) or _JAVAS.match(line):
            _spark.info("%s", line)
        else:
            _workers.warning("%s", line)
