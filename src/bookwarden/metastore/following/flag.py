"""The flag by which Pulsar moves its metadata to another store (PIP-454).

Format: MigrationState and MigrationPhase of Pulsar 4.2; a store without the flag was never moved.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from bookwarden.errors import FormatError
from bookwarden.metastore.interface import MetadataStore, Versioned

MIGRATION_PATH: Final = "/pulsar/migration-coordinator/migration"
_COMPLETED = "COMPLETED"


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
