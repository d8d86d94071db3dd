"""The flag by which Pulsar moves its metadata to another store (PIP-454), and whether processes can register.

Format: MigrationState and MigrationPhase of Pulsar 4.2; a store without the flag was never moved.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from bookwarden.errors import FormatError
from bookwarden.metastore.following.phases import Event
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.paths import parent_of

MIGRATION_PATH: Final = "/pulsar/migration-coordinator/migration"
_COMPLETED = "COMPLETED"
COORDINATOR_PATH: Final = parent_of(MIGRATION_PATH)
PARTICIPANTS_PATH: Final = f"{COORDINATOR_PATH}/participants"
_EVENT_OF_PHASE: Final = {
    "NOT_STARTED": Event.FLAG_IDLE,
    "PREPARATION": Event.FLAG_PREPARATION,
    "COPYING": Event.FLAG_COPYING,
    "COMPLETED": Event.FLAG_COMPLETED,
    "FAILED": Event.FLAG_FAILED,
}


class MigrationState(NamedTuple):
    """The content of the flag; ``changed_ms`` is when its phase began, by the clock of the store's server."""

    phase: str
    target_url: str | None
    changed_ms: int

    @property
    def is_completed(self) -> bool:
        """True once the target has taken the store's place."""
        return self.phase == _COMPLETED


def read_flag(store: MetadataStore) -> MigrationState | None:
    """Read the flag afresh; None if nothing was ever migrated, FormatError if it cannot be understood."""
    store.sync()
    node = store.get(MIGRATION_PATH)
    return None if node is None else parse_flag(node)


def parse_flag(node: Versioned) -> MigrationState:
    """Read the flag's node; FormatError if it cannot be understood."""
    try:
        state: Any = json.loads(node.value)
        phase, target_url = state["phase"], state.get("targetUrl")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise FormatError(
            f"{MIGRATION_PATH} cannot be understood: it is not known whether the metadata is being migrated; read it "
            "with a client of the metadata store"
        ) from None
    return MigrationState(str(phase), None if target_url is None else str(target_url), node.modified_ms)


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
