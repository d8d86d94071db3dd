"""`bookwarden serve` on a real ZooKeeper: the registry by REST, who may call, and its OpenAPI document."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from uuid import uuid4

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from bookwarden.bookie_clusters.registry import REGISTRY_PATH, parse_registry
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster.ports import free_ports
from servers.lone_zookeeper import LoneZooKeeper
from servers.rest import serving
from servers.switching.ledgers_roots import initialise

pytestmark = pytest.mark.servers

CLUSTERS = "/admin/v2/bookie-clusters"


class Site:
    """A chroot with the bookie cluster a in it, and b beside it."""

    def __init__(self, hosts: str) -> None:
        self.hosts, self.chroot = hosts, f"/t-{uuid4().hex}"
        self.url = f"zk:{hosts}{self.chroot}"
        with closing(open_store(f"zk:{hosts}")) as store:
            initialise(store, f"{self.chroot}/ledgers", "a")
            initialise(store, f"{self.chroot}-b/bookies-b", "b")

    @property
    def uris(self) -> dict[str, str]:
        return {"a": f"metadata-store:{self.url}", "b": f"zk+hierarchical://{self.hosts}{self.chroot}-b/bookies-b"}

    def overrides(self) -> dict[str, str]:
        return {"metadata_store.urls": json.dumps([self.url]), "pulsar.admin_url": f"http://127.0.0.1:{_closed_port()}"}


@pytest.fixture
def site(zookeeper: LoneZooKeeper) -> Site:
    return Site(zookeeper.hosts)


def test_the_registry_is_led_by_rest_as_by_commands(site: Site) -> None:
    with serving(site.overrides()) as server:
        assert server.ask("GET", CLUSTERS) == (
            200,
            {
                "registry": site.url,
                "epoch": 0,
                "owner": None,
                "idRoot": None,
                "active": None,
                "clusters": [],
                "switchTarget": None,
            },
        )
        first = {"metadataServiceUri": site.uris["a"], "bootstrap": True}
        assert server.ask("PUT", f"{CLUSTERS}/a?dryRun=true", first)[1]["registered"] is False
        status, registered = server.ask("PUT", f"{CLUSTERS}/a", first)
        assert (status, registered["cluster"]["status"], registered["bookies"]) == (200, "ACTIVE", ["a"])
        assert server.ask("PUT", f"{CLUSTERS}/b", {"metadataServiceUri": site.uris["b"]})[0] == 200
        assert [one["name"] for one in server.ask("GET", CLUSTERS)[1]["clusters"]] == ["a", "b"]
        assert server.ask("GET", f"{CLUSTERS}/b")[1]["status"] == "STANDBY"
        assert server.ask("POST", f"{CLUSTERS}/b/deprecated", {"deprecated": True})[1]["epoch"] == 3
        assert server.ask("GET", f"{CLUSTERS}/b")[1]["status"] == "DEPRECATED"
        assert server.ask("POST", f"{CLUSTERS}/b/deprecated", {"deprecated": False})[0] == 200
        assert server.ask("GET", f"{CLUSTERS}/status")[1]["phase"] == "REGISTERED"
        status, text = server.ask("GET", "/metrics")
        assert (status, b"\nbookwarden_bookie_clusters_registry_epoch 4.0\n" in text) == (200, True), text
        status, raised = server.ask("POST", f"{CLUSTERS}/b/raise-ids?dryRun=true")
        assert (status, raised["name"], raised["raised"], raised["dryRun"]) == (200, "b", 0, True)
        saved = server.ask("GET", f"{CLUSTERS}/registry")[1]
        assert (saved["epoch"], sorted(saved["clusters"])) == (4, ["a", "b"])
        status, refused = server.ask("POST", f"{CLUSTERS}/registry", {"registry": saved, "dryRun": False})
        assert (status, "has one, of epoch 4" in refused["reason"]) == (409, True)
        owners = {"owners": ["0badc0de"], "dryRun": False}
        status, upgraded = server.ask("POST", f"{CLUSTERS}/upgrade", owners)
        assert (status, upgraded["addedOwners"], upgraded["epoch"]) == (200, ["0badc0de"], 5)
        status, found = server.ask("GET", f"{CLUSTERS}/cleanup-targets?srcClusterFilter=b")
        assert (status, found["targets"]) == (200, [])
        assert server.ask("POST", f"{CLUSTERS}/cleanup", {"srcClusterFilter": "c"})[0] == 409
        status, left = server.ask("GET", f"{CLUSTERS}/b/drain")
        assert (status, left["ledgers"]) == (200, 0)
        status, refused = server.ask("GET", f"{CLUSTERS}/a/drain")
        assert (status, "it is active" in refused["reason"]) == (409, True)
        status, refused = server.ask("POST", f"{CLUSTERS}/promote", {"dryRun": False})
        assert (status, "nothing was switched yet" in refused["reason"]) == (409, True)
        assert server.ask("DELETE", f"{CLUSTERS}/b")[0] == 200
        with closing(open_store(site.url)) as store:
            node = store.get(REGISTRY_PATH)
        assert node is not None
        assert sorted(parse_registry(node.value).clusters) == ["a"]


def test_what_cannot_be_is_said_with_its_status(site: Site) -> None:
    with serving(site.overrides()) as server:
        first = {"metadataServiceUri": site.uris["a"], "bootstrap": True}
        assert server.ask("PUT", f"{CLUSTERS}/a", first)[0] == 200
        assert server.ask("PUT", f"{CLUSTERS}/b", {"metadataServiceUri": site.uris["b"]})[0] == 200
        for method, path, body, status, says in (
            ("GET", "/c", None, 404, "no bookie cluster 'c' is registered"),
            ("PUT", "/c", {"metadataServiceUri": site.uris["b"]}, 409, "is registered as 'b'"),
            ("PUT", "/c", {"metadataServiceUri": "x"}, 400, "is no metadataServiceUri"),
            ("PUT", "/c", {}, 422, ""),
            ("DELETE", "/a", None, 409, "is active"),
            ("POST", "/switch", {"target": "c"}, 409, "no bookie cluster 'c' is registered"),
            ("POST", "/rollback", {}, 404, ""),
        ):
            found, answer = server.ask(method, CLUSTERS + path, body)
            assert found == status, (method, path, answer)
            assert says in json.dumps(answer)
        # No broker is there to follow, so the precheck fails: with its result, and nothing is switched.
        status, answer = server.ask("POST", f"{CLUSTERS}/switch", {"target": "b"})
        assert (status, answer["ready"], answer["targetClusterName"]) == (409, False, "b"), answer
        for method, body in (("GET", None), ("POST", {}), ("POST", {"trial": False})):
            status, answer = server.ask(method, f"{CLUSTERS}/b/precheck", body)
            assert (status, answer["ready"]) == (200, False)
        assert server.ask("DELETE", f"{CLUSTERS}/b", headers={"Content-Type": "text/plain"})[0] == 415
        assert server.ask("GET", CLUSTERS)[1]["active"] == "a"
        for operation in ("set-read-mode", "close-client"):
            status, answer = server.ask("POST", f"{CLUSTERS}/{operation}")
            assert (status, answer["changed"]) == (200, False)


def test_only_who_has_the_token_is_answered(site: Site) -> None:
    with serving(site.overrides(), token="t0ken-of-the-test") as server:
        assert server.ask("GET", CLUSTERS)[0] == 200
        for given in ("", "Bearer ", "Bearer t0ken-of-the-tesT", "Basic t0ken-of-the-test"):
            for path in (CLUSTERS, "/metrics"):
                status, answer = server.ask("GET", path, headers={"Authorization": given})
                assert (status, "Authorization: Bearer" in answer["reason"]) == (401, True)
        for method, headers, expected in (
            ("DELETE", {"Authorization": ""}, 401),
            # No page of another origin can send the token, so the content type proves no more.
            ("DELETE", {"Content-Type": ""}, 409),
        ):
            assert server.ask(method, f"{CLUSTERS}/a", headers=headers)[0] == expected
        status, document = server.ask("GET", "/openapi.json", headers={"Authorization": ""})
        assert status == 200
    asking = [methods["get"] for methods in document["paths"].values() if "get" in methods]
    assert not [one for each in asking for one in each.get("parameters", []) if one["name"] == "trial"]


def test_without_a_token_only_this_machine_is_served(site: Site) -> None:
    with serving(site.overrides()) as server:
        # As a page would ask that gave this address a name of its own.
        assert server.ask("GET", CLUSTERS, headers={"Host": "rebound.example"})[0] == 400
    sets = ["--set", "serve.host=0.0.0.0", "--set", f"metadata_store.urls={json.dumps([site.url])}"]
    ended = subprocess.run(
        [sys.executable, "-m", "bookwarden.cli", *sets, "serve"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, "set serve.token_file" in ended.stderr) == (3, True), ended.stderr


def test_its_document_is_true(site: Site) -> None:
    """Whatever is sent, the answer is one that the OpenAPI document has, and none is a failure of the server."""
    checks = (not_a_server_error, status_code_conformance, response_schema_conformance)
    with serving(site.overrides()) as server:
        assert server.ask("PUT", f"{CLUSTERS}/a", {"metadataServiceUri": site.uris["a"], "bootstrap": True})[0] == 200
        schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
        asked = set()

        @given(case=schema.as_strategy())
        @hypothesis_settings(
            max_examples=250,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def holds(case: schemathesis.Case) -> None:
            asked.add(case.operation.label)
            # Without it every request that changes something would end at its door; some of those are sent too.
            headers = {} if len(asked) % 5 == 0 else {"Content-Type": "application/json"}
            case.call_and_validate(base_url=server.address, checks=checks, headers=headers)

        holds()
        assert len(asked) == len(list(schema.get_all_operations()))


def _closed_port() -> int:
    (port,) = free_ports(1)
    return port
