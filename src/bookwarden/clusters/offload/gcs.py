"""Copies on Google Cloud Storage (driver google-cloud-storage)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.api_core.exceptions import GoogleAPICallError, NotFound, RetryError
from google.api_core.retry import Retry
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY
from requests.exceptions import RequestException

from bookwarden.clusters.offload.heads import Head, StoredHead, examine, look
from bookwarden.clusters.offload.names import NameRange, StoredObject, object_names, owner_in
from bookwarden.clusters.offload.requests import RequestLimits, StoreSilentError, is_silence, look_at_each
from bookwarden.errors import ConfigError, StoreError
from bookwarden.ledgers.offloaded_copies import (
    AbsentCopy,
    CopyDeletion,
    CopyFate,
    CopyReading,
    OffloadedCopy,
    StoreLocation,
    UnreadableCopy,
)
from bookwarden.wire.offload_index import INDEX_BEGINNING

# A batch request carries up to 100 deletes; a copy needs two.
_COPIES_PER_REQUEST = 50
_FAILURES = (GoogleAPICallError, RetryError, GoogleAuthError, RequestException)


@dataclass(frozen=True, slots=True)
class GcsAccess:
    """A service account's key file; without one Google's own chain finds credentials. ``anonymous`` is for tests."""

    service_account_file: str | None = None
    anonymous: bool = False


class GcsStore:
    """The copies of one bucket; a fork needs a store of its own."""

    def __init__(self, location: StoreLocation, access: GcsAccess, limits: RequestLimits) -> None:
        """Make a store; raise ConfigError without credentials."""
        self._location = location
        self._limits = limits
        self._client = _client(location, access)
        # A batch counts as one request, and is retried as long as the store asks for that.
        self._retry: Retry = DEFAULT_RETRY.with_timeout(limits.read_timeout)

    def read_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Check the data object of each copy, in the order asked."""
        head = partial(self._head, self._client.bucket(self._location.bucket))
        return look_at_each(copies, lambda copy: look(copy, head), self._limits.parallel)

    def examine_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Check data and index of each copy, and read the index, in the order asked."""
        bucket = self._client.bucket(self._location.bucket)
        head, beginning = partial(self._head, bucket), partial(self._beginning, bucket)
        return look_at_each(copies, lambda copy: examine(copy, head, beginning), self._limits.parallel)

    def delete_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        """Delete data and index of each copy, in the order asked; parts of uploads carry no ledger's name."""
        fates: list[CopyDeletion] = []
        try:
            for start in range(0, len(copies), _COPIES_PER_REQUEST):
                fates += self._retry(self._delete)(copies[start : start + _COPIES_PER_REQUEST])
            if any(fate.fate is CopyFate.ABSENT for fate in fates):
                self._require_bucket()
        except _FAILURES as error:
            if not fates and _is_silence(error):
                raise StoreSilentError(self._say(error)) from error
            failed = CopyDeletion(CopyFate.FAILED, self._say(error))
            fates = [fate if fate.fate is CopyFate.DELETED else failed for fate in fates]
            fates += [failed] * (len(copies) - len(fates))
        return fates

    def pages(self, names: NameRange) -> Iterator[list[StoredObject]]:
        """Yield objects page by page; Google does not list unfinished uploads."""
        try:
            listed = self._client.list_blobs(
                self._location.bucket,
                prefix=names.prefix or None,
                start_offset=names.start or None,
                end_offset=names.end or None,
                fields="items(name,size,updated),nextPageToken",
                timeout=self._timeout,
                retry=self._retry,
            )
            for page in listed.pages:
                yield [
                    StoredObject(blob.name, int(blob.size or 0), int(blob.updated.timestamp() * 1000)) for blob in page
                ]
        except _FAILURES as error:
            if _is_silence(error):
                raise StoreSilentError(self._say(error)) from error
            raise StoreError(self._say(error)) from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _head(self, bucket: Any, name: str) -> Head:
        try:
            blob = bucket.get_blob(name, timeout=self._timeout, retry=self._retry)
        except _FAILURES as error:
            return self._unseen(error)
        return AbsentCopy() if blob is None else StoredHead(int(blob.size or 0), owner_in(blob.metadata or {}))

    def _beginning(self, bucket: Any, name: str) -> bytes | AbsentCopy | UnreadableCopy:
        try:
            found = bucket.blob(name).download_as_bytes(
                start=0, end=INDEX_BEGINNING - 1, timeout=self._timeout, retry=self._retry
            )
        except NotFound:
            return AbsentCopy()
        except _FAILURES as error:
            return self._unseen(error)
        return bytes(found)

    def _unseen(self, error: Exception) -> UnreadableCopy:
        if _is_silence(error):
            raise StoreSilentError(self._say(error)) from error
        return UnreadableCopy(self._say(error))

    def _delete(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        bucket = self._client.bucket(self._location.bucket)
        with self._client.batch(raise_exception=False) as batch:
            for copy in copies:
                for name in object_names(copy):
                    bucket.delete_blob(name, timeout=self._timeout)
        # The library's own examples read the answers of a batch here; there is no other way.
        answers = batch._responses
        return [self._fate(answers[place : place + 2]) for place in range(0, len(answers), 2)]

    def _fate(self, answers: Sequence[Any]) -> CopyDeletion:
        for answer in answers:
            if answer.status_code != 404 and not 200 <= answer.status_code < 300:
                text = f"bucket {self._location.bucket!r}: {answer.status_code}: {answer.text.strip()[:500]}"
                return CopyDeletion(CopyFate.FAILED, text)
        absent = all(answer.status_code == 404 for answer in answers)
        return CopyDeletion(CopyFate.ABSENT if absent else CopyFate.DELETED)

    def _require_bucket(self) -> None:
        """Raise NotFound if the bucket is missing, which a delete does not tell from a missing object."""
        listed = self._client.list_blobs(
            self._location.bucket, max_results=1, fields="items(name)", timeout=self._timeout, retry=self._retry
        )
        next(iter(listed), None)

    @property
    def _timeout(self) -> tuple[float, float]:
        return self._limits.connect_timeout, self._limits.read_timeout

    def _say(self, error: Exception) -> str:
        missing = " (the bucket, or the right to see it, is missing)" if isinstance(error, NotFound) else ""
        return f"bucket {self._location.bucket!r}: {error}{missing}"


def _is_silence(error: Exception) -> bool:
    return not isinstance(error, GoogleAPICallError) or is_silence(int(error.code or 500))


def _client(location: StoreLocation, access: GcsAccess) -> Any:
    options = {"api_endpoint": location.endpoint} if location.endpoint else None
    if access.anonymous:
        return storage.Client("none", AnonymousCredentials(), client_options=options)
    try:
        if access.service_account_file:
            return storage.Client.from_service_account_json(access.service_account_file, client_options=options)
        return storage.Client(client_options=options)
    except (GoogleAuthError, OSError, ValueError) as error:
        raise ConfigError(f"no credentials for Google Cloud Storage: {error}") from error
