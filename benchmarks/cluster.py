"""A Pulsar of a benchmark's own, in a temporary folder, gone when the benchmark ends or is interrupted."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.results import say
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.config import Settings, load_settings
from bookwarden.signals import sigterm_unwinds
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.pulsar import connection_of
from bookwarden_dev.commands.dev import settings_of
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from bookwarden_dev.devcluster.temporary import temporary_files_in

# Ledgers that were made a moment ago must not wait for the grace of ledgers that were made a moment ago.
_SECTIONS: dict[str, dict[str, Any]] = {"deletion": {"unlisted_grace_seconds": 0.0}, "spark": {"master": "local[2]"}}


@dataclass(frozen=True)
class Site:
    """A running cluster, the settings to work on it, and the file that has them."""

    cluster: DevCluster
    settings: Settings
    settings_file: Path

    @property
    def admin(self) -> PulsarAdmin:
        """A client of the admin REST."""
        return PulsarAdmin(connection_of(self.settings.pulsar))


@contextmanager
def running_site(sections: Mapping[str, Mapping[str, Any]] | None = None) -> Iterator[Site]:
    """Start a cluster with the deletion topics on it; `sections` override the settings of a benchmark."""
    options = ClusterOptions(throughput=True, log_level="warn")
    with temporary_home() as home, sigterm_unwinds(), DevCluster(home, options, progress=say) as cluster:
        path = home / "bookwarden.yaml"
        path.write_text(yaml.safe_dump(_merged(settings_of(cluster), _SECTIONS, sections or {})), encoding="utf-8")
        site = Site(cluster, load_settings(path), path)
        with Cluster(site.settings) as opened:
            topics = opened.deletion_topics
            topics.setup().run()
        yield site
        say("stopping everything")


def _merged(*layers: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for section, values in layer.items():
            merged.setdefault(section, {}).update(values)
    return merged


@contextmanager
def temporary_home() -> Iterator[Path]:
    """A folder for servers, gone afterwards; settings come from no environment any more."""
    for variable in [name for name in os.environ if name.startswith("BOOKWARDEN_") and name != "BOOKWARDEN_CACHE"]:
        # Settings that were exported for a real cluster must not reach this one.
        del os.environ[variable]
    home = Path(tempfile.mkdtemp(prefix="bookwarden-bench-"))
    try:
        with temporary_files_in(home / "tmp"):
            yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)
