"""`finish` opens each connection once: an admin client and a session for each cluster, and one sender of marks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner

import bookwarden.wiring.cluster
import bookwarden.wiring.deletion_topics
from bookwarden.cli.main import cli
from bookwarden.cluster_migration.record import MigrationRecord
from bookwarden.cluster_migration.states import ExpectedTopic
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.metastore.memory import shared_memory_store
from unit.blue_green.scripted_blue import LOCAL, NAMESPACE, TOPIC, cursor, node

PATH = f"/managed-ledgers/{NAMESPACE}/persistent/orders"


class Connections:
    """Lists what is opened, and what of it is not closed yet."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.open: list[str] = []

    def watched(self, name: str, thing: Any) -> Any:
        self.opened.append(name)
        self.open.append(name)
        close = thing.close

        def closing() -> None:
            self.open.remove(name)
            close()

        thing.close = closing
        return thing


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Connections:
    found = Connections()
    metadata, pulsar = bookwarden.wiring.cluster, bookwarden.wiring.deletion_topics
    opening, sending, make = metadata.open_metadata_store, pulsar.PendingDeletionSender, PulsarAdmin.__init__

    def admin(self: PulsarAdmin, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        found.watched("admin client", self)

    monkeypatch.setattr(
        metadata,
        "open_metadata_store",
        lambda settings, url, **options: found.watched(url.partition("-")[2], opening(settings, url, **options)),
    )
    monkeypatch.setattr(
        pulsar, "PendingDeletionSender", lambda *arguments: found.watched("sender of marks", sending(*arguments))
    )
    monkeypatch.setattr(PulsarAdmin, "__init__", admin)
    return found


@pytest.fixture
def broker() -> Iterator[str]:
    """Run a broker whose topics have no partitions, and return its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            answers = {f"/{NAMESPACE}": [TOPIC], "/orders/partitions": {"partitions": 0}}
            found = [answer for end, answer in answers.items() if path.endswith(end)]
            answer = json.dumps(found[0] if found else []).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_finish_opens_each_connection_once_and_closes_it(tmp_path: Path, connections: Connections, broker: str) -> None:
    names = {side: f"{uuid4().hex}-{side}" for side in ("blue", "green")}
    for name in names.values():
        store = shared_memory_store(name)
        store.create(PATH, node(), make_parents=True)
        store.create(f"{PATH}/app", cursor(6, 2))
    shared_memory_store(names["blue"]).create(LOCAL, b'{"migrated": true}', make_parents=True)
    MigrationRecord(tmp_path).starting(NAMESPACE, [ExpectedTopic(TOPIC, ("app",))], cluster="blue")
    green = {"pulsar": {"admin_url": broker}, "metadata_store": {"urls": [f"memory:{names['green']}"]}}
    settings = {
        "pulsar": {"admin_url": broker},
        "metadata_store": {"urls": [f"memory:{names['blue']}"]},
        "cluster_migration": {"blue": {"cluster": "blue"}, "green": green, "journal": str(tmp_path)},
    }
    (tmp_path / "bookwarden.yaml").write_text(json.dumps(settings))
    command = ["--config", str(tmp_path / "bookwarden.yaml"), "-o", "json", "cluster-migration", "finish", NAMESPACE]
    ended = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    assert [(one["topic"], one["marks"]) for one in json.loads(ended.stdout)["topics"]] == [(TOPIC, 2)]
    assert connections.opened == ["blue", "admin client", "green", "admin client", "sender of marks"]
    assert connections.open == []
