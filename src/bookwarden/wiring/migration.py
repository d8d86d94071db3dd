"""Wiring of the verification of a migrated metadata store, and what the flags of all stores say."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

from bookwarden.config import Settings
from bookwarden.errors import ConfigError, FormatError, RefusedError, StoreError
from bookwarden.metastore.following.flag import MIGRATION_PATH, MigrationState, read_flag
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.paths import parent_of
from bookwarden.metastore.urls import scheme_of, split_chroot
from bookwarden.metastore.wrappers import throttled
from bookwarden.migration.comparison.stores import ZOOKEEPERS_OWN, Comparison
from bookwarden.resources import Resources
from bookwarden.wiring.stores import bookkeeper_place_of, open_single_store

_SOON_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class StorePhase:
    """What the flag of one metadata store says; ``problem`` is why that is not known."""

    store: str
    phase: str
    target: str | None = None
    problem: str = ""


def phases_of(settings: Settings) -> tuple[StorePhase, ...]:
    """Read the flag of each metadata store that Pulsar may move; one that does not answer soon is not waited for."""
    waiting = min(settings.metadata_store.operation_timeout_seconds, _SOON_SECONDS)
    store = settings.metadata_store.model_copy(update={"operation_timeout_seconds": waiting})
    hurried = settings.model_copy(update={"metadata_store": store})
    urls = dict.fromkeys((*store.urls, bookkeeper_place_of(settings).url))
    return tuple(_phase_of(hurried, url) for url in urls if scheme_of(url) == "zk")


def _phase_of(settings: Settings, url: str) -> StorePhase:
    try:
        with closing(open_single_store(settings, url)) as store:
            flag = read_flag(store)
    except (StoreError, FormatError) as error:
        return StorePhase(url, "unknown", problem=str(error))
    return StorePhase(url, "NOT_STARTED") if flag is None else StorePhase(url, flag.phase, flag.target_url)


class VerificationContext(Resources):
    """The source and the target of a migration, whatever its phase; close it, or use it in a with statement.

    ``source`` and ``target`` are URLs; those that are None are what the settings name, and what the source's flag
    does. ``max_reads_per_second`` is for each of both stores. Raises ConfigError where there is nothing to compare,
    and RefusedError where the flag names a target that is not complete.
    """

    def __init__(
        self,
        settings: Settings,
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

    def _open(self, settings: Settings, url: str, max_reads_per_second: float | None) -> MetadataStore:
        return throttled(self._keep(open_single_store(settings, url)), max_reads_per_second)


def former_store(settings: Settings) -> str:
    """Return the store that a migration moves, or moved: the settings' only one; ConfigError if that is no such."""
    urls = settings.metadata_store.urls
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
