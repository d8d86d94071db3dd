"""A Spark that a process starts for itself leaves neither processes nor files, however the process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookwarden.config import load_settings
from bookwarden.java import find_java
from bookwarden.pipelines.session import running_session
from bookwarden.processes import ProcessIdentity, descendants, identify
from servers.waiting import eventually

pytestmark = pytest.mark.slow

# Snappy's native library is unpacked by the JVM, and the rows go through a Python worker. With a second argument a
# stream is planned for longer than the test takes.
RUNS = """
import pathlib, sys, time
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from bookwarden.config import load_settings
from bookwarden.pipelines.session import running_session

class Slow(DataSource):
    def schema(self):
        return "id long"

    def streamReader(self, schema):
        return SlowReader(self.options["file"])

class SlowReader(DataSourceStreamReader):
    def __init__(self, file):
        self.file = file

    def initialOffset(self):
        pathlib.Path(self.file).touch()
        time.sleep(600)

    def read(self, partition):
        return iter(())

with running_session(load_settings(None), local=True) as spark:
    rows = spark.range(10).mapInArrow(lambda batches: batches, "id long")
    rows.write.option("compression", "snappy").parquet("rows")
    if len(sys.argv) > 1:
        spark.dataSource.register(Slow)
        planned = spark.readStream.format("Slow").option("file", sys.argv[1]).load()
        query = planned.writeStream.format("noop").option("checkpointLocation", "checkpoint").start()
        while query.isActive and not pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.1)
    print("running", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize(
    ("ending", "arguments"), [(signal.SIGINT, ["planning"]), (signal.SIGKILL, [])], ids=["interrupted", "killed"]
)
def test_a_spark_of_our_own_leaves_nothing(tmp_path: Path, ending: signal.Signals, arguments: list[str]) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    # Java knows no TMPDIR, but takes from here what its command line does not say.
    environment = {**os.environ, "TMPDIR": str(temporary), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}"}
    command = [sys.executable, "-c", RUNS, *arguments]
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"running\n"
            (folder,) = temporary.iterdir()
            assert any("snappy" in path.name for path in folder.iterdir())
            assert all((tmp_path / name).exists() for name in arguments), "the stream failed"
            started = [identify(pid) for pid in descendants(process.pid)[1:]]
            assert len(started) > 1
            process.send_signal(ending)
            process.wait(120)
        finally:
            process.kill()
    if ending is signal.SIGKILL:
        # The JVM sees it at the end of its input, and its workers when they next ask it.
        eventually(lambda: not any(one and one.is_alive() for one in started), 60)
    assert not any(one and one.is_alive() for one in started)
    assert list(temporary.iterdir()) == []


# A java that waits at the start of one program, which by itself may be over before a test sees it.
HOLDING_JAVA = """#!/bin/sh
case "$*" in {begins})
    touch {folder}/starts
    until [ -e {folder}/goes-on ]; do sleep 0.01; done
esac
exec {java} "$@"
"""


LAUNCHER = '*" org.apache.spark.launcher.Main "*'
SUBMIT = '"-cp "*" org.apache.spark.deploy.SparkSubmit "*'


def switches(pid: int) -> int:
    """Count how often a process has waited."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@pytest.mark.parametrize("begins", [LAUNCHER, SUBMIT], ids=["launcher", "submit"])
@pytest.mark.parametrize("is_twice", [False, True], ids=["once", "twice"])
def test_a_spark_whose_start_is_interrupted_leaves_nothing(tmp_path: Path, begins: str, is_twice: bool) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(HOLDING_JAVA.format(begins=begins, folder=tmp_path, java=find_java().executable), encoding="utf-8")
    java.chmod(0o755)
    environment = {
        **os.environ,
        "JAVA_HOME": str(java.parent.parent),
        "TMPDIR": str(temporary),
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}",
    }
    started: list[ProcessIdentity | None] = []
    with subprocess.Popen([sys.executable, "-c", RUNS], env=environment, cwd=tmp_path) as process:
        try:
            eventually((tmp_path / "starts").exists, 60)
            started = [identify(pid) for pid in descendants(process.pid)[1:]]
            assert started
            waited = switches(process.pid)
            process.send_signal(signal.SIGINT)
            # The first has been seen when it waits again; signals of one kind that come together are one.
            eventually(lambda: switches(process.pid) > waited + 2, 15)
            if is_twice:
                process.send_signal(signal.SIGINT)  # While java waits: it takes effect at once.
            else:
                (tmp_path / "goes-on").touch()
            process.wait(60)
            eventually(lambda: not any(one and one.is_alive() for one in started), 15)
        finally:
            (tmp_path / "goes-on").touch()
            process.kill()
            for one in started:
                if one is not None:
                    one.signal(signal.SIGKILL)
    assert list(temporary.iterdir()) == []


TOO_LITTLE = """
from bookwarden.config import load_settings
from bookwarden.errors import SparkError
from bookwarden.pipelines.session import running_session

settings = load_settings(overrides={"spark.conf": "{spark.driver.memory: 448m}"})
try:
    with running_session(settings, local=True):
        pass
except SparkError as error:
    print(error.exit_code, error)
"""


def test_settings_that_spark_does_not_start_with_are_told_in_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", TOO_LITTLE], stdout=subprocess.PIPE, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert line.startswith("11 Spark does not start with these settings (spark.conf): ")
    assert "System memory" in line


def test_a_session_that_runs_already_goes_on(spark: SparkSession) -> None:
    with running_session(load_settings(None), local=True) as taken:
        assert taken is spark
    assert spark.range(3).count() == 3
