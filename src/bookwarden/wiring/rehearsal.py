"""Wiring of the rehearsal of a migration of the metadata store."""

from __future__ import annotations

from functools import partial

from bookwarden.config import MetadataStoreSettings
from bookwarden.errors import ConfigError, RefusedError
from bookwarden.leases import LeaseTimes
from bookwarden.metastore.following.flag import MigrationState, read_flag
from bookwarden.metastore.interface import ScratchStore
from bookwarden.metastore.urls import scheme_of, split_chroot
from bookwarden.metastore.wrappers import TimedStore, throttled
from bookwarden.migration.rehearsal.operation import Rehearsal
from bookwarden.resources import Resources
from bookwarden.wiring.migration import former_store
from bookwarden.wiring.stores import bookkeeper_place_of, open_single_store

_IDLE = ("NOT_STARTED", "FAILED")


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
