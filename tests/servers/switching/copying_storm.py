"""Copies the ledgers of topics to the other bookie cluster while the copier and bookies are killed, and topics change.

What is killed, and when, comes from a seed; how far a copier is then does not.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.java import find_java
from bookwarden.ledgers.custom_metadata import is_unfinished
from bookwarden.ledgers.metadata import LedgerState
from bookwarden_dev.demo.ledger_places import ledgers_of_topic
from bookwarden_dev.devcluster.releases.distribution import ensure_distribution
from bookwarden_dev.devcluster.servers.java import java_command
from servers.switching.copying_process import say
from servers.switching.shared_site import ONE_BROKER
from servers.switching.site import SwitchingSite, switching_site
from servers.topic_contents import read_back, send
from servers.waiting import eventually

_CONTENTS: Final = Path(__file__).parents[2] / "java/LedgerContents.java"
_MESSAGES: Final = 650
# Of those that are planted, so that a copier is at work for a minute.
_BYTES_PER_SECOND: Final = 3_000
# Twice what passes until the first copies are closed: some copiers are killed before that, some after.
_AT_WORK_S: Final = 12.0


def storm(site: SwitchingSite, kills: int, seed: int, tell: Callable[[str], object]) -> None:
    """Play it; AssertionError if a message is lost, or a copy is anything but the ledger."""
    moments = random.Random(seed)
    site.register("b")
    site.wait_until_followed()
    kept, trimmed, deleted = topics = site.new_topics(3)
    with closing(site.connection.client()) as client:
        for topic in topics:
            send(client, topic, _MESSAGES)
        assert site.command("switch", "--target", "b", "--yes")["phase"] == "DONE"
        for topic in topics:
            site.admin.put(f"{topic_path(topic)}/unload")
            # The last ledger of each is made on b.
            send(client, topic, 1)
        # What nobody unloads is open on a: topics of the system above all.
        site.command("unload", "--yes")
        of_topic = {topic: ledgers_of_topic(site.store, topic) & site.places().by_cluster["a"] for topic in topics}
        closed = {ledger_id for ledger_id, each in site.ledgers_of("a").items() if each.state is LedgerState.CLOSED}
        wanted = sorted(closed)
        assert closed >= set().union(*of_topic.values())
        tell(f"{len(wanted)} ledgers to copy, seed {seed}")
        for number in range(kills):
            if number == kills // 2:
                site.admin.delete(topic_path(deleted), params={"force": "true"})
            found = _killed(site, wanted, moments.uniform(0.0, _AT_WORK_S), _victim(site, number))
            whole = {ledger_id for ledger_id, each in site.ledgers_of("b").items() if not is_unfinished(each)} & closed
            tell(f"kill {number + 1}: {len(found)} results before it, {len(whole)} copies whole")
        bookies = site.servers.clusters["b"].bookies.values()
        for bookie in bookies:
            if not bookie.is_running():
                bookie.start()
        eventually(lambda: len(site.writable_bookies("b")) == len(bookies), 60)
        with copying(site, wanted, None) as last:
            results = _results(last.communicate(json.dumps(wanted), timeout=120)[0])
        tell(f"the last one: {results}")
        left = {ledger_id: told for ledger_id, told in results.items() if told[0] not in ("copied", "complete")}
        gone = of_topic[deleted]
        assert {ledger_id: told for ledger_id, told in left.items() if told[0] != "gone"} == {}
        assert set(left) >= gone
        assert set(left).isdisjoint(of_topic[kept] | of_topic[trimmed])
        eventually(lambda: not gone & (site.places().by_cluster["a"] | site.places().by_cluster["b"]), 60)
        copies = sorted(set(wanted) - set(left))
        found_in = [contents(site, name, copies) for name in "ab"]
        assert found_in[0] == found_in[1]
        # Brokers that find everything anew, with nothing of a to read from.
        for process in site.servers.clusters["a"].processes:
            process.kill()
        site.kill_brokers((kept, trimmed))
        sent = [*(str(number).encode() for number in range(_MESSAGES)), b"0"]
        for topic in (kept, trimmed):
            assert read_back(client, topic) == sent


def _victim(site: SwitchingSite, number: int) -> str | None:
    """Choose a bookie of b to be killed with every second copier; at most one of them is down."""
    cluster = site.servers.clusters["b"]
    for process in cluster.bookies.values():
        if not process.is_running():
            process.start()
    eventually(lambda: len(site.writable_bookies("b")) == len(cluster.bookies), 60)
    return sorted(cluster.bookies)[number % len(cluster.bookies)] if number % 2 else None


def copying(site: SwitchingSite, wanted: Sequence[int], limit: float | None) -> subprocess.Popen[str]:
    """Start a copier from a to b; it waits for the ids of the ledgers on its input."""
    limits = [] if limit is None else ["--bytes-per-second", str(limit)]
    command = [sys.executable, "-m", "servers.switching.copying_process", *site.options, *limits, "a", "b"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )


def _killed(site: SwitchingSite, wanted: Sequence[int], seconds: float, victim: str | None) -> Mapping[int, object]:
    """Copy, and kill the copier after some seconds at work, and a bookie half-way to that; return what it told."""
    process = copying(site, wanted, _BYTES_PER_SECOND)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(list(wanted)))
    process.stdin.close()
    lines: list[str] = []
    begun = process.stdout.readline()
    assert begun == "copying\n"
    reading = threading.Thread(target=lambda: lines.extend(process.stdout or ()))
    reading.start()
    time.sleep(seconds / 2)
    if victim is not None:
        site.servers.clusters["b"].bookies[victim].kill()
    time.sleep(seconds / 2)
    process.kill()
    process.wait()
    reading.join()
    process.stdout.close()
    return _results("".join(lines))


def _results(text: str) -> dict[int, tuple[str, str]]:
    """Parse what a copier told; the last line may be cut off."""
    whole = [line for line in text.splitlines(keepends=True) if line.startswith("[") and line.endswith("\n")]
    return {ledger_id: (outcome, reason) for ledger_id, outcome, reason in map(json.loads, whole)}


def contents(site: SwitchingSite, name: str, ledger_ids: Sequence[int]) -> list[str]:
    """Read ledgers of a cluster with BookKeeper's own client: last entry, length and sum of all payloads."""
    asked = [f"{ledger_id},CRC32C," for ledger_id in ledger_ids]
    uri = site.servers.clusters[name].metadata_service_uri
    command = java_command(find_java(), ensure_distribution(), str(_CONTENTS), [uri, *asked], heap_mb=256)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = [line for line in ended.stdout.splitlines() if line.startswith("contents ")]
    assert len(found) == len(ledger_ids)
    return found


def main() -> int:
    """Play it with many kills, as `make soak STORM=copy` does."""
    parser = argparse.ArgumentParser(prog="python -m servers.switching.copying_storm", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    asked = parser.parse_args()
    logging.getLogger("pulsar").setLevel(logging.CRITICAL)
    # It stays if anything fails, with all logs.
    home = Path(tempfile.mkdtemp(prefix="bookwarden-soak-"))
    with switching_site(home, ONE_BROKER.brokers, ONE_BROKER.clusters) as site:
        storm(site, asked.kills, asked.seed, say)
    shutil.rmtree(home)
    say("nothing was lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
