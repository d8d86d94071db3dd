"""Builds what looks after the ids of new ledgers once the metadata was moved, from the settings."""

from __future__ import annotations

from collections.abc import Callable

from bookwarden.clusters.bookkeeper.ledger_numbers import largest_ledger_id, read_ledger_numbers
from bookwarden.clusters.pulsar.migration_flag import MIGRATION_PATH, read_flag
from bookwarden.config import Settings
from bookwarden.context import bookkeeper_place_of, open_single_store
from bookwarden.errors import ConfigError, RefusedError
from bookwarden.metastore.oxia import OxiaStore
from bookwarden.metastore.urls import split_chroot
from bookwarden.metastore.zookeeper import ZooKeeperStore
from bookwarden.migration.ledger_ids import LedgerIds
from bookwarden.migration_context import former_store
from bookwarden.resources import Resources


class LedgerIdsContext(Resources):
    """The counters of ledger ids of a store that was moved, and of the one that took its place.

    ``source`` is the URL of the former, None for what the settings name; its flag names the latter. Raises ConfigError
    where BookKeeper's metadata is in neither, and RefusedError for a migration that is not COMPLETED. Close it, or use
    it in a with statement.
    """

    def __init__(self, settings: Settings, *, source: str | None = None) -> None:
        super().__init__()
        with self._closed_on_error():
            self.source_url = source or former_store(settings)
            place = bookkeeper_place_of(settings)
            if split_chroot(place.url) != split_chroot(self.source_url):
                raise ConfigError(
                    f"BookKeeper's metadata is in {place.url}, which was not moved with {self.source_url}: its ledgers "
                    "are numbered there as ever"
                )
            self._root = place.ledgers_root
            opened = self._keep(open_single_store(settings, self.source_url))
            if not isinstance(opened, ZooKeeperStore):
                raise ConfigError(f"{self.source_url} is no ZooKeeper: name the store that was moved with --source")
            self._source = opened
            self.target_url = self._completed_target()
            target = self._keep(open_single_store(settings, self.target_url))
            if not isinstance(target, OxiaStore):
                raise ConfigError(f"{self.target_url}, to which the metadata was moved, is no Oxia")
            self._target = target

    def examine(self) -> LedgerIds:
        """Compare the counters, and what there is."""
        source = read_ledger_numbers(self._source, self._root)
        target = read_ledger_numbers(self._target, self._root)
        if target is None:
            return LedgerIds(source, None, None)
        return LedgerIds(source, target, largest_ledger_id(self._target, self._root, target.first_id, target.end_id))

    def advance(
        self, ids: LedgerIds, *, count_up: bool = False, progress: Callable[[int], object] = lambda _: None
    ) -> int:
        """Let the target's counter pass all ids that were given; return the number that it gives next.

        ``progress`` is told of it on the way. Without ``count_up`` that number may be too small still: the target's
        servers are older than 0.15, which let nobody set it.
        """
        if ids.target is None or not ids.behind:
            return ids.safe_number
        if self._completed_target() != self.target_url:
            raise RefusedError(f"the flag of {self.source_url} names another target than before: start anew")
        path, number = ids.target.path, ids.safe_number
        reached = self._target.set_next_number(path, number)
        if reached < number and count_up:
            reached = self._target.count_up(path, number, progress=progress)
        return reached

    def _completed_target(self) -> str:
        flag = read_flag(self._source)
        if flag is None or not flag.target_url:
            raise RefusedError(f"{self.source_url} was not moved: it has no {MIGRATION_PATH}")
        if not flag.is_completed:
            raise RefusedError(
                f"the migration of {self.source_url} to {flag.target_url} is {flag.phase}: only after COMPLETED the "
                "target numbers ledgers"
            )
        return flag.target_url
