"""Options and offsets of the source: what is read, what is refused, what stays secret."""

from __future__ import annotations

import pickle
import re

import pytest

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.errors import ConfigError, FormatError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.pipelines.pulsar_source.offsets import Boundary, dump_offsets, load_offsets
from bookwarden.pipelines.pulsar_source.options import options_of, parse_options

URLS = {"serviceUrl": "pulsar://host:6650", "adminUrl": "http://host:8080"}
P0 = "persistent://t/n/a-partition-0"
P1 = "persistent://t/n/a-partition-1"


def given(**options: str) -> dict[str, str]:
    return {**URLS, "topic": "t/n/a", **options}


def test_defaults_of_a_stream_with_and_without_a_subscription() -> None:
    assert parse_options(given()).starting_stream == Boundary(name="latest")
    assert parse_options(given(subscription="s")).starting_stream == Boundary(name="subscription")
    assert parse_options(given()).starting_batch == Boundary(name="earliest")
    assert parse_options(given()).fail_on_data_loss


def test_names_are_read_in_any_case_because_spark_lowers_them() -> None:
    lowered = {name.lower(): value for name, value in given(maxRowsPerTrigger="7", minPollMs="40").items()}
    options = parse_options(lowered)
    assert (options.max_rows, options.min_poll_s) == (7, 0.04)


def test_topics_become_full_names_once_each() -> None:
    options = parse_options({**URLS, "topics": "t/n/b, persistent://t/n/a,t/n/b"})
    assert options.topics == ("persistent://t/n/b", "persistent://t/n/a")


def test_a_pattern_keeps_its_namespace_apart() -> None:
    options = parse_options({**URLS, "topicsPattern": "persistent://t/n/a-[0-9]+"})
    assert (options.namespace, options.pattern) == ("t/n", "a-[0-9]+")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxRowsPerTriger", "5"),
        ("maxRowsPerTrigger", "0"),
        ("maxEntriesPerTrigger", "many"),
        ("failOnDataLoss", "perhaps"),
        ("startingOffsets", "soon"),
        ("startingOffsets", '["a"]'),
        ("startingOffsets", '{"t/n/a-partition-0": "x"}'),
        ("startingOffsets", "subscription"),
        ("endingOffsets", "earliest"),
        ("topics", "t/n/b"),
        ("delayedTopics", "a/b"),
        ("delayedTopics", "non-persistent://t/n/a"),
        ("authKind", "password"),
        ("maxUnreachableSeconds", "-1"),
        ("unreadableMessages", "drop"),
        ("lostLedgerSeconds", "soon"),
        ("maxUncompressedBytes", "0"),
        ("tlsAllowInsecure", "1"),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_options(given(**{name: value}))
    assert name.lower() in str(refused.value).lower()


@pytest.mark.parametrize("missing", ["serviceUrl", "adminUrl", "topic"])
def test_a_missing_option_is_named(missing: str) -> None:
    options = given()
    del options[missing]
    with pytest.raises(ConfigError, match=missing):
        parse_options(options)


@pytest.mark.parametrize("pattern", ["a.*", "persistent://t/n/["])
def test_a_pattern_that_cannot_work_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="topicsPattern"):
        parse_options({**URLS, "topicsPattern": pattern})


def test_boundaries_in_all_their_forms() -> None:
    assert parse_options(given(startingOffsets="EARLIEST")).starting == Boundary(name="earliest")
    assert parse_options(given(startingOffsets="1700000000000")).starting == Boundary(timestamp_ms=1_700_000_000_000)
    text = f'{{"{P0}": "3:4", "t/n/a-partition-1": "latest"}}'
    assert parse_options(given(startingOffsets=text)).starting == Boundary(positions={P0: Position(3, 4), P1: "latest"})


def test_only_the_delayed_topics_are_delayed() -> None:
    options = parse_options({**URLS, "topics": "t/n/a,t/n/b", "delayedTopics": "t/n/b", "maxDelaySeconds": "9"})
    assert options.is_delayed("persistent://t/n/b-partition-3")
    assert not options.is_delayed(P0)


def test_delayed_topics_need_the_longest_delay() -> None:
    with pytest.raises(ConfigError, match="delayedTopics needs maxDelaySeconds"):
        parse_options({**URLS, "topics": "t/n/a,t/n/b", "delayedTopics": "t/n/b"})


def test_a_connection_survives_the_way_through_options() -> None:
    connection = PulsarConnection(
        "pulsar+ssl://host:6651",
        "https://host:8443",
        auth="token",
        token_file="/run/token",
        tls_trust_certs_file="/run/ca.pem",
        tls_validate_hostname=False,
        client_options={"io_threads": 2, "operation_timeout_seconds": 5},
    )
    assert parse_options({**options_of(connection), "topic": "t/n/a"}).connection == connection


def test_each_option_that_may_hold_a_secret_has_a_name_that_spark_redacts() -> None:
    hidden = PulsarConnection(
        "pulsar://h:1", "http://h:2", auth="oauth2", token="s3cret", oauth2={"private_key": "s3cret"}
    )
    names = [name for name, value in options_of(hidden).items() if value == "s3cret"]
    assert len(names) == 2
    # The default of spark.redaction.regex.
    assert all(re.search("(?i)secret|password|token|access[.]?key", name) for name in names)


def test_oauth2_settings_survive_the_way_through_options() -> None:
    settings = {"issuer_url": "https://issuer", "private_key": "/run/key.json", "audience": "a"}
    hosts = ("broker-*.svc", "::1")
    connection = PulsarConnection("pulsar://h:1", "http://h:2", auth="oauth2", oauth2=settings, trusted_hosts=hosts)
    assert parse_options({**options_of(connection), "topic": "t/n/a"}).connection == connection


def test_client_options_get_the_type_that_the_client_wants() -> None:
    options = parse_options(given(**{"pulsar.client.io_threads": "3", "pulsar.client.use_tls": "true"}))
    assert options.connection.client_options == {"io_threads": 3, "use_tls": True}


def test_a_secret_is_neither_in_a_repr_nor_in_an_error() -> None:
    options = parse_options(given(authToken="s3cret"))
    assert options.connection.auth == "token"
    assert "s3cret" not in repr(options)
    with pytest.raises(ConfigError) as refused:
        parse_options(given(authToken="s3cret", topics="t/n/b"))
    assert "s3cret" not in str(refused.value)


def test_options_travel_to_executors() -> None:
    options = parse_options(given(subscription="s"))
    assert pickle.loads(pickle.dumps(options)) == options


def test_offsets_are_written_in_one_order_and_read_back() -> None:
    offsets = {P1: Position(3, -1), P0: Position(2, 7)}
    assert list(dump_offsets(offsets).items()) == [(P0, "2:7"), (P1, "3:-1")]
    assert load_offsets(dump_offsets(offsets)) == offsets
    with pytest.raises(FormatError):
        load_offsets({P0: "seven"})
