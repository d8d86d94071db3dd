"""A process that copies ledgers between two registered clusters; it tells each result, and can be killed."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from bookwarden.bookie_clusters.moving.scope import Route
from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits
from bookwarden.config import load_settings
from bookwarden.pipelines.copying.stages import copier_of
from bookwarden.wiring.cluster import Cluster


def say(line: str) -> None:
    """Tell a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--bytes-per-second", type=float)
    parser.add_argument("names", nargs=2)
    asked = parser.parse_args()
    values: dict[str, Any] = dict(word.partition("=")[::2] for word in asked.set)
    ledger_ids = json.load(sys.stdin)
    limits = CopyLimits(bytes_per_second=asked.bytes_per_second)
    with Cluster(load_settings(None, values)) as context:
        say("copying")
        for result in copier_of(context, Route(*asked.names), limits=limits).copy(ledger_ids):
            say(json.dumps([result.ledger_id, result.outcome.value, result.reason]))


if __name__ == "__main__":
    main()
