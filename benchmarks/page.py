"""Requests to the page of `bookwarden serve` after the account of many ledgers, and `disk why` of one topic.

The account and the scan are those of a snapshot of our own making, everything else that the page shows comes from a
running Pulsar. The first request of a page in ten seconds reads and renders, and that after the start connects and
reads the plan besides; later ones are answered from memory. There is no peer; each figure has its aim.
"""

from __future__ import annotations

import http.client
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.cluster import Site, running_site
from benchmarks.options import Options
from benchmarks.processes import cpu_seconds_of, scan_process
from benchmarks.results import Result, publish, quantile, ranged, say
from benchmarks.scan_snapshot import scanned_snapshot
from bookwarden.server.page.cached import EVERY_S
from bookwarden.wiring.pulsar import connection_of
from bookwarden_dev.devcluster import ServerProcess, ServerSpec
from bookwarden_dev.devcluster.ports import free_ports

COUNT = 10_000_000
_ROUNDS = 20
_FROM_MEMORY = 1_000
_TOPIC = "persistent://public/default/orders"
_PATHS = ("/", "/disk", "/disk?tenant=retail-emea", "/scan", "/trash", "/moves", f"/topic?name={_TOPIC}")


def run(options: Options) -> None:
    """Run the benchmark."""
    count, rounds = options.scaled(options.count or COUNT), options.rounds or _ROUNDS
    with tempfile.TemporaryDirectory(prefix="bookwarden-") as folder:
        sections = {name: {"folder": f"{folder}/{name}"} for name in ("disk", "orphans")}
        (port,) = free_ports(1)
        with running_site({**sections, "serve": {"port": port}}) as site:
            _hold_a_topic(site)
            why = [_disk_why(site) for _ in range(max(rounds // 4, 1))]
            _measure(site, Path(folder), count)
            with _serving(site, port) as pid:
                first, cpu_ms = _requests(pid, port, rounds)
    publish(
        f"The page after an account of {count:,} ledgers",
        [
            Result(
                *("first request of a page after it, p95", "s", quantile(first, 95), None, count),
                *("<= 0.3", f"{len(first)} requests, {ranged(first)}"),
            ),
            *(
                Result(f"from memory, {path.partition('=')[0]}", "ms of processor", used, None, _FROM_MEMORY, "<= 2")
                for path, used in cpu_ms.items()
            ),
            Result("disk why of one topic", "s", statistics.median(why), None, len(why), "<= 1", ranged(why)),
        ],
    )


def _hold_a_topic(site: Site) -> None:
    """Make a topic with messages that a subscription holds."""
    with closing(connection_of(site.settings.pulsar).client()) as client:
        client.subscribe(_TOPIC, "billing").close()
        with closing(client.create_producer(_TOPIC)) as producer:
            for number in range(100):
                producer.send(b"order %d" % number)


def _disk_why(site: Site) -> float:
    """Ask what holds the topic; return the seconds from the start of the command to its end."""
    command = [sys.executable, "-m", "bookwarden.cli", "--config", str(site.settings_file), "disk", "why", _TOPIC]
    begun = time.monotonic()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds = time.monotonic() - begun
    if "what to do" not in done.stdout:
        raise RuntimeError(f"disk why does not say what holds the topic:\n{done.stdout}")
    say(f"disk why: {seconds:.2f} s")
    return seconds


def _measure(site: Site, folder: Path, count: int) -> None:
    """Let the account and the scan write what the page shows of so many ledgers."""
    file = scanned_snapshot(folder, count)
    url = f"zk-snapshot:{file}?work={folder}/work"
    with scan_process(site.settings_file) as process:
        for found in (process.disk(url), process.scan(url)):
            if found["ledgers"] != count:
                raise RuntimeError(f"{found['ledgers']} ledgers were read, not {count}")
    file.unlink()


@contextmanager
def _serving(site: Site, port: int) -> Iterator[int]:
    command = [sys.executable, "-m", "bookwarden.cli", "--config", str(site.settings_file), "serve"]
    home = site.settings_file.parent
    server = ServerProcess(ServerSpec("serve", lambda: command, home / "serve.log", lambda _: _answers(port), home))
    server.start()
    try:
        yield server.pid
    finally:
        server.stop()


def _answers(port: int) -> bool:
    try:
        _get(http.client.HTTPConnection("127.0.0.1", port), "/page/page.css")
    except OSError:
        return False
    return True


def _requests(pid: int, port: int, rounds: int) -> tuple[list[float], dict[str, float]]:
    """Return the seconds of each first request, and by path the processor's milliseconds of one from memory."""
    first = []
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        for number in range(rounds + 1):
            # What was read is older then than a page shows: all is read anew, but a plan, which never changes.
            time.sleep(EVERY_S + 1 if number else 0)
            # The server has closed an idle connection by then; the next request opens one.
            connection.close()
            seconds = [_timed(connection, path) for path in _PATHS]
            first += seconds
            say(f"round {number} of {rounds}: first requests " + ", ".join(f"{one:.3f}" for one in seconds) + " s")
        cpu_ms = {}
        for path in _PATHS:
            before = cpu_seconds_of(pid)
            for _ in range(_FROM_MEMORY):
                _get(connection, path)
            cpu_ms[path] = (cpu_seconds_of(pid) - before) / _FROM_MEMORY * 1_000
    return first, cpu_ms


def _timed(connection: http.client.HTTPConnection, path: str) -> float:
    begun = time.monotonic()
    _get(connection, path)
    return time.monotonic() - begun


def _get(connection: http.client.HTTPConnection, path: str) -> None:
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path} was answered with {answer.status}: {content[:200]!r}")
