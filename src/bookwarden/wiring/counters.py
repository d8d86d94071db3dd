"""Wiring of the check of ledger-id counters after a migration, from the settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from bookwarden.clusters.bookkeeper.ledger_numbers import largest_ledger_id, read_ledger_numbers
from bookwarden.config import Settings
from bookwarden.errors import ConfigError, NotFoundError, RefusedError
from bookwarden.metastore.following.flag import MIGRATION_PATH, read_flag
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import scheme_of, split_chroot
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from bookwarden.migration.counters import Counter, ledger_ids, producer_names
from bookwarden.resources import Resources
from bookwarden.wiring.migration import former_store
from bookwarden.wiring.stores import bookkeeper_place_of, open_single_store

if TYPE_CHECKING:
    from bookwarden.metastore.oxia.store import OxiaStore

# Source: BrokerService of 4.0 and 4.2, DistributedIdGenerator.
_PRODUCER_NAMES: Final = "/counters/producer-name"
# What brokers count first where Oxia has no such key yet: they make it, and then write it.
_FIRST: Final = 1


class CountersContext(Resources):
    """What a store that was moved counted, and the one that took its place; close it, or use it in a with statement.

    ``source`` is the URL of the former, None for what the settings name; its flag names the latter. Raises ConfigError
    where these are no ZooKeeper and no Oxia, and RefusedError for a migration that is not COMPLETED.
    ``ledgers_elsewhere`` is the store of BookKeeper's metadata if that is neither: it counts ledgers as ever.
    """

    def __init__(self, settings: Settings, *, source: str | None = None) -> None:
        super().__init__()
        with self._closed_on_error():
            self.source_url = source or former_store(settings)
            opened = self._keep(open_single_store(settings, self.source_url))
            if not isinstance(opened, ZooKeeperStore):
                raise ConfigError(f"{self.source_url} is no ZooKeeper: name the store that was moved with --source")
            self._source = opened
            self.target_url = self._completed_target()
            self._target = _as_oxia(self._keep(open_single_store(settings, self.target_url)), self.target_url)
            place = bookkeeper_place_of(settings)
            # The settings may name either store by now.
            is_here = split_chroot(place.url) in (split_chroot(self.source_url), split_chroot(self.target_url))
            self._ledgers_root = place.ledgers_root if is_here else None
            self.ledgers_elsewhere = None if is_here else place.url

    def examine(self) -> list[Counter]:
        """Compare the counters of both stores and what there is; reads only."""
        counters = [] if self._ledgers_root is None else self._ledger_ids(self._ledgers_root)
        source, target = (_next_number(store, _PRODUCER_NAMES) for store in (self._source, self._target))
        if source is not None or target is not None:
            counters.append(producer_names(_PRODUCER_NAMES, source, _FIRST if target is None else target))
        return counters

    def _ledger_ids(self, root: str) -> list[Counter]:
        source, target = (read_ledger_numbers(store, root) for store in (self._source, self._target))
        if target is None and source is not None:
            target = source._replace(next_number=_FIRST)
        if target is None:
            return []
        return [ledger_ids(source, target, largest_ledger_id(self._target, root, target.first_id, target.end_id))]

    def advance(
        self,
        counters: Sequence[Counter],
        *,
        count_up: bool = False,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Advance the target's counters past all that was given.

        ``progress`` is told of a counter's number on the way. Without ``count_up`` they are behind still where the
        target's servers are older than 0.15, which let nobody set them. Raises NotFoundError if the target lacks one.
        """
        if self._completed_target() != self.target_url:
            raise RefusedError(f"the flag of {self.source_url} names another target than before: start anew")
        for counter in counters:
            if not counter.behind:
                continue
            try:
                reached = self._target.set_next_number(counter.path, counter.safe_number)
            except NotFoundError as error:
                raise NotFoundError(
                    f"{self.target_url} has no {counter.path}, from which the source counted: see with "
                    "`bookwarden metadata-migration verify` what else the copy lacks"
                ) from error
            if reached < counter.safe_number and count_up:
                self._target.count_up(counter.path, counter.safe_number, progress=progress)

    def _completed_target(self) -> str:
        flag = read_flag(self._source)
        if flag is None or not flag.target_url:
            raise RefusedError(f"{self.source_url} was not moved: it has no {MIGRATION_PATH}")
        if not flag.is_completed:
            raise RefusedError(
                f"the migration of {self.source_url} to {flag.target_url} is {flag.phase}: only after COMPLETED the "
                "target counts"
            )
        return flag.target_url


def _as_oxia(store: MetadataStore, url: str) -> OxiaStore:
    if scheme_of(url) == "oxia":
        # Imported late: needs the oxia extra.
        from bookwarden.metastore.oxia.store import OxiaStore

        if isinstance(store, OxiaStore):
            return store
    raise ConfigError(f"{url}, to which the metadata was moved, is no Oxia")


def _next_number(store: MetadataStore, path: str) -> int | None:
    try:
        return store.next_number(path)
    except NotFoundError:
        return None
