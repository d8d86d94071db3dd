"""Wiring of metadata stores by their URLs, and the place of BookKeeper's metadata."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bookwarden.clusters.bookkeeper.catalog import DEFAULT_LEDGERS_ROOT
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot, bookkeeper_place
from bookwarden.config import MetadataStoreSettings
from bookwarden.metastore.following.progress import MigrationTimes
from bookwarden.metastore.following.store import MigratingStore
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store, scheme_of
from bookwarden.metastore.wrappers import WriteProtectedStore
from bookwarden.metastore.write_conditions import ConditionalStore


def open_metadata_store(
    settings: MetadataStoreSettings, url: str, *, one_of_many: bool = False, deletes: bool = False
) -> MetadataStore:
    """Make the metadata store of this URL, which follows a migration; it connects at its first call.

    ``one_of_many`` is for tasks that write at the same time: if the metadata moves to a store for only one writer
    (`has_one_writer`), each write raises StoreMovedError. ``deletes`` is as for `open_single_store`.
    """
    if one_of_many and _takes_one_writer(settings, url):
        reason = f"{url} takes one writer, and this task is one of many: see oxia_concurrent_writers in docs/oxia.md"
        return WriteProtectedStore(open_single_store(settings, url), reason)
    source = open_single_store(settings, url, deletes=deletes)
    if not isinstance(source, ConditionalStore):
        return source

    def open_target(target: str) -> MetadataStore:
        protected = one_of_many and _takes_one_writer(settings, target)
        opened = open_single_store(settings, target, deletes=deletes and not protected)
        if not protected:
            return opened
        reason = f"the metadata of {url} was moved to {target}, which takes one writer, and this task is one of many"
        return WriteProtectedStore(opened, f"{reason}: the sweep starts it again as the only one")

    times = MigrationTimes(
        write_wait_s=settings.migration_write_wait_seconds, drain_limit_s=settings.migration_drain_seconds
    )
    return MigratingStore(source, open_target=open_target, times=times)


def open_single_store(settings: MetadataStoreSettings, url: str, *, deletes: bool = False) -> MetadataStore:
    """Make the store of exactly this URL, also during and after a migration of its metadata, to read it.

    Write nothing through it. It connects at its first call. ``deletes`` says that deletes rest on its reads: on Oxia
    each `sync` then proves that the leaders still lead.
    """
    scheme = scheme_of(url)
    if scheme not in ("zk", "oxia"):
        return open_store(url)
    options: dict[str, Any] = {
        "session_timeout_s": settings.session_timeout_seconds,
        "operation_timeout_s": settings.operation_timeout_seconds,
        "use_ssl": settings.tls,
        "ca": settings.tls_trust_certs_file,
        "certfile": settings.tls_certificate_file,
        "keyfile": settings.tls_private_key_file,
        "in_flight": settings.batches_in_flight,
        "max_requests_per_second": settings.max_requests_per_second,
    }
    if settings.batch_size is not None:
        options["batch_size"] = settings.batch_size
    if scheme == "oxia":
        options["use_ssl"] = settings.tls if settings.oxia_tls is None else settings.oxia_tls
        options["token"] = settings.oxia_token.get_secret_value() if settings.oxia_token else None
        options["proves_leaders"] = deletes
        return open_store(url, **options)
    options["max_request_bytes"] = settings.jute_maxbuffer
    options["max_latency_s"] = None if settings.max_store_latency_ms is None else settings.max_store_latency_ms / 1000
    if settings.digest_user and settings.digest_password:
        options["digest"] = (settings.digest_user, settings.digest_password.get_secret_value())
        options["acl"] = "as-pulsar"
    return open_store(url, **options)


def bookkeeper_place_of(settings: MetadataStoreSettings) -> LedgersRoot:
    """Return the place of BookKeeper's metadata; ConfigError if the settings name an impossible one."""
    if settings.bookkeeper_url is None:
        root = DEFAULT_LEDGERS_ROOT if settings.ledgers_root is None else settings.ledgers_root.rstrip("/")
        return LedgersRoot(settings.urls[0], root)
    return bookkeeper_place(settings.bookkeeper_url, settings.ledgers_root)


def has_one_writer(settings: MetadataStoreSettings, others: Iterable[str] = ()) -> bool:
    """Return whether only one process at a time should delete ledgers: metadata is in an Oxia that may be old.

    Two concurrent writers can make it refuse all writes: docs/oxia.md. ``others`` are URLs of stores besides those of
    the settings: where metadata was moved to, and those of registered bookie clusters.
    """
    written = (bookkeeper_place_of(settings).url, *settings.urls, *others)
    return any(_takes_one_writer(settings, url) for url in written)


def _takes_one_writer(settings: MetadataStoreSettings, url: str) -> bool:
    return scheme_of(url) == "oxia" and not settings.oxia_concurrent_writers
