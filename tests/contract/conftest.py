"""Stores and servers for the contract tests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.oxia.channels import OxiaConnection
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.zookeeper.session import ZooKeeperConnection
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from bookwarden_dev.devcluster.servers.oxia import OxiaServer
from servers.each_store import is_tried_again, on_oxia
from servers.lone_zookeeper import LoneZooKeeper
from servers.object_store import ObjectStore

_LOG = logging.getLogger(__name__)

StoreMaker = Callable[..., ZooKeeperStore]
OxiaStoreMaker = Callable[..., OxiaStore]
Connect = Callable[[], MetadataStore]


@pytest.fixture
def lone_zookeeper(zookeeper: LoneZooKeeper) -> LoneZooKeeper:
    """The ZooKeeper that tests share, for one that kills or pauses it: it serves again before the next test."""
    zookeeper.serve()
    return zookeeper


@pytest.fixture
def connect(lone_zookeeper: LoneZooKeeper) -> Iterator[StoreMaker]:
    """Make stores on that ZooKeeper, closed after the test."""
    made: list[ZooKeeperStore] = []

    def make(**options: object) -> ZooKeeperStore:
        connection = ZooKeeperConnection(**{"hosts": lone_zookeeper.hosts, **options})  # type: ignore[arg-type]  # free-form test options
        made.append(ZooKeeperStore(connection))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture(scope="module")
def oxia_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OxiaServer]:
    """An Oxia with three shards, for the tests of one module."""
    server = OxiaServer(tmp_path_factory.mktemp("oxia"), shards=3)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def oxia_server(oxia_of_module: OxiaServer, request: pytest.FixtureRequest) -> OxiaServer:
    """The module's Oxia, which tests may kill and pause; one that ended by itself is started again."""
    if not oxia_of_module.is_running():
        tail = "\n".join(oxia_of_module.log_tail())
        _LOG.error("Oxia had ended with exit code %s:\n%s", oxia_of_module.exit_code, tail)
        oxia_of_module.start()
    elif is_tried_again(request):
        # Two stores of the test may have broken a shard, see docs/oxia.md.
        oxia_of_module.restart()
    return oxia_of_module


@pytest.fixture
def connect_oxia(oxia_server: OxiaServer) -> Iterator[OxiaStoreMaker]:
    """Make stores on the module's Oxia, closed after the test."""
    made: list[OxiaStore] = []

    def make(**options: object) -> OxiaStore:
        connection = OxiaConnection(**{"address": oxia_server.address, **options})  # type: ignore[arg-type]  # free-form test options
        made.append(OxiaStore(connection))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def zookeeper_home(tmp_path: Path) -> Path:
    """A folder for a server of one test."""
    home = tmp_path / "zookeeper"
    home.mkdir()
    return home


@pytest.fixture
def server(object_store: ObjectStore) -> ObjectStore:
    """The S3 server that tests share."""
    return object_store


@pytest.fixture
def connect_apart(connect: StoreMaker) -> StoreMaker:
    """Make stores on that ZooKeeper below a path of the test's own."""
    chroot = f"/t-{uuid4().hex}"
    connect().create(chroot, b"")
    return partial(connect, chroot=chroot)


@pytest.fixture(params=["zookeeper", on_oxia()])
def connect_each(request: pytest.FixtureRequest) -> Connect:
    """Make stores of either kind."""
    name = "connect_apart" if request.param == "zookeeper" else "connect_oxia"
    made: Connect = request.getfixturevalue(name)
    return made
