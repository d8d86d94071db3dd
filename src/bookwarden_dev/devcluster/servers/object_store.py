"""A local S3 server (moto, of the extra `demo`) for brokers to offload to."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import urllib3

from bookwarden.errors import MissingExtraError
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from bookwarden_dev.devcluster.processes.process import ServerProcess, ServerSpec

REGION = "us-east-1"
# The server takes any credentials.
ACCESS_KEY, SECRET_KEY = "AKIDOFTESTS", "secret of tests"
_NEEDED = ("boto3", "flask", "flask_cors", "moto")


class ObjectStore:
    """The server, which keeps its objects in memory, and a client of it; used as a context manager it is started.

    Raises MissingExtraError where moto is not installed. The server ends with this process, however it ends.
    """

    #: The credentials, in the variables that a broker's driver S3 reads; aws-s3 takes AWS_ACCESS_KEY_ID and
    #: AWS_SECRET_ACCESS_KEY.
    broker_environment: ClassVar[Mapping[str, str]] = {"ACCESS_KEY_ID": ACCESS_KEY, "ACCESS_KEY_SECRET": SECRET_KEY}

    def __init__(self, home: Path, port: int | None = None) -> None:
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise MissingExtraError(f"a local S3 server needs {', '.join(missing)}: pip install 'bookwarden[demo]'")
        self.port = free_ports(1)[0] if port is None else port
        self.endpoint = f"http://{LOOPBACK}:{self.port}"
        self.process = ServerProcess(
            ServerSpec(
                name="object-store",
                command=lambda: [sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(self.port)],
                log_file=home / "logs" / "object-store.log",
                is_ready=lambda _start: self._answers(),
                working_folder=home,
            )
        )

    @cached_property
    def client(self) -> Any:
        """A boto3 client of the server."""
        # Both belong to extras, which only users of this class need.
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(s3={"addressing_style": "path"}),
        )

    def create_bucket(self, bucket: str) -> None:
        """Create a bucket as soon as the server answers; raise ServerError if it does not."""
        self.process.wait_until_ready()
        self.client.create_bucket(Bucket=bucket)

    def keys(self, bucket: str) -> set[str]:
        """List all objects of a bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return {found["Key"] for page in pages for found in page.get("Contents", ())}

    def uploads(self, bucket: str) -> set[str]:
        """List the keys of a bucket's unfinished uploads."""
        return {upload["Key"] for upload in self.client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())}

    def broker_settings(self, bucket: str) -> dict[str, str]:
        """Return the settings with which a broker offloads into a bucket."""
        return {
            "managedLedgerOffloadDriver": "S3",
            "managedLedgerOffloadBucket": bucket,
            "managedLedgerOffloadRegion": REGION,
            "managedLedgerOffloadServiceEndpoint": self.endpoint,
        }

    def sweep_settings(self, bucket: str) -> dict[str, Any]:
        """Return the entry of `offload.stores` with which copies in a bucket are swept."""
        return {
            "driver": "S3",
            "endpoint": self.endpoint,
            "buckets": [bucket],
            "access_key": ACCESS_KEY,
            "secret_key": SECRET_KEY,
        }

    def close(self) -> None:
        """End the server; its objects are lost."""
        if "client" in self.__dict__:
            self.client.close()
        # It has nothing to write at its end.
        self.process.kill()

    def __enter__(self) -> ObjectStore:
        self.process.start(wait=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answers(self) -> bool:
        with urllib3.PoolManager(retries=False, timeout=2.0) as pool:
            try:
                return pool.request("GET", f"{self.endpoint}/moto-api/").status == 200
            except urllib3.exceptions.HTTPError:
                return False
