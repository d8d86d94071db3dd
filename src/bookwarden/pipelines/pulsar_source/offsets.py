"""Offsets: for every partition the last entry that was read, as JSON in checkpoints and in options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from bookwarden.errors import ConfigError, FormatError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.names import TopicName

EARLIEST = "earliest"
LATEST = "latest"
SUBSCRIPTION = "subscription"
_NAMED = (EARLIEST, LATEST, SUBSCRIPTION)

Offsets = dict[str, Position]


@dataclass(frozen=True, slots=True)
class Boundary:
    """A boundary of reading, for when there is no checkpoint; exactly one field is set."""

    name: str | None = None  #: earliest, latest or subscription.
    timestamp_ms: int | None = None  #: Of publishing, in ms since the epoch.
    #: By topic: the last entry before the boundary, or earliest or latest.
    positions: Mapping[str, Position | str] = field(default_factory=dict)


def dump_offsets(offsets: Mapping[str, Position]) -> dict[str, str]:
    """Write offsets as Spark keeps them; sorted, because Spark compares their text."""
    return {topic: str(offsets[topic]) for topic in sorted(offsets)}


def load_offsets(written: Mapping[str, str]) -> Offsets:
    """Read what dump_offsets wrote; raise FormatError for anything else."""
    return {topic: Position.parse(text) for topic, text in written.items()}


def parse_boundary(option: str, text: str) -> Boundary:
    """Read the value of startingOffsets or endingOffsets; raise ConfigError that names the option."""
    text = text.strip()
    if text.lower() in _NAMED:
        return Boundary(name=text.lower())
    if text.isdigit():
        return Boundary(timestamp_ms=int(text))
    try:
        written = json.loads(text)
    except ValueError as error:
        raise _not_understood(option, text) from error
    if not isinstance(written, dict) or not written:
        raise _not_understood(option, text)
    return Boundary(positions={_topic(option, topic): _place(option, place) for topic, place in written.items()})


def _topic(option: str, topic: str) -> str:
    try:
        return str(TopicName.parse(topic))
    except FormatError as error:
        raise ConfigError(f"option {option}: {error}") from error


def _place(option: str, place: object) -> Position | str:
    if place in (EARLIEST, LATEST):
        return str(place)
    try:
        return Position.parse(str(place))
    except FormatError as error:
        raise ConfigError(f"option {option}: {error}, nor earliest or latest") from error


def _not_understood(option: str, text: str) -> ConfigError:
    return ConfigError(
        f"option {option} is {text!r}; expected {', '.join(_NAMED)}, milliseconds since 1970, "
        'or JSON like {"persistent://tenant/namespace/topic-partition-0": "12:345"}'
    )
