"""Names of topics and the encoding that Pulsar's metadata paths use."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.errors import FormatError
from bookwarden.ledgers.names import TopicName, decode_local_name, encode_local_name

_UNICODE = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
_JAVA_KEEPS = string.ascii_letters + string.digits + ".-*_"


def _java_url_encoder(text: str) -> str:
    """Encode by the rules in the documentation of java.net.URLEncoder."""
    encoded = []
    for byte in text.encode("utf-8"):
        character = chr(byte)
        if character in _JAVA_KEEPS:
            encoded.append(character)
        else:
            encoded.append("+" if character == " " else f"%{byte:02X}")
    return "".join(encoded)


@given(_UNICODE.filter(lambda text: text not in (".", "..")))
def test_encoding_follows_the_rules_of_java_and_is_undone(text: str) -> None:
    encoded = encode_local_name(text)
    assert encoded == _java_url_encoder(text)
    assert decode_local_name(encoded) == text


@given(_UNICODE.filter(lambda text: text not in (".", "..")))
def test_a_managed_ledger_and_a_schema_name_their_topic(text: str) -> None:
    topic = TopicName("tenant", "ns", text)
    assert TopicName.of_managed_ledger(topic.managed_ledger) == topic
    assert TopicName.of_schema(topic.schema_id) == topic.base


@pytest.mark.parametrize(
    ("text", "managed_ledger", "schema_id"),
    [
        ("orders", "public/default/persistent/orders", "public/default/orders"),
        ("t/n/a b~*", "t/n/persistent/a+b%7E*", "t/n/a+b%7E*"),
        ("persistent://t/n/x-partition-3", "t/n/persistent/x-partition-3", "t/n/x"),
        ("persistent://t/n/x-partition-03", "t/n/persistent/x-partition-03", "t/n/x-partition-03"),
        ("persistent://t/c/n/x/y", "t/c/n/persistent/x%2Fy", "t/n/x%2Fy"),
        (
            "persistent://pulsar/host:8080/heartbeat",
            "pulsar/host:8080/persistent/heartbeat",
            "pulsar/host:8080/heartbeat",
        ),
    ],
)
def test_a_topic_has_these_names_in_the_metadata(text: str, managed_ledger: str, schema_id: str) -> None:
    topic = TopicName.parse(text)
    assert (topic.managed_ledger, topic.schema_id) == (managed_ledger, schema_id)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/b",
        "a//c",
        "persistent://a/b",
        "kafka://a/b/c",
        "../../admin",
        "t/../x",
        "./n/x",
        "t/n\x00/x",
        "t/ñ/x",
        "t?/n/x",
    ],
)
def test_what_is_no_topic_name_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        TopicName.parse(text)


@pytest.mark.parametrize("name", [".", "..", "", "\ud800"])
def test_what_cannot_stand_in_a_path_is_not_encoded(name: str) -> None:
    with pytest.raises(FormatError):
        encode_local_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "t/n/persistent",
        "t/n/persistent/a~b",
        "t/n/persistent/a%2fb",
        "t/n/persistent/..",
        "a/b/c/d/e/f",
        "t//persistent/x",
    ],
)
def test_what_pulsar_would_not_name_a_managed_ledger_is_refused(name: str) -> None:
    with pytest.raises(FormatError):
        TopicName.of_managed_ledger(name)


@pytest.mark.parametrize("schema_id", ["t/n", "t/n/a~b", "../n/x", "t/n/..", "t/n/a/b", "t/n/"])
def test_what_pulsar_would_not_name_a_schema_is_refused(schema_id: str) -> None:
    with pytest.raises(FormatError):
        TopicName.of_schema(schema_id)


def test_partitions_are_known_by_their_suffix() -> None:
    base = TopicName.parse("t/n/x")
    part = base.partition_name(7)
    assert (part.partition, part.base, base.partition, base.base) == (7, base, None, base)
    assert TopicName.parse(str(part)) == part
