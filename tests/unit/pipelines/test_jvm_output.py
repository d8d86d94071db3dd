"""What a JVM and its Python workers print is told apart: ours is shown, the rest is for who looks for a cause."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bookwarden.cli.shell.invocation import Invocation, LogFile
from bookwarden.cli.shell.steps import pace_text
from bookwarden.errors import FileError
from bookwarden.pipelines.own_jvm import LOG_CONFIGURATION, JvmOutput

CHECKOUT = Path(__file__).parents[3]
PRINTED = """\
WARNING: Using incubator modules: jdk.incubator.vector
2026-11-27T19:09:43.123Z WARN Utils: Your hostname, vm, resolves to a loopback address
2026-11-27T19:09:43.123+01:00 ERROR Executor: Exception in task 0.0 org.apache.X: y | at a.B(C.java:1)
a mark was not as its ledger says: ledger 7
Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
    split_index = read_int(infile)
EOFError
During handling of the above exception, another exception occurred:
Traceback (most recent call last):
py4j.protocol.Py4JNetworkError: Answer from Java side is empty
OpenJDK 64-Bit Server VM warning: Options conflict
Exception in thread "main" java.lang.IllegalStateException: no
\tat a.B.c(D.java:7)
Caused by: java.io.IOException: away
"""


def tell(text: str) -> JvmOutput:
    output = JvmOutput()
    os.write(output.file, text.encode())
    output.ended(10)
    return output


def test_lines_of_spark_java_and_traces_are_told_from_those_of_our_workers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        tell(PRINTED)
    ours = [record for record in caplog.records if record.name != "spark"]
    assert [(one.name, one.levelname, one.message) for one in ours] == [
        ("bookwarden.workers", "WARNING", "a mark was not as its ledger says: ledger 7")
    ]
    levels = [record.levelname for record in caplog.records if record.name == "spark"]
    assert (levels.count("WARNING"), levels.count("ERROR")) == (1, 1)


def test_what_the_jvm_said_last_is_known_where_it_does_not_start() -> None:
    assert tell(
        "WARNING: x\nError: Could not find or load main class org.X\nPicked up JAVA_TOOL_OPTIONS: y\n"
    ).last == ("Error: Could not find or load main class org.X")


def test_the_pattern_of_sparks_log_is_the_one_that_is_known_here() -> None:
    pattern = re.search(r"^appender.console.layout.pattern = (.*)$", LOG_CONFIGURATION.read_text(), re.MULTILINE)
    assert pattern is not None
    # One line for each event, whatever its message and stack trace.
    assert pattern[1].startswith("%d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX} %p %c{1}: %enc{%m}{CRLF}")
    assert "separator( | )" in pattern[1]
    assert (CHECKOUT / "conf" / "log4j2.properties").resolve() == LOG_CONFIGURATION


def logged(capsys: pytest.CaptureFixture[str], *, verbose: bool) -> str:
    Invocation(verbose=verbose).set_up_logging(logging.INFO)
    for name in ("bookwarden.x", "spark", "py4j.clientserver", "root", "kazoo.client"):
        logging.getLogger(name).error("%s says", name)
    # As py4j does it when the JVM has ended.
    logging.info("Exception while sending command.", exc_info=ValueError("empty"))
    return capsys.readouterr().err


def test_only_our_own_lines_are_shown_unless_more_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = logged(capsys, verbose=False)
    assert re.fullmatch(r"\S+ \S+ ERROR bookwarden.x: bookwarden.x says\n", quiet)
    told = logged(capsys, verbose=True)
    assert "ERROR spark: spark says" in told
    assert "Exception while sending command" in told


def test_a_log_file_has_what_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log"
    invocation = Invocation(overrides={"log.file": str(file)})
    invocation.set_up_logging()
    logging.getLogger("bookwarden.x").error("before the settings are known")
    assert invocation.settings.log.file == str(file)
    invocation.set_up_logging()
    logging.getLogger("bookwarden.x").info("a batch")
    logging.getLogger("spark").warning("a warning")
    assert re.sub(r"^\S+ \S+ ", "", file.read_text(), flags=re.MULTILINE) == (
        "INFO bookwarden.x: a batch\nWARNING spark: a warning\n"
    )
    assert "a batch" not in capsys.readouterr().err
    # The handlers of the next set-up take the place of these, which are closed.
    Invocation().set_up_logging()


def test_a_log_file_that_cannot_be_made_ends_the_command(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"log.file .* cannot be written: No such file or directory"):
        LogFile(str(tmp_path / "no" / "log"), logging.INFO)


FILLS = """
import logging
from bookwarden.cli.shell.invocation import LogFile
logging.basicConfig(level=logging.INFO, handlers=[LogFile("/dev/full", logging.INFO)])
logging.info("one")
logging.info("two")
print("goes on")
"""


def test_a_log_file_on_a_full_disk_is_one_line_and_ends_no_work() -> None:
    done = subprocess.run([sys.executable, "-c", FILLS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert done.stderr == "bookwarden: log.file /dev/full cannot be written: No space left on device; it goes on\n"


@pytest.mark.parametrize(
    ("done", "total", "seconds", "text"),
    [
        (0, 10, 5.0, ""),
        (1_000, 3_000, 10.0, ", 100/s, about 20 s left"),
        (10, 10_000, 10.0, ", 1/s, about 2.8 h left"),
        (1_000, 100_000, 10.0, ", 100/s, about 16 min left"),
        (12, 10, 6.0, ", 2/s, about 0 s left"),
    ],
)
def test_progress_has_its_rate_and_the_time_left(done: int, total: int, seconds: float, text: str) -> None:
    assert pace_text(done, total, seconds) == text
