"""Commands as a user types them, from the wheel, and every word that they print: tests/data/played.

A change of a message is reviewed in these files: `UPDATE_PLAYED=1 pytest tests/integration/test_played_commands.py`
writes them anew. With PLAYED=all (`make soak STORM=played`) those that start Spark are played too, and some on the
newest Python of this machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pulsar
import pytest
import yaml

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.ledgers.names import TopicName
from bookwarden.metastore.urls import open_store
from bookwarden.wiring.pulsar import connection_of
from bookwarden_dev.commands.dev import settings_of
from bookwarden_dev.devcluster import DevCluster
from bookwarden_dev.devcluster.ports import free_ports
from bookwarden_dev.devcluster.releases.cache import cache_folder
from servers.deletion_site import DeletionSite
from servers.installed import Installed, environment_of
from servers.played import Stage, check, files_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ALL = os.environ.get("PLAYED") == "all"
NEWEST = Path(os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv")), "versions")
TEN = (
    "--version|docs cli|docs nonsense|mark topic --help|inflight|undo --list|ledger show abc|orphans list"
    "|-o json nope|dev status --home dev"
)


def stage(installed: Installed, folder: Path) -> Stage:
    return Stage(installed.folder / "bin", folder, {})


@pytest.mark.parametrize("path", files_of("alone"), ids=lambda path: path.stem)
def test_without_servers(path: Path, base: Installed, tmp_path: Path) -> None:
    check(path, stage(base, tmp_path))


@pytest.fixture(scope="module")
def played_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A cluster of its own, so that nothing is there before."""
    with DevCluster(tmp_path_factory.mktemp("played") / "dev") as cluster:
        yield cluster


@pytest.fixture
def on_cluster(
    played_cluster: DevCluster, request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[Installed], Stage]:
    """A stage with a topic in a namespace that is named after the file, which decides about partitions."""
    namespace = f"public/{request.node.callspec.params['path'].stem}"
    with closing(PulsarAdmin(played_cluster.connection())) as admin:
        # That of a first try, which is to be seen failing, and not this fixture.
        if namespace in admin.get_json("/namespaces/public"):
            admin.delete(f"/namespaces/{namespace}", params={"force": True})
        admin.put(f"/namespaces/{namespace}")
    site = DeletionSite.of(played_cluster, namespace, tmp_path)
    topic = f"persistent://{namespace}/orders"
    with closing(connection_of(site.settings.pulsar).client()) as client:
        client.create_producer(topic).send(b"order")
        client.subscribe(topic, "billing", initial_position=pulsar.InitialPosition.Earliest)
    with closing(open_store(site.store_url)) as store:
        found = ManagedLedgers(store).read(TopicName.parse(topic).managed_ledger)
    assert found is not None
    ledger = str(found.info.ledgers[0].ledger_id)
    settings = settings_of(played_cluster)
    deletion = site.settings.deletion
    names = {name: getattr(deletion, name) for name in ("topic", "retry_topic", "dlq_topic")}
    settings["deletion"] |= {**names, "unlisted_grace_seconds": 0}
    file = tmp_path / "bookwarden.yaml"
    # All files are in a folder of this test, not in the cluster's.
    file.write_text(yaml.safe_dump(settings).replace(str(played_cluster.home), str(tmp_path)), encoding="utf-8")
    variables = {
        "BOOKWARDEN_CONFIG": str(file),
        "SERVICE_URL": played_cluster.service_url,
        "TOPIC": topic,
        "LEDGER": ledger,
        "DLQ": deletion.dlq_topic,
        "PORT": str(free_ports(1)[0]),
        "RELEASES": str(cache_folder()),
    }
    masks = (
        (rf"\b([Ll])edger {ledger}\b", r"\1edger <ledger>"),
        (rf"(?m)^ *{ledger}(?=  )", "<ledger>"),
        (rf"\bL0*{ledger}\b", "L<ledger>"),
        (rf'"ledger_id": {ledger}\b', '"ledger_id": <ledger>'),
    )
    return lambda installed: Stage(installed.folder / "bin", tmp_path, variables, masks)


@pytest.mark.servers
@pytest.mark.parametrize("path", files_of("cluster"), ids=lambda path: path.stem)
def test_on_a_cluster(path: Path, base: Installed, on_cluster: Callable[[Installed], Stage]) -> None:
    check(path, on_cluster(base))


if ALL:

    @pytest.fixture(scope="module")
    def with_extras(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
        return environment_of(tmp_path_factory.mktemp("extras") / "venv", f"{wheel}[spark,serve]")

    @pytest.mark.servers
    @pytest.mark.parametrize("path", files_of("spark"), ids=lambda path: path.stem)
    def test_with_spark(path: Path, with_extras: Installed, on_cluster: Callable[[Installed], Stage]) -> None:
        check(path, on_cluster(with_extras))

    def test_on_the_newest_python_help_and_ten_commands_print_the_same(
        base: Installed, wheel: Path, tmp_path: Path
    ) -> None:
        pythons = sorted(NEWEST.glob("3.1[0-9].*/bin/python"), key=lambda path: int(path.parts[-3].split(".")[1]))
        newest = tmp_path / "newest"
        subprocess.run([str(pythons[-1]), "-m", "venv", "--without-pip", str(newest)], check=True)
        installed = Installed(newest)
        installed.install(str(wheel))
        installed.starts()
        commands = "".join(f"$ bookwarden {command}\n" for command in TEN.split("|"))
        folder = tmp_path / "folder"
        folder.mkdir()
        assert stage(installed, folder).play(commands) == stage(base, folder).play(commands)
        assert pythons[-1].resolve() != Path(sys.executable).resolve()
