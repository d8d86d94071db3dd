"""Opens the stores of offloaded copies; a driver's library is loaded only if the settings have such a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bookwarden.clusters.offload.filesystem import FileSystemStore
from bookwarden.clusters.offload.limits import RequestLimits
from bookwarden.clusters.offload.stores import AllowedStore, CopyStore
from bookwarden.errors import MissingExtraError
from bookwarden.ledgers.offloaded_copies import StoreLocation


@dataclass(frozen=True, slots=True)
class OffloadPlace:
    """One place of copies in the settings (`OffloadStoreSettings`); the fields of other drivers are empty."""

    driver: str  #: S3, aws-s3, google-cloud-storage, azureblob or filesystem.
    endpoint: str = ""  #: A URL, or the base path of a file system.
    buckets: tuple[str, ...] = ()  #: Copies may be deleted in these.
    region: str = ""  #: "" allows every region.
    access_key: str | None = None  #: S3; None: AWS's own chain finds credentials.
    secret_key: str | None = None  #: S3, with ``access_key``.
    profile: str | None = None  #: S3: a profile in AWS's configuration files.
    path_style: bool | None = None  #: S3: buckets in the path; None: with an endpoint only.
    tls_trust_certs_file: str | None = None  #: S3: trusted authorities, PEM.
    service_account_file: str | None = None  #: Google's key file; None: Google's own chain finds credentials.
    account_url: str | None = None  #: Azure, which brokers do not record.
    account_name: str | None = None  #: Azure; only where ``account_url`` does not tell it.
    account_key: str | None = None  #: Azure; None: Azure's own chain finds credentials.
    mount: str | None = None  #: The file system's base path on this machine, if it is another one.


def allowed_store(place: OffloadPlace, limits: RequestLimits) -> AllowedStore:
    """Make the opener of a place's locations; raise MissingExtraError where its library is missing."""
    loaders: dict[str, Callable[[], AllowedStore]] = {
        "S3": lambda: _s3(place, limits),
        "aws-s3": lambda: _s3(place, limits),
        "google-cloud-storage": lambda: _gcs(place, limits),
        "azureblob": lambda: _azure(place, limits),
        "filesystem": lambda: _allow(place, lambda location: FileSystemStore(location, place.mount)),
    }
    return loaders[place.driver]()


def _s3(place: OffloadPlace, limits: RequestLimits) -> AllowedStore:
    try:
        from bookwarden.clusters.offload.s3 import S3Access, S3Store
    except ImportError as error:
        raise _missing(place.driver, "s3") from error
    access = S3Access(place.access_key, place.secret_key, place.profile, place.tls_trust_certs_file, place.path_style)
    return _allow(place, lambda location: S3Store(location, access, limits, place.region))


def _gcs(place: OffloadPlace, limits: RequestLimits) -> AllowedStore:
    try:
        from bookwarden.clusters.offload.gcs import GcsAccess, GcsStore
    except ImportError as error:
        raise _missing(place.driver, "gcs") from error
    access = GcsAccess(place.service_account_file)
    return _allow(place, lambda location: GcsStore(location, access, limits))


def _azure(place: OffloadPlace, limits: RequestLimits) -> AllowedStore:
    try:
        from bookwarden.clusters.offload.azure import AzureAccess, AzureStore
    except ImportError as error:
        raise _missing(place.driver, "azure") from error
    access = AzureAccess(place.account_url or "", place.account_name, place.account_key)
    return _allow(place, lambda location: AzureStore(location, access, limits))


def _allow(place: OffloadPlace, open_location: Callable[[StoreLocation], CopyStore]) -> AllowedStore:
    return AllowedStore(place.driver, place.endpoint, place.buckets, place.region, open_location)


def _missing(driver: str, extra: str) -> MissingExtraError:
    return MissingExtraError(
        f"offload.stores has driver {driver!r}, whose library is missing: pip install 'bookwarden[{extra}]'"
    )
