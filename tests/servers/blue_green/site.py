"""Blue and green on this machine with bookwarden's settings for them, and its commands as an operator runs them."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import yaml

from bookwarden.cli.dev import settings_of
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.config import Settings, load_settings
from bookwarden.devcluster import ClusterOptions, DevCluster
from bookwarden.devcluster.blue_green import BlueAndGreen
from bookwarden.wiring.blue_green import BlueGreenContext

_SECONDS = 300.0


class BlueGreenSite:
    """Both clusters, running, with bookwarden's settings in a file beside them; the section pulsar is blue's.

    ``moved`` is a namespace that a test has moved, for the next one.
    """

    def __init__(self, clusters: BlueAndGreen, home: Path) -> None:
        self.clusters = clusters
        self.blue, self.green = clusters.blue, clusters.green
        self.home = home
        self.moved = ""
        self.file = home / "bookwarden.yaml"
        sides = {**clusters.settings(_side), "journal": str(home / "cluster-migration")}
        # What is young is deleted all the same: no ledger here is only just being created.
        quick = {"unlisted_grace_seconds": 0.0, "two_phase_deletion_reconsume_later_in_seconds": 1.0}
        ageless = {"min_age_days": 0.0, "longest_compaction_hours": 0.0, "seen_apart_hours": 0.0}
        settings = {
            **settings_of(self.blue),
            "deletion": quick,
            "orphans": {**ageless, "folder": str(home / "orphans")},
            "cluster_migration": sides,
        }
        self.file.write_text(yaml.safe_dump(settings))

    @staticmethod
    def fresh(name: str) -> str:
        """Return the name of a namespace that is not there yet, also where a test is tried again."""
        return f"{name}-{secrets.token_hex(2)}/live"

    @property
    def settings(self) -> Settings:
        return load_settings(self.file)

    @contextmanager
    def context(self) -> Iterator[BlueGreenContext]:
        with BlueGreenContext(self.settings) as context:
            yield context

    @contextmanager
    def admin(self, cluster: DevCluster) -> Iterator[PulsarAdmin]:
        with closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin:
            yield admin

    def make_namespace(self, namespace: str, *clusters: DevCluster, deletes: bool = True) -> str:
        """Make a tenant and a namespace on the clusters, blue unless told; ``deletes`` is of inactive topics."""
        for cluster in clusters or (self.blue,):
            name = cluster.options.cluster_name
            with self.admin(cluster) as admin:
                tenant = namespace.partition("/")[0]
                if tenant not in admin.get_json("/tenants"):
                    admin.put(f"/tenants/{tenant}", {"allowedClusters": [name]})
                admin.put(f"/namespaces/{namespace}", {"replication_clusters": [name], "bundles": {"numBundles": 4}})
                if not deletes:
                    admin.post(f"/namespaces/{namespace}/inactiveTopicPolicies", KEEP_INACTIVE)
        return namespace

    def run(
        self, *arguments: str, expected: int | None = 0, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `bookwarden cluster-migration` with these arguments; fail unless it ends with the code expected."""
        ended = subprocess.run(
            self.command(*arguments),
            env={**os.environ, **(environment or {})},
            cwd=self.home,
            text=True,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        said = f"{arguments}: {ended.returncode}\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
        assert expected is None or ended.returncode == expected, said
        return ended

    def bookwarden(self, *arguments: str, expected: int = 0) -> str:
        """Run another command of bookwarden's; return what it wrote, fail unless it ends with the code expected."""
        command = [*self.command()[:-1], *arguments]
        ended = subprocess.run(command, text=True, capture_output=True, timeout=_SECONDS, check=False)
        assert ended.returncode == expected, f"{arguments}: {ended.returncode}\n{ended.stderr[-3000:]}"
        return ended.stdout

    def answer(self, *arguments: str, expected: int | None = 0) -> Any:
        """Run it with -o json; return the decoded answer."""
        return json.loads(self.run(*arguments, "-o", "json", expected=expected).stdout)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line, for those who start it themselves."""
        return [sys.executable, "-m", "bookwarden.cli", "--config", str(self.file), "cluster-migration", *arguments]


KEEP_INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 10,
    "deleteWhileInactive": False,
}


def _side(cluster: DevCluster) -> dict[str, Any]:
    found = settings_of(cluster)
    return {name: found[name] for name in ("pulsar", "metadata_store")}


@contextmanager
def blue_green_site(
    home: Path, options: ClusterOptions | None = None, green_options: ClusterOptions | None = None
) -> Iterator[BlueGreenSite]:
    """Run both clusters for the block; they are killed behind it."""
    with BlueAndGreen(home, options, green_options) as clusters:
        yield BlueGreenSite(clusters, home)
