"""Wiring of the stores of offloaded copies."""

from __future__ import annotations

from pydantic import SecretStr

from bookwarden.clusters.offload.limits import RequestLimits
from bookwarden.clusters.offload.opening import OffloadPlace, allowed_store
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.config import OffloadSettings, OffloadStoreSettings


def offload_stores_of(offload: OffloadSettings) -> OffloadStores:
    """Make the stores of offloaded copies; MissingExtraError if a driver's library is not installed."""
    limits = RequestLimits(
        attempts=offload.attempts,
        parallel=offload.parallel_requests,
        connect_timeout=offload.connect_timeout_seconds,
        read_timeout=offload.read_timeout_seconds,
        abort_uploads=offload.abort_uploads,
    )
    return OffloadStores([allowed_store(_place_of(store), limits) for store in offload.stores])


def _place_of(store: OffloadStoreSettings) -> OffloadPlace:
    secrets = {"secret_key": _text_of(store.secret_key), "account_key": _text_of(store.account_key)}
    return OffloadPlace(**{**store.model_dump(), **secrets})


def _text_of(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None
