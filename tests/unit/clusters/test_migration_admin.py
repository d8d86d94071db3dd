"""What a broker answers to a migration's orders, as errors that say what to do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.migration import BrokerStatus, MigrationAdmin
from bookwarden.errors import (
    BookwardenError,
    FormatError,
    NotFoundError,
    PulsarAccessError,
    PulsarError,
    PulsarUnavailableError,
    RefusedError,
)

# As 4.2.4 writes it.
JAVA = "\n --- An unexpected error occurred in the server ---\n\nMessage: {}\n\nStacktrace:\n\norg.apache...\n\tat x"


class Broker:
    """A broker that gives one answer to all, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: tuple[int, bytes] = (204, b"")
        self.asked: list[str] = []
        broker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                broker.asked.append(f"{self.command} {self.path}")
                status, body = broker.answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.admin = PulsarAdmin(PulsarConnection("pulsar://127.0.0.1:1", url))
        self.migration = MigrationAdmin(self.admin)

    def say(self, status: int, body: object) -> None:
        self.answer = status, json.dumps(body).encode()

    def close(self) -> None:
        self.admin.close()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.close()


def test_status_is_phase_and_target(broker: Broker) -> None:
    broker.say(200, {"phase": "NOT_STARTED"})
    assert broker.migration.status() == BrokerStatus("NOT_STARTED", None)
    broker.say(200, {"phase": "COPYING", "targetUrl": "oxia://o/n"})
    assert broker.migration.status() == BrokerStatus("COPYING", "oxia://o/n")
    assert set(broker.asked) == {"GET /admin/v2/metadata/migration/status"}


@pytest.mark.parametrize("body", [{}, [], {"targetUrl": "x"}])
def test_an_answer_without_a_phase_is_no_status(broker: Broker, body: object) -> None:
    broker.say(200, body)
    with pytest.raises(FormatError, match="without a phase"):
        broker.migration.status()


def test_start_names_the_target(broker: Broker) -> None:
    broker.migration.start("oxia://o:6648/default")
    assert broker.asked == ["POST /admin/v2/metadata/migration/start?target=oxia%3A%2F%2Fo%3A6648%2Fdefault"]


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (401, PulsarAccessError, "only a superuser"),
        (403, PulsarAccessError, "only a superuser"),
        (404, NotFoundError, "need Pulsar 4.2 or newer on all brokers"),
    ],
)
def test_what_is_refused_says_why(broker: Broker, status: int, kind: type[BookwardenError], text: str) -> None:
    broker.say(status, {"reason": "no"})
    with pytest.raises(kind, match=text):
        broker.migration.status()
    with pytest.raises(kind, match=text):
        broker.migration.start("oxia://o/n")


def test_a_broker_that_knows_no_migrations_says_that_alone(broker: Broker) -> None:
    # As 4.0.8 answers.
    servlet = "org.glassfish.jersey.servlet.ServletContainer-1"
    broker.say(
        404, {"servlet": servlet, "message": "Not Found", "url": "/admin/v2/metadata/migration", "status": "404"}
    )
    with pytest.raises(NotFoundError) as told:
        broker.migration.status()
    assert str(told.value) == "the broker knows no migrations: they need Pulsar 4.2 or newer on all brokers"
    with pytest.raises(NotFoundError, match=r"GET /x: the broker answered 404: Not Found$"):
        broker.admin.get_json("/x")


def test_a_broker_on_another_store_cannot_migrate(broker: Broker) -> None:
    broker.say(400, {"reason": "Metadata store is not configured for migration."})
    with pytest.raises(RefusedError, match=r"not configured for migration\. \(only brokers on a ZooKeeper"):
        broker.migration.start("oxia://o/n")


def test_a_target_that_the_broker_refuses_is_told_without_javas_stack(broker: Broker) -> None:
    broker.say(500, {"reason": JAVA.format("namespace nope not found in shards assignments")})
    with pytest.raises(
        PulsarError, match="namespace nope not found in shards assignments; nothing was written"
    ) as told:
        broker.migration.start("oxia://o/nope")
    assert "Stacktrace" not in str(told.value)
    broker.answer = 500, b"<html>"
    with pytest.raises(PulsarError, match="<html>; nothing was written"):
        broker.migration.start("oxia://o/nope")


def test_an_order_without_an_answer_may_be_carried_out_later(broker: Broker) -> None:
    broker.say(503, {"reason": "busy"})
    with pytest.raises(PulsarUnavailableError, match="it begins as soon as it reaches it"):
        broker.migration.start("oxia://o/n")


def test_a_ledger_id_that_is_taken_leads_to_the_counter(broker: Broker) -> None:
    exception = "org.apache.bookkeeper.mledger.ManagedLedgerException: Bad ledger metadata version error code: -17"
    broker.say(500, {"reason": JAVA.format(exception)})
    with pytest.raises(PulsarUnavailableError, match="metadata-migration counters --execute"):
        broker.admin.get_json("/persistent/t/n/deletion-DLQ/stats")
