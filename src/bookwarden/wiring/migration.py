"""Wiring of migrations of a metadata store: prepared, rehearsed, begun, followed, verified, its counters advanced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from bookwarden.clusters.bookkeeper.ledger_numbers import largest_of_ledger_ids, read_ledger_numbers
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.migration import MigrationAdmin
from bookwarden.config import MetadataStoreSettings, Settings
from bookwarden.errors import ConfigError, RefusedError
from bookwarden.leases import LeaseTimes
from bookwarden.metastore.following.flag import MIGRATION_PATH, MigrationState, read_flag
from bookwarden.metastore.interface import MetadataStore, MigrationTarget, ScratchStore
from bookwarden.metastore.paths import parent_of
from bookwarden.metastore.urls import scheme_of, split_chroot
from bookwarden.metastore.wrappers import TimedStore, throttled
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from bookwarden.migration.comparison import ZOOKEEPERS_OWN, Comparison
from bookwarden.migration.control import Configured, MigrationControl
from bookwarden.migration.counters import Counters, completed_target
from bookwarden.migration.rehearsal.operation import Rehearsal
from bookwarden.resources import Resources
from bookwarden.switching.registry_node import RegistryNode, read_id_counter, read_registered
from bookwarden.wiring.pulsar import connection_of
from bookwarden.wiring.stores import bookkeeper_place_of, open_single_store

_SOON_SECONDS: Final = 5.0
_IDLE: Final = ("NOT_STARTED", "FAILED")


def movable_stores_of(settings: MetadataStoreSettings) -> dict[str, Callable[[], MetadataStore]]:
    """Return an opener for each metadata store that Pulsar may move; the store does not wait long for an answer."""
    waiting = min(settings.operation_timeout_seconds, _SOON_SECONDS)
    hurried = settings.model_copy(update={"operation_timeout_seconds": waiting})
    urls = (*settings.urls, bookkeeper_place_of(settings).url)
    return {url: partial(open_single_store, hurried, url) for url in urls if scheme_of(url) == "zk"}


class MigrationContext(Resources):
    """Everything that prepares, begins and follows a migration; close it, or use it in a with statement.

    ``source`` is the URL of the store to be moved, None for the one in the settings.
    ``max_reads_per_second`` is for the survey of the source.
    """

    def __init__(
        self, settings: Settings, *, source: str | None = None, max_reads_per_second: float | None = None
    ) -> None:
        super().__init__()
        connection, store = connection_of(settings.pulsar), settings.metadata_store
        with self._closed_on_error():
            url = source or former_store(store)
            raw = self._keep(open_single_store(store, url))
            place, whole = bookkeeper_place_of(store), split_chroot(url)
            others = {other for other in (*store.urls, place.url) if split_chroot(other) != whole}
            configured = Configured(
                source_url=url,
                chroot=whole[1],
                ledgers_root=place.ledgers_root,
                other_stores=tuple(sorted(others)),
                session_timeout_s=store.session_timeout_seconds,
                drain_limit_s=store.migration_drain_seconds,
            )
            self.admin = MigrationAdmin(self._keep(PulsarAdmin(connection)))
            self.control = MigrationControl(
                configured,
                raw,
                throttled(raw, max_reads_per_second),
                self.admin,
                connection,
                lambda target: self._keep(open_single_store(store, target)),
                partial(read_registered, RegistryNode(raw, url)),
                is_zookeeper=scheme_of(url) == "zk",
                keeps_ledgers=split_chroot(place.url) == whole,
            )


class CountersContext(Resources):
    """The stores of a finished migration, the former and the new one; close it, or use it in a with statement.

    ``source`` is the URL of the former, None for the one in the settings; its flag names the new one. Raises
    ConfigError where these are not ZooKeeper and Oxia, and RefusedError for a migration that is not COMPLETED.
    ``ledgers_elsewhere`` is the store of BookKeeper's metadata if that is neither: it counts ledgers as before.
    """

    def __init__(self, settings: MetadataStoreSettings, *, source: str | None = None) -> None:
        super().__init__()
        with self._closed_on_error():
            self.source_url = source or former_store(settings)
            moved = self._keep(open_single_store(settings, self.source_url))
            if not isinstance(moved, ZooKeeperStore):
                raise ConfigError(f"{self.source_url} is no ZooKeeper: name the store that was moved with --source")
            self.target_url = completed_target(moved, self.source_url)
            target = self._keep(open_single_store(settings, self.target_url))
            if not isinstance(target, MigrationTarget):
                raise ConfigError(f"{self.target_url}, to which the metadata was moved, is no Oxia")
            place = bookkeeper_place_of(settings)
            # The settings may name either store by now.
            is_here = split_chroot(place.url) in (split_chroot(self.source_url), split_chroot(self.target_url))
            # The copy has the newest registry.
            self.ledgers_elsewhere, root, places = read_id_counter(
                RegistryNode(target, self.target_url),
                place.ledgers_root,
                None if is_here else place.url,
                lambda url: self._keep(open_single_store(settings, url)),
                target,
            )
            counts = self.ledgers_elsewhere is None
            self.counters = Counters(
                moved,
                self.source_url,
                target,
                self.target_url,
                ledger_numbers=partial(read_ledger_numbers, root=root) if counts else None,
                largest_ledger_id=partial(largest_of_ledger_ids, places) if counts else None,
            )


class VerificationContext(Resources):
    """The source and the target of a migration, whatever its phase; close it, or use it in a with statement.

    ``source`` and ``target`` are URLs, None for those that the settings and the source's flag name.
    ``max_reads_per_second`` is for each of both stores. Raises ConfigError where there is nothing to compare, and
    RefusedError where the flag names a target that is not complete.
    """

    def __init__(
        self,
        settings: MetadataStoreSettings,
        *,
        source: str | None = None,
        target: str | None = None,
        max_reads_per_second: float | None = None,
    ) -> None:
        super().__init__()
        with self._closed_on_error():
            self.source_url = source or former_store(settings)
            read = self._open(settings, self.source_url, max_reads_per_second)
            #: That of the source.
            flag = self.flag = read_flag(read)
            #: When the target was put in the source's place, in ms by the source's clock; None if it was not.
            self.switched_ms = flag.changed_ms if flag is not None and flag.is_completed else None
            self.target_url = target or _target_of(self.flag, self.source_url)
            if split_chroot(self.source_url) == split_chroot(self.target_url):
                raise ConfigError(f"{self.target_url} would be compared with itself: name two stores")
            copied = self._open(settings, self.target_url, max_reads_per_second)
            passed_over = (ZOOKEEPERS_OWN, parent_of(MIGRATION_PATH))
            #: Makes what compares both stores, of what a copy has.
            self.comparison = partial(Comparison, read, copied, passed_over=passed_over)

    def _open(self, settings: MetadataStoreSettings, url: str, max_reads_per_second: float | None) -> MetadataStore:
        return throttled(self._keep(open_single_store(settings, url)), max_reads_per_second)


class RehearsalContext(Resources):
    """The store in use and a scratch namespace; close it, or use it in a with statement.

    ``source`` is a URL, also of a snapshot, None for the only store of the settings. ``target`` is that of the scratch
    namespace. ``max_reads_per_second`` is for each of both stores. Raises ConfigError for an impossible target, and
    RefusedError for one that is in use, or during a migration.
    """

    def __init__(
        self,
        settings: MetadataStoreSettings,
        *,
        target: str,
        source: str | None = None,
        max_reads_per_second: float | None = None,
        times: LeaseTimes | None = None,
    ) -> None:
        super().__init__()
        self.times = times or LeaseTimes()
        with self._closed_on_error():
            self.source_url = source or former_store(settings)
            self.target_url = target
            _require_other(settings, self.source_url, target)
            timed = TimedStore(self._keep(open_single_store(settings, self.source_url)))
            _require_idle(read_flag(timed), self.source_url, target)
            scratch = self._keep(open_single_store(settings, target))
            if not isinstance(scratch, ScratchStore):
                raise ConfigError(f"{type(scratch).__name__} takes no copy")
            self.scratch = scratch
            #: Makes the one copy and comparison, from a hold of the scratch namespace on.
            self.rehearsal = partial(
                Rehearsal,
                throttled(timed, max_reads_per_second),
                scratch,
                throttled(scratch, max_reads_per_second),
                reading_s=lambda: timed.reading_s,
                limited=max_reads_per_second is not None,
            )


def former_store(settings: MetadataStoreSettings) -> str:
    """Return the store that a migration moves, or moved: the settings' only one; ConfigError if it cannot be that."""
    urls = settings.urls
    if len(urls) > 1:
        raise ConfigError(f"metadata_store.urls names {len(urls)} stores: say with --source which was migrated")
    if scheme_of(urls[0]) == "oxia":
        raise ConfigError(
            f"metadata_store.urls names {urls[0]}: name the store from before the migration with --source"
        )
    return urls[0]


def _target_of(flag: MigrationState | None, source_url: str) -> str:
    if flag is None or not flag.target_url:
        raise ConfigError(f"{source_url} has no {MIGRATION_PATH} that names a target: name one with --target")
    if not flag.is_completed:
        raise RefusedError(
            f"the migration of {source_url} to {flag.target_url} is {flag.phase}, not COMPLETED, and its target is not "
            "complete: wait for it, or name the target with --target to compare it all the same"
        )
    return flag.target_url


def _require_other(settings: MetadataStoreSettings, source: str, target: str) -> None:
    """Raise for a target that is no Oxia, or that the settings use for anything."""
    if scheme_of(target) not in ("oxia", "memory"):
        raise ConfigError(f"{target} is no target of a migration: Pulsar moves metadata to oxia:// alone")
    in_use = (source, *settings.urls, bookkeeper_place_of(settings).url)
    if any(split_chroot(url)[0] == split_chroot(target)[0] for url in in_use):
        raise RefusedError(f"{target} is a store in use: name a scratch namespace, made for the rehearsal alone")


def _require_idle(flag: MigrationState | None, source: str, target: str) -> None:
    if flag is not None and flag.target_url and split_chroot(flag.target_url)[0] == split_chroot(target)[0]:
        raise RefusedError(
            f"{target} is what the migration flag of {source} names ({flag.phase}): name a scratch namespace that no "
            "cluster is moved to"
        )
    if flag is not None and flag.phase not in _IDLE:
        raise RefusedError(
            f"the metadata of {source} is being migrated, or was ({flag.phase}): there is nothing to rehearse"
        )
