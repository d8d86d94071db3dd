"""The source's answer about a migration: its flag, and whether there is a place for participants."""

from __future__ import annotations

from typing import Final, NamedTuple

from bookwarden.errors import FormatError
from bookwarden.metastore.following.flag import MIGRATION_PATH, parse_flag
from bookwarden.metastore.following.phases import Event
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.paths import parent_of

COORDINATOR_PATH: Final = parent_of(MIGRATION_PATH)
PARTICIPANTS_PATH: Final = f"{COORDINATOR_PATH}/participants"

_EVENT_OF_PHASE: Final = {
    "NOT_STARTED": Event.FLAG_IDLE,
    "PREPARATION": Event.FLAG_PREPARATION,
    "COPYING": Event.FLAG_COPYING,
    "COMPLETED": Event.FLAG_COMPLETED,
    "FAILED": Event.FLAG_FAILED,
}


class FlagReading(NamedTuple):
    """The flag's phase and target, the version of its node, and whether processes can register."""

    event: Event
    phase: str
    target_url: str | None = None
    version: int | None = None
    place: bool = False


UNREAD: Final = FlagReading(Event.FLAG_UNREADABLE, "unknown")


def read_fresh_flag(source: MetadataStore) -> FlagReading:
    """Read the flag after a sync."""
    source.sync()
    flag, place = source.get_many([MIGRATION_PATH, COORDINATOR_PATH])
    return _reading_of(flag)._replace(place=place is not None)


def _reading_of(flag: Versioned | None) -> FlagReading:
    if flag is None:
        return FlagReading(Event.FLAG_IDLE, "NOT_STARTED")
    try:
        state = parse_flag(flag)
    except FormatError:
        return UNREAD._replace(version=flag.version)
    event = _EVENT_OF_PHASE.get(state.phase, Event.FLAG_UNREADABLE)
    if state.is_completed and not state.target_url:
        event = Event.FLAG_UNREADABLE
    return FlagReading(event, state.phase, state.target_url, flag.version)
