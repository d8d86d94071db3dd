"""Events about policies of topics, as the broker's own classes write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookwarden.errors import FormatError
from bookwarden.ledgers.names import TopicName
from bookwarden.wire.topic_policies import decode_topic_policies, decode_topic_quorums, event_of_topic
from bookwarden.wire.writer_schema import parse_writer_schema

# Both are Schema.AVRO(PulsarEvent.class) of Pulsar 4.0.8: of a topic t/n/orders with a persistence policy, and of one
# with another policy alone.
DEFINITION = (Path(__file__).parents[2] / "data/pulsar_event.avsc").read_text()
WRITTEN = parse_writer_schema(DEFINITION)
WITH_PERSISTENCE = bytes.fromhex(
    "020402000002021470657273697374656e7402026e02000200000000000000000000000000000000000000000002040a0600"
    "000000000000000000000000000000000002000200020274020c6f7264657273"
)
WITHOUT = bytes.fromhex(
    "020402000002021470657273697374656e7402026e0200020000000000000000000000000000020e00000000000000000000"
    "00000000000002000200020274020c6f7264657273"
)


def test_the_quorums_of_a_topic_are_read() -> None:
    assert decode_topic_quorums(WITH_PERSISTENCE, WRITTEN) == ("persistent://t/n/orders", (5, 3, 2))
    assert decode_topic_quorums(WITHOUT, WRITTEN) is None


def test_all_policies_of_a_topic_are_read() -> None:
    found = decode_topic_policies(WITHOUT, WRITTEN)
    assert found is not None
    name, policies = found
    assert name == "persistent://t/n/orders"
    assert {field: value for field, value in policies.items() if value} == {"maxMessageSize": 7}


@pytest.mark.parametrize("payload", [WITH_PERSISTENCE, WITHOUT])
def test_an_event_becomes_that_of_another_topic_and_its_policies_stay(payload: bytes) -> None:
    renamed = event_of_topic(payload, WRITTEN, TopicName.parse("persistent://t2/n2/old orders"))
    before, after = (decode_topic_policies(each, WRITTEN) for each in (payload, renamed))
    assert before is not None
    assert after == ("persistent://t2/n2/old orders", before[1])
    assert event_of_topic(renamed, WRITTEN, TopicName.parse("persistent://t/n/orders")) == payload
    with pytest.raises(FormatError, match="are not as Pulsar writes them"):
        event_of_topic(payload[:-9], WRITTEN, TopicName.parse("t/n/a"))


@pytest.mark.parametrize("payload", [b"", WITH_PERSISTENCE[:-9], b"\xff" * 40])
def test_anything_else_is_told(payload: bytes) -> None:
    with pytest.raises(FormatError, match="are not as Pulsar writes them"):
        decode_topic_quorums(payload, WRITTEN)
