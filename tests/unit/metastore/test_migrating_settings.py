"""What a zk: URL of the settings opens: a store that follows a migration, with what the settings say of both ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import bookwarden.wiring.stores
from bookwarden.config import Settings, load_settings
from bookwarden.errors import ConfigError, StoreMigratingError, StoreMovedError
from bookwarden.metastore.following.phases import MOVED, ParticipantState
from bookwarden.metastore.following.store import MigratingStore
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.stores import has_one_writer, open_metadata_store, open_single_store
from servers.migration.scripted import Server, Session
from servers.waiting import eventually

SOURCE, TARGET = "zk:z:2181/pulsar", "oxia://o:6648/broker"


class Ends:
    """What both URLs open."""

    def __init__(self) -> None:
        self.server = Server()
        self.server.offer()
        self.target = MemoryStore()
        self.options: dict[str, dict[str, Any]] = {}

    def open(self, url: str, **options: Any) -> Session | MemoryStore:
        self.options[url] = options
        return Session(self.server) if url == SOURCE else self.target


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    made = Ends()
    monkeypatch.setattr(bookwarden.wiring.stores, "open_store", made.open)
    return made


@pytest.fixture
def opened() -> Iterator[list[MigratingStore]]:
    stores: list[MigratingStore] = []
    yield stores
    for store in stores:
        store.close()


def settings_of(**store: str) -> Settings:
    named = {f"metadata_store.{name}": value for name, value in store.items()}
    return load_settings(overrides={"metadata_store.urls": f"['{SOURCE}']", **named})


def test_a_zookeeper_is_followed_and_everything_else_is_opened_as_it_is() -> None:
    settings = load_settings()
    followed = open_metadata_store(settings.metadata_store, "zk:z:1")
    assert isinstance(followed, MigratingStore)
    assert isinstance(open_single_store(settings.metadata_store, "zk:z:1"), ZooKeeperStore)
    assert isinstance(open_metadata_store(settings.metadata_store, "oxia://o:1/n"), OxiaStore)
    assert isinstance(open_metadata_store(settings.metadata_store, "memory:one"), MemoryStore)
    followed.close()


@pytest.mark.parametrize(("oxia_tls", "encrypted"), [("null", True), ("true", True), ("false", False)])
def test_the_target_is_opened_with_what_the_settings_say_of_oxia(
    ends: Ends, opened: list[MigratingStore], oxia_tls: str, encrypted: bool
) -> None:
    settings = settings_of(
        oxia_token="secret", tls="true", oxia_tls=oxia_tls, batch_size="77", max_requests_per_second="5"
    )
    store = open_metadata_store(settings.metadata_store, SOURCE)
    assert isinstance(store, MigratingStore)
    opened.append(store)
    ends.server.set_phase("COMPLETED", TARGET)
    store.create("/a", b"")
    assert ends.target.get("/a") is not None
    given = ends.options[TARGET]
    assert (given["token"], given["use_ssl"], given["batch_size"]) == ("secret", encrypted, 77)
    assert ends.options[SOURCE]["use_ssl"]
    assert given["max_requests_per_second"] == 5.0
    assert "digest" not in given


@pytest.mark.parametrize(
    ("one_of_many", "many_may", "written"),
    [(True, "false", False), (True, "true", True), (False, "false", True)],
    ids=["one of many", "where many may", "alone"],
)
def test_one_of_many_tasks_writes_nothing_to_an_oxia_that_takes_one_writer(
    ends: Ends, opened: list[MigratingStore], one_of_many: bool, many_may: str, written: bool
) -> None:
    store = open_metadata_store(
        settings_of(oxia_concurrent_writers=many_may).metadata_store, SOURCE, one_of_many=one_of_many
    )
    assert isinstance(store, MigratingStore)
    opened.append(store)
    store.create("/a", b"1")
    ends.target.create("/a", b"1")
    ends.server.set_phase("COMPLETED", TARGET)
    store.sync()
    eventually(lambda: store.state is ParticipantState.SERVING_TARGET)
    node = store.get("/a")
    assert node is not None
    if written:
        store.put("/a", b"2", node.version)
    else:
        for write in (
            lambda: store.put("/a", b"2", node.version),
            lambda: store.create("/b", b""),
            lambda: store.delete_many([("/a", node.version)]),
            lambda: store.ephemeral_sequential("/e-", b""),
        ):
            with pytest.raises(StoreMovedError, match="takes one writer"):
                write()
    at_last = ends.target.get("/a")
    assert at_last is not None
    assert at_last.value == (b"2" if written else b"1")
    assert ends.target.list_children("/") == ["a"]


def test_one_of_many_tasks_writes_nothing_to_an_oxia_that_only_a_registered_bookie_cluster_has(ends: Ends) -> None:
    """The settings alone tell how many tasks there are; they do not know it."""
    for many_may, one_of_many, written in (("false", True, False), ("true", True, True), ("false", False, True)):
        settings = settings_of(oxia_concurrent_writers=many_may).metadata_store
        store = open_metadata_store(settings, TARGET, one_of_many=one_of_many)
        if written:
            store.create(f"/{many_may}-{one_of_many}", b"")
        else:
            with pytest.raises(StoreMovedError, match="takes one writer, and this task is one of many"):
                store.create("/no", b"")
    assert ends.target.list_children("/") == ["false-False", "true-True"]


def test_a_driver_learns_that_its_ledgers_moved_to_where_one_task_may_write(ends: Ends) -> None:
    settings = settings_of()
    with Cluster(settings) as cluster:
        cluster.migrations.look()
        assert cluster.bookkeeper.moved_to() is None
        assert not has_one_writer(settings.metadata_store)
        ends.server.set_phase("COPYING", TARGET)
        cluster.migrations.look()
        assert cluster.bookkeeper.moved_to() is None
        assert cluster.migrations.blocked == f"the metadata of {SOURCE} is being moved to {TARGET}: COPYING, waiting"
        ends.server.set_phase("COMPLETED", TARGET)
        cluster.migrations.look()
        assert cluster.bookkeeper.moved_to() == TARGET
        assert has_one_writer(settings.metadata_store, [TARGET])


def test_without_patience_a_write_fails_at_once_and_a_read_waits_for_the_target(
    ends: Ends, opened: list[MigratingStore]
) -> None:
    store = open_metadata_store(settings_of(migration_write_wait_seconds="0").metadata_store, SOURCE)
    assert isinstance(store, MigratingStore)
    opened.append(store)
    store.create("/a", b"")
    ends.server.set_phase("COPYING", TARGET)
    with pytest.raises(StoreMigratingError, match="nothing is written meanwhile"):
        store.create("/b", b"")
    with pytest.raises(StoreMigratingError, match="nothing is written meanwhile"):
        store.await_writes()
    ends.server.set_phase("COMPLETED", TARGET)
    # Until the process has left the source a write would fail still; a read waits for that.
    eventually(lambda: store.state in MOVED)
    assert store.get("/b") is None
    assert store.state is ParticipantState.SERVING_TARGET
    store.create("/b", b"")
    store.await_writes()
    assert ends.target.get("/b") is not None


@pytest.mark.parametrize(("name", "value"), [("session_timeout_seconds", "41"), ("migration_drain_seconds", "46")])
def test_what_would_outlast_a_migrations_patience_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} {value} is more than .*waits 60 s"):
        settings_of(**{name: value})
