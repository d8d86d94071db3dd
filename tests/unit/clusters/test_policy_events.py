"""The last policies of topics, followed by their events; readers are those of a client that never was."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pulsar
import pytest

from bookwarden.clusters.pulsar.messages import policy_events
from bookwarden.clusters.pulsar.messages.policy_events import LastPolicyEvents, PolicyEventSender
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry, WriterSchema
from bookwarden.errors import FormatError
from bookwarden.metastore.memory import MemoryStore

EVENTS = "persistent://t/n/__change_events"
TOPIC = "persistent://t/n/a"
DEFINITION = (Path(__file__).parents[2] / "data" / "pulsar_event.avsc").read_text(encoding="utf-8")


class Message:
    """An event; of version 5 of its schema."""

    def __init__(self, key: str, value: bytes) -> None:
        self._key, self._value = key, value
        self._message = SimpleNamespace(int_schema_version=lambda: 5 if value else -1)

    def __getattr__(self, name: str) -> Callable[[], Any]:
        answers = {
            "message_id": SimpleNamespace(
                ledger_id=lambda: 1, entry_id=lambda: 1, partition=lambda: -1, batch_index=lambda: -1
            ),
            "partition_key": self._key,
            "data": self._value,
            "properties": {},
            "publish_timestamp": 1_000_000,
            "event_timestamp": 0,
        }
        return lambda: answers[name]


class Client:
    """The events of one topic, and readers that each have a place in them; ``fails`` after as many reads."""

    def __init__(self) -> None:
        self.events: list[Message] = []
        self.sent: list[tuple[bytes, str, list[str] | None]] = []
        self.open = 0
        self.fails = False

    def create_reader(self, topic: str, start: Any, is_read_compacted: bool) -> Any:
        assert (topic, is_read_compacted) == (EVENTS, True)
        self.open += 1
        place = iter(range(10**9))
        at = [next(place)]

        def available() -> bool:
            if self.fails:
                raise pulsar.ConnectError("no broker")
            return at[0] < len(self.events)

        def read_next(timeout_millis: int) -> Message:
            found = self.events[at[0]]
            at[0] = next(place)
            return found

        def close() -> None:
            self.open -= 1

        return SimpleNamespace(has_message_available=available, read_next=read_next, close=close)

    def create_producer(self, topic: str, schema: Any, batching_enabled: bool) -> Any:
        assert topic == EVENTS

        def send(value: bytes, partition_key: str, replication_clusters: list[str] | None) -> None:
            self.sent.append((value, partition_key, replication_clusters))

        return SimpleNamespace(send=send, close=lambda: None)

    def close(self) -> None:
        """End."""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(policy_events, "list_partitions", lambda _, topic: [topic])
    monkeypatch.setattr(SchemaRegistry, "written_with", lambda *_: WriterSchema("AVRO", "a definition"))
    return Client()


class Followed:
    """Events of a namespace that are followed, by a clock of its own."""

    def __init__(self, client: Client, *, with_events: bool = True) -> None:
        self.now_s = 1000.0
        self.store = MemoryStore()
        if with_events:
            self.make()
        connection: Any = SimpleNamespace(client=lambda **_: client)
        self.events = LastPolicyEvents(connection, SimpleNamespace(), self.store, lambda: self.now_s)  # type: ignore[arg-type]

    def make(self) -> None:
        self.store.create("/managed-ledgers/t/n/persistent/__change_events", b"", make_parents=True)


def test_the_last_policies_of_a_topic_are_known_after_they_are_gone(client: Client) -> None:
    at = Followed(client)
    client.events = [Message(TOPIC, b"old"), Message(TOPIC, b"new"), Message(f"__G__{TOPIC}", b"all")]
    assert at.events.follow(["t/n"]) == {}
    at.now_s += 10
    client.events += [Message(TOPIC, b""), Message(f"__G__{TOPIC}", b""), Message("persistent://t/n/c", b"")]
    assert at.events.follow(["t/n"]) == {}
    assert at.events.seen_since_ms("t/n") == 1_000_000
    expected = [(TOPIC, b"new", "a definition"), (f"__G__{TOPIC}", b"all", "a definition")]
    assert at.events.last(TOPIC) == expected
    assert at.events.last("persistent://t/n/c") == at.events.last("persistent://t/other/c") == []
    # Its namespace is gone: the reader ends, and what it read stays for a day.
    assert at.events.follow([]) == {}
    assert client.open == 0
    assert at.events.last(TOPIC) == expected
    at.now_s += 86_500
    at.events.follow([])
    assert at.events.last(TOPIC) == []


def test_one_whose_policies_were_set_again_is_not_forgotten(client: Client) -> None:
    at = Followed(client)
    client.events = [Message(TOPIC, b"old"), Message(TOPIC, b""), Message(TOPIC, b"again")]
    at.now_s += 90_000
    at.events.follow(["t/n"])
    assert at.events.last(TOPIC) == [(TOPIC, b"again", "a definition")]


def test_a_broker_that_fails_is_asked_again(client: Client) -> None:
    at = Followed(client)
    client.events = [Message(TOPIC, b"1")]
    client.fails = True
    assert "no broker" in at.events.follow(["t/n"])["t/n"]
    assert (at.events.seen_since_ms("t/n"), client.open) == (None, 0)
    client.fails = False
    at.now_s += 10
    assert at.events.follow(["t/n"]) == {}
    assert at.events.seen_since_ms("t/n") == 1_010_000
    assert at.events.last(TOPIC) == [(TOPIC, b"1", "a definition")]


def test_a_namespace_without_policies_is_followed_from_its_first_on(client: Client) -> None:
    at = Followed(client, with_events=False)
    assert at.events.follow(["t/n"]) == {}
    assert (at.events.seen_since_ms("t/n"), client.open) == (1_000_000, 0)
    at.now_s += 10
    at.make()
    client.events = [Message(TOPIC, b"1")]
    assert at.events.follow(["t/n"]) == {}
    assert at.events.seen_since_ms("t/n") == 1_000_000
    assert at.events.last(TOPIC) == [(TOPIC, b"1", "a definition")]


def test_where_there_is_no_time_the_rest_is_said_to_be_unread(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Followed(client)
    monkeypatch.setattr(policy_events, "_BUDGET_S", -1.0)
    assert at.events.follow(["t/n"]) == {"t/n": "there was no time"}
    assert at.events.seen_since_ms("t/n") is None


@pytest.mark.parametrize("clusters", [["one"], None])
def test_an_event_is_sent_again_for_the_clusters_that_it_was_for(client: Client, clusters: list[str] | None) -> None:
    written = BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(json.loads(DEFINITION)), {"replicateTo": clusters})
    connection: Any = SimpleNamespace(client=lambda **_: client)
    sender = PolicyEventSender(connection, SimpleNamespace())  # type: ignore[arg-type]
    sender.send("t/n", [(TOPIC, written.getvalue(), DEFINITION)])
    assert client.sent == [(written.getvalue(), TOPIC, clusters)]
    with pytest.raises(FormatError, match="not as its schema says"):
        sender.send("t/n", [(TOPIC, b"\xff", DEFINITION)])
    client.events = [Message(TOPIC, b"1"), Message("gone", b"1"), Message("gone", b""), Message("other", b"1")]
    assert sender.current("t/n", [TOPIC, "gone"]) == {TOPIC: b"1"}
