"""Every route: what changes something needs its content type and the token, and what only asks writes nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest
from click.testing import CliRunner
from fastapi import FastAPI

from bookwarden.bookie_clusters.registry import REGISTRY_PATH, Registry, serialize_registry
from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.config import load_settings
from bookwarden.errors import ServerError
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from bookwarden.server.app import listen, make_app
from servers.asgi import request
from servers.switching.ground import registry_of

TOKEN = "t0ken-of-the-test"
JSON = {"content-type": "application/json"}
#: Of a metadata store: all that change it.
WRITES = ("create", "create_many", "put", "write_many", "delete_many", "ephemeral_sequential")
#: A body with which each route that takes one begins its work.
BODIES = {
    "/{name}": {"metadataServiceUri": "metadata-store:memory:elsewhere"},
    "/{name}/deprecated": {"deprecated": False},
    "/{name}/metadata-service-uri": {"metadataServiceUri": "metadata-store:memory:elsewhere"},
    "/registry": {"registry": {}},
    "/switch": {"target": "b"},
}


def ask(app: FastAPI, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
    """Return status and content of the answer; JSON is parsed."""
    status, _, text = request(app, method, path, body, **headers)
    return status, json.loads(text) if text.startswith((b"{", b"[")) else text


def routes(app: FastAPI) -> Iterator[tuple[str, str, str]]:
    """Yield each route's method and pattern, and a path that it takes."""
    left = list(app.routes)
    while left:
        route = left.pop()
        # FastAPI keeps an included router as one route.
        router = getattr(route, "original_router", None)
        left += [] if router is None else router.routes
        for method in sorted(getattr(route, "methods", None) or ()):
            yield method, route.path, route.path.replace("{name:path}", "rest").replace("{name}", "a")


class Site:
    """Pulsar's own store with a registry in it, and the application; each request that opens the store closes it."""

    def __init__(self, registry: Registry, token: str | None = None) -> None:
        self.registry, self.name = registry, uuid4().hex
        self.overrides = {"metadata_store.urls": f"['memory:{self.name}']", "metadata_store.ledgers_root": "/a"}
        self.app = make_app(load_settings(overrides=self.overrides), token)

    @property
    def uri(self) -> str:
        """The store's, as bookies of a cluster at /ledgers have it."""
        return f"metadata-store:memory:{self.name}"

    def fill(self) -> MemoryStore:
        """Make the nodes again, unless they are there."""
        store = shared_memory_store(self.name)
        if store.get(REGISTRY_PATH) is None:
            store.create(REGISTRY_PATH, serialize_registry(self.registry), make_parents=True)
            for cluster in self.registry.clusters.values():
                root = cluster.ledgers_root
                store.create(f"{root}/INSTANCEID", cluster.instance.encode(), make_parents=True)
                store.create(f"{root}/available/readonly", b"", make_parents=True)
                store.create(f"{root}/cookies", b"", make_parents=True)
                store.create(f"{root}/available/bookie-{cluster.name}:3181", b"")
        return store

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        return ask(self.app, method, path, b"" if body is None else json.dumps(body).encode(), **headers)


def value_of(store: MemoryStore) -> bytes:
    node = store.get(REGISTRY_PATH)
    return b"" if node is None else node.value


def is_asking(method: str) -> bool:
    return method in ("GET", "HEAD", "OPTIONS")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": ""},
        {"content-type": "text/plain"},
        {"content-type": "multipart/form-data; a=application/json"},
    ],
)
def test_what_changes_something_needs_the_content_type(headers: dict[str, str]) -> None:
    site, changing = Site(registry_of()), 0
    for method, pattern, path in routes(site.app):
        if is_asking(method):
            continue
        store = site.fill()
        body = BODIES.get(pattern.removeprefix("/admin/v2/bookie-clusters"), {})
        status, answer = site.ask(method, path, body, **headers)
        assert (status, "Content-Type: application/json" in answer["reason"]) == (415, True), (method, path)
        # Nothing was opened, so nothing was closed.
        assert not store.is_closed, (method, path)
        changing += 1
    assert changing >= 10
    assert site.ask("PATCH", "/admin/v2/bookie-clusters/a")[0] == 415


@pytest.mark.parametrize(
    ("command", "method", "path", "body", "status"),
    [
        ("list", "GET", "", None, 200),
        ("get b", "GET", "/b", None, 200),
        ("get c", "GET", "/c", None, 404),
        ("status", "GET", "/status", None, 200),
        ("precheck --name b --no-trial", "GET", "/b/precheck", None, None),
        ("precheck --name b", "POST", "/b/precheck", {}, None),
        ("switch --target b --yes", "POST", "/switch", {"target": "b"}, 409),
        ("switch --target b --dry-run", "POST", "/switch", {"target": "b", "dryRun": True}, 409),
        (
            "switch --target b --dry-run --skip-precheck",
            *("POST", "/switch", {"target": "b", "dryRun": True, "skipPrecheck": True}, 200),
        ),
        ("switch --target a --dry-run", "POST", "/switch", {"target": "a", "dryRun": True}, 200),
        ("switch --target a --yes", "POST", "/switch", {"target": "a"}, 200),
        ("switch --target c", "POST", "/switch", {"target": "c"}, 409),
        ("rollback --yes", "POST", "/rollback", {}, 404),
        ("register --name c --metadata-service-uri {uri} --yes", "PUT", "/c", {}, 409),
        ("register --name c --metadata-service-uri {uri} --dry-run", "PUT", "/c?dryRun=true", {}, 409),
        ("register --name c --metadata-service-uri {uri} --bootstrap", "PUT", "/c", {"bootstrap": True}, 409),
        ("register --name c --metadata-service-uri x --yes", "PUT", "/c", {"metadataServiceUri": "x"}, 400),
        ("deprecate b", "POST", "/b/deprecated", {"deprecated": True}, 200),
        ("deprecate c", "POST", "/c/deprecated", {"deprecated": True}, 409),
        ("deprecate a", "POST", "/a/deprecated", {"deprecated": True}, 409),
        ("raise-ids --name b --dry-run", "POST", "/b/raise-ids?dryRun=true", None, 200),
        ("upgrade --owner 0badc0de --yes", "POST", "/upgrade", {"owners": ["0badc0de"], "dryRun": False}, 200),
        ("upgrade --owner 0badc0de --dry-run", "POST", "/upgrade", {"owners": ["0badc0de"]}, 200),
        ("upgrade --owner 0badc0d --yes", "POST", "/upgrade", {"owners": ["0badc0d"], "dryRun": False}, 409),
        ("set-uri b --metadata-service-uri {uri} --yes", "POST", "/b/metadata-service-uri", {"dryRun": False}, 200),
        ("set-uri b --metadata-service-uri {uri} --dry-run", "POST", "/b/metadata-service-uri", {}, 200),
        ("set-uri a --metadata-service-uri {uri} --yes", "POST", "/a/metadata-service-uri", {"dryRun": False}, 409),
        ("unregister b --dry-run", "DELETE", "/b?dryRun=true", None, 200),
        ("unregister b --yes", "DELETE", "/b", None, 200),
        ("unregister c --yes", "DELETE", "/c", None, 409),
        ("unregister a --yes", "DELETE", "/a", None, 409),
        ("unregister b --lost --confirm b", "DELETE", "/b?lost=true&confirm=b", None, 409),
        (
            "set-uri b --metadata-service-uri metadata-store:memory:elsewhere --yes",
            *("POST", "/b/metadata-service-uri"),
            *({"metadataServiceUri": "metadata-store:memory:elsewhere", "dryRun": False}, 409),
        ),
        ("promote --yes", "POST", "/promote", {"dryRun": False}, 409),
        ("cleanup --execute --yes", "POST", "/cleanup", {"dryRun": False}, 200),
        ("list-cleanup-targets", "GET", "/cleanup-targets", None, 200),
    ],
)
def test_a_command_and_rest_say_the_same(
    command: str,
    method: str,
    path: str,
    body: dict[str, Any] | None,
    status: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MemoryStore, "close", lambda _: None)
    registry = registry_of()
    # Where a metadata-store: URI says that it is.
    b = replace(registry.clusters["b"], ledgers_root="/ledgers")
    registry = replace(registry, clusters={**registry.clusters, "b": b})
    by_command, site = Site(registry), Site(registry)
    one, other = by_command.fill(), site.fill()
    sets = [word for name, value in by_command.overrides.items() for word in ("--set", f"{name}={value}")]
    words = command.format(uri=by_command.uri).split()
    ended = CliRunner().invoke(cli, [*sets, "bookie-clusters", *words, "-o", "json"])
    if "{uri}" in command:
        body = {**(body or {}), "metadataServiceUri": site.uri}
    found, answer = site.ask(method, f"/admin/v2/bookie-clusters{path}", body, content_type="application/json")
    assert status is None or found == status, answer
    told = json.loads((ended.stdout or ended.stderr).replace(by_command.name, site.name))
    assert told == answer if ended.stdout else told["error"] == answer["reason"]
    assert value_of(one).replace(by_command.name.encode(), site.name.encode()) == value_of(other)
    assert (ended.exit_code == 0) == (found == 200 and answer.get("ready") is not False), ended.output


def test_a_cluster_is_registered_by_rest_as_by_the_command_and_ids_are_raised_only_if_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MemoryStore, "close", lambda _: None)
    by_command, site = Site(registry_of()), Site(registry_of())
    stores = [by_command.fill(), site.fill()]
    for name in (by_command.name, site.name):
        other = shared_memory_store(f"{name}-c")
        for node in ("available/readonly", "cookies", "available/c1:3181"):
            other.create(f"/ledgers/{node}", b"", make_parents=True)
        other.create("/ledgers/INSTANCEID", b"instance-c")
        # Its own clients have given ids that the brokers' counter did not reach.
        LedgerIds(other, "/ledgers").raise_to(40)

    def command(*words: str) -> Any:
        sets = [word for name, value in by_command.overrides.items() for word in ("--set", f"{name}={value}")]
        words = (*words, "--name", "c", "--metadata-service-uri", f"{by_command.uri}-c", "-o", "json")
        ended = CliRunner().invoke(cli, [*sets, "bookie-clusters", "register", *words])
        return json.loads((ended.stdout or ended.stderr).replace(by_command.name, site.name))

    def rest(query: str = "", **fields: Any) -> tuple[int, Any]:
        body = {"metadataServiceUri": f"{site.uri}-c", **fields}
        return site.ask("PUT", f"/admin/v2/bookie-clusters/c{query}", body, **JSON)

    before = value_of(stores[0])
    assert rest("?dryRun=true") == (200, command("--dry-run"))
    status, refused = rest()
    assert (status, "with raiseIds the 40 between are left out" in refused["reason"]) == (409, True)
    assert "error" in command()
    assert [value_of(store) for store in stores] == [before, before]
    status, registered = rest(raiseIds=True)
    assert (status, registered) == (200, command("--yes"))
    assert (registered["raisedBy"], registered["nextLedgerId"]) == (40, 40)
    one, other_value = map(value_of, stores)
    assert one.replace(by_command.name.encode(), site.name.encode()) == other_value != before


def test_a_registry_is_saved_and_put_back_by_rest_as_by_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "close", lambda _: None)
    by_command, site, file = Site(registry_of()), Site(registry_of()), tmp_path / "registry.json"
    one, other = by_command.fill(), site.fill()
    path, saved = "/admin/v2/bookie-clusters/registry", value_of(other)

    def command(*words: str) -> Any:
        sets = [word for name, value in by_command.overrides.items() for word in ("--set", f"{name}={value}")]
        ended = CliRunner().invoke(cli, [*sets, "bookie-clusters", "registry", *words, "-o", "json"])
        return json.loads((ended.stdout or ended.stderr).replace(by_command.name, site.name))

    command("export", str(file))
    status, exported = site.ask("GET", path)
    assert (status, exported) == (200, json.loads(file.read_bytes()))
    assert json.loads(saved) == exported
    # Nothing is written over a registry, nor without the word.
    for lost in (False, True):
        if lost:
            for store in (one, other):
                store.delete_many([(REGISTRY_PATH, 0)])
        for words, dry_run in ((("--dry-run",), True), (("--execute", "--yes"), False)):
            imported = command("import", str(file), *words)
            body = {"registry": exported} if dry_run else {"registry": exported, "dryRun": False}
            status, answer = site.ask("POST", path, body, **JSON)
            if lost:
                assert (status, answer) == (200, imported)
                assert (answer["imported"], answer["savedEpoch"], answer["epoch"]) == (not dry_run, 2, 3)
                assert value_of(one) == value_of(other)
                assert bool(value_of(other)) is not dry_run
            else:
                assert (status, answer["reason"]) == (409, imported["error"])
                assert value_of(one) == value_of(other) == saved
    assert site.ask("GET", path) == (200, {**exported, "epoch": 3})
    assert site.ask("POST", path, {"registry": {"format": 2}}, **JSON)[0] == 400


def test_with_it_each_gets_to_its_operation() -> None:
    for method, pattern, path in routes(Site(registry_of()).app):
        if is_asking(method):
            continue
        site = Site(registry_of())
        site.fill()
        body = BODIES.get(pattern.removeprefix("/admin/v2/bookie-clusters"), {})
        status, answer = site.ask(method, path, body, content_type="Application/JSON; charset=utf-8")
        assert status not in (401, 415, 422), (method, path, answer)


def test_every_request_needs_the_token() -> None:
    site, asked = Site(registry_of(), TOKEN), 0
    for method, _, path in routes(site.app):
        store = site.fill()
        for given in ({}, {"authorization": "Bearer another"}):
            if path not in ("/openapi.json", "/health", "/ready"):
                assert site.ask(method, path, {}, **JSON, **given)[0] == 401, (method, path)
                asked += 1
        assert not store.is_closed
    assert asked > 30
    site.fill()
    assert site.ask("GET", "/admin/v2/bookie-clusters", authorization=f"Bearer {TOKEN}")[0] == 200
    # What a probe is told is that the process answers.
    assert [site.ask("GET", path) for path in ("/health", "/ready")] == [(200, b"ok\n")] * 2
    # No page of another origin can send the token, so a content type proves no more.
    assert site.ask("DELETE", "/admin/v2/bookie-clusters/b?dryRun=true", authorization=f"Bearer {TOKEN}")[0] != 415


def test_what_only_asks_opens_nothing_that_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def watch(name: str) -> Callable[..., Any]:
        return lambda *_, **__: written.append(name)

    answers = {}
    for method, pattern, path in routes(Site(registry_of()).app):
        if method != "GET":
            continue
        site = Site(registry_of().switched("b", "one", 1))
        site.fill()
        with monkeypatch.context() as patched:
            for name in WRITES:
                patched.setattr(MemoryStore, name, watch(name))
            patched.setattr(pulsar, "Client", watch("pulsar.Client"))
            answers[pattern] = site.ask(method, path)
        assert written == [], path
    assert len(answers) >= 8
    assert {pattern: answer for pattern, answer in answers.items() if answer[0] != 200} == {}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("GET", "/nothing", None, 404, "Not Found"),
        ("DELETE", "/metrics", None, 405, "Method Not Allowed"),
        ("POST", "/admin/v2/bookie-clusters/switch", {"target": 3}, 422, "target must be text"),
        ("POST", "/admin/v2/bookie-clusters/switch", {}, 422, "target is missing: the body must name it"),
        ("POST", "/admin/v2/bookie-clusters/switch", None, 422, "the body is missing: a JSON object"),
        ("POST", "/admin/v2/bookie-clusters/switch", [], 422, "the body must be a JSON object"),
        ("POST", "/admin/v2/bookie-clusters/rollback", {"dryrun": 1}, 422, "there is no field 'dryrun'"),
        ("POST", "/admin/v2/bookie-clusters/rollback", {"dryRun": "x"}, 422, "dryRun must be true or false"),
        ("POST", "/admin/v2/bookie-clusters/promote", {"perSecond": "x"}, 422, "perSecond must be a number"),
        ("DELETE", "/admin/v2/bookie-clusters/a?dryRun=x", None, 422, "dryRun must be true or false"),
    ],
)
def test_each_refused_request_has_a_reason(method: str, path: str, body: Any, status: int, reason: str) -> None:
    found, answer = Site(registry_of()).ask(method, path, body, **{"content-type": "application/json"})
    assert (found, reason in answer["reason"]) == (status, True), answer


def test_a_body_that_is_no_json_is_told_so() -> None:
    found, answer = ask(Site(registry_of()).app, "POST", "/admin/v2/bookie-clusters/rollback", b"{", **JSON)
    assert (found, answer["reason"]) == (422, "the body is no JSON")


@pytest.mark.parametrize("body", [b"", b"{}"])
@pytest.mark.parametrize("headers", [JSON, {}, {"content-type": "application/x-www-form-urlencoded"}])
@pytest.mark.parametrize("path", ["/rollback", "/a/precheck", "/promote", "/cleanup", "/upgrade"])
def test_a_request_whose_fields_are_all_optional_needs_no_body(path: str, headers: dict[str, str], body: bytes) -> None:
    site = Site(registry_of(), TOKEN)
    site.fill()
    found, answer = ask(
        site.app, "POST", f"/admin/v2/bookie-clusters{path}", body, authorization=f"Bearer {TOKEN}", **headers
    )
    # As curl sends it with -X POST or -d '{}'; what becomes of it is the command's.
    assert found not in (401, 415, 422), answer


def test_the_parts_of_an_answer_wait_for_no_acknowledgement() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    with listen("127.0.0.1", port) as listening, socket.create_connection(("127.0.0.1", port)):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServerError, match=f"port {port} cannot be listened on: Address already in use; choose"):
            listen("127.0.0.1", port)
