"""Reads of many keys of an Oxia namespace, their children, and which have some; batched by shard, several in flight.

Order of keys: common/compare of Oxia. A key with fewer slashes comes before one with more, to 0.14 part by part, from
0.15 on as a whole; so the keys from ``p/`` up to ``p//`` are the direct children of p.

All that is below the children a to b of p lies from ``p/a/`` up to ``p/b//``: the children of a, what is below them,
and so on to the children of b. So where nothing is below their children, one range has the children of siblings and
nothing else.

The children of ``p/a`` come right before ``p/a//``. So the last key before ``p/a//`` is a child of ``p/a`` if the shard
has one; and where it is not below any child of p, nothing is below those children of p that come before a, as long as
their names are no longer or shorter than a's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

import grpc

from bookwarden.errors import StoreError
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.oxia.channels import ServerLost
from bookwarden.metastore.oxia.shards import OxiaCluster, Shard, ShardMap
from bookwarden.metastore.paths import parent_of
from bookwarden.metastore.request_batches import split
from bookwarden.wire.pb import oxia_client_pb2 as pb

Children = Mapping[str, list[str]]


class ChildLists:
    """Lists children on all shards, sorted."""

    def __init__(self, reader: OxiaReader) -> None:
        self._reader = reader

    def of(self, paths: Sequence[str], deadline: Deadline) -> list[list[str]]:
        """List the children of each key; fastest if siblings are asked for together."""
        groups: dict[str, list[str]] = {}
        for path in dict.fromkeys(paths):
            groups.setdefault(parent_of(path) if path != "/" else "", []).append(path)
        found: dict[str, list[str]] = {}
        for siblings in groups.values():
            together = self._of_siblings(siblings, deadline) if len(siblings) > 1 else None
            found.update(together or {path: self._of_one(path, deadline) for path in siblings})
        return [sorted(found[path]) for path in paths]

    def _of_one(self, path: str, deadline: Deadline) -> list[str]:
        prefix = f"{path.rstrip('/')}/"
        names = (key[len(prefix) :] for key in self._reader.list_range(prefix, f"{prefix}/", deadline))
        # A key "/" would be its own child.
        return [name for name in names if name]

    def _of_siblings(self, paths: Sequence[str], deadline: Deadline) -> Children | None:
        """List the range of siblings; None at the first key in it that is no child."""
        slashes = paths[0].count("/") + 1

        def children_among(keys: Iterator[str]) -> Children | None:
            found: dict[str, list[str]] = {path: [] for path in paths}
            for key in keys:
                parent, _, name = key.rpartition("/")
                if key.count("/") != slashes:
                    return None
                if parent in found:
                    found[parent].append(name)
            return found

        return self._reader.over_range(f"{min(paths)}/", f"{max(paths)}//", children_among, deadline)


class Parents:
    """Finds the parents among keys, with children on any shard."""

    def __init__(self, cluster: OxiaCluster, reader: OxiaReader) -> None:
        self._cluster = cluster
        self._reader = reader

    def among(self, paths: Sequence[str], deadline: Deadline) -> set[str]:
        """Return the paths that have children.

        Siblings share one question, so that ledgers, which have no children, cost next to nothing; where something
        is below one of them, each is asked for by itself.
        """
        siblings: dict[tuple[str, int], list[str]] = {}
        for path in paths:
            siblings.setdefault((parent_of(path), len(path)), []).append(path)
        groups = {max(group): group for group in siblings.values()}
        doubtful: dict[str, None] = {}
        for last, before in self._keys_before_ends(list(groups), deadline):
            if _is_below_a_sibling(before, last):
                doubtful.update(dict.fromkeys(groups[last]))
        return {
            path for path, before in self._keys_before_ends(list(doubtful), deadline) if before.startswith(f"{path}/")
        }

    def _keys_before_ends(self, paths: Sequence[str], deadline: Deadline) -> Iterator[tuple[str, str]]:
        """Yield each path with the last key before the end of its children, or an empty one, once a shard."""
        left: Sequence[str] = paths
        while left:
            shards = self._cluster.shards(deadline)
            again: dict[str, None] = {}
            lost = ServerLost("")
            batches = ((shard, batch) for batch in self._reader.cut(left) for shard in shards.shards)
            for sent in self._reader.in_flight(batches, _before_end, deadline):
                try:
                    answers = self._reader.answers_of(sent)
                except ServerLost as error:
                    lost = error
                    again.update(dict.fromkeys(sent.keys))
                else:
                    deadline.progress()
                    yield from ((path, answer.key) for path, answer in zip(sent.keys, answers, strict=True))
            left = list(again)
            if left:
                self._cluster.wait_for_news(shards, lost, deadline)


def _before_end(shard: int, paths: list[str]) -> pb.ReadRequest:
    request = pb.ReadRequest(shard=shard)
    for path in paths:
        request.gets.add(key=f"{path}//", comparison_type=pb.LOWER)
    return request


def _is_below_a_sibling(key: str, path: str) -> bool:
    """Return whether the key is below a child of the path's parent."""
    siblings = path[: path.rindex("/") + 1]
    return key.startswith(siblings) and "/" in key[len(siblings) :]


_T = TypeVar("_T")


class SentReads(NamedTuple):
    """A request of gets under way."""

    shard: Shard
    keys: list[str]
    call: Any


class OxiaReader:
    """Reads that are repeated until they are answered, or the deadline is over."""

    def __init__(self, cluster: OxiaCluster) -> None:
        self._cluster = cluster
        self._ordered: set[int] = set()

    def get_many(self, paths: Sequence[str], deadline: Deadline) -> list[Versioned | None]:
        """Read each path, in the order asked; None where there is no key."""
        rows: dict[str, Versioned | None] = {}
        left = list(dict.fromkeys(paths))
        while left:
            shards = self._cluster.shards(deadline)
            again: list[str] = []
            lost = ServerLost("")
            for sent in self.in_flight(self.batches(shards, left), _whole, deadline):
                try:
                    answers = self.answers_of(sent)
                except ServerLost as error:
                    lost = error
                    again += sent.keys
                else:
                    rows.update(zip(sent.keys, map(_versioned, answers), strict=True))
                    deadline.progress()
            left = again
            if left:
                self._cluster.wait_for_news(shards, lost, deadline)
        return [rows[path] for path in paths]

    def list_range(self, start: str, end: str, deadline: Deadline) -> list[str]:
        """List the keys from start up to end, of all shards."""
        return self.over_range(start, end, list, deadline)

    def over_range(self, start: str, end: str, take: Callable[[Iterator[str]], _T], deadline: Deadline) -> _T:
        """Return what is made of the keys from start up to end, of all shards; begins again when a server is lost."""
        while True:
            shards = self._cluster.shards(deadline)
            calls = [(shard, self._send_list(shard, start, end, deadline)) for shard in shards.shards]
            try:
                taken = take(key for shard, call in calls for key in self._keys_of(shard, call))
            except ServerLost as lost:
                self._cluster.wait_for_news(shards, lost, deadline)
            else:
                deadline.progress()
                return taken
            finally:
                for _, call in calls:
                    call.cancel()

    def require_hierarchical(self, deadline: Deadline) -> None:
        """Raise StoreError when the namespace sorts its keys "natural": no listing of children is right there."""
        if self.is_hierarchical(deadline) is False:
            raise StoreError(
                f"the Oxia namespace {self._cluster.connection.namespace} sorts its keys in natural order: Pulsar "
                "needs the hierarchical one, and children cannot be listed; check that this is Pulsar's namespace"
            )

    def is_hierarchical(self, deadline: Deadline) -> bool | None:
        """Return whether the namespace sorts its keys as Pulsar needs it; None where there is no key to tell it by."""
        shards = self._cluster.shards(deadline)
        for shard in shards.shards:
            if shard.id in self._ordered:
                continue
            below = pb.GetRequest(key="0", comparison_type=pb.LOWER)
            above = pb.GetRequest(key="/", comparison_type=pb.CEILING)
            # All paths begin with a slash, which comes before 0 as a character, but after all keys without one here.
            first, second = self._ask(shard, [below, above], deadline)
            if first.status == pb.OK and first.key.startswith("/"):
                return False
            if second.status == pb.OK and second.key.startswith("/"):
                self._ordered.add(shard.id)
        return True if self._ordered else None

    def batches(self, shards: ShardMap, keys: Iterable[str]) -> Iterator[tuple[Shard, list[str]]]:
        """Split keys into requests for one shard each, the shards in turn."""
        parts = [
            [(shards.shards[index], batch) for batch in self.cut(part)] for index, part in shards.parted(keys).items()
        ]
        for row in zip_longest(*parts):
            yield from (one for one in row if one is not None)

    def cut(self, keys: Sequence[str]) -> Iterator[list[str]]:
        """Cut keys into batches for one request each."""
        return split(keys, self._cluster.batch_size, self._cluster.connection.max_request_bytes, str)

    def in_flight(
        self,
        batches: Iterator[tuple[Shard, list[str]]],
        request_of: Callable[[int, list[str]], pb.ReadRequest],
        deadline: Deadline,
    ) -> Iterator[SentReads]:
        """Send requests, made of shard and keys; yield each, oldest first, when its answer is to be read."""
        window: deque[SentReads] = deque()
        try:
            for shard, keys in batches:
                self._cluster.keep_rate(len(keys), deadline)
                window.append(self._send(shard, keys, request_of))
                if len(window) >= self._cluster.in_flight:
                    yield window[0]
                    window.popleft()
            while window:
                yield window[0]
                window.popleft()
        finally:
            for sent in window:
                sent.call.cancel()

    def _send(self, shard: Shard, keys: list[str], request_of: Callable[[int, list[str]], pb.ReadRequest]) -> SentReads:
        timeout = self._cluster.connection.operation_timeout_s
        return SentReads(shard, keys, self._cluster.server(shard).read(request_of(shard.id, keys), timeout))

    def answers_of(self, sent: SentReads) -> list[pb.GetResponse]:
        """Read the answer to each get of a request; raise ServerLost if it did not come."""
        try:
            answers = [get for part in sent.call for get in part.gets]
        except grpc.RpcError as error:
            raise self._cluster.lost(error, sent.shard) from error
        if len(answers) != len(sent.keys):
            raise ServerLost(f"{sent.shard.leader} answered {len(answers)} of {len(sent.keys)} reads")
        return answers

    def _ask(self, shard: Shard, gets: list[pb.GetRequest], deadline: Deadline) -> list[pb.GetResponse]:
        while True:
            shards = self._cluster.shards(deadline)
            now = next((one for one in shards.shards if one.id == shard.id), shard)
            request = pb.ReadRequest(shard=now.id, gets=gets)
            call = self._cluster.server(now).read(request, self._cluster.connection.operation_timeout_s)
            try:
                return self.answers_of(SentReads(now, [get.key for get in gets], call))
            except ServerLost as lost:
                self._cluster.wait_for_news(shards, lost, deadline)

    def _send_list(self, shard: Shard, start: str, end: str, deadline: Deadline) -> Any:
        """Ask a shard for its keys from start up to end."""
        self._cluster.keep_rate(1, deadline)
        request = pb.ListRequest(shard=shard.id, start_inclusive=start, end_exclusive=end)
        return self._cluster.server(shard).list_range(request, self._cluster.connection.operation_timeout_s)

    def _keys_of(self, shard: Shard, call: Any) -> Iterator[str]:
        """Read the answer to a list; raise ServerLost if it did not come."""
        try:
            for part in call:
                yield from part.keys
        except grpc.RpcError as error:
            raise self._cluster.lost(error, shard) from error


def _whole(shard: int, keys: list[str]) -> pb.ReadRequest:
    request = pb.ReadRequest(shard=shard)
    for key in keys:
        request.gets.add(key=key, include_value=True)
    return request


def _versioned(answer: pb.GetResponse) -> Versioned | None:
    if answer.status == pb.KEY_NOT_FOUND:
        return None
    version = answer.version
    ephemeral = version.HasField("session_id")
    return Versioned(
        answer.value,
        version.version_id,
        version.created_timestamp,
        version.modified_timestamp,
        None,
        ephemeral,
        version.modifications_count,
        version.session_id if ephemeral else None,
        version.client_identity if ephemeral else None,
    )
