"""Wiring of the stores of offloaded copies."""

from __future__ import annotations

from typing import Any

from bookwarden.clusters.offload.limits import RequestLimits
from bookwarden.clusters.offload.opening import OffloadPlace, allowed_store
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.config import OffloadStoreSettings, Settings


def offload_stores_of(settings: Settings) -> OffloadStores:
    """Make what deletes offloaded copies; MissingExtraError if a driver's library is not installed."""
    offload = settings.offload
    limits = RequestLimits(
        attempts=offload.attempts,
        parallel=offload.parallel_requests,
        connect_timeout=offload.connect_timeout_seconds,
        read_timeout=offload.read_timeout_seconds,
        abort_uploads=offload.abort_uploads,
    )
    return OffloadStores([allowed_store(_place_of(store), limits) for store in offload.stores])


def _place_of(store: OffloadStoreSettings) -> OffloadPlace:
    fields: dict[str, Any] = store.model_dump()
    for name in ("secret_key", "account_key"):
        secret = fields[name]
        fields[name] = secret.get_secret_value() if secret else None
    return OffloadPlace(**fields)
