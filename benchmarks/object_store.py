"""An S3 server (moto) that begins with many offloaded copies: `python -m benchmarks.object_store PORT COUNT OWNER`."""

from __future__ import annotations

import sys

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import run_simple

from benchmarks.offload import BUCKET, PEER_BUCKET, copies_in
from bookwarden.clusters.offload.names import object_names

_ACCOUNT = "123456789012"


def _populate(bucket: str, count: int, owner: str) -> None:
    backend = s3_backends[_ACCOUNT]["aws"]
    backend.create_bucket(bucket, "us-east-1")
    for copy in copies_in(bucket, count, owner, ""):
        for name in object_names(copy):
            backend.put_object(bucket, name, b"x").set_metadata({"x-amz-meta-managedledgername": owner})


def main() -> None:
    """Serve until stopped."""
    port, count, owner = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    _populate(BUCKET, count, owner)
    _populate(PEER_BUCKET, count, owner)
    run_simple("127.0.0.1", port, DomainDispatcherApplication(create_backend_app), threaded=True)


if __name__ == "__main__":
    main()
