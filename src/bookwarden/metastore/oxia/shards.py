"""Shards of an Oxia namespace: their keys, and the servers that lead them.

Format: client.proto and common/hash of Oxia 0.14. A key belongs to the shard whose range has the low 32 bits of the
key's XXH3. Pulsar sets no partition key, so each key goes by itself.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
import xxhash

from bookwarden.errors import BookwardenError, StoreError, StoreUnavailableError
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.oxia.channels import Channels, OxiaChannel, OxiaConnection, ServerLost, meaning_of
from bookwarden.metastore.pacing import Rate
from bookwarden.signs_of_life import SIGNS_OF_LIFE
from bookwarden.wire.pb import oxia_client_pb2 as pb

_LOG = logging.getLogger(__name__)

_LAST_HASH: Final = 0xFFFFFFFF
# How long a call whose server was lost waits for news of another leader before it asks again.
_PAUSE_S: Final = 0.1
# How long the follower of the assignments waits before it asks the server again.
_RETRY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard: its number, its leader as host:port, and the hashes of its keys, both ends included."""

    id: int
    leader: str
    lowest: int
    highest: int


class ShardMap:
    """The shards of a namespace at one moment. Raises StoreError unless each hash belongs to exactly one."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self.shards: Sequence[Shard] = sorted(shards, key=lambda shard: shard.lowest)
        edges = [-1, *(shard.highest for shard in self.shards)]
        if edges[-1] != _LAST_HASH or any(
            shard.lowest != before + 1 for before, shard in zip(edges, self.shards, strict=False)
        ):
            raise StoreError(f"the shards of the Oxia namespace do not fit together: {list(self.shards)}")
        self._lowest = [shard.lowest for shard in self.shards]

    def of(self, key: str) -> Shard:
        """Return the shard that has the key."""
        if len(self.shards) == 1:
            return self.shards[0]
        return self.shards[bisect_right(self._lowest, hash_of(key)) - 1]

    def parted(self, keys: Iterable[str]) -> dict[int, list[str]]:
        """Group the keys by the index of their shard."""
        parts: dict[int, list[str]] = {}
        if len(self.shards) == 1:
            parts[0] = list(keys)
            return parts
        for key in keys:
            parts.setdefault(bisect_right(self._lowest, hash_of(key)) - 1, []).append(key)
        return parts


def hash_of(key: str) -> int:
    """Hash a key as Oxia does, to 32 bits."""
    return xxhash.xxh3_64_intdigest(key.encode("utf-8")) & _LAST_HASH


class OxiaCluster:
    """The servers of an Oxia as one namespace sees them; connected at the first call, safe in several threads."""

    def __init__(self, connection: OxiaConnection) -> None:
        connection.validate()
        self.connection = connection
        self.channels = Channels(connection)
        limit = connection.max_requests_per_second
        self._rate = None if limit is None else Rate(limit, "max_requests_per_second")
        self._news = threading.Condition()
        self._closing = threading.Event()
        self._follower: threading.Thread | None = None
        self._call: Any = None
        self._map: ShardMap | None = None
        self._notifications: dict[Any, Shard] = {}
        self._error: BookwardenError | ServerLost | None = None

    def deadline(self) -> Deadline:
        """Begin the time that a call has without progress."""
        return Deadline(self.connection.operation_timeout_s)

    def shards(self, deadline: Deadline) -> ShardMap:
        """Return the shards as last received. Raises StoreUnavailableError, ConfigError or StoreAccessError."""
        connecting = Deadline(min(self.connection.connect_timeout_s, deadline.left()))
        with self._news:
            self._start()
            while self._map is None:
                self.require_open()
                if isinstance(self._error, BookwardenError):
                    raise self._error
                if not connecting.left():
                    raise self._unavailable("cannot be reached", self._error)
                self._news.wait(connecting.left())
            return self._map

    def server(self, shard: Shard) -> OxiaChannel:
        """Return the leader of a shard."""
        return self.channels.server(shard.leader)

    def notifications(self, shard: Shard) -> Any:
        """Follow the changes of a shard, from now on; the call is cancelled when the shard has another leader."""
        call = self.server(shard).notifications(shard.id)
        with self._news:
            self._notifications = {one: of for one, of in self._notifications.items() if one.is_active()}
            self._notifications[call] = shard
            self._end_at_former_leaders()
        return call

    def require_open(self) -> None:
        """Raise StoreUnavailableError when the store was closed."""
        if self._closing.is_set():
            raise StoreUnavailableError("this metadata store was closed")

    @property
    def batch_size(self) -> int:
        """The number of keys in one request."""
        size = self.connection.batch_size
        return size if self._rate is None else min(size, self._rate.most_at_once)

    @property
    def in_flight(self) -> int:
        """The number of requests that may wait for answers; with a rate limit, one at a time."""
        return self.connection.in_flight if self._rate is None else 1

    def keep_rate(self, keys: int, deadline: Deadline) -> None:
        """Wait until a request for a number of keys may be sent."""
        held = 0.0 if self._rate is None else self._rate.reserve(keys)
        if held > 0:
            self._closing.wait(held)
            deadline.extend(held)
        SIGNS_OF_LIFE.give()

    def lost(self, error: grpc.RpcError, shard: Shard) -> ServerLost:
        """Return why a call was lost; raise an error that a retry cannot mend."""
        meaning = meaning_of(error, shard.leader)
        if isinstance(meaning, ServerLost):
            return meaning
        self.require_open()
        raise meaning from error

    def wait_for_news(self, known: ShardMap, lost: ServerLost, deadline: Deadline) -> None:
        """Wait a moment for other leaders; raise StoreUnavailableError when the deadline is over."""
        self.require_open()
        if deadline.left() <= 0:
            raise self._unavailable(f"gave no answer within {self.connection.operation_timeout_s:g} s", lost) from lost
        with self._news:
            if self._map is known:
                self._news.wait(min(_PAUSE_S, deadline.left()))

    @property
    def is_closed(self) -> bool:
        return self._closing.is_set()

    def pause(self) -> bool:
        """Wait a moment before something is tried again; False when the store was closed."""
        return not self._closing.wait(_RETRY_S)

    def close(self) -> None:
        """End all connections."""
        self._closing.set()
        with self._news:
            self._news.notify_all()
            call = self._call
        if call is not None:
            call.cancel()
        self.channels.close()

    def _unavailable(self, what: str, why: object) -> StoreUnavailableError:
        hint = f" ({why})" if why else ""
        return StoreUnavailableError(f"Oxia {self.connection.address} {what}{hint}: check that it runs, then retry")

    def _start(self) -> None:
        self.require_open()
        if self._follower is None:
            self._follower = threading.Thread(target=self._follow, name="oxia assignments", daemon=True)
            self._follower.start()

    def _follow(self) -> None:
        while True:
            try:
                self._read_assignments()
                failure: BookwardenError | ServerLost = ServerLost("the server ended the stream of shard assignments")
            except grpc.RpcError as error:
                meaning = meaning_of(error, self.connection.address)
                failure = ServerLost(str(meaning)) if not isinstance(meaning, BookwardenError) else meaning
            except StoreError as error:
                failure = error
            if self.is_closed:
                return
            if str(failure) != str(self._error):
                _LOG.warning("Oxia %s does not send its shard assignments: %s", self.connection.address, failure)
            with self._news:
                self._error = failure
                self._news.notify_all()
            if not self.pause():
                return

    def _read_assignments(self) -> None:
        namespace = self.connection.namespace
        call = self.channels.server(self.connection.address).assignments(namespace)
        with self._news:
            self._call = call
        for answer in call:
            shards = shard_map(answer, namespace)
            with self._news:
                self._map, self._error = shards, None
                self._end_at_former_leaders()
                self._news.notify_all()

    def _end_at_former_leaders(self) -> None:
        # A leader that was replaced without learning it leaves them open, and sends nothing any more.
        leaders = {} if self._map is None else {shard.id: shard.leader for shard in self._map.shards}
        for call, shard in self._notifications.items():
            if leaders.get(shard.id) != shard.leader:
                call.cancel()


def shard_map(answer: pb.ShardAssignments, namespace: str) -> ShardMap:
    """Read a namespace's shards. Raises StoreError for another way of hashing, or shards that do not fit together."""
    assigned = answer.namespaces[namespace]
    if assigned.shard_key_router not in (pb.UNKNOWN, pb.XXHASH3):
        raise StoreError(f"the Oxia namespace {namespace} hashes keys in a way that is not known: update bookwarden")
    return ShardMap(
        Shard(
            one.shard,
            one.leader,
            one.int32_hash_range.min_hash_inclusive,
            one.int32_hash_range.max_hash_inclusive,
        )
        for one in assigned.assignments
    )
