"""Whether Pulsar is moving its metadata to another store (PIP-454), as the flag in the metadata store says.

Format: MigrationState and MigrationPhase of Pulsar 4.2; a store without the flag was never moved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bookwarden.errors import FormatError, RefusedError
from bookwarden.metastore.interface import MetadataStore, Versioned

MIGRATION_PATH: Final = "/pulsar/migration-coordinator/migration"
_IDLE = ("NOT_STARTED", "FAILED")
_COPYING = ("PREPARATION", "COPYING")
_COMPLETED = "COMPLETED"


class MigrationState(NamedTuple):
    """What the flag says; ``changed_ms`` is when its phase began, by the clock of the store's server."""

    phase: str
    target_url: str | None
    changed_ms: int

    @property
    def is_under_way(self) -> bool:
        """Whether metadata is being copied now, or is about to be."""
        return self.phase in _COPYING

    @property
    def is_completed(self) -> bool:
        """Whether the target is in the store's place."""
        return self.phase == _COMPLETED


class MigrationFlagReader:
    """Reads the flag of each metadata store, by URL."""

    def __init__(self, stores: Mapping[str, MetadataStore]) -> None:
        self._stores = stores

    def require_idle(self) -> None:
        """Read the flag anew; raise RefusedError unless nothing is copied now, and nothing was moved away.

        What is written while the store is copied may be missing from the copy, and what is written to a store that
        was moved away is seen by nobody. A flag that cannot be read forbids as well.
        """
        for url, store in self._stores.items():
            store.sync()
            node = store.get(MIGRATION_PATH)
            if node is not None:
                _require_idle(url, node)


def read_flag(store: MetadataStore) -> MigrationState | None:
    """Read the flag anew, None if there is none: nothing was ever migrated; FormatError if it cannot be understood."""
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


def _require_idle(url: str, node: Versioned) -> None:
    try:
        state = parse_flag(node)
    except FormatError:
        raise RefusedError(
            f"{MIGRATION_PATH} of {url} cannot be read: it is not known whether the metadata is being migrated"
        ) from None
    if state.phase in _IDLE:
        return
    if state.is_under_way:
        raise RefusedError(
            f"the metadata of {url} is being migrated ({state.phase}): nothing is written to it meanwhile, try again "
            "after it"
        )
    raise RefusedError(
        f"the metadata of {url} was migrated ({state.phase}, to {state.target_url}): "
        "name the store that is in use with metadata_store.urls"
    )
