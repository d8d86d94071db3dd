"""Brokers of releases that a development cluster has not, next to its other servers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from bookwarden.errors import ServerError
from bookwarden_dev.devcluster import DevCluster
from bookwarden_dev.devcluster.releases.cache import ensure_entry
from bookwarden_dev.devcluster.releases.distribution import fetch_jars_with_maven, fetch_with_maven
from bookwarden_dev.devcluster.releases.versions import Release, ResolvedRelease
from bookwarden_dev.devcluster.servers.settings import PULSAR_VERSIONS
from bookwarden_dev.devcluster.servers.specs import load_runtime

# The parent of this one names no versions.
_BOMS: Final = {
    "5.0.0-M1": (
        "com.fasterxml.jackson:jackson-bom:2.21.3",
        "io.netty:netty-bom:4.2.15.Final",
        "io.opentelemetry:opentelemetry-bom:1.62.0",
    )
}
# Not every release has it in Maven Central, and none here needs it.
_WITHOUT: Final = ("org.apache.pulsar:jetcd-core-shaded",)
_SIZE: Final = 250_000_000


def servers_of(version: str) -> str:
    """Return the version of all servers but the broker."""
    return version if version in PULSAR_VERSIONS else PULSAR_VERSIONS[0]


def use_broker(cluster: DevCluster, version: str) -> None:
    """Have a cluster's broker be of a release, from its next start on."""
    if version == cluster.options.pulsar:
        return
    jars = ensure_entry(f"pulsar-broker-{version}-unpinned", lambda folder: _fetched(version, folder)) / "lib"
    spec = cluster.broker.spec

    def command(stock: Callable[[], Sequence[str]] = spec.command) -> list[str]:
        own = load_runtime(cluster.options.pulsar).release / "lib"
        return [word.replace(f"{own}/*", f"{jars}/*") for word in stock()]

    cluster.broker.spec = replace(spec, command=command)


def _fetched(version: str, folder: Path) -> Path:
    release = Release(version, "", _SIZE)
    with suppress(ServerError):
        shutil.unpack_archive(fetch_with_maven(release, folder, lambda _line: None), folder)
        return folder / release.folder_name
    # Of most releases no distribution is in Maven Central.
    resolved = folder / "resolved"
    resolved.mkdir()
    boms = _BOMS.get(version, (f"org.apache.pulsar:pulsar:{version}",))
    fetch_jars_with_maven(ResolvedRelease(version, "", _SIZE, boms, _WITHOUT), resolved, lambda _line: None)
    return resolved
