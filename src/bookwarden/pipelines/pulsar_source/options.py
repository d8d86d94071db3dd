"""The options of the source: names, defaults, units, and their one validation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bookwarden.clusters.pulsar.connection import AUTH_KINDS, PulsarConnection
from bookwarden.errors import ConfigError, FormatError
from bookwarden.ledgers.names import TopicName
from bookwarden.pipelines.pulsar_source.offsets import EARLIEST, LATEST, SUBSCRIPTION, Boundary, parse_boundary

_T = TypeVar("_T")

_OAUTH2 = "oauth2."
# A private key may be a data: URL, and Spark shows plans with the options whose names tell no secret.
_OAUTH2_KEY = "private_key"
_OAUTH2_KEY_REDACTED = "private_key_secret"
_CLIENT = "pulsar.client."
_TEXTS_OF_CONNECTION = {
    "authKind": "auth",
    "authToken": "token",
    "authTokenFile": "token_file",
    "tlsTrustCertsFile": "tls_trust_certs_file",
    "tlsCertificateFile": "tls_certificate_file",
    "tlsPrivateKeyFile": "tls_private_key_file",
}
_FLAGS_OF_CONNECTION = {"tlsAllowInsecure": "tls_allow_insecure", "tlsValidateHostname": "tls_validate_hostname"}
_OF_READING = (
    "topic",
    "topics",
    "topicsPattern",
    "subscription",
    "acknowledge",
    "startingOffsets",
    "endingOffsets",
    "maxRowsPerTrigger",
    "maxEntriesPerTrigger",
    "failOnDataLoss",
    "chunkedMessages",
    "unreadableMessages",
    "lostLedgerSeconds",
    "maxUncompressedBytes",
    "partitionDiscoverySeconds",
    "minPollMs",
    "maxUnreachableSeconds",
    "delayedTopics",
    "controlTopics",
    "maxDelaySeconds",
    "rowsPerArrowBatch",
)
_TRUSTED_HOSTS = "trustedHosts"
_KNOWN = ("serviceUrl", "adminUrl", _TRUSTED_HOSTS, *_TEXTS_OF_CONNECTION, *_FLAGS_OF_CONNECTION, *_OF_READING)
# Spark adds these itself.
_OF_SPARK = frozenset({"path", "paths", "header", "__paths__"})


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Validated options; picklable, because executors get them with their part of a batch."""

    connection: PulsarConnection  #: Of native client and admin REST.
    topics: tuple[str, ...] = ()  #: Full names; empty if there is a pattern.
    pattern: str | None = None  #: Regular expression of the topics to read; None if they are named.
    namespace: str | None = None  #: Of the pattern: tenant/namespace.
    subscription: str | None = None  #: Durable one to keep; None has none.
    acknowledge: bool = True  #: Acknowledge finished batches on it.
    starting: Boundary | None = None  #: None if not given: see starting_stream and starting_batch.
    ending: Boundary = field(default_factory=lambda: Boundary(name=LATEST))  #: Of a batch query.
    max_rows: int | None = None  #: Limit of a batch, approximate.
    max_entries: int | None = None  #: Limit of a batch.
    fail_on_data_loss: bool = True  #: Fail where entries are gone, instead of going on.
    chunked: str = "fail"  #: What a chunked message does: fail, skip or empty (see ReadRules).
    unreadable: str = "fail"  #: What unreadable entries do: the same.
    lost_ledger_s: float | None = None  #: When a ledger counts as lost while others can be read; None is never.
    max_uncompressed_bytes: int = 64 << 20  #: Of an entry; a larger one is not decompressed.
    discovery_s: float = 30.0  #: Interval of asking for new partitions.
    min_poll_s: float = 0.02  #: Shortest interval of asking for the ends of partitions.
    max_unreachable_s: float = 120.0  #: Limit of waiting for a partition without progress.
    delayed_topics: tuple[str, ...] = ()  #: Topics whose messages wait for their deliver-at time.
    max_delay_s: float | None = None  #: Longest such wait; None where no topic is delayed.
    #: Topics whose every entry is a batch of its own; they may be absent, and what is lost of them is left out.
    control_topics: tuple[str, ...] = ()
    rows_per_arrow_batch: int = 10_000  #: Largest number of rows in a record batch.

    @property
    def starting_stream(self) -> Boundary:
        """Start of a stream without a checkpoint: at its subscription, or with the latest if it has none."""
        return self.starting or Boundary(name=SUBSCRIPTION if self.subscription else LATEST)

    @property
    def starting_batch(self) -> Boundary:
        """Start of a batch read: with the earliest entry unless an option says otherwise."""
        return self.starting or Boundary(name=EARLIEST)

    def is_delayed(self, topic: str) -> bool:
        """Return whether a partition belongs to a topic whose messages wait for their deliver-at time."""
        return _is_among(self.delayed_topics, topic)

    def is_control(self, topic: str) -> bool:
        """Return whether a partition belongs to a control topic."""
        return bool(self.control_topics) and _is_among(self.control_topics, topic)


def _is_among(topics: Sequence[str], partition: str) -> bool:
    name = TopicName.parse(partition)
    return str(name) in topics or str(name.base) in topics


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Read the options of a query, whose names Spark may have lowered; raise ConfigError that names the option."""
    options = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(options)
    subscription = options.get("subscription")
    starting = options.get("startingoffsets")
    boundary = parse_boundary("startingOffsets", starting) if starting is not None else None
    if boundary is not None and boundary.name == SUBSCRIPTION and not subscription:
        raise ConfigError("option startingOffsets is 'subscription', but option subscription is not set")
    ending = parse_boundary("endingOffsets", options.get("endingoffsets", LATEST))
    if ending.name in (EARLIEST, SUBSCRIPTION):
        raise ConfigError(f"option endingOffsets cannot be {ending.name!r}; expected latest, milliseconds or JSON")
    topics, pattern, namespace = _topics(options)
    delayed, max_delay_s = _delays(options)
    return SourceOptions(
        connection=_connection(options),
        topics=topics,
        pattern=pattern,
        namespace=namespace,
        subscription=subscription or None,
        acknowledge=_read(options, "acknowledge", True, _flag),
        starting=boundary,
        ending=ending,
        max_rows=_read(options, "maxRowsPerTrigger", None, _positive),
        max_entries=_read(options, "maxEntriesPerTrigger", None, _positive),
        fail_on_data_loss=_read(options, "failOnDataLoss", True, _flag),
        chunked=_read(options, "chunkedMessages", "fail", _how),
        unreadable=_read(options, "unreadableMessages", "fail", _how),
        lost_ledger_s=_read(options, "lostLedgerSeconds", None, _seconds),
        max_uncompressed_bytes=_read(options, "maxUncompressedBytes", 64 << 20, _positive),
        discovery_s=_read(options, "partitionDiscoverySeconds", 30.0, _seconds),
        min_poll_s=_read(options, "minPollMs", 20.0, _seconds) / 1000,
        max_unreachable_s=_read(options, "maxUnreachableSeconds", 120.0, _seconds),
        max_delay_s=max_delay_s,
        delayed_topics=delayed,
        control_topics=_names("controlTopics", options.get("controltopics", "")),
        rows_per_arrow_batch=_read(options, "rowsPerArrowBatch", 10_000, _positive),
    )


def options_of(connection: PulsarConnection) -> dict[str, str]:
    """Write a connection as options of the source; Spark redacts the ones whose names tell a secret."""
    options = {"serviceUrl": connection.service_url, "adminUrl": connection.admin_url}
    for option, name in _TEXTS_OF_CONNECTION.items():
        if getattr(connection, name):
            options[option] = getattr(connection, name)
    for option, name in _FLAGS_OF_CONNECTION.items():
        options[option] = str(getattr(connection, name)).lower()
    if connection.trusted_hosts:
        options[_TRUSTED_HOSTS] = ",".join(connection.trusted_hosts)
    for name, value in connection.oauth2.items():
        options[_OAUTH2 + (_OAUTH2_KEY_REDACTED if name == _OAUTH2_KEY else name)] = value
    options.update({_CLIENT + name: _text(value) for name, value in connection.client_options.items()})
    return options


def _refuse_unknown(options: Mapping[str, str]) -> None:
    known = {name.lower() for name in _KNOWN} | _OF_SPARK
    for name in options:
        if name not in known and not name.startswith((_OAUTH2, _CLIENT)):
            raise ConfigError(f"option {name} is unknown to the pulsar source; it knows {', '.join(_KNOWN)}")
    for name in ("serviceUrl", "adminUrl"):
        if not options.get(name.lower()):
            raise ConfigError(f"option {name} is missing; set it to the address of the Pulsar cluster")


def _topics(options: Mapping[str, str]) -> tuple[tuple[str, ...], str | None, str | None]:
    chosen = [name for name in ("topic", "topics", "topicsPattern") if options.get(name.lower())]
    if len(chosen) != 1:
        raise ConfigError(f"set exactly one of the options topic, topics and topicsPattern; set: {chosen or 'none'}")
    value = options[chosen[0].lower()]
    if chosen[0] != "topicsPattern":
        return _names(chosen[0], value), None, None
    head = re.match(r"^(?:persistent://)?([^/]+)/([^/]+)/(.+)$", value)
    if head is None:
        raise ConfigError(f"option topicsPattern {value!r} must look like persistent://tenant/namespace/REGEX")
    try:
        re.compile(head[3])
    except re.error as error:
        raise ConfigError(f"option topicsPattern {value!r} is no regular expression: {error}") from error
    return (), head[3], f"{head[1]}/{head[2]}"


def _names(option: str, value: str) -> tuple[str, ...]:
    try:
        names = [TopicName.parse(part.strip()) for part in value.split(",") if part.strip()]
    except FormatError as error:
        raise ConfigError(f"option {option}: {error}") from error
    for name in names:
        if name.domain != "persistent":
            raise ConfigError(f"option {option}: {name} is not persistent; only stored messages can be read")
    return tuple(dict.fromkeys(str(name) for name in names))


def _delays(options: Mapping[str, str]) -> tuple[tuple[str, ...], float | None]:
    delayed = _names("delayedTopics", options.get("delayedtopics", ""))
    longest = _read(options, "maxDelaySeconds", None, _seconds)
    if delayed and longest is None:
        raise ConfigError(
            "option delayedTopics needs maxDelaySeconds, the longest delay of its producers: a partition is read in "
            "order, so that an entry without end would hold back all behind it"
        )
    return delayed, longest


def _connection(options: Mapping[str, str]) -> PulsarConnection:
    fields: dict[str, Any] = {"service_url": options["serviceurl"], "admin_url": options["adminurl"]}
    for option, name in _TEXTS_OF_CONNECTION.items():
        if options.get(option.lower()):
            fields[name] = options[option.lower()]
    for option, name in _FLAGS_OF_CONNECTION.items():
        if option.lower() in options:
            fields[name] = _read(options, option, False, _flag)
    hosts = options.get(_TRUSTED_HOSTS.lower(), "").split(",")
    fields["trusted_hosts"] = tuple(host.strip() for host in hosts if host.strip())
    fields.setdefault("auth", "token" if {"token", "token_file"} & fields.keys() else "none")
    if fields["auth"] not in AUTH_KINDS:
        raise ConfigError(f"option authKind is {fields['auth']!r}; expected one of {', '.join(AUTH_KINDS)}")
    oauth2 = {name[len(_OAUTH2) :]: text for name, text in options.items() if name.startswith(_OAUTH2)}
    if _OAUTH2_KEY_REDACTED in oauth2:
        oauth2[_OAUTH2_KEY] = oauth2.pop(_OAUTH2_KEY_REDACTED)
    fields["oauth2"] = oauth2
    fields["client_options"] = {
        name[len(_CLIENT) :]: _typed(text) for name, text in options.items() if name.startswith(_CLIENT)
    }
    return PulsarConnection(**fields)


def _typed(text: str) -> int | float | bool | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(options: Mapping[str, str], option: str, default: _T, kind: Callable[[str], _T]) -> _T:
    text = options.get(option.lower())
    if text is None:
        return default
    try:
        return kind(text.strip())
    except ValueError as error:
        raise ConfigError(f"option {option} is {text!r}: {error}") from error


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("it must be at least 1")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise ValueError("it must be a number that is not negative")
    return number


def _how(text: str) -> str:
    if text.lower() not in ("fail", "skip", "empty"):
        raise ValueError("expected fail, skip or empty")
    return text.lower()


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"
