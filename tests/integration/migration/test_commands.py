"""`metadata-migration preflight|start|status|watch` on a real Pulsar 4.2.4 that moves from ZooKeeper to Oxia."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest
import urllib3
from click.testing import CliRunner, Result

from bookwarden.bookie_clusters.registry import REGISTRY_PATH, serialize_registry
from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.errors import NotFoundError, RefusedError, StoreError
from bookwarden.exit_codes import COUNTERS_BEHIND, MIGRATION_FAILED, MORE_LATER, WOULD_FAIL
from bookwarden.metastore.following.flag import MIGRATION_PATH, PARTICIPANTS_PATH
from bookwarden.metastore.following.store import MigratingStore
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from bookwarden_dev.devcluster import ClusterOptions, DevCluster, ServerProcess
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from bookwarden_dev.devcluster.servers.specs import ServerFactory
from servers.class_archives import quick_runtime
from servers.lone_zookeeper import LoneZooKeeper
from servers.migration.site import SHARDS
from servers.pool import Clusters
from servers.switching.ground import registry_of
from servers.topic_contents import send
from servers.waiting import eventually

# The first start on a machine builds Oxia.
pytestmark = [pytest.mark.servers, pytest.mark.timeout(1800)]

NODES = 3_000
OPTIONS = ClusterOptions(pulsar="4.2.4", oxia=True, oxia_shards=SHARDS)


@pytest.fixture
def cluster(clusters: Clusters) -> DevCluster:
    """A cluster that is not moved: the test that moves its metadata takes it, as the last one that uses it."""
    return clusters.shared(OPTIONS)


@pytest.fixture
def source(cluster: DevCluster) -> Iterator[MetadataStore]:
    with closing(open_store(cluster.store_url)) as store:
        yield store


@pytest.fixture
def target(cluster: DevCluster) -> Iterator[MetadataStore]:
    with closing(open_store(cluster.oxia_url)) as store:
        yield store


def run(cluster: DevCluster, command: str, *arguments: str) -> Result:
    settings = {
        "metadata_store.urls": json.dumps([cluster.store_url]),
        "metadata_store.operation_timeout_seconds": "5",
        "pulsar.admin_url": cluster.admin_url,
        "pulsar.service_url": cluster.service_url,
    }
    return invoke(settings, command, *arguments)


def invoke(settings: dict[str, str], command: str, *arguments: str) -> Result:
    chosen = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return CliRunner().invoke(cli, [*chosen, "metadata-migration", command, *arguments])


def preflight(cluster: DevCluster, *arguments: str, target: str | None = None) -> tuple[int, dict[str, dict[str, str]]]:
    """Run it; return the exit code and the lines by their names, of several the one that is worst."""
    result = run(cluster, "preflight", "--target", target or cluster.oxia_url, "-o", "json", *arguments)
    assert result.exit_code in (0, WOULD_FAIL), result.stderr
    order = ["ok", "warning", "would fail"]
    found = sorted(json.loads(result.stdout)["findings"], key=lambda one: order.index(one["verdict"]))
    return result.exit_code, {one["check"]: one for one in found}


def failing(lines: dict[str, dict[str, str]]) -> set[str]:
    return {name for name, line in lines.items() if line["verdict"] == "would fail"}


def set_flag(store: MetadataStore, phase: str, target_url: str) -> None:
    value = json.dumps({"phase": phase, "targetUrl": target_url}).encode()
    node = store.get(MIGRATION_PATH)
    if node is None:
        store.create(MIGRATION_PATH, value, make_parents=True)
    else:
        store.put(MIGRATION_PATH, value, node.version)


def remove(store: MetadataStore, path: str) -> None:
    node = store.get(path)
    assert node is not None
    store.delete_many([(path, node.version)])


def test_before_a_migration_the_broker_and_the_source_agree(cluster: DevCluster) -> None:
    # Nothing is told of counters, and nothing done to them, before the target serves.
    assert run(cluster, "counters").exit_code == RefusedError.exit_code
    result = run(cluster, "status", "-o", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["phase"] is None
    assert found["broker"] == {"phase": "NOT_STARTED", "target": None}
    # The broker and the bookie.
    assert len(found["participants"]) == 2
    assert set(found["participants"].values()) == {""}
    assert run(cluster, "watch").exit_code == NotFoundError.exit_code


def test_a_cluster_that_is_ready_passes_and_is_left_as_it_was(cluster: DevCluster, target: MetadataStore) -> None:
    code, lines = preflight(cluster, "--max-reads-per-second", "5000")
    assert (code, failing(lines)) == (0, set())
    assert {name for name, line in lines.items() if line["verdict"] == "warning"} == {"oxia version"}
    assert "4.2.4" in lines["brokers"]["seen"]
    assert lines["participants"]["seen"].startswith("2 registered")
    assert lines["key sorting"]["seen"] == "hierarchical"
    assert target.list_children("/") == []
    _, lines = preflight(cluster, "--read-only")
    assert lines["key sorting"]["verdict"] == "warning"


def test_a_target_that_is_not_empty_is_found(cluster: DevCluster, target: MetadataStore) -> None:
    target.create("/left", b"")
    try:
        code, lines = preflight(cluster)
        assert (code, failing(lines)) == (WOULD_FAIL, {"target"})
        assert "/left" in lines["target"]["seen"]
    finally:
        remove(target, "/left")


def test_a_target_that_does_not_answer_is_found(cluster: DevCluster) -> None:
    address = cluster.oxia_url.split("/")[2]
    for url in (f"oxia://{LOOPBACK}:{free_ports(1)[0]}/default", f"oxia://{address}/none", cluster.store_url):
        code, lines = preflight(cluster, target=url)
        assert (code, failing(lines)) == (WOULD_FAIL, {"target"}), url


@pytest.mark.parametrize("phase", ["FAILED", "NOT_STARTED"])
def test_a_flag_of_before_is_found_and_never_skipped(cluster: DevCluster, source: MetadataStore, phase: str) -> None:
    set_flag(source, phase, "oxia://former:6648/default")
    try:
        code, lines = preflight(cluster)
        assert (code, failing(lines)) == (WOULD_FAIL, {"flag"})
        before = source.get(MIGRATION_PATH)
        assert run(cluster, "start", "--target", cluster.oxia_url, "--force", "--yes").exit_code == WOULD_FAIL
        assert source.get(MIGRATION_PATH) == before
        assert run(cluster, "status").exit_code == (MIGRATION_FAILED if phase == "FAILED" else 0)
    finally:
        remove(source, MIGRATION_PATH)


def test_several_bookie_clusters_are_not_moved_even_by_force(cluster: DevCluster, source: MetadataStore) -> None:
    source.create(REGISTRY_PATH, serialize_registry(registry_of()), make_parents=True)
    try:
        code, lines = preflight(cluster, "--read-only")
        assert (code, failing(lines)) == (WOULD_FAIL, {"bookie clusters"})
        assert "a, b are registered" in lines["bookie clusters"]["seen"]
        assert run(cluster, "start", "--target", cluster.oxia_url, "--force", "--yes").exit_code == WOULD_FAIL
        assert source.get(MIGRATION_PATH) is None
    finally:
        remove(source, REGISTRY_PATH)


@pytest.fixture
def native_bookie(cluster: DevCluster, tmp_path: Path) -> Iterator[str]:
    """A bookie by BookKeeper's own driver, which knows no migrations; its id."""
    (port,) = free_ports(1)
    uri = f"zk+hierarchical://{LOOPBACK}:{cluster.ports.zookeeper}/ledgers"
    # Its registration outlives it by a session.
    options = dataclasses.replace(cluster.options, bookie_settings={"metadataServiceUri": uri}, session_seconds=4)
    ports = dataclasses.replace(cluster.ports, bookie=port)
    server = ServerProcess(ServerFactory(tmp_path, ports, options, lambda: quick_runtime(options.pulsar)).bookie())
    try:
        server.start()
        yield f"{LOOPBACK}:{port}"
    finally:
        server.kill()


def test_a_bookie_with_a_native_uri_is_found(cluster: DevCluster, source: MetadataStore, native_bookie: str) -> None:
    code, lines = preflight(cluster)
    assert (code, failing(lines)) == (WOULD_FAIL, {"bookies"})
    assert f"bookie {native_bookie} did not register" in lines["bookies"]["seen"]


def test_a_bookie_that_is_down_is_warned_of(cluster: DevCluster, source: MetadataStore) -> None:
    # A bookie that was killed keeps its registration until its session ends.
    eventually(lambda: len(set(source.list_children("/ledgers/available")) - {"readonly"}) == 1, 60)
    if len(source.list_children("/ledgers/cookies")) == 1:
        source.create("/ledgers/cookies/10.0.0.1:3181", b"")
    _, lines = preflight(cluster)
    assert lines["bookies"]["verdict"] == "warning"
    assert "has a cookie and does not run" in lines["bookies"]["seen"]


def test_another_process_that_keeps_nodes_is_found(cluster: DevCluster, source: MetadataStore) -> None:
    with closing(open_store(cluster.store_url)) as foreign:
        path = foreign.ephemeral_sequential("/namespace/foreign-", b"")
        code, lines = preflight(cluster)
        assert (code, failing(lines)) == (WOULD_FAIL, {"participants"})
        assert path in lines["participants"]["seen"]


def test_a_bookwarden_that_writes_is_a_participant(cluster: DevCluster) -> None:
    store = open_store(cluster.store_url)
    assert isinstance(store, ZooKeeperStore)
    with closing(MigratingStore(store)) as ours:
        ours.ephemeral_sequential("/namespace/ours-", b"")
        _, lines = preflight(cluster)
        assert lines["participants"]["verdict"] == "ok"
        assert "3 registered, 1 of them bookwarden's" in lines["participants"]["seen"]
        assert "bookwarden" in run(cluster, "status").stdout


@pytest.fixture
def wrong_broker(cluster: DevCluster, tmp_path: Path) -> Iterator[str]:
    """A broker whose settings let a migration fail; its address."""
    broker, web = free_ports(2)
    settings = {
        "zookeeperSessionExpiredPolicy": "shutdown",
        "metadataStoreSessionTimeoutMillis": "60000",
        "bookkeeperMetadataServiceUri": f"zk+hierarchical://{LOOPBACK}:{cluster.ports.zookeeper}/ledgers",
    }
    options = dataclasses.replace(cluster.options, broker_settings=settings)
    ports = dataclasses.replace(cluster.ports, broker=broker, web=web)

    def is_ready() -> bool:
        with urllib3.PoolManager(retries=False, timeout=2.0) as pool:
            try:
                return pool.request("GET", f"http://{LOOPBACK}:{web}/admin/v2/brokers/ready").status == 200
            except urllib3.exceptions.HTTPError:
                return False

    factory = ServerFactory(tmp_path, ports, options, lambda: quick_runtime(options.pulsar))
    server = ServerProcess(factory.broker(is_ready))
    try:
        server.start()
        yield f"{LOOPBACK}:{web}"
    finally:
        server.stop()


def test_settings_of_one_of_the_brokers_are_found(cluster: DevCluster, wrong_broker: str) -> None:
    result = run(cluster, "preflight", "--target", cluster.oxia_url, "-o", "json")
    assert result.exit_code == WOULD_FAIL, result.stderr
    found = [one for one in json.loads(result.stdout)["findings"] if one["verdict"] != "ok"]
    said = [one["seen"] for one in found if one["check"] == "broker settings"]
    assert len(said) == 2
    assert all(wrong_broker in text for text in said)
    assert [one["check"] for one in found if wrong_broker in one["seen"]].count("session timeouts") == 1
    assert "2 registered, of version 4.2.4" in json.dumps(json.loads(result.stdout))


def test_brokers_that_are_too_old_are_found(pulsar_cluster: DevCluster, cluster: DevCluster) -> None:
    code, lines = preflight(pulsar_cluster, target=cluster.oxia_url)
    assert code == WOULD_FAIL
    assert {"brokers", "participants", "bookies"} <= failing(lines)
    assert "is 4.0.8" in lines["brokers"]["seen"]
    result = run(pulsar_cluster, "status", "-o", "json")
    assert result.exit_code == 0
    assert "need Pulsar 4.2" in json.loads(result.stdout)["broker_trouble"]


def test_a_broker_of_another_cluster_is_not_told_to_begin(pulsar_cluster: DevCluster, cluster: DevCluster) -> None:
    urls = json.dumps([cluster.store_url])
    settings = {"metadata_store.urls": urls, "pulsar.admin_url": pulsar_cluster.admin_url}
    result = invoke(settings, "start", "--target", cluster.oxia_url, "--force", "--yes", "-o", "json")
    assert result.exit_code == WOULD_FAIL, result.stderr
    found = {one["check"] for one in json.loads(result.stdout)["findings"] if one["verdict"] == "would fail"}
    assert found == {"brokers", "cluster"}


def test_it_is_not_begun_without_an_answer(cluster: DevCluster, source: MetadataStore) -> None:
    result = run(cluster, "start", "--target", cluster.oxia_url)
    assert result.exit_code == RefusedError.exit_code
    assert "point of no return" in result.stderr
    assert source.get(MIGRATION_PATH) is None


def test_a_migration_is_begun_followed_to_its_end_and_verified(
    make_cluster: Callable[..., DevCluster], make_namespace: Callable[[DevCluster], str]
) -> None:
    cluster = make_cluster(OPTIONS)
    namespace = make_namespace(cluster)
    with (
        closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin,
        closing(cluster.connection().client()) as client,
    ):
        freed = _fill(cluster, admin, client, f"persistent://{namespace}/former")
        _, lines = preflight(cluster)
        assert lines["ledger ids"]["verdict"] == "warning"
        _assert_moves(cluster)
        _assert_is_told_as_moved(cluster)
        # The counter was not copied: the id of a deleted ledger is given again.
        send(client, f"persistent://{namespace}/new", 3)
        assert min(_ledgers_of(admin, f"persistent://{namespace}/new")) <= max(freed)
        end = _assert_counters_are_raised(cluster, max(freed))
        send(client, f"persistent://{namespace}/newest", 3)
        assert min(_ledgers_of(admin, f"persistent://{namespace}/newest")) >= end

    code, lines = preflight(cluster)
    assert code == WOULD_FAIL
    assert {"flag", "target"} <= failing(lines)
    assert run(cluster, "start", "--target", cluster.oxia_url, "--yes", "--force").exit_code == WOULD_FAIL

    cluster.broker.kill()
    result = run(cluster, "status")
    assert result.exit_code == 0, result.stderr
    assert "COMPLETED" in result.stdout
    assert "The broker did not tell" in result.stdout


def _fill(cluster: DevCluster, admin: PulsarAdmin, client: pulsar.Client, topic: str) -> set[int]:
    """Make nodes, and topics that are deleted again; return their ledgers."""
    ledgers: set[int] = set()
    for number in range(8):
        send(client, f"{topic}-{number}", 3)
        ledgers |= _ledgers_of(admin, f"{topic}-{number}")
        Topics(admin).delete_topic(f"{topic}-{number}", force=True)
    with closing(open_store(cluster.store_url)) as source, ThreadPoolExecutor(16) as pool:
        source.create("/fill", b"")
        list(pool.map(lambda number: source.create(f"/fill/{number:05d}", b"x" * 300), range(NODES)))
    return ledgers


def _ledgers_of(admin: PulsarAdmin, topic: str) -> set[int]:
    return {ledger["ledgerId"] for ledger in Topics(admin).internal_stats(topic)["ledgers"]}


def _assert_moves(cluster: DevCluster) -> None:
    begun = run(cluster, "start", "--target", cluster.oxia_url, "--yes", "-o", "json")
    assert begun.exit_code == 0, begun.stdout + begun.stderr
    steps = [json.loads(line) for line in begun.stdout.splitlines()]
    assert {step["phase"] for step in steps} >= {"PREPARATION", "COMPLETED"}
    assert steps[-1]["ending"] == "completed"
    assert (steps[-1]["phase"], steps[-1]["target_url"]) == ("COMPLETED", cluster.oxia_url)
    assert steps[-1]["blocked_seconds"] > 0
    blocked = [step["blocked_seconds"] for step in steps]
    assert blocked[:-1] == sorted(blocked[:-1])
    copied = steps[-1]["copied"]
    assert copied["of"] > NODES
    # The cluster that was moved may have removed some since.
    assert copied["nodes"] > 0.99 * copied["of"]
    assert copied["estimated"]
    assert run(cluster, "watch").exit_code == 0


def _assert_counters_are_raised(cluster: DevCluster, given: int) -> int:
    """Let the target's counters pass what the source gave, as an Oxia before 0.15 needs it; return the next id."""
    found = run(cluster, "counters")
    assert found.exit_code == COUNTERS_BEHIND, found.stderr
    assert f"The next ledger ids, up to {given}, were given before" in " ".join(found.stdout.split())
    refused = run(cluster, "counters", "--execute")
    assert refused.exit_code == StoreError.exit_code
    assert "--count-up" in refused.stderr
    raised = run(cluster, "counters", "--execute", "--count-up", "-o", "json")
    assert raised.exit_code == 0, raised.stderr
    ids, names = json.loads(raised.stdout)["counters"]
    assert (ids["name"], ids["path"], ids["behind"]) == ("ledger ids", "/ledgers/idgen", 0)
    assert ids["next_before"] <= given < ids["next"]
    assert ids["source_next"] == given + 1
    # The source's one broker took a number when it was started.
    assert (names["path"], names["behind"]) == ("/counters/producer-name", 0)
    assert names["next"] >= names["source_next"] >= 1
    assert run(cluster, "counters").exit_code == 0
    return int(ids["next"])


def _assert_is_told_as_moved(cluster: DevCluster) -> None:
    status = run(cluster, "status", "-o", "json")
    assert status.exit_code == 0
    found = json.loads(status.stdout)
    assert found["phase"] == "COMPLETED"
    # It reads the copy of the flag, which was made in mid-copy.
    assert found["broker"]["phase"] == "COPYING"
    assert "The broker says otherwise" in " ".join(run(cluster, "status").stdout.split())

    verified = run(cluster, "verify", "-o", "json")
    report = json.loads(verified.stdout)
    assert (verified.exit_code, report["clean"]) == (0, True), report
    assert report["equal"] >= NODES


class Scripted:
    """A ZooKeeper of its own and a flag that the test sets; no broker answers."""

    def __init__(self, url: str) -> None:
        self.store = open_store(url)
        self.settings = {
            "metadata_store.urls": json.dumps([url]),
            "pulsar.admin_url": f"http://{LOOPBACK}:{free_ports(1)[0]}",
        }

    def watch(self, *arguments: str) -> Result:
        return invoke(self.settings, "watch", *arguments)


@pytest.fixture
def scripted(zookeeper: LoneZooKeeper) -> Iterator[Scripted]:
    root = f"/w-{uuid4().hex}"
    with closing(open_store(f"zk:{zookeeper.hosts}")) as store:
        store.create(root, b"")
    made = Scripted(f"zk:{zookeeper.hosts}{root}")
    with closing(made.store):
        yield made


def after(seconds: float, do: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, do)
    timer.start()
    return timer


def test_a_migration_that_fails_is_told_with_those_who_did_not_leave(scripted: Scripted) -> None:
    store = scripted.store
    store.create(PARTICIPANTS_PATH, b"", make_parents=True)
    store.ephemeral_sequential(f"{PARTICIPANTS_PATH}/id-", b"bookwarden here 1 abc")
    set_flag(store, "PREPARATION", "oxia://nowhere:6648/default")
    result = scripted.watch("--timeout", "0")
    assert result.exit_code == MORE_LATER
    assert "1 participant not gone: id-0000000000" in result.stdout

    def fail() -> None:
        set_flag(store, "COPYING", f"oxia://{LOOPBACK}:1/default")
        threading.Event().wait(2)
        set_flag(store, "FAILED", f"oxia://{LOOPBACK}:1/default")

    timer = after(1, fail)
    result = scripted.watch()
    timer.join()
    assert result.exit_code == MIGRATION_FAILED
    lines = result.stdout.splitlines()
    assert "the copy began without id-0000000000 (bookwarden here 1 abc)" in " ".join(lines)
    assert lines[-1].startswith("FAILED: the source serves as before.")


def test_a_flag_that_is_removed_ends_the_watch(scripted: Scripted) -> None:
    set_flag(scripted.store, "PREPARATION", "oxia://nowhere:6648/default")
    timer = after(1, lambda: remove(scripted.store, MIGRATION_PATH))
    result = scripted.watch("-o", "json")
    timer.join()
    assert result.exit_code == MIGRATION_FAILED
    last: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    assert (last["phase"], last["ending"]) == (None, "flag removed")
