"""Whether Pulsar is moving its metadata to another store (PIP-454), as the flag in the metadata store says.

Format: MigrationState and MigrationPhase of Pulsar 4.2; a store without the flag was never moved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from bookwarden.errors import RefusedError
from bookwarden.metastore.interface import MetadataStore

MIGRATION_PATH: Final = "/pulsar/migration-coordinator/migration"
_IDLE = ("NOT_STARTED", "FAILED")
_COPYING = ("PREPARATION", "COPYING")


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
                _require_idle(url, node.value)


def _require_idle(url: str, value: bytes) -> None:
    try:
        state: Any = json.loads(value)
        phase = state["phase"]
    except (ValueError, TypeError, KeyError):
        raise RefusedError(
            f"{MIGRATION_PATH} of {url} cannot be read: it is not known whether the metadata is being migrated"
        ) from None
    if phase in _IDLE:
        return
    if phase in _COPYING:
        raise RefusedError(
            f"the metadata of {url} is being migrated ({phase}): nothing is written to it meanwhile, try again after it"
        )
    raise RefusedError(
        f"the metadata of {url} was migrated ({phase}, to {state.get('targetUrl')}): "
        "name the store that is in use with metadata_store.urls"
    )
