"""Blue and green on this machine with bookwarden's settings for them, and its commands as an operator runs them."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result

from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.config import Settings, load_settings
from bookwarden.wiring.cluster_migration import ClusterMigration
from bookwarden_dev.commands.dev import settings_of
from bookwarden_dev.devcluster import ClusterOptions, DevCluster, ServerProcess
from bookwarden_dev.devcluster.blue_green import BlueAndGreen


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

    @property
    def servers(self) -> Iterable[ServerProcess]:
        """All servers of both."""
        return (*self.blue.servers, *self.green.servers)

    def kill(self) -> None:
        """Kill them."""
        self.clusters.kill()

    @staticmethod
    def fresh(name: str) -> str:
        """Return the name of a namespace that is not there yet, also where a test is tried again."""
        return f"{name}-{secrets.token_hex(2)}/live"

    @property
    def settings(self) -> Settings:
        return load_settings(self.file)

    @contextmanager
    def context(self) -> Iterator[ClusterMigration]:
        with ClusterMigration(self.settings) as context:
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

    def run(self, *arguments: str, expected: int | None = 0, environment: Mapping[str, str] | None = None) -> Result:
        """Run `bookwarden cluster-migration` with these arguments, as `bookwarden` does."""
        return self.bookwarden("cluster-migration", *arguments, expected=expected, environment=environment)

    def bookwarden(
        self, *arguments: str, expected: int | None = 0, environment: Mapping[str, str] | None = None
    ) -> Result:
        """Run a command in this process; fail unless it ends with the code expected."""
        command = ["--config", str(self.file), *arguments]
        ended = CliRunner().invoke(cli, command, env=environment, catch_exceptions=False)
        said = f"{arguments}: {ended.exit_code}\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
        assert expected is None or ended.exit_code == expected, said
        return ended

    def answer(self, *arguments: str, expected: int | None = 0) -> Any:
        """Run it with -o json; return the decoded answer."""
        return json.loads(self.run(*arguments, "-o", "json", expected=expected).stdout)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of a process of its own, for those who kill it or run it beside others."""
        return [sys.executable, "-m", "bookwarden.cli", "--config", str(self.file), "cluster-migration", *arguments]


#: For a test each look of blue's brokers at the flags is only a wait.
QUICK_ROUNDS = {"clusterMigrationCheckDurationSeconds": "1"}
KEEP_INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 10,
    "deleteWhileInactive": False,
}


def _side(cluster: DevCluster) -> dict[str, Any]:
    found = settings_of(cluster)
    return {name: found[name] for name in ("pulsar", "metadata_store")}


def start_site(
    home: Path, options: ClusterOptions | None = None, green_options: ClusterOptions | None = None
) -> BlueGreenSite:
    """Start both clusters; whoever asks for them kills them."""
    clusters = BlueAndGreen(home, options, green_options)
    clusters.up()
    return BlueGreenSite(clusters, home)


@contextmanager
def blue_green_site(
    home: Path, options: ClusterOptions | None = None, green_options: ClusterOptions | None = None
) -> Iterator[BlueGreenSite]:
    """Run both clusters for the block; they are killed behind it."""
    site = start_site(home, options, green_options)
    try:
        yield site
    finally:
        site.kill()
