"""Probe of an Oxia namespace before metadata is moved into it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import grpc

from bookwarden.errors import StoreError, StoreUnavailableError
from bookwarden.metastore.interface import TargetSeen
from bookwarden.metastore.oxia.channels import ServerLost, meaning_of
from bookwarden.metastore.oxia.connection import OxiaConnection
from bookwarden.metastore.oxia.reads import OxiaReader
from bookwarden.metastore.oxia.shards import OxiaCluster, Shard
from bookwarden.metastore.oxia.writes import ShardWriters
from bookwarden.wire.pb import oxia_client_pb2 as pb

_PROBE_PREFIX: Final = "/bookwarden-preflight-"
_NO_KEY: Final = -1


def probe_namespace(connection: OxiaConnection, *, may_write: bool) -> TargetSeen:
    """Look at a namespace, as `MigrationTarget.probe` does."""
    cluster = OxiaCluster(connection)
    writers = ShardWriters(cluster)
    try:
        return _Probe(cluster, OxiaReader(cluster), writers).look(may_write=may_write)
    finally:
        writers.close()
        cluster.close()


class _Probe:
    def __init__(self, cluster: OxiaCluster, reader: OxiaReader, writers: ShardWriters) -> None:
        self._cluster = cluster
        self._reader = reader
        self._writers = writers
        self._deadline = cluster.deadline()

    def look(self, *, may_write: bool) -> TargetSeen:
        names = self._names()
        hierarchical = self._reader.is_hierarchical(self._deadline)
        if may_write and not names and hierarchical is None:
            with self._one_key():
                hierarchical = self._reader.is_hierarchical(self._deadline)
        return TargetSeen(names, hierarchical, self._is_0_15())

    def _names(self) -> tuple[str, ...]:
        keys = self._reader.list_range("/", "//", self._deadline)
        return tuple(sorted(key[1:] for key in keys if key != "/"))

    @contextmanager
    def _one_key(self) -> Iterator[None]:
        key = f"{_PROBE_PREFIX}{uuid.uuid4().hex}"
        (put,) = self._write(key, pb.WriteRequest(puts=[pb.PutRequest(key=key, expected_version_id=_NO_KEY)])).puts
        if put.status != pb.OK:
            raise StoreError(f"{key} could not be written to the target, which answered {pb.Status.Name(put.status)}")
        try:
            yield
        finally:
            delete = pb.DeleteRequest(key=key, expected_version_id=put.version.version_id)
            (deleted,) = self._write(key, pb.WriteRequest(deletes=[delete])).deletes
            if deleted.status != pb.OK:
                status = pb.Status.Name(deleted.status)
                raise StoreError(f"{key} could not be deleted from the target, which answered {status}: delete it")

    def _write(self, key: str, request: pb.WriteRequest) -> pb.WriteResponse:
        shard = self._cluster.shards(self._deadline).of(key)
        try:
            return self._writers.send(shard, request).get(self._deadline)
        except ServerLost as lost:
            raise StoreUnavailableError(
                f"Oxia {shard.leader} was lost while {key} was written and deleted again: look whether that key is "
                "left, then try again"
            ) from lost

    def _is_0_15(self) -> bool:
        shards = self._cluster.shards(self._deadline)
        return all(self._answers_as_0_15(shard) for shard in shards.shards)

    def _answers_as_0_15(self, shard: Shard) -> bool:
        connection = self._cluster.connection
        try:
            return self._cluster.server(shard).is_0_15(connection.namespace, connection.connect_timeout_s)
        except grpc.RpcError as error:
            meaning = meaning_of(error, shard.leader)
            raise meaning if isinstance(meaning, StoreError) else StoreUnavailableError(str(meaning)) from error
