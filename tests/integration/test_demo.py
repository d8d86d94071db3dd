"""The demo as people start it: it ends well, and leaves nothing running however it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from bookwarden.exit_codes import INTERRUPTED
from servers.class_archives import QUICK_BOOKWARDEN
from servers.each_store import on_oxia
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow]

COMMAND = [sys.executable, "-m", "bookwarden.cli"]


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Path]:
    """Where the demo makes its home; nothing that was started there is left after the test."""
    yield tmp_path
    assert processes_naming(str(tmp_path)) == []
    assert [path.name for path in tmp_path.iterdir() if path.name != "demo.log"] == []


def environment(temporary: Path, **more: str) -> dict[str, str]:
    """Give the environment of a machine whose temporary folder this is."""
    # Java knows no TMPDIR, but takes from here what its command line does not say.
    java = {"JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}"}
    return {**os.environ, **java, "TMPDIR": str(temporary), **more}


def processes_naming(text: str) -> list[str]:
    """Find the commands of all processes whose command line or working folder has this in it."""
    return [command for folder in Path("/proc").glob("[0-9]*") if text in (command := _told_of(folder))]


def _told_of(process: Path) -> str:
    try:
        return f"{os.readlink(process / 'cwd')} {(process / 'cmdline').read_bytes().decode(errors='replace')}"
    except OSError:
        # It has ended, or is a zombie.
        return ""


@pytest.mark.parametrize("metadata", [pytest.param("zookeeper", marks=pytest.mark.timeout(900)), on_oxia()])
def test_the_demo_ends_as_it_should(temporary: Path, metadata: str) -> None:
    ended = subprocess.run(
        [*QUICK_BOOKWARDEN, "-o", "json", "demo", "--metadata", metadata],
        capture_output=True,
        text=True,
        check=False,
        # The demo's servers must not be reached by what is meant for other stores.
        env=environment(temporary, AWS_PROFILE="of nobody", http_proxy="http://127.0.0.1:1"),
    )
    assert ended.returncode == 0, ended.stderr
    finale = json.loads(ended.stdout)
    assert finale["store"].lower() == metadata
    archived = [ending for ending in finale["endings"] if ending["ledger"]["in_bucket"]]
    assert [(ending["copy_outcomes"], ending["in_bucket"]) for ending in archived] == [(["deleted"], False), ([], True)]
    # Of the second the topic was loaded again before, which closes a ledger. Oxia cannot be made to refuse a delete.
    for story, ledgers in (("broker killed at a trim", 2), ("the same, with marks off", 3)):
        dropped = [ending["outcomes"] for ending in finale["endings"] if ending["fate"]["story"] == story]
        assert dropped == ([["deleted"]] * ledgers if metadata == "zookeeper" else [])
    undone = [ending for ending in finale["endings"] if ending["undone"]]
    assert [(ending["outcomes"][-1], ending["undone"]) for ending in undone] == [("deleted", "restored")]
    assert finale["restored"] == {str(undone[0]["ledger"]["ledger_id"]): [20, 20]}
    assert finale["readable"]["archive"] == [30, 30]


@pytest.mark.timeout(600)
def test_an_interrupted_demo_leaves_nothing_running(temporary: Path) -> None:
    log = temporary / "demo.log"
    with (
        log.open("wb") as output,
        subprocess.Popen([*COMMAND, "demo"], env=environment(temporary), stdout=output, stderr=output) as process,
    ):
        # The object store runs by then, and the other servers are being started.
        eventually(lambda: "starting bookie and broker" in log.read_text(encoding="utf-8"), 240)
        assert any("moto.server" in command for command in processes_naming(str(temporary)))
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == INTERRUPTED, log.read_text(encoding="utf-8")[-3000:]


@pytest.mark.timeout(600)
def test_the_page_of_a_demo_shows_its_cluster_until_ctrl_c(temporary: Path) -> None:
    log = temporary / "demo.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            # As from a terminal: a shell that runs the tests in its background has SIGINT ignored.
            ["env", "--default-signal=INT", *COMMAND, "demo"],
            env=environment(temporary),
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as process,
        urllib3.PoolManager(retries=False, timeout=30.0) as http,
    ):
        (address,) = eventually(
            lambda: re.findall(r"the web page of this cluster, until the demo ends: (\S+)", log.read_text("utf-8")), 240
        )

        def shows_all() -> bool:
            parts = json.loads(http.request("GET", f"{address}page/overview.json").data)
            return all(parts[name]["read_ms"] and not parts[name]["error"] for name in ("queues", "store", "activity"))

        # The topics of deletion are made by the story.
        eventually(shows_all, 120)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == INTERRUPTED, log.read_text(encoding="utf-8")[-3000:]
        with pytest.raises(urllib3.exceptions.HTTPError):
            http.request("GET", address)
    said = log.read_text(encoding="utf-8")
    assert "Traceback" not in said
