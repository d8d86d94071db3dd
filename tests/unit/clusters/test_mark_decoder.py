"""Messages that lost their schema on the retry topic are read by the registered one that fits."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import fastavro
import pytest

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.mark_decoder import MarkDecoder
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry, WriterSchema
from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.wire.avro import PendingDeletionCodec

TOPIC, RETRY = "persistent://t/n/d", "persistent://t/n/d-RETRY"
MARK = PendingDeletion("persistent://t/n/x", LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, 7)
VALUES = {"topicName": MARK.topic_name, "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER", "ledgerId": 7}


def schema(*fields: tuple[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": n, "type": kind} for n, kind in fields]})


JAVA = schema(
    ("ledgerId", ["null", "long"]), ("ledgerType", "string"), ("ledgerComponent", "string"), ("topicName", "string")
)
SAYING_MORE = schema(
    ("ledgerId", ["null", "long"]), ("ledgerType", "string"), ("ledgerComponent", "string"), ("reason", "string")
)


class Registered(SchemaRegistry):
    """A registry that has some schemas for the deletion topic, and counts the questions."""

    def __init__(self, *definitions: str) -> None:
        super().__init__(PulsarAdmin(PulsarConnection("pulsar://127.0.0.1:1", "http://127.0.0.1:1")))
        self.definitions = list(definitions)
        self.asked = 0

    def versions(self, topic: str) -> list[WriterSchema]:
        self.asked += 1
        return [WriterSchema("AVRO", text) for text in self.definitions] if topic == TOPIC else []


def written(definition: str, **more: str) -> bytes:
    output = BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(json.loads(definition)), {**VALUES, **more})
    return output.getvalue()


def test_the_registered_schema_that_fits_is_used_on_the_retry_topic() -> None:
    registry = Registered("{", SAYING_MORE.replace("string", "double"), JAVA)
    decoder = MarkDecoder(registry, TOPIC, RETRY)
    assert decoder.decode(f"{RETRY}-partition-3", written(JAVA), None) == MARK
    assert decoder.decode(RETRY, PendingDeletionCodec().encode(MARK), None) == MARK
    assert registry.asked == 2


def test_elsewhere_a_message_without_a_schema_is_ours_or_none() -> None:
    registry = Registered(JAVA)
    with pytest.raises(MalformedMarkError):
        MarkDecoder(registry, TOPIC, RETRY).decode(f"{TOPIC}-partition-0", written(JAVA), None)
    assert registry.asked == 0


def test_schemas_that_fit_and_disagree_say_nothing() -> None:
    kinds = (("ledgerId", "long"), ("ledgerType", "string"), ("ledgerComponent", "string"))
    one = schema(*kinds, ("topicName", "string"), ("reason", "string"))
    other = schema(*kinds, ("reason", "string"), ("topicName", "string"))
    payload = written(one, reason="persistent://t/n/other")
    assert MarkDecoder(Registered(one, JAVA), TOPIC, RETRY).decode(RETRY, payload, None).topic_name == MARK.topic_name
    with pytest.raises(MalformedMarkError, match="2 registered schemas fit it and disagree"):
        MarkDecoder(Registered(one, other), TOPIC, RETRY).decode(RETRY, payload, None)


def test_what_none_fits_is_malformed_and_asks_the_registry_seldom() -> None:
    registry = Registered(JAVA)
    decoder = MarkDecoder(registry, TOPIC, RETRY)
    for _ in range(50):
        with pytest.raises(MalformedMarkError, match="does not fit"):
            decoder.decode(RETRY, b"\xff\xfe no mark at all", None)
    assert registry.asked < 20
