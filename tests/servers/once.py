"""What tests build or fetch once on a machine, several at a time: releases, class archives, Oxia.

Says nothing where all of it is there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from bookwarden_dev.devcluster.releases.cache import Progress
from bookwarden_dev.devcluster.releases.distribution import ensure_distribution
from bookwarden_dev.devcluster.releases.versions import OFFLOADERS_4_0_8, PULSAR
from bookwarden_dev.devcluster.servers.oxia import ensure_oxia
from bookwarden_dev.devcluster.servers.settings import PULSAR_VERSIONS
from bookwarden_dev.devcluster.servers.specs import load_runtime
from servers.class_archives import quick_runtime, quick_spark_options


def _servers(progress: Progress) -> None:
    ensure_distribution(OFFLOADERS_4_0_8, progress=progress)
    for version in PULSAR_VERSIONS:
        quick_runtime(version, progress)
    # Of the oldest: one test starts it, whose cluster is recorded nowhere.
    load_runtime(next(iter(PULSAR)), progress)


# By what a report calls them; those that take longest first.
_BUILDS: Final[dict[str, Callable[[Progress], object]]] = {
    "Oxia": lambda progress: ensure_oxia(progress=progress),
    "Pulsar's releases, and archives of the classes that their servers load": _servers,
    "an archive of the classes that Spark loads": lambda _progress: quick_spark_options(),
}


def main() -> None:
    """Build and fetch what is missing, and report each with how long it took."""
    begin, lines = time.monotonic(), 0

    def told(line: str) -> None:
        nonlocal lines
        lines += 1
        heading = "== what a machine needs once for tests on real servers\n" if lines == 1 else ""
        sys.stdout.write(f"{heading}   {line}\n")
        sys.stdout.flush()

    def build(name: str) -> None:
        began = time.monotonic()
        _BUILDS[name](told)
        # What is there already takes a moment.
        if (seconds := time.monotonic() - began) > 1:
            told(f"{name}: {seconds:.0f} s")

    with ThreadPoolExecutor(len(_BUILDS)) as pool:
        for done in [pool.submit(partial(build, name)) for name in _BUILDS]:
            done.result()
    if lines:
        told(f"all of it is there after {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
