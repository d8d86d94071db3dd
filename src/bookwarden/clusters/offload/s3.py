"""Copies on S3 and stores with its protocol (drivers S3 and aws-s3), through boto3."""

from __future__ import annotations

import base64
import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

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

logger = logging.getLogger(__name__)

# DeleteObjects takes 1,000 keys; a copy has two.
_COPIES_PER_REQUEST = 500
# An upload begins before its ledger can be marked, so a slightly old listing has it.
_UPLOADS_MAX_AGE = 60.0
_GONE = ("NoSuchKey", "NoSuchUpload")


@dataclass(frozen=True, slots=True)
class S3Access:
    """Credentials; without any, AWS's own chain finds them. ``path_style`` None: with an endpoint only."""

    access_key: str | None = None
    secret_key: str | None = None
    profile: str | None = None
    tls_trust_certs_file: str | None = None
    path_style: bool | None = None


class S3Store:
    """The copies of one bucket; a fork needs a store of its own."""

    def __init__(self, location: StoreLocation, access: S3Access, limits: RequestLimits, region: str = "") -> None:
        """Make a store that connects at its first call; ``region`` is used where none was recorded.

        Raises ConfigError for an impossible endpoint, profile or region.
        """
        self._bucket = location.bucket
        self._limits = limits
        self._client = _client(location, access, limits, region)
        self._uploads: dict[str, list[str]] = {}
        self._uploads_listed: float | None = None

    def read_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Check the data object of each copy, in the order asked."""
        head = partial(self._head, {})
        return look_at_each(copies, lambda copy: look(copy, head), self._limits.parallel)

    def examine_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Check data and index of each copy, and read the index, in the order asked."""
        words: dict[int, str] = {}
        head, beginning = partial(self._head, words), partial(self._beginning, words)
        return look_at_each(copies, lambda copy: examine(copy, head, beginning), self._limits.parallel)

    def delete_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        """Delete data, index and unfinished uploads of each copy; S3 does not tell absent objects from deleted."""
        failures: dict[OffloadedCopy, str] = {}
        for start in range(0, len(copies), _COPIES_PER_REQUEST):
            chunk = copies[start : start + _COPIES_PER_REQUEST]
            try:
                failures.update(self._delete(chunk))
            except (ClientError, BotoCoreError) as error:
                if start == 0 and _is_silence(error):
                    raise StoreSilentError(self._say(error)) from error
                # Each request was tried several times: the store would refuse the rest too.
                failures.update(dict.fromkeys(copies[start:], self._say(error)))
                break
        fates = {copy: CopyDeletion(CopyFate.FAILED, why) for copy, why in failures.items()}
        fates.update(self._abort_uploads([copy for copy in copies if copy not in failures]))
        return [fates.get(copy, CopyDeletion(CopyFate.DELETED)) for copy in copies]

    def pages(self, names: NameRange) -> Iterator[list[StoredObject]]:
        """Yield objects and unfinished uploads by pages; uploads only with ``abort_uploads``: it needs rights."""
        options = {"Prefix": names.prefix} if names.prefix else {}
        try:
            found = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, **options, **({"StartAfter": names.start_after} if names.start else {})
            )
            for page in found:
                objects = [
                    StoredObject(one["Key"], one["Size"], _milliseconds(one["LastModified"]))
                    for one in page.get("Contents", ())
                ]
                yield objects
                if names.end and objects and objects[-1].key >= names.end:
                    break
            if self._limits.abort_uploads:
                for page in self._client.get_paginator("list_multipart_uploads").paginate(
                    Bucket=self._bucket, **options
                ):
                    yield [
                        StoredObject(one["Key"], 0, _milliseconds(one["Initiated"]), one["UploadId"])
                        for one in page.get("Uploads", ())
                    ]
        except (ClientError, BotoCoreError) as error:
            if _is_silence(error):
                raise StoreSilentError(self._say(error)) from error
            raise StoreError(self._say(error)) from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _head(self, words: dict[int, str], name: str) -> Head:
        try:
            answer = self._client.head_object(Bucket=self._bucket, Key=name)
        except (ClientError, BotoCoreError) as error:
            return self._unseen(words, name, error)
        return StoredHead(int(answer["ContentLength"]), owner_in(answer.get("Metadata", {})))

    def _beginning(self, words: dict[int, str], name: str) -> bytes | AbsentCopy | UnreadableCopy:
        first = f"bytes=0-{INDEX_BEGINNING - 1}"
        try:
            return bytes(self._client.get_object(Bucket=self._bucket, Key=name, Range=first)["Body"].read())
        except (ClientError, BotoCoreError) as error:
            return self._unseen(words, name, error)

    def _unseen(
        self, words: dict[int, str], name: str, error: ClientError | BotoCoreError
    ) -> AbsentCopy | UnreadableCopy:
        """Translate an error about an object; StoreSilentError where the store itself fails."""
        if isinstance(error, BotoCoreError):
            raise StoreSilentError(self._say(error)) from error
        status = _status(error)
        if status == 404:
            # A missing bucket looks the same here; the delete that follows finds out.
            return AbsentCopy()
        if status not in words:
            words[status] = self._words(name, error)
        if is_silence(status):
            raise StoreSilentError(words[status]) from error
        return UnreadableCopy(words[status])

    def _words(self, name: str, error: ClientError) -> str:
        """Repeat the request with a GET, whose answer has a text; a HEAD's is empty."""
        try:
            self._client.get_object(Bucket=self._bucket, Key=name, Range="bytes=0-0")["Body"].close()
        except (ClientError, BotoCoreError) as reported:
            return self._say(reported)
        return self._say(error)

    def _delete(self, copies: Sequence[OffloadedCopy]) -> dict[OffloadedCopy, str]:
        owners = {name: copy for copy in copies for name in object_names(copy)}
        answer = self._client.delete_objects(
            Bucket=self._bucket, Delete={"Objects": [{"Key": name} for name in owners], "Quiet": True}
        )
        return {
            owners[refused["Key"]]: f"bucket {self._bucket!r}: {refused.get('Code')}: {refused.get('Message', '')}"
            for refused in answer.get("Errors", ())
            if refused.get("Code") not in _GONE
        }

    def _abort_uploads(self, copies: Sequence[OffloadedCopy]) -> dict[OffloadedCopy, CopyDeletion]:
        """Abort the unfinished uploads of these copies; return the result for each that had one."""
        if not copies or not self._limits.abort_uploads:
            return {}
        try:
            uploads = self._unfinished()
        except (ClientError, BotoCoreError) as error:
            text = f"unfinished uploads could not be listed (offload.abort_uploads): {self._say(error)}"
            return dict.fromkeys(copies, CopyDeletion(CopyFate.FAILED, text))
        fates = {}
        for copy in copies:
            keyed = [(key, upload) for key in object_names(copy) for upload in uploads.pop(key, ())]
            try:
                aborted = [self._abort(key, upload) for key, upload in keyed]
                if any(aborted):
                    fates[copy] = CopyDeletion(CopyFate.ABORTED)
            except (ClientError, BotoCoreError) as error:
                self._uploads_listed = None
                text = f"an unfinished upload could not be aborted: {self._say(error)}"
                fates[copy] = CopyDeletion(CopyFate.FAILED, text)
        return fates

    def _abort(self, key: str, upload: str) -> bool:
        """Abort an upload; return whether it was still there."""
        try:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)
        except ClientError as error:
            if error.response["Error"].get("Code") not in _GONE:
                raise
            return False
        logger.info("aborted an unfinished upload of %s in bucket %s", key, self._bucket)
        return True

    def _unfinished(self) -> dict[str, list[str]]:
        """List the bucket's unfinished uploads: one request for all ledgers, and again only after a while."""
        if self._uploads_listed is None or time.monotonic() - self._uploads_listed > _UPLOADS_MAX_AGE:
            found: dict[str, list[str]] = {}
            for key, upload in self._list_uploads():
                found.setdefault(key, []).append(upload)
            self._uploads, self._uploads_listed = found, time.monotonic()
        return self._uploads

    def _list_uploads(self) -> Iterator[tuple[str, str]]:
        pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket)
        for page in pages:
            for upload in page.get("Uploads", ()):
                yield upload["Key"], upload["UploadId"]

    def _say(self, error: ClientError | BotoCoreError) -> str:
        if isinstance(error, ClientError):
            details = error.response["Error"]
            return f"bucket {self._bucket!r}: {details.get('Code')}: {details.get('Message')}"
        return f"bucket {self._bucket!r}: {error}"


def _milliseconds(stamp: datetime) -> int:
    return int(stamp.timestamp() * 1000)


def _status(error: ClientError) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])


def _is_silence(error: ClientError | BotoCoreError) -> bool:
    return isinstance(error, BotoCoreError) or is_silence(_status(error))


def _client(location: StoreLocation, access: S3Access, limits: RequestLimits, region: str) -> Any:
    path_style = bool(location.endpoint) if access.path_style is None else access.path_style
    config = Config(
        retries={"mode": "standard", "total_max_attempts": limits.attempts},
        connect_timeout=limits.connect_timeout,
        read_timeout=limits.read_timeout,
        max_pool_connections=limits.parallel,
        s3={"addressing_style": "path" if path_style else "auto"},
    )
    try:
        session = boto3.session.Session(profile_name=access.profile)
        client = session.client(
            "s3",
            endpoint_url=location.endpoint or None,
            region_name=location.region or region or session.region_name or "us-east-1",
            aws_access_key_id=access.access_key,
            aws_secret_access_key=access.secret_key,
            verify=access.tls_trust_certs_file,
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"offload.stores cannot be used for {location}: {error}") from error
    client.meta.events.register("before-sign.s3.DeleteObjects", _add_md5)
    return client


def _add_md5(request: Any, **_: Any) -> None:
    # Servers that do not know AWS's newer checksums refuse a bulk delete without this one.
    body = request.body if isinstance(request.body, bytes) else request.body.encode()
    request.headers["Content-MD5"] = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
