"""Each registered broker is asked: for the topics that it has loaded, and whether threads of it are deadlocked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.registered_brokers import read_deadlocked_brokers, read_loaded_topics
from bookwarden.errors import PulsarAccessError, PulsarError, PulsarUnavailableError
from bookwarden.metastore.memory import MemoryStore

ADMIN = PulsarConnection("pulsar://127.0.0.1:1", "http://127.0.0.1:1")


class Broker:
    """A broker that gives one answer to all, and keeps what it was asked."""

    def __init__(self) -> None:
        self.status, self.body = 200, b"{}"
        self.asked: list[str] = []
        broker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                broker.asked.append(self.path)
                self.send_response(broker.status)
                self.send_header("Content-Length", str(len(broker.body)))
                self.end_headers()
                self.wfile.write(broker.body)

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.registration = {"webServiceUrl": f"http://127.0.0.1:{self.server.server_address[1]}"}

    def has(self, **topics: list[str]) -> None:
        """Answer as 4.0.8: by namespace and topic, with what is pending of each."""
        pending = {"dataLedgerOpenOp": 0}
        self.body = json.dumps({name: dict.fromkeys(each, pending) for name, each in topics.items()}).encode()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def brokers() -> Iterator[list[Broker]]:
    made = [Broker(), Broker()]
    yield made
    for broker in made:
        broker.close()


def store_of(*registrations: object) -> MemoryStore:
    store = MemoryStore()
    store.create("/loadbalance/brokers", b"", make_parents=True)
    for number, registration in enumerate(registrations):
        store.create(f"/loadbalance/brokers/broker-{number}", json.dumps(registration).encode())
    return store


def test_the_topics_of_all_brokers_are_read(brokers: list[Broker]) -> None:
    brokers[0].has(ns=["persistent://t/ns/one", "persistent://t/ns/two"], other=["persistent://t/other/one"])
    store = store_of(*(broker.registration for broker in brokers))
    found = {"persistent://t/ns/one", "persistent://t/ns/two", "persistent://t/other/one"}
    assert read_loaded_topics(store, ADMIN) == found
    assert [broker.asked for broker in brokers] == [["/admin/v2/broker-stats/bookieops"]] * 2


def test_without_a_broker_nothing_is_loaded() -> None:
    assert read_loaded_topics(store_of(), ADMIN) == frozenset()


def test_a_broker_that_does_not_tell_ends_it(brokers: list[Broker]) -> None:
    store = store_of(*(broker.registration for broker in brokers))
    brokers[1].status = 403
    with pytest.raises(PulsarAccessError):
        read_loaded_topics(store, ADMIN)
    brokers[1].status, brokers[1].body = 200, b"[[1]]"
    with pytest.raises(PulsarError, match="broker-1 does not list its topics"):
        read_loaded_topics(store, ADMIN)


def test_a_broker_that_is_not_reached_ends_it(brokers: list[Broker]) -> None:
    unreachable = {"webServiceUrl": "http://127.0.0.1:1"}
    with pytest.raises(PulsarUnavailableError):
        read_loaded_topics(store_of(brokers[0].registration, unreachable), ADMIN)
    with pytest.raises(PulsarError, match="broker-1 names no address"):
        read_loaded_topics(store_of(brokers[0].registration, {}), ADMIN)


def test_only_a_broker_that_says_so_is_deadlocked(brokers: list[Broker]) -> None:
    unreachable, unnamed = {"webServiceUrl": "http://127.0.0.1:1"}, dict[str, str]()
    store = store_of(*(broker.registration for broker in brokers), unreachable, unnamed)
    said = b"Deadlocked threads detected. two of them"
    for status, body, found in [
        (200, b"ok", ()),
        (500, b"no answer from the heartbeat topic", ()),
        (503, said, ()),
        (200, said, ()),
        (401, said, ()),
        (500, said, ("broker-1",)),
    ]:
        brokers[1].status, brokers[1].body = status, body
        assert read_deadlocked_brokers(store, ADMIN) == found, (status, body)
    assert brokers[0].asked == ["/admin/v2/brokers/health?topicVersion=V2"] * 6
