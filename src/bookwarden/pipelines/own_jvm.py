"""The JVM of a Spark that this process starts itself: its temporary files, its output, its end with its children.

Spark's own lines begin as log4j2.properties next to this module has it, and go to the logger ``spark``. So does what
Java prints, and stack traces. What is left are the lines of Python workers, which are ours.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from bookwarden.pipelines.class_archive import ClassArchive
from bookwarden.processes import ProcessIdentity, command_line, descendants, identify
from bookwarden.signals import interrupts_held_back

logger = logging.getLogger(__name__)


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
_JVM_SECONDS = 30.0
_WORKERS_SECONDS = 2.0
_POLL_SECONDS = 0.05


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


@dataclass(frozen=True, slots=True)
class OwnJvm:
    """A folder for all temporary files of a JVM, and its output; None where the JVM is not ours."""

    folder: str | None
    output: JvmOutput | None = None
    options: tuple[str, ...] = ()  #: Further options of Java.

    @property
    def properties(self) -> dict[str, str]:
        """The Spark properties for its start."""
        if self.folder is None:
            return {}
        # Java writes its performance data to /tmp/hsperfdata_* in spite of its properties.
        log = f"-Dlog4j2.configurationFile={LOG_CONFIGURATION.as_uri()}"
        options = (f"-Djava.io.tmpdir={self.folder}", "-XX:-UsePerfData", log, *self.options)
        java = " ".join(f'"{option}"' for option in options)
        return {"spark.local.dir": self.folder, "spark.driver.defaultJavaOptions": java}

    def launch(self, properties: Mapping[str, str]) -> None:
        """Start the JVM with these Spark properties; its output is for Python's log, where PySpark gives it our own."""
        if self.output is None:
            return
        configuration = SparkConf()
        configuration.setAll(list(properties.items()))
        try:
            with interrupts_held_back():
                gateway: Any = launch_gateway(  # type: ignore[no-untyped-call]  # of PySpark
                    configuration, {"stdout": self.output.file, "stderr": self.output.file}
                )
        finally:
            self.output.started()
        SparkContext._ensure_initialized(gateway=gateway)

    def started(self, spark: SparkSession) -> None:
        """Make the JVM remove the folder if this process is killed: it then ends in order, and last."""
        if self.folder is not None:
            context: Any = spark.sparkContext
            context._jvm.java.io.File(self.folder).deleteOnExit()
            # It prints a trace where the JVM was killed.
            context._accumulatorServer.handle_error = _log_lost_accumulators


def _log_lost_accumulators(*_: object) -> None:
    logger.debug("Spark's JVM sends no accumulators any more", exc_info=True)


@contextmanager
def own_jvm(archive: ClassArchive | None = None) -> Iterator[OwnJvm]:
    """Own the JVM of a Spark that is started in the block, and stopped before its end.

    ``archive`` is of the classes that the JVM loads. After the block the JVM and its workers have ended, and its
    temporary files are removed. A JVM that this process already has is left alone, as is that of spark-submit.
    """
    if SparkContext._gateway is not None:
        yield OwnJvm(None)
        return
    folder = tempfile.mkdtemp(prefix="bookwarden-spark-")
    output = JvmOutput()
    try:
        yield OwnJvm(folder, output, archive.options if archive else ())
    finally:
        ended_well = _end_jvm(folder)
        output.ended(_WORKERS_SECONDS)
        if archive is not None:
            archive.keep(ended_well=ended_well)
        shutil.rmtree(folder, ignore_errors=True)


def _end_jvm(folder: str) -> bool:
    """End the JVM; return whether it ended by itself and well."""
    gateway: Any = SparkContext._gateway
    jvm: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if jvm is None:
        _end_start(folder)
        return False
    # The next Spark of this process starts another.
    SparkContext._gateway = SparkContext._jvm = None
    started = [found for pid in descendants(jvm.pid) if pid != jvm.pid and (found := identify(pid))]
    with contextlib.suppress(Exception):
        gateway.shutdown()
    if jvm.stdin is not None:
        # It exits at the end of its input.
        with contextlib.suppress(OSError):
            jvm.stdin.close()
    try:
        jvm.wait(_JVM_SECONDS)
    except subprocess.TimeoutExpired:
        logger.warning("Spark's JVM (process %d) does not end by itself and is killed", jvm.pid)
        jvm.kill()
        jvm.wait()
    _end_workers(started)
    return jvm.returncode == 0


def _end_start(folder: str) -> None:
    """Kill a JVM whose start was interrupted, and the programs that start it: their command lines name the folder.

    PySpark has forgotten it, and removed the place where it would write its port: it fails at that, before it looks
    for the end of its input, and its server of requests stays for ever.
    """
    own = os.getpid()
    started = [found for pid in descendants(own) if pid != own and (found := identify(pid))]
    for process in started:
        if folder in command_line(process.pid):
            process.signal(signal.SIGKILL)


def _end_workers(workers: Sequence[ProcessIdentity]) -> None:
    """Wait some time for the workers, which notice the end of their JVM at their next request, then kill them."""
    deadline = time.monotonic() + _WORKERS_SECONDS
    while any(worker.is_alive() for worker in workers) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for worker in workers:
        worker.signal(signal.SIGKILL)
