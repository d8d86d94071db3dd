"""What counts as sent: each message that the broker confirmed, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from bookwarden.clusters.pulsar.messages import producers as module
from bookwarden.clusters.pulsar.messages.producers import ConfirmedProducers
from bookwarden.errors import UnconfirmedError

Confirm = Callable[[pulsar.Result, object], None]


class Client:
    """Takes sends, and confirms none by itself."""

    def __init__(self) -> None:
        self.sent: list[Confirm] = []

    def create_producer(self, topic: str, **options: object) -> Client:
        return self

    def send_async(self, payload: bytes, confirm: Confirm, **options: object) -> None:
        self.sent.append(confirm)


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def producers(client: Client, monkeypatch: pytest.MonkeyPatch) -> ConfirmedProducers:
    monkeypatch.setattr(module, "GRACE_S", 0.0)
    connect: Any = lambda: client  # noqa: E731
    return ConfirmedProducers(connect, send_timeout_s=0.05)


def send(producers: ConfirmedProducers, *names: str) -> None:
    for name in names:
        producers.send("topic", b"", schema=None, key=None, properties={}, name=name)


def test_what_is_refused_or_not_answered_is_named_and_the_rest_is_confirmed(
    producers: ConfirmedProducers, client: Client
) -> None:
    send(producers, "confirmed", "refused", "not answered")
    client.sent[0](pulsar.Result.Ok, None)
    client.sent[1](pulsar.Result.TopicTerminated, None)
    with pytest.raises(
        UnconfirmedError, match="2 messages were not confirmed; the first, to topic: the broker"
    ) as error:
        producers.flush()
    assert error.value.messages == {"refused", "not answered"}
    # A late answer changes nothing of what comes next.
    send(producers, "next")
    client.sent[2](pulsar.Result.TopicTerminated, None)
    client.sent[3](pulsar.Result.Ok, None)
    producers.flush()
