"""The metadata store on Oxia, with the keys that Pulsar's brokers and bookies use there.

Format: impl.oxia.OxiaMetadataStore of pulsar-metadata 4.2: keys are the paths, parents are keys of their own with an
empty value, the children of p are the keys from ``p/`` up to ``p//``, and a sequential node is numbered by how often
its parent was written.

It proves that the leaders of the namespace's shards still lead them. A leader that was replaced without learning it,
cut off from its coordinator, goes on answering reads with its old data (docs/oxia.md). It can commit nothing: a write
has to reach most replicas, and those follow another by then.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import grpc

from bookwarden.errors import LostRaceError, NotFoundError, OutcomeUnknownError, StoreError, StoreUnavailableError
from bookwarden.ledgers.metadata import Conditions, DeleteResult
from bookwarden.metastore.changes import ChangeFeed
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.doomed_nodes import DoomedNode, runs
from bookwarden.metastore.interface import CreateResult, MigrationTarget, NewNode, TargetSeen, Versioned, Write
from bookwarden.metastore.oxia.channels import OxiaConnection, ServerLost, meaning_of
from bookwarden.metastore.oxia.notifications import KeyChanges, Watch
from bookwarden.metastore.oxia.numbers import KeyNumbers
from bookwarden.metastore.oxia.reads import ChildLists, OxiaReader, Parents
from bookwarden.metastore.oxia.sessions import OxiaSessions
from bookwarden.metastore.oxia.shards import OxiaCluster, Shard
from bookwarden.metastore.oxia.writes import WRITE_OVERHEAD, BatchCreate, OxiaBatchDelete, ShardWriters
from bookwarden.metastore.paths import ancestors, parent_of, validate_path, validate_paths
from bookwarden.wire.pb import oxia_client_pb2 as pb

_LOG = logging.getLogger(__name__)
# This key is never created, so its delete goes through the log of the shard and changes nothing.
_KEY: Final = "/bookwarden-nothing"
_VERSION: Final = 0
_PROBE_PREFIX: Final = "/bookwarden-preflight-"
_NO_KEY: Final = -1


def prove_leaders(cluster: OxiaCluster, writers: ShardWriters) -> None:
    """Have the leader of each shard commit a delete of nothing; StoreUnavailableError where one does not in time."""
    deadline = cluster.deadline()
    while True:
        shards = cluster.shards(deadline)
        cluster.keep_rate(len(shards.shards), deadline)
        delete = pb.DeleteRequest(key=_KEY, expected_version_id=_VERSION)
        sent = [(shard, writers.send(shard, pb.WriteRequest(deletes=[delete]))) for shard in shards.shards]
        lost: ServerLost | None = None
        for shard, pending in sent:
            try:
                pending.get(deadline)
            except ServerLost as error:
                lost = ServerLost(
                    f"{shard.leader or 'no server'} commits nothing as the leader of shard {shard.id}: {error}"
                )
        # Leaders may have changed meanwhile, and the reads that follow go to the new ones.
        if lost is None and cluster.shards(deadline) is shards:
            return
        if lost is not None:
            cluster.wait_for_news(shards, lost, deadline)


_NONE = -1


class OxiaStore(MigrationTarget):
    """A metadata store over one namespace of Oxia, connected at the first call.

    Versions are Oxia's: they grow over all keys of a shard, and a new key does not begin at 0. Make it in the process
    that uses it: gRPC does not survive a fork.
    """

    def __init__(self, connection: OxiaConnection) -> None:
        self._cluster = OxiaCluster(connection)
        self._reader = OxiaReader(self._cluster)
        self._writers = ShardWriters(self._cluster)
        self._sessions = OxiaSessions(self._cluster, self._writers, self._session_ended)
        self._numbers = KeyNumbers(self._cluster, self._reader, self._writers, self._write)
        self._lock = threading.Lock()
        self._watches: list[Watch | KeyChanges] = []

    @property
    def connection(self) -> OxiaConnection:
        """The options of this store's connection."""
        return self._cluster.connection

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        self._cluster.require_open()
        return self._reader.get_many(validate_paths(paths), self._cluster.deadline()) if paths else []

    def delete_many(
        self,
        expected: Sequence[tuple[str, int]],
        *,
        created_ms: Sequence[int] | None = None,
        conditions: Sequence[Conditions] | None = None,
    ) -> list[DeleteResult]:
        self._cluster.require_open()
        times: Sequence[int | None] = created_ms if created_ms is not None else [None] * len(expected)
        validate_paths([path for path, _ in expected])
        targets = [DoomedNode(path, version, created) for (path, version), created in zip(expected, times, strict=True)]
        if targets:
            self._reader.require_hierarchical(self._cluster.deadline())
        results: dict[tuple[str, int], DeleteResult] = {}
        for run in runs(targets):
            settled = OxiaBatchDelete(self._cluster, self._reader, self._writers).run(list(run.values()))
            results.update(((path, run[path].version), result) for path, result in settled.items())
        return [results[pair] for pair in expected]

    def put(self, path: str, value: bytes, version: int) -> int:
        if version == _NONE:
            # Oxia would make the key.
            raise LostRaceError(f"{path} has no version {version}: read it again")
        answer = self._write(pb.PutRequest(key=validate_path(path), value=value, expected_version_id=version))
        if answer.status == pb.OK:
            return answer.version.version_id
        what = "was deleted" if self.get(path) is None else f"no longer has version {version}"
        raise LostRaceError(f"{path} {what}: read it again")

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        parents = list(ancestors(validate_path(path)))
        if parents:
            found = self.get_many(parents if make_parents else parents[-1:])
            missing = [parent for parent, node in zip(reversed(parents), reversed(found), strict=False) if node is None]
            if missing and not make_parents:
                raise NotFoundError(f"{path} cannot be created: the metadata store has no node {parent_of(path)}")
            for parent in reversed(missing):
                if not self._create(parent, b""):
                    _LOG.debug("%s exists already", parent)
        if not self._create(path, value):
            raise LostRaceError(f"{path} exists already: read it again")

    def write_together(self, writes: Sequence[Write]) -> None:
        validate_paths([write.path for write in writes])
        own = {write.path for write in writes}
        parents = [parent for write in writes if write.version is None for parent in ancestors(write.path)]
        wanted = [parent for parent in dict.fromkeys(parents) if parent not in own]
        for parent, node in zip(wanted, self.get_many(wanted), strict=True):
            if node is None and not self._create(parent, b""):
                _LOG.debug("%s exists already", parent)
        for path, value, version in writes:
            if version is not None:
                self.put(path, value, version)
            elif not self._create(path, value):
                raise LostRaceError(f"{path} exists already: read it again")

    def create_many(self, nodes: Sequence[NewNode]) -> list[CreateResult]:
        """Create nodes at once, whether or not their parents exist; not atomic."""
        self._cluster.require_open()
        return BatchCreate(self._cluster, self._reader, self._writers).run(nodes)

    def list_children(self, path: str) -> list[str]:
        deadline = self._cluster.deadline()
        prefix = f"{validate_path(path).rstrip('/')}/"
        names = [key[len(prefix) :] for key in self._reader.list_range(prefix, f"{prefix}/", deadline)]
        self._reader.require_hierarchical(deadline)
        if not names and path != "/" and self._reader.get_many([path], deadline) == [None]:
            raise NotFoundError(f"the metadata store has no node {path}")
        # A key "/" would be its own child.
        return sorted(name for name in names if name)

    def list_many(self, paths: Sequence[str]) -> list[list[str]]:
        deadline = self._cluster.deadline()
        found = ChildLists(self._reader).of(validate_paths(paths), deadline) if paths else []
        self._reader.require_hierarchical(deadline)
        return found

    def parents_among(self, paths: Sequence[str]) -> set[str]:
        deadline = self._cluster.deadline()
        found = Parents(self._cluster, self._reader).among(validate_paths(paths), deadline) if paths else set()
        self._reader.require_hierarchical(deadline)
        return found

    def sync(self) -> None:
        # Reads go to the leaders, which have everything that was committed; they only have to be found.
        self._cluster.shards(self._cluster.deadline())
        if self.connection.proves_leaders:
            prove_leaders(self._cluster, self._writers)

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        watch = Watch(self._cluster, validate_path(path), changed)
        watch.start(self._cluster.deadline())
        with self._lock:
            self._watches = [other for other in self._watches if not other.is_over] + [watch]
        return watch.end

    def follow_below(self, prefixes: Sequence[str]) -> ChangeFeed:
        feed = KeyChanges(self._cluster, validate_paths(prefixes))
        feed.start(self._cluster.deadline())
        with self._lock:
            self._watches = [other for other in self._watches if not other.is_over] + [feed]
        return feed

    def ephemeral_sequential(self, prefix: str, value: bytes) -> str:
        validate_path(prefix + "0")
        deadline = self._cluster.deadline()
        path = f"{prefix}{self._next_number(prefix, deadline):010d}"
        while True:
            shards = self._cluster.shards(deadline)
            shard = shards.of(path)
            try:
                session = self._sessions.session_of(shard, deadline)
            except ServerLost as lost:
                self._cluster.wait_for_news(shards, lost, deadline)
                continue
            put = pb.PutRequest(
                key=path,
                value=value,
                expected_version_id=_NONE,
                session_id=session,
                client_identity=self._sessions.identity,
            )
            answer = self._write(put)
            if answer.status == pb.OK:
                return path
            if answer.status != pb.SESSION_DOES_NOT_EXIST:
                raise LostRaceError(f"{path} exists already: call again")
            self._sessions.forget(shard, session)
            deadline.progress()

    def next_number(self, path: str) -> int:
        """Return the number that Pulsar gives the next sequential node below; NotFoundError without the key."""
        return self._numbers.next(validate_path(path), self._cluster.deadline())

    def set_next_number(self, path: str, number: int) -> int:
        return self._numbers.set(validate_path(path), number, self._cluster.deadline())

    def count_up(self, path: str, number: int, *, progress: Callable[[int], object] = lambda _: None) -> int:
        return self._numbers.count_up(validate_path(path), number, self._cluster.deadline(), progress)

    def probe(self, *, may_write: bool) -> TargetSeen:
        return probe_namespace(self.connection, may_write=may_write)

    def close(self) -> None:
        with self._lock:
            watches, self._watches = self._watches, []
        for watch in watches:
            watch.close()
        if not self._cluster.is_closed:
            self._sessions.close()
        self._writers.close()
        self._cluster.close()

    def _next_number(self, prefix: str, deadline: Deadline) -> int:
        """Number a node as Pulsar does, by a write of its parent; here the parent keeps its value."""
        parent = parent_of(prefix)
        while deadline.left():
            node = self.get(parent)
            if node is None:
                raise NotFoundError(f"{prefix} cannot be created: the metadata store has no node {parent}")
            answer = self._write(pb.PutRequest(key=parent, value=node.value, expected_version_id=node.version))
            if answer.status == pb.OK:
                return answer.version.modifications_count
        raise LostRaceError(f"{parent} is written all the time, and {prefix} got no number: try again later")

    def _create(self, path: str, value: bytes) -> bool:
        return self._write(pb.PutRequest(key=path, value=value, expected_version_id=_NONE)).status == pb.OK

    def _write(self, put: pb.PutRequest) -> pb.PutResponse:
        """Send one change; OutcomeUnknownError if its answer is lost."""
        limit = self._cluster.connection.max_request_bytes - WRITE_OVERHEAD
        if put.ByteSize() > limit:
            raise StoreError(
                f"{put.key}: {put.ByteSize()} bytes are more than the {limit} that the store takes at once"
            )
        deadline = self._cluster.deadline()
        while True:
            shards = self._cluster.shards(deadline)
            self._cluster.keep_rate(1, deadline)
            pending = self._writers.send(shards.of(put.key), pb.WriteRequest(puts=[put]))
            try:
                return pending.get(deadline).puts[0]
            except ServerLost as lost:
                if pending.may_be_done:
                    raise OutcomeUnknownError(
                        f"the connection to the metadata store broke while {put.key} was written: "
                        "read it before retrying"
                    ) from lost
                self._cluster.wait_for_news(shards, lost, deadline)

    def _session_ended(self) -> None:
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.restart()


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
