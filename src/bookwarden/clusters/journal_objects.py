"""Journal objects on S3 and stores with its protocol, below one prefix of a bucket.

Credentials, region and endpoint are found as AWS's own tools find them: environment (AWS_ENDPOINT_URL for a store
that is not AWS), configuration files, the machine's role.
"""

from __future__ import annotations

import base64
import hashlib
from contextlib import AbstractContextManager
from io import BytesIO
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from bookwarden.errors import ConfigError, StoreAccessError, StoreError, StoreUnavailableError

SCHEME: Final = "s3://"
_SUFFIX: Final = ".jsonl"
_TRIES: Final = 3
_CONNECT_SECONDS: Final = 5.0
_READ_SECONDS: Final = 30.0
_LATER: Final = (408, 429)
_DENIED: Final = (401, 403)
_ABSENT: Final = ("NoSuchKey", "404")


class S3Objects:
    """The objects of ``s3://bucket/prefix``; connects at the first call, and is not for use across a fork."""

    def __init__(self, location: str) -> None:
        """Parse the location; raise ConfigError where it, or AWS's configuration, cannot be used."""
        bucket, _, prefix = location.removeprefix(SCHEME).partition("/")
        self._location = location
        self._bucket = bucket
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        try:
            self._client = _client()
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"sweep.journal {location} cannot be used: {error}") from error

    def put(self, name: str, data: bytes) -> None:
        """Write an object whole; raise StoreUnavailableError when the store did not confirm it with its checksum."""
        checksum = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        try:
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data, ContentMD5=checksum)
        except (ClientError, BotoCoreError) as error:
            raise self._translate(error, "written", ": nothing is deleted until it can") from error

    def names(self) -> list[str]:
        """List the journal's objects, oldest first."""
        return [name for name in self.names_from("") if name.endswith(_SUFFIX)]

    def names_from(self, beginning: str) -> list[str]:
        """List all objects whose names begin with this, in their order."""
        found: list[str] = []
        prefix = self._prefix + beginning
        try:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            for page in pages:
                found += [entry["Key"].removeprefix(self._prefix) for entry in page.get("Contents", ())]
        except (ClientError, BotoCoreError) as error:
            raise self._translate(error, "listed") from error
        return sorted(found)

    def open(self, name: str) -> AbstractContextManager[BytesIO] | None:
        """Read an object, which is that of one append; None if it is gone meanwhile."""
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            return BytesIO(answer["Body"].read())
        except (ClientError, BotoCoreError) as error:
            if isinstance(error, ClientError) and error.response["Error"]["Code"] in _ABSENT:
                return None
            raise self._translate(error, "read") from error

    def remove(self, name: str) -> None:
        """Remove an object, also one that is not there."""
        try:
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)
        except (ClientError, BotoCoreError) as error:
            raise self._translate(error, "removed from") from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _translate(self, error: ClientError | BotoCoreError, what: str, consequence: str = "") -> StoreError:
        text = f"journal {self._location} cannot be {what} ({error}){consequence}"
        if not isinstance(error, ClientError):
            return StoreUnavailableError(text)
        status = int(error.response["ResponseMetadata"]["HTTPStatusCode"])
        if status in _DENIED:
            return StoreAccessError(text)
        return StoreUnavailableError(text) if status >= 500 or status in _LATER else StoreError(text)


def _client() -> Any:
    client = boto3.client("s3", config=_config("auto"))
    if "amazonaws.com" in client.meta.endpoint_url:
        return client
    # A store with an endpoint of its own seldom has a DNS name for each bucket.
    client.close()
    return boto3.client("s3", config=_config("path"))


def _config(addressing: str) -> Config:
    return Config(
        retries={"mode": "standard", "total_max_attempts": _TRIES},
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        # Stores other than AWS may not know its newer checksums; all check this one.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": addressing},
    )
