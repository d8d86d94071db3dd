"""Ctrl-C on a real `bookwarden mark` in the middle of its sends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bookwarden.exit_codes import INTERRUPTED
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.waiting import eventually

pytestmark = [pytest.mark.servers]

# The command line over more marks than can be sent before the test has seen the first of them arrive.
PROGRAM = """
import signal

import bookwarden.cli.mark
from bookwarden.cli.main import main
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion

marks = [
    PendingDeletion(f"t/n/persistent/{n % 9}", LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, n, marked_at=1)
    for n in range(400_000)
]
# A test that runs in the background of a shell has its children ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
bookwarden.cli.mark.marks_of_ids = lambda *_: marks
bookwarden.cli.mark.refuse_holes = lambda *_: None
main()
"""


def test_ctrl_c_during_the_sends_ends_with_one_line_and_its_exit_code(
    pulsar_cluster: DevCluster, namespace: str, tmp_path: Path
) -> None:
    cluster = pulsar_cluster
    site = DeletionSite.of(cluster, namespace, tmp_path)
    site.create_topics()
    settings = tmp_path / "bookwarden.yaml"
    settings.write_text(yaml.safe_dump(site.settings.model_dump(mode="json")))
    line = [sys.executable, "-c", PROGRAM, "--config", str(settings), "mark", "ledger", "1", "--yes"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            with Cluster(site.settings) as opened:
                topics = opened.deletion_topics
                eventually(lambda: any(behind.entries for behind in topics.entries().values()), 120)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, output) == (INTERRUPTED, ""), errors
    told = re.fullmatch(r"bookwarden: interrupted: ([\d,]+) marks confirmed; nothing left .*\n", errors)
    assert told, errors
    assert 0 < int(told[1].replace(",", "")) < 400_000
