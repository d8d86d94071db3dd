"""The registered bookie clusters, as a process that works on ledgers knows them.

The registry is read when a command or a batch of the sweep begins, and stays as it was read until the next one: where
ledgers are looked for never changes in the middle.
"""

from __future__ import annotations

import threading

from bookwarden.errors import FormatError, RefusedError, StoreUnavailableError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.switching.registry import REGISTRY_PATH, Registry, parse_registry


class BookieClusters:
    """Reads the registry in Pulsar's own metadata store. Thread-safe."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._has_looked = False
        self._registry: Registry | None = None

    def look_again(self) -> None:
        """Have the registry read anew by whoever asks next."""
        with self._lock:
            self._has_looked = False

    def registry(self) -> Registry | None:
        """Return the registry; None where no bookie cluster is registered.

        Raises StoreUnavailableError when it cannot be read or parsed: then it is not known where ledgers are.
        """
        with self._lock:
            if not self._has_looked:
                self._registry = self._read()
                self._has_looked = True
            return self._registry

    def require_one(self) -> None:
        """Raise RefusedError where several bookie clusters are registered now."""
        self.look_again()
        refuse_several(self.registry())

    def _read(self) -> Registry | None:
        self._store.sync()
        node = self._store.get(REGISTRY_PATH)
        try:
            return None if node is None else parse_registry(node.value)
        except FormatError as error:
            raise StoreUnavailableError(f"where ledgers are is not known, so nothing is done: {error}") from error


def refuse_several(registry: Registry | None) -> None:
    """Raise RefusedError where the registry has more than one bookie cluster."""
    if registry is not None and len(registry.clusters) > 1:
        raise RefusedError(
            f"the bookie clusters {', '.join(sorted(registry.clusters))} are registered, and this release of "
            "bookwarden can do this with one only: a ledger that it does not find might be in another"
        )
