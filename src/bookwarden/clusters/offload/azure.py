"""Copies on Azure Blob Storage (driver azureblob)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from azure.core.exceptions import AzureError, ResourceNotFoundError
from azure.identity import DefaultAzureCredential
from azure.storage.blob import ContainerClient

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

# A batch carries up to 256 deletes; a copy needs two.
_COPIES_PER_REQUEST = 128
_GONE = "BlobNotFound"


@dataclass(frozen=True, slots=True)
class AzureAccess:
    """The account, which brokers do not record, and its key; without a key Azure's own chain finds credentials."""

    account_url: str
    account_name: str | None = None
    account_key: str | None = None


class AzureStore:
    """The copies of one container; a fork needs a store of its own."""

    def __init__(self, location: StoreLocation, access: AzureAccess, limits: RequestLimits) -> None:
        """Make a store that connects at its first call; raise ConfigError for an impossible account."""
        self._container = location.bucket
        self._limits = limits
        self._identity = None if access.account_key else DefaultAzureCredential()
        try:
            self._client = ContainerClient(
                access.account_url,
                location.bucket,
                credential=self._identity or _key(access),
                connection_timeout=limits.connect_timeout,
                read_timeout=limits.read_timeout,
                retry_total=limits.attempts - 1,
                initial_backoff=1,
                increment_base=2,
            )
        except ValueError as error:
            raise ConfigError(f"offload.stores, azureblob, account_url {access.account_url!r}: {error}") from error

    def read_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Check the data blob of each copy, in the order asked."""
        return look_at_each(copies, lambda copy: look(copy, self._head), self._limits.parallel)

    def examine_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Check data and index of each copy, and read the index, in the order asked."""
        return look_at_each(copies, lambda copy: examine(copy, self._head, self._beginning), self._limits.parallel)

    def delete_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        """Delete data and index of each copy, in the order asked; Azure drops unfinished uploads by itself."""
        fates: list[CopyDeletion] = []
        for start in range(0, len(copies), _COPIES_PER_REQUEST):
            chunk = copies[start : start + _COPIES_PER_REQUEST]
            try:
                fates += self._delete(chunk)
            except AzureError as error:
                if start == 0 and _is_silence(error):
                    raise StoreSilentError(self._say(error)) from error
                failed = CopyDeletion(CopyFate.FAILED, self._say(error))
                return fates + [failed] * (len(copies) - len(fates))
        return fates

    def pages(self, names: NameRange) -> Iterator[list[StoredObject]]:
        """Yield objects page by page; unfinished uploads are left to Azure, which drops them after a week."""
        try:
            for page in self._client.list_blobs(name_starts_with=names.prefix or None).by_page():
                yield [
                    StoredObject(blob.name, int(blob.size or 0), int(blob.last_modified.timestamp() * 1000))
                    for blob in page
                ]
        except AzureError as error:
            if _is_silence(error):
                raise StoreSilentError(self._say(error)) from error
            raise StoreError(self._say(error)) from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        if self._identity is not None:
            self._identity.close()

    def _head(self, name: str) -> Head:
        try:
            found = self._client.get_blob_client(name).get_blob_properties()
        except AzureError as error:
            return self._unseen(error)
        return StoredHead(int(found.size), owner_in(found.metadata or {}))

    def _beginning(self, name: str) -> bytes | AbsentCopy | UnreadableCopy:
        try:
            return bytes(self._client.get_blob_client(name).download_blob(offset=0, length=INDEX_BEGINNING).readall())
        except AzureError as error:
            return self._unseen(error)

    def _unseen(self, error: AzureError) -> AbsentCopy | UnreadableCopy:
        """Translate an error about a blob; StoreSilentError where the store itself fails."""
        if isinstance(error, ResourceNotFoundError):
            # A missing container does not prove a missing blob.
            return AbsentCopy() if _code(error) == _GONE else UnreadableCopy(self._say(error))
        if _is_silence(error):
            raise StoreSilentError(self._say(error)) from error
        return UnreadableCopy(self._say(error))

    def _delete(self, copies: Sequence[OffloadedCopy]) -> Iterator[CopyDeletion]:
        names = [name for copy in copies for name in object_names(copy)]
        answers = list(self._client.delete_blobs(*names, delete_snapshots="include", raise_on_any_failure=False))
        return (self._fate(answers[place : place + 2]) for place in range(0, len(answers), 2))

    def _fate(self, answers: Sequence[Any]) -> CopyDeletion:
        codes = [answer.headers.get("x-ms-error-code", "") for answer in answers]
        for answer, code in zip(answers, codes, strict=True):
            if not 200 <= answer.status_code < 300 and code != _GONE:
                text = f"container {self._container!r}: {answer.status_code} {code} {answer.reason or ''}".rstrip()
                return CopyDeletion(CopyFate.FAILED, text)
        return CopyDeletion(CopyFate.ABSENT if all(code == _GONE for code in codes) else CopyFate.DELETED)

    def _say(self, error: AzureError) -> str:
        text = str(error).strip().splitlines()
        code = _code(error)
        return (
            f"container {self._container!r}: {f'{code}: ' if code else ''}{text[0] if text else type(error).__name__}"
        )


def _key(access: AzureAccess) -> Any:
    if access.account_name:
        return {"account_name": access.account_name, "account_key": access.account_key}
    return access.account_key


def _is_silence(error: AzureError) -> bool:
    status = getattr(error, "status_code", None)
    return status is None or is_silence(int(status))


def _code(error: AzureError) -> str:
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")
