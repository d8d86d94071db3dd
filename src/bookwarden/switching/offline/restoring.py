"""Saved nodes put back, after brokers were started on a cluster that did not have their ledgers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bookwarden.errors import RefusedError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.switching.offline.saved_nodes import Restoration, compare_saved, restore_nodes, save_nodes


class Restored(NamedTuple):
    """The result of putting nodes back."""

    written: int
    before: Path  #: The file with all nodes as they were before.


@dataclass(frozen=True)
class NodeRestoring:
    """Puts saved nodes back into Pulsar's own store."""

    store: MetadataStore
    url: str
    live_brokers: Callable[[], list[str]]

    def plan(self, file: Path) -> Restoration:
        """Compare the store with the file; change nothing."""
        return compare_saved(self.store, file, self.url)

    def require_no_broker(self) -> None:
        """Raise RefusedError while a broker lives: it has what it read in memory, and writes it again."""
        live = self.live_brokers()
        if live:
            raise RefusedError(f"no node is put back while brokers live, such as {live[0]}: stop all of them first")

    def carry_out(self, file: Path) -> Restored:
        """Save what is there beside the file, then put the saved values back; RefusedError while a broker lives."""
        self.require_no_broker()
        before = save_nodes(self.store, self.url, file.parent, "before-restoring")
        return Restored(restore_nodes(self.store, file, self.url, self.require_no_broker), before)
