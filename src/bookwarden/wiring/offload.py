"""Wiring of the stores of offloaded copies; a driver's library is loaded only if the settings have such a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pydantic import SecretStr

from bookwarden.clusters.offload.filesystem import FileSystemStore
from bookwarden.clusters.offload.requests import RequestLimits
from bookwarden.clusters.offload.stores import AllowedStore, CopyStore, OffloadStores
from bookwarden.config import OffloadSettings, OffloadStoreSettings
from bookwarden.errors import MissingExtraError
from bookwarden.ledgers.offloaded_copies import StoreLocation

_Opener = Callable[[StoreLocation], CopyStore]


def offload_stores_of(offload: OffloadSettings) -> OffloadStores:
    """Make the stores of offloaded copies; MissingExtraError if a driver's library is not installed."""
    limits = RequestLimits(
        attempts=offload.attempts,
        parallel=offload.parallel_requests,
        connect_timeout=offload.connect_timeout_seconds,
        read_timeout=offload.read_timeout_seconds,
        abort_uploads=offload.abort_uploads,
    )
    return OffloadStores([allowed_store(store, limits) for store in offload.stores])


def allowed_store(place: OffloadStoreSettings, limits: RequestLimits) -> AllowedStore:
    """Make the opener of a place's locations; raise MissingExtraError where its library is missing."""
    extra, opener = _OPENERS[place.driver]
    try:
        open_location = opener(place, limits)
    except ImportError as error:
        raise MissingExtraError(
            f"offload.stores has driver {place.driver!r}, whose library is missing: pip install 'bookwarden[{extra}]'"
        ) from error
    return AllowedStore(place.driver, place.endpoint, place.buckets, place.region, open_location)


def _s3(place: OffloadStoreSettings, limits: RequestLimits) -> _Opener:
    from bookwarden.clusters.offload.s3 import S3Access, S3Store

    secret, certificates = _text(place.secret_key), place.tls_trust_certs_file
    access = S3Access(place.access_key, secret, place.profile, certificates, place.path_style)
    return lambda location: S3Store(location, access, limits, place.region)


def _gcs(place: OffloadStoreSettings, limits: RequestLimits) -> _Opener:
    from bookwarden.clusters.offload.gcs import GcsAccess, GcsStore

    access = GcsAccess(place.service_account_file)
    return lambda location: GcsStore(location, access, limits)


def _azure(place: OffloadStoreSettings, limits: RequestLimits) -> _Opener:
    from bookwarden.clusters.offload.azure import AzureAccess, AzureStore

    access = AzureAccess(place.account_url or "", place.account_name, _text(place.account_key))
    return lambda location: AzureStore(location, access, limits)


def _file_system(place: OffloadStoreSettings, _: RequestLimits) -> _Opener:
    return lambda location: FileSystemStore(location, place.mount)


def _text(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None


# By driver: the extra that brings its library, and what makes its opener.
_OPENERS: Final[Mapping[str, tuple[str, Callable[[OffloadStoreSettings, RequestLimits], _Opener]]]] = {
    "S3": ("s3", _s3),
    "aws-s3": ("s3", _s3),
    "google-cloud-storage": ("gcs", _gcs),
    "azureblob": ("azure", _azure),
    "filesystem": ("", _file_system),
}
