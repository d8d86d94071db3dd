"""A Spark that a process starts for itself leaves neither processes nor files, however the process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bookwarden.processes import descendants, identify
from servers.waiting import eventually

pytestmark = pytest.mark.slow

# Snappy's native library is unpacked by the JVM, and the rows go through a Python worker.
RUNS = """
import sys
from bookwarden.config import load_settings
from bookwarden.pipelines.sweep_driver import running_session
with running_session(load_settings(None), local=True) as spark:
    rows = spark.range(10).mapInArrow(lambda batches: batches, "id long")
    rows.write.option("compression", "snappy").parquet(sys.argv[1])
    print("written", flush=True)
    sys.stdin.readline()
print("ended", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_spark_of_our_own_leaves_nothing(tmp_path: Path, killed: bool) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    # Java knows no TMPDIR, but takes from here what its command line does not say.
    environment = {**os.environ, "TMPDIR": str(temporary), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}"}
    command = [sys.executable, "-c", RUNS, str(tmp_path / "rows")]
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout
            assert process.stdin
            assert process.stdout.readline() == b"written\n"
            (folder,) = temporary.iterdir()
            assert any("snappy" in path.name for path in folder.iterdir())
            started = [identify(pid) for pid in descendants(process.pid)[1:]]
            assert len(started) > 1
            if killed:
                process.send_signal(signal.SIGKILL)
                eventually(lambda: not any(one and one.is_alive() for one in started), 60)
            else:
                process.stdin.write(b"\n")
                process.stdin.flush()
                assert process.stdout.readline() == b"ended\n"
                assert not any(one and one.is_alive() for one in started)
            assert list(temporary.iterdir()) == []
        finally:
            process.kill()
