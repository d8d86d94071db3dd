"""The wheel, installed into environments of its own: it starts, each command helps, and does what its extras allow."""

from __future__ import annotations

import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from bookwarden.wiring.pulsar import connection_of
from bookwarden_dev.devcluster import DevCluster
from bookwarden_dev.devcluster.servers.oxia import OxiaServer
from servers.deletion_site import DeletionSite
from servers.installed import CHECKOUT, Installed
from servers.lone_zookeeper import LoneZooKeeper
from servers.metadata_tree import filled_root

# It is mostly pip that takes the time, and that from the net where its cache is empty; Oxia may have to be built.
pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(1800)]

EVERY_MODULE = """
import importlib, pkgutil
import bookwarden

for module in pkgutil.walk_packages(bookwarden.__path__, "bookwarden."):
    if not module.name.endswith(".__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            print(module.name, error.name)
"""


@pytest.fixture(scope="module")
def site(
    pulsar_cluster: DevCluster,
    make_namespace: Callable[[DevCluster], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> DeletionSite:
    cluster, folder = pulsar_cluster, tmp_path_factory.mktemp("site")
    return DeletionSite.of(cluster, make_namespace(cluster), folder)


@pytest.fixture
def options(site: DeletionSite) -> list[str]:
    deletion, sweep = site.settings.deletion, site.settings.sweep
    values = {
        "pulsar.service_url": site.service_url,
        "pulsar.admin_url": site.admin_url,
        "metadata_store.urls": f"['{site.store_url}']",
        "deletion.topic": deletion.topic,
        "deletion.retry_topic": deletion.retry_topic,
        "deletion.dlq_topic": deletion.dlq_topic,
        "sweep.checkpoint": sweep.checkpoint,
        "sweep.outcomes": sweep.outcomes,
        "sweep.journal": sweep.journal,
        "orphans.folder": str(site.folder / "orphans"),
        # To write one takes twice as long as the sweep: tests/spark/test_class_archive.py does.
        "spark.class_archives": "false",
    }
    return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]


def sources(folder: str, pattern: str = "*") -> set[str]:
    """The files of a folder of this checkout, by their paths in it."""
    found = (path for path in (CHECKOUT / folder).rglob(pattern) if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(CHECKOUT)) for path in found}


def test_sdist_and_wheel_have_each_file_that_belongs_to_them(built: Path, wheel: Path) -> None:
    texts = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "NOTICE", "README.md", "SECURITY.md"}
    beside = sources("conf") | sources("docs") | sources("jobs") | sources("streaming")
    code = {path for path in sources("src/bookwarden") if ".egg-info" not in path} | sources("schemas")
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert (texts | beside | code | sources("proto") | {"setup.cfg", "pyproject.toml", "Makefile"}) <= names
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        (metadata,) = (packed.read(name).decode() for name in names if name.endswith("METADATA"))
    stem = "-".join(wheel.name.split("-")[:2])
    installed = {name.removeprefix("src/").replace("schemas/", "bookwarden/schemas/", 1) for name in code}
    assert installed <= names
    assert {f"{stem}.data/data/share/bookwarden/{name}" for name in texts - {"LICENSE", "NOTICE"} | beside} <= names
    assert {f"{stem}.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICE")} <= names
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "Programming Language :: Python :: 3.13\n" in metadata


def test_without_extras_every_command_helps_and_those_that_need_none_work(
    base: Installed, site: DeletionSite, options: list[str]
) -> None:
    base.starts()

    topic = f"persistent://{site.namespace}/orders"
    client = connection_of(site.settings.pulsar).client()
    try:
        client.create_producer(topic).send(b"order")
        client.subscribe(topic, "billing", initial_position=pulsar.InitialPosition.Earliest)
    finally:
        client.close()
    base.bookwarden(*options, "init", "--dry-run")
    base.bookwarden(*options, "init")
    (would,) = json.loads(base.bookwarden("-o", "json", *options, "mark", "topic", topic, "--dry-run"))
    ledger_id = would["ledgers"][0]["ledger_id"]
    for command in (
        ["ledger", "show", str(ledger_id)],
        ["ledger", "explain", str(ledger_id)],
        ["mark", "topic", topic, "--yes"],
        ["inflight"],
        ["sweep", "--dry-run"],
        ["dlq", "list"],
        ["metadata-migration", "status"],
    ):
        base.bookwarden(*options, *command)
    (site.folder / "journal").mkdir()
    base.bookwarden(*options, "undo", "--list")
    base.lacks("spark", *options, "sweep", "--once")
    base.lacks("spark", *options, "orphans", "list")
    base.lacks("demo", "demo")


def test_with_the_extra_for_oxia_a_store_is_rehearsed_into_one(
    base: Installed, zookeeper: LoneZooKeeper, tmp_path: Path
) -> None:
    server = OxiaServer(tmp_path / "oxia", shards=2)
    try:
        server.start()
        command = ["metadata-migration", "rehearse", "--source", filled_root(zookeeper.hosts), "--target", server.url]
        base.install(base.lacks("oxia", *command))
        base.starts()
        base.bookwarden(*command)
    finally:
        server.kill()


def test_with_the_extra_for_spark_what_was_marked_is_swept(
    with_spark: Installed, site: DeletionSite, options: list[str]
) -> None:
    with_spark.starts()
    with_spark.bookwarden(*options, "init")
    with_spark.bookwarden(*options, "sweep", "--once")
    with_spark.bookwarden(*options, "orphans", "list")
    with_spark.lacks("oxia", "--set", "metadata_store.urls=['oxia://127.0.0.1:1/n']", "ledger", "show", "1")
    with_spark.lacks("demo", "demo")


def test_with_all_extras_every_module_can_be_imported(with_spark: Installed, options: list[str]) -> None:
    with_spark.install("bookwarden[all]")
    with_spark.starts()
    assert with_spark.python(EVERY_MODULE) == ""
    with_spark.bookwarden(*options, "inflight")
