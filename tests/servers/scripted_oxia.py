"""An Oxia in this process, for what a real one does only when it is upset: leaders that move, writes that fail."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc

from bookwarden.metastore.oxia.shards import hash_of
from bookwarden.wire.pb import oxia_client_pb2 as pb

# In the place of a server: no one leads a shard, as between two elections.
NOBODY = -1
_SERVICE = "io.streamnative.oxia.proto.OxiaClient"
_SERVICE_FROM_0_15 = "io.oxia.proto.v1.OxiaClient"


class Refusal(Exception):
    """What a script raises to end a stream of writes with an error."""

    def __init__(self, text: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class Record:
    """A key's value, version, time of creation, and how often it was replaced."""

    value: bytes
    version: int
    created_ms: int = 1
    modifications: int = 0


class ScriptedOxia:
    """Servers of one namespace that share their keys; ``write`` may be replaced by what a test wants of a write.

    ``by_depth`` is the order of keys of Oxia 0.15 and later: those with fewer slashes come first of all.
    ``is_0_15`` gives the service its later name as well, and lets a writer set how often a key was replaced.
    """

    def __init__(
        self,
        *,
        servers: int = 1,
        shards: int = 1,
        natural: bool = False,
        by_depth: bool = False,
        is_0_15: bool = False,
        token: str | None = None,
        credentials: Any = None,
    ) -> None:
        self.records: dict[str, Record] = {}
        self.write: Callable[[pb.WriteRequest], pb.WriteResponse] = self.apply
        self.calls: Counter[str] = Counter()
        self.streams: Counter[int] = Counter()
        self.most_streams: Counter[int] = Counter()
        self._version = 100
        self._natural = natural
        self._by_depth = by_depth
        self._is_0_15 = is_0_15
        self._token = token
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(32)
        self._servers = [grpc.server(self._pool) for _ in range(servers)]
        self.addresses: list[str] = []
        for index, server in enumerate(self._servers):
            names = (_SERVICE, _SERVICE_FROM_0_15) if is_0_15 else (_SERVICE,)
            server.add_generic_rpc_handlers([self._handlers(index, name) for name in names])
            host = "127.0.0.1:0"
            port = server.add_secure_port(host, credentials) if credentials else server.add_insecure_port(host)
            self.addresses.append(f"127.0.0.1:{port}")
            server.start()
        size = 2**32 // shards
        self._ranges = [(n * size, 2**32 - 1 if n == shards - 1 else (n + 1) * size - 1) for n in range(shards)]
        self.leaders = [0] * shards
        self._told = list(self.leaders)

    @property
    def url(self) -> str:
        return f"oxia://{self.addresses[0]}"

    def move(self, shard: int, server: int) -> None:
        """Let another server lead a shard; nobody is told."""
        self.leaders[shard] = server

    def tell(self) -> None:
        """Tell who follows the assignments which server leads which shard."""
        with self._changed:
            self._told = list(self.leaders)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._told = []
            self._changed.notify_all()
        for server in self._servers:
            server.stop(0).wait()
        self._pool.shutdown()

    def set(self, key: str, value: bytes = b"", *, version: int | None = None, created_ms: int = 1) -> int:
        """Write a key; return its version, a new one if none is given."""
        self._version += 1
        before = self.records.get(key)
        modifications = 0 if before is None else before.modifications + 1
        self.records[key] = Record(value, self._version if version is None else version, created_ms, modifications)
        return self.records[key].version

    def apply(self, request: pb.WriteRequest) -> pb.WriteResponse:
        """Do what a server does of a write."""
        answer = pb.WriteResponse()
        for put in request.puts:
            record = self.records.get(put.key)
            if put.HasField("expected_version_id") and put.expected_version_id != (record.version if record else -1):
                answer.puts.add(status=pb.UNEXPECTED_VERSION_ID)
            else:
                self.set(put.key, put.value)
                if self._is_0_15 and put.HasField("override_modifications_count"):
                    self.records[put.key].modifications = put.override_modifications_count
                answer.puts.add(version=_version_of(self.records[put.key]))
        for delete in request.deletes:
            record = self.records.get(delete.key)
            if record is None or record.version != delete.expected_version_id:
                answer.deletes.add(status=pb.UNEXPECTED_VERSION_ID)
            else:
                del self.records[delete.key]
                answer.deletes.add()
        return answer

    def _handlers(self, index: int, service: str) -> grpc.GenericRpcHandler:
        def one(request: type, call: Callable[..., Iterator[Any]]) -> Any:
            def checked(message: Any, context: grpc.ServicerContext) -> Iterator[Any]:
                self._check_token(context)
                yield from call(index, message, context)

            return grpc.unary_stream_rpc_method_handler(
                checked, request_deserializer=request.FromString, response_serializer=_serialized
            )

        def writes(requests: Iterator[pb.WriteRequest], context: grpc.ServicerContext) -> Iterator[pb.WriteResponse]:
            yield from self._write_stream(index, requests, context)

        methods = {
            "GetShardAssignments": one(pb.ShardAssignmentsRequest, self._assignments),
            "Read": one(pb.ReadRequest, self._read),
            "List": one(pb.ListRequest, self._list),
            "GetNotifications": one(pb.NotificationsRequest, self._notifications),
            "WriteStream": grpc.stream_stream_rpc_method_handler(
                writes, request_deserializer=pb.WriteRequest.FromString, response_serializer=_serialized
            ),
            "CreateSession": grpc.unary_unary_rpc_method_handler(
                self._create_session,
                request_deserializer=pb.CreateSessionRequest.FromString,
                response_serializer=_serialized,
            ),
        }
        handler: grpc.GenericRpcHandler = grpc.method_handlers_generic_handler(service, methods)
        return handler

    def _check_token(self, context: grpc.ServicerContext) -> None:
        given = dict(context.invocation_metadata()).get("authorization")
        if self._token is not None and given != f"Bearer {self._token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "token is not valid")

    def _assignments(self, _: int, request: Any, context: grpc.ServicerContext) -> Iterator[pb.ShardAssignments]:
        last: list[int] | None = None
        while context.is_active():
            with self._changed:
                self._changed.wait_for(lambda known=last: self._told is not known or not context.is_active(), 0.2)
                told = self._told
            if not told:
                return
            if told is last:
                continue
            last = told
            answer = pb.ShardAssignments()
            namespace = answer.namespaces[request.namespace]
            namespace.shard_key_router = pb.XXHASH3
            for shard, (lowest, highest) in enumerate(self._ranges):
                hashes = pb.Int32HashRange(min_hash_inclusive=lowest, max_hash_inclusive=highest)
                leader = "" if told[shard] == NOBODY else self.addresses[told[shard]]
                namespace.assignments.add(shard=shard, leader=leader, int32_hash_range=hashes)
            yield answer

    def _notifications(self, _: int, request: Any, context: grpc.ServicerContext) -> Iterator[pb.NotificationBatch]:
        yield pb.NotificationBatch(shard=request.shard)
        while context.is_active() and self._told:
            with self._changed:
                self._changed.wait(0.2)

    def _read(self, index: int, request: pb.ReadRequest, context: grpc.ServicerContext) -> Iterator[pb.ReadResponse]:
        self._require_leader(index, request.shard, context)
        self.calls["read"] += 1
        for begin in range(0, len(request.gets), 7):
            yield pb.ReadResponse(gets=[self._get(request.shard, get) for get in request.gets[begin : begin + 7]])

    def _get(self, shard: int, get: pb.GetRequest) -> pb.GetResponse:
        keys = self._keys(shard)
        at = bisect_left([self._order(key) for key in keys], self._order(get.key))
        if get.comparison_type == pb.LOWER:
            found = keys[at - 1] if at else None
        elif get.comparison_type == pb.CEILING:
            found = keys[at] if at < len(keys) else None
        else:
            found = get.key if get.key in keys else None
        if found is None:
            return pb.GetResponse(status=pb.KEY_NOT_FOUND)
        record = self.records[found]
        return pb.GetResponse(version=_version_of(record), value=record.value if get.include_value else None, key=found)

    def _list(self, index: int, request: pb.ListRequest, context: grpc.ServicerContext) -> Iterator[pb.ListResponse]:
        self._require_leader(index, request.shard, context)
        self.calls["list"] += 1
        start, end = self._order(request.start_inclusive), self._order(request.end_exclusive)
        yield pb.ListResponse(keys=[key for key in self._keys(request.shard) if start <= self._order(key) < end])

    def _write_stream(
        self, index: int, requests: Iterator[pb.WriteRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.WriteResponse]:
        shard = int(dict(context.invocation_metadata())["shard-id"])
        self._require_leader(index, shard, context)
        self.streams[shard] += 1
        self.most_streams[shard] = max(self.most_streams[shard], self.streams[shard])
        try:
            for request in requests:
                self.calls["write"] += 1
                yield self.write(request)
        except Refusal as refusal:
            context.abort(refusal.code, str(refusal))
        finally:
            self.streams[shard] -= 1

    def _create_session(self, _request: pb.CreateSessionRequest, _context: Any) -> pb.CreateSessionResponse:
        self.calls["session"] += 1
        return pb.CreateSessionResponse(session_id=self.calls["session"])

    def _require_leader(self, index: int, shard: int, context: grpc.ServicerContext) -> None:
        if self.leaders[shard] != index:
            self.calls["refused"] += 1
            context.abort(grpc.StatusCode.UNKNOWN, "oxia: node is not leader for shard")

    def _keys(self, shard: int) -> list[str]:
        lowest, highest = self._ranges[shard]
        return sorted((key for key in list(self.records) if lowest <= hash_of(key) <= highest), key=self._order)

    def _order(self, key: str) -> Any:
        if self._natural:
            return key.encode()
        if self._by_depth:
            # common/compare/encode.go of Oxia 0.15 and later.
            return key.count("/") - key.endswith("//"), key.encode().replace(b"/", b"\xff")
        *spans, last = key.encode().split(b"/")
        return [*((1, span) for span in spans), (0, last)]


def _version_of(record: Record) -> pb.Version:
    return pb.Version(
        version_id=record.version, created_timestamp=record.created_ms, modifications_count=record.modifications
    )


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
