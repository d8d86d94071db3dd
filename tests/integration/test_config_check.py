"""`config check` on a real cluster: everything answers, then wrong addresses, then rights that are missing."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Permissions, make_acl

from bookwarden.cli.main import cli
from bookwarden.config import OffloadStoreSettings, load_settings
from bookwarden.config_check import _journal_target, _offload_targets, ask_all
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.metadata_tree import nodes_below
from servers.object_store import ACCESS_KEY, REGION, SECRET_KEY, ObjectStore

pytestmark = pytest.mark.servers


class Check:
    """`config check` over the settings of a site, with some of them changed; ``ends`` is its exit code."""

    def __init__(self, site: DeletionSite) -> None:
        deletion = site.settings.deletion
        self.values = {
            "pulsar.service_url": site.service_url,
            "pulsar.admin_url": site.admin_url,
            "metadata_store.urls": f"['{site.store_url}']",
            "deletion.topic": deletion.topic,
            "deletion.retry_topic": deletion.retry_topic,
            "deletion.dlq_topic": deletion.dlq_topic,
        }
        for name in ("sweep.checkpoint", "sweep.outcomes", "sweep.journal", "follow.checkpoint", "follow.outcomes"):
            self.values[name] = str(site.folder / name)
        self.values["orphans.folder"] = str(site.folder / "made" / "orphans")
        self.values["cluster_migration.journal"] = str(site.folder / "cluster-migration")

    def __call__(self, ends: int, **changed: str) -> dict[str, list[Any]]:
        values = self.values | {name.replace("__", "."): value for name, value in changed.items()}
        options = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
        result = CliRunner().invoke(cli, [*options, "-o", "json", "config", "check"])
        assert result.exit_code == ends, result.output
        found: dict[str, list[Any]] = {}
        for one in json.loads(result.stdout)["findings"]:
            found.setdefault(one["check"].partition(" ")[0], []).append(one)
        return found


@pytest.fixture
def check(site: DeletionSite) -> Check:
    return Check(site)


def failed(found: dict[str, list[Any]]) -> set[str]:
    return {name for name, some in found.items() if any(one["verdict"] == "would fail" for one in some)}


def nodes_of(url: str) -> dict[str, int]:
    with closing(open_store(url)) as store:
        return {path: node.version for path, node in nodes_below(store).items() if not node.ephemeral}


def test_where_all_is_well_everything_answers_and_nothing_is_left(check: Check, site: DeletionSite) -> None:
    check(0)
    before, files = nodes_of(site.store_url), list(site.folder.rglob("*"))
    found = check(0)
    assert nodes_of(site.store_url) == before
    # Not even the folders that a sweep would make.
    assert list(site.folder.rglob("*")) == files
    assert {one["verdict"] for some in found.values() for one in some} <= {"ok", "warning"}
    assert found["pulsar.admin_url"][-1]["seen"].startswith("the deletion topics and their subscriptions are there")
    assert found["pulsar.service_url"][-1]["seen"].endswith("nothing was sent")
    (roots,) = (one for one in found["roots"] if one["verdict"] == "ok")
    assert "are all that share this BookKeeper" in roots["seen"]
    assert any("may be deleted" in one["seen"] for one in found["metadata_store.urls[0],"])


def test_wrong_addresses_are_named_each_and_take_their_time_together(check: Check, site: DeletionSite) -> None:
    blocked = site.folder / "file"
    blocked.touch()
    began = time.monotonic()
    found = check(
        23,
        pulsar__service_url="pulsar://127.0.0.1:1",
        pulsar__admin_url="http://127.0.0.1:1",
        metadata_store__urls="['zk:127.0.0.1:1']",
        sweep__journal=str(blocked / "below"),
    )
    assert time.monotonic() - began < 2 * 20
    assert failed(found) == {
        "metadata_store.urls[0]",
        "metadata_store.urls[0],",
        "bookies",
        "pulsar.admin_url",
        "pulsar.service_url",
        "sweep.journal",
    }
    assert "cannot be reached" in found["metadata_store.urls[0]"][0]["seen"]
    assert found["sweep.journal"][0]["seen"] == f"{blocked} cannot be written: Not a directory"
    assert all(one["advice"] for some in found.values() for one in some if one["verdict"] == "would fail")


@contextmanager
def root_with(cluster: DevCluster, acl_of: dict[str, list[ACL]]) -> Iterator[str]:
    """Make a metadata root with a ledger, whose nodes have these ACLs; yield its URL."""
    chroot = f"/check-{uuid.uuid4().hex}"
    client = KazooClient(cluster.store_url.removeprefix("zk:"))
    client.start()
    paths = ("admin/clusters", "managed-ledgers", "ledgers/available/readonly", "ledgers/00/0000/L0007", "bookwarden")
    for path in paths:
        client.create(f"{chroot}/{path}", makepath=True)
    try:
        for path, acl in acl_of.items():
            client.set_acls(f"{chroot}{path}", acl)
        yield f"{cluster.store_url}{chroot}"
    finally:
        for path in acl_of:
            client.set_acls(f"{chroot}{path}", OPEN_ACL_UNSAFE)
        client.delete(chroot, recursive=True)
        client.stop()
        client.close()


def test_a_right_that_an_acl_takes_away_is_named(check: Check, shared_cluster: DevCluster, site: DeletionSite) -> None:
    # `mark` and `sweep` write below /bookwarden, and the sweep deletes below the ledgers' folders.
    administered = [make_acl("world", "anyone", read=True, admin=True)]
    assert administered[0].perms == Permissions.READ | Permissions.ADMIN
    with root_with(shared_cluster, {"/bookwarden": administered, "/ledgers/00/0000": administered}) as url:
        before = nodes_of(url)
        found = check(23, metadata_store__urls=f"['{url}']")
        assert nodes_of(url) == before
    assert {"metadata_store.urls[0]", "metadata_store.urls[0],", "bookies"} == failed(found)
    (refused,) = (one for one in found["metadata_store.urls[0]"] if one["verdict"] == "would fail")
    assert refused["seen"].startswith("no node can be made, changed and removed below /bookwarden")
    (kept,) = (one for one in found["metadata_store.urls[0],"] if one["verdict"] == "would fail")
    assert kept["seen"].startswith("ledgers below /ledgers/00/0000 cannot be deleted")
    assert "ACL" in kept["advice"]


def test_object_stores_are_asked_and_keep_nothing(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = f"check-{uuid.uuid4().hex}"
    object_store.create_bucket(bucket)
    variables = {
        "AWS_ENDPOINT_URL": object_store.endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(overrides={"sweep.journal": f"s3://{bucket}/journal"})
    store = OffloadStoreSettings.model_validate(
        {
            "driver": "S3",
            "endpoint": object_store.endpoint,
            "buckets": [bucket, "no-such-bucket"],
            "access_key": ACCESS_KEY,
            "secret_key": SECRET_KEY,
        }
    )
    found = ask_all([_journal_target(settings), *_offload_targets("offload.stores[0]", store, settings)], 20)
    assert [(one.check.rpartition(" ")[2], one.verdict.value) for one in found] == [
        (f"s3://{bucket}/journal", "ok"),
        (bucket, "ok"),
        (bucket, "ok"),
        ("no-such-bucket", "would fail"),
    ]
    assert found[0].seen == "can be listed and written: an object of our own was made and removed"
    assert "may be deleted" in found[2].seen
    assert object_store.keys(bucket) == set()
