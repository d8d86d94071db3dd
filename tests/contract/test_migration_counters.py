"""`metadata-migration counters` between a real ZooKeeper that was moved and a real Oxia."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from bookwarden.bookie_clusters.registry import REGISTRY_PATH, BookieCluster, Registry, serialize_registry
from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.config import load_settings
from bookwarden.errors import NotFoundError, RefusedError
from bookwarden.exit_codes import COUNTERS_BEHIND
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.metastore.following.flag import MIGRATION_PATH
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster.servers.oxia import OxiaServer
from servers.lone_zookeeper import LoneZooKeeper
from servers.metadata_tree import remove_tree
from servers.swept_store import SweptStore

pytestmark = pytest.mark.servers

IDS = "/ledgers/idgen"
NAMES = "/counters/producer-name"


class Moved:
    """A chroot of a ZooKeeper with 40 ledgers and 4 brokers counted, and what a copy of it has."""

    def __init__(self, source: MetadataStore, source_url: str, target: MetadataStore, target_url: str) -> None:
        self.source, self.source_url = source, source_url
        self.target, self.target_url = target, target_url
        for store in (source, target):
            for path in (IDS, NAMES):
                if store.get(path) is None:
                    store.create(path, b"", make_parents=True)
        for _ in range(40):
            source.ephemeral_sequential(f"{IDS}/ID-", b"")
        for _ in range(4):
            source.ephemeral_sequential(f"{NAMES}/-", b"")
        self.flag("COMPLETED")

    def flag(self, phase: str) -> None:
        value = json.dumps({"phase": phase, "targetUrl": self.target_url}).encode()
        node = self.source.get(MIGRATION_PATH)
        if node is None:
            self.source.create(MIGRATION_PATH, value, make_parents=True)
        else:
            self.source.put(MIGRATION_PATH, value, node.version)

    def run(self, *arguments: str, **settings: Any) -> Result:
        values = {"urls": [self.source_url], **settings}
        chosen = [
            word for name, value in values.items() for word in ("--set", f"metadata_store.{name}={json.dumps(value)}")
        ]
        return CliRunner().invoke(cli, [*chosen, "metadata-migration", "counters", *arguments])

    def counters(self, *arguments: str, **settings: Any) -> dict[str, dict[str, Any]]:
        result = self.run("-o", "json", *arguments, **settings)
        assert result.exit_code in (0, COUNTERS_BEHIND), result.stderr
        found = {one["path"]: one for one in json.loads(result.stdout)["counters"]}
        assert (result.exit_code == 0) == (not any(one["behind"] for one in found.values()))
        return found

    def remove(self, path: str) -> None:
        node = self.target.get(path)
        assert node is not None
        self.target.delete_many([(path, node.version)])


@pytest.fixture
def moved(zookeeper: LoneZooKeeper, oxia_server: OxiaServer) -> Iterator[Moved]:
    chroot = f"/t-{uuid4().hex}"
    target_url = f"oxia://{oxia_server.address}/default"
    with ExitStack() as stores:
        stores.enter_context(closing(open_store(f"zk:{zookeeper.hosts}"))).create(chroot, b"")
        source = stores.enter_context(closing(open_store(f"zk:{zookeeper.hosts}{chroot}")))
        target = stores.enter_context(closing(open_store(target_url)))
        made = Moved(source, f"zk:{zookeeper.hosts}{chroot}", target, target_url)
        yield made
        for path in (IDS, NAMES):
            if target.get(path) is not None:
                made.remove(path)


def test_the_target_counts_on_from_the_source(moved: Moved) -> None:
    before = moved.counters()
    assert (before[IDS]["source_next"], before[IDS]["next"], before[IDS]["behind"]) == (40, 1, 39)
    assert (before[NAMES]["source_next"], before[NAMES]["next"], before[NAMES]["behind"]) == (4, 1, 3)
    after = moved.counters("--execute", "--count-up")
    assert (after[IDS]["next_before"], after[IDS]["next"], after[NAMES]["next"]) == (1, 40, 4)
    assert moved.target.ephemeral_sequential(f"{IDS}/ID-", b"").endswith("0000000040")
    # Once more changes nothing.
    assert moved.counters("--execute", "--count-up")[IDS]["next"] == 41


def test_a_ledger_that_the_source_did_not_count_is_passed_too(moved: Moved) -> None:
    ledger = ledger_path("/ledgers", 23_456)
    moved.target.create(ledger, b"", make_parents=True)
    try:
        assert moved.counters("--execute", "--count-up")[IDS]["next"] == 23_457
    finally:
        moved.remove(ledger)


def test_with_a_registry_ids_are_counted_where_it_says(moved: Moved) -> None:
    registry = Registry(
        *(1, "5f2c9a41", "/bookwarden/ledger-ids", "a"),
        {"a": BookieCluster("a", "metadata-store:x", None, "/ledgers", "instance-a", 1, bootstrap=True)},
    )
    ids, ledger = "/bookwarden/ledger-ids/idgen", ledger_path("/ledgers", 77)
    for store in (moved.source, moved.target):
        store.create(REGISTRY_PATH, serialize_registry(registry), make_parents=True)
        store.create(ids, b"", make_parents=True)
    for _ in range(60):
        moved.source.ephemeral_sequential(f"{ids}/ID-", b"")
    moved.target.create(ledger, b"", make_parents=True)
    try:
        found = moved.counters()
        assert IDS not in found
        assert (found[ids]["source_next"], found[ids]["behind"]) == (60, 77)
        assert moved.counters("--execute", "--count-up")[ids]["next"] == 78
    finally:
        for path in (ledger, ids, REGISTRY_PATH):
            moved.remove(path)


def test_the_sweep_deletes_nothing_until_the_counter_has_passed_the_ledgers_and_then_goes_on(moved: Moved) -> None:
    holder = ManagedLedgerHolder("t/n/persistent/moved")
    settings = load_settings(overrides={"metadata_store.urls": json.dumps([moved.source_url])})
    with Cluster(settings) as cluster:
        site = SweptStore(cluster.store, ids=cluster.bookkeeper.ids)
        try:
            site.ledgers(holder, 12, 39)
            site.population.names(holder, [39])
            rows = site.sweep(holder, 12, 39, 13)
            assert [rows[found].outcome for found in (12, 39, 13)] == [
                Outcome.WAITING,
                Outcome.STILL_REFERENCED,
                Outcome.ALREADY_GONE,
            ]
            assert "the next ledger gets the id 1, but there is a ledger 39" in rows[12].reason
            assert "`bookwarden metadata-migration counters --execute`" in rows[12].reason
            assert (site.left(12), site.journaled) == ({12}, [])
            moved.counters("--execute", "--count-up")
            assert site.outcomes(holder, 12) == [Outcome.DELETED]
        finally:
            for path in ("/ledgers/00", "/ledgers/000", "/managed-ledgers", "/schemas"):
                remove_tree(moved.target, path)


def test_settings_that_name_the_target_by_now_look_at_ledgers_too(moved: Moved) -> None:
    found = moved.counters("--source", moved.source_url, urls=[moved.target_url])
    assert found[IDS]["behind"] == 39


def test_ledgers_that_are_counted_elsewhere_are_told_of(moved: Moved) -> None:
    elsewhere = "zk+hierarchical://other:2181/ledgers"
    result = moved.run(bookkeeper_url=elsewhere)
    assert result.exit_code == COUNTERS_BEHIND, result.stderr
    assert "Ledgers are counted in zk:other:2181" in " ".join(result.stdout.split())
    assert IDS not in moved.counters(bookkeeper_url=elsewhere)


def test_a_counter_that_the_copy_lacks_is_no_good_sign(moved: Moved) -> None:
    moved.remove(IDS)
    assert moved.counters()[IDS]["behind"] == 39
    result = moved.run("--execute", "--count-up")
    assert result.exit_code == NotFoundError.exit_code
    assert "metadata-migration verify" in result.stderr


@pytest.mark.parametrize("phase", ["PREPARATION", "COPYING", "FAILED"])
def test_nothing_is_counted_before_the_target_serves(moved: Moved, phase: str) -> None:
    moved.flag(phase)
    result = moved.run("--execute", "--count-up")
    assert result.exit_code == RefusedError.exit_code
    assert phase in result.stderr
    node = moved.target.get(IDS)
    assert node is not None
    assert node.modifications == 0
