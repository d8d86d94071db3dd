"""The sweep and follow on a cluster of Spark machines that fail: each mark is accounted for after every act.

The workers have folders, Python environments and users of their own, and share the journal with the driver.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bookwarden.pipelines import archive
from bookwarden_dev.devcluster import DevCluster
from servers import executor_gates
from servers.pool import PLAIN, SECURED
from servers.short_lived import running_until_killed
from servers.spark_cluster import SparkCluster, why_no_other_users
from servers.spark_storm import follows, sweeps
from servers.spark_storm.stage import CHECKOUT, Stage

_ACTS = {
    "plain": "every mark is settled, once",
    "journal": "executors killed after the journal: every mark is settled, once",
    "delete": "executors killed after the delete: every mark is settled, once",
    "sends": "executors killed after the sends, before the record of them: at most the sends of a step are done twice",
    "record": "executors killed after that record: every mark is settled, once",
    "retry": "tasks that Spark ran again: every mark is settled, once",
    "speculation": "two attempts at a task at the same time: every ledger is deleted, none that lives",
    "driver": "drivers killed, and started on the same checkpoint: every mark is settled",
    "second": "a second driver is refused, and every mark settled, once",
    "dynamic": "executors that come later keep to the limit of requests",
    "secured": "with tokens, TLS and ACLs an executor killed after the journal: every mark is settled, once",
    "follow": "with the same, executors of follow killed: every drop is marked, once",
}
_SECURED = ("secured", "follow")


def main() -> int:
    """Play the acts, as `make soak STORM=spark` does; AssertionError where a mark is not accounted for."""
    parser = argparse.ArgumentParser(prog="python -m servers.spark_storm.soak", description=__doc__)
    parser.add_argument("--marks", type=int, default=20_000, help="of each act")
    parser.add_argument("--kills", type=int, default=3, help="of each act that kills")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--acts", nargs="+", choices=_ACTS, default=list(_ACTS))
    asked = parser.parse_args()
    # What stores and clients say while their servers are away.
    for name in ("pulsar", "bookwarden", "kazoo"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # It stays if anything fails, with all logs.
    home = Path(tempfile.mkdtemp(prefix="bookwarden-soak-"))
    home.chmod(0o755)
    _say(f"seed {asked.seed}, servers in {home}")
    why = why_no_other_users()
    _say("each worker has a user of its own" if why is None else f"all processes have the caller's user: {why}")
    packages = _unpacked(home / "archive")
    spark = SparkCluster(
        home / "spark",
        packages,
        cores=2,
        worker_memory="1536m",
        users=why is None,
        customize=Path(executor_gates.__file__),
    )
    with spark:
        for options, acts in (
            (PLAIN, [act for act in asked.acts if act not in _SECURED]),
            (SECURED, [act for act in asked.acts if act in _SECURED]),
        ):
            if acts:
                with ExitStack() as running:
                    folder = home / f"pulsar-{options.auth}"
                    pulsar = running.enter_context(running_until_killed(DevCluster(folder, options)))
                    _play(Stage(home, pulsar, spark, asked.marks, asked.seed, _say), acts, asked.kills)
    shutil.rmtree(home)
    return 0


def _unpacked(folder: Path) -> Path:
    """Make the archive of this checkout, and unpack it."""
    output = folder / "bookwarden-env.tar.gz"
    assert archive.main(["--checkout", str(CHECKOUT), "--output", str(output)]) == 0
    with tarfile.open(output) as members:
        members.extractall(folder / "env")
    return folder / "env"


def _play(stage: Stage, acts: list[str], kills: int) -> None:
    plays: dict[str, Callable[[], None]] = {
        "plain": lambda: sweeps.plain(stage),
        **{
            point: lambda point=point: sweeps.kill(stage, point, kills)  # type: ignore[misc]
            for point in executor_gates.POINTS
        },
        "retry": lambda: sweeps.retry(stage, kills),
        "speculation": lambda: sweeps.speculation(stage),
        "driver": lambda: sweeps.driver(stage, kills),
        "second": lambda: sweeps.second(stage),
        "dynamic": lambda: sweeps.dynamic(stage),
        "secured": lambda: sweeps.kill(stage, "journal", 1, act="secured"),
        "follow": lambda: follows.follow(stage, kills),
    }
    if stage.pulsar.options.zookeeper_digest:
        stage.pulsar.protect_metadata()
    for act, play in plays.items():
        if act in acts:
            begun = time.monotonic()
            play()
            _say(f"{act}: {_ACTS[act]} ({time.monotonic() - begun:.0f} s)")


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
