"""A migration in this process: sessions in memory that keep what ZooKeeper keeps, a flag that a test sets, a target."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from bookwarden.errors import NotFoundError, StoreAccessError, StoreUnavailableError
from bookwarden.ledgers.metadata import Conditions, DeleteResult
from bookwarden.metastore.following.flag import MIGRATION_PATH, PARTICIPANTS_PATH
from bookwarden.metastore.following.progress import MigrationTimes
from bookwarden.metastore.following.store import MigratingStore
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.write_conditions import ConditionalStore, NoConditions, WriteConditions

T = TypeVar("T")

TARGET_URL = "memory:target"
# Long enough that only a fault runs into it, but where a test says otherwise.
TIMES = MigrationTimes(write_wait_s=30, drain_limit_s=30, look_s=30, retry_s=0.02)
TIMES_OF_THE_HURRIED = MigrationTimes(write_wait_s=0.3, answer_wait_s=0.3, drain_limit_s=30, look_s=30, retry_s=0.02)


class Server:
    """A ZooKeeper in memory: its nodes, and which sessions live."""

    def __init__(self) -> None:
        self.nodes = MemoryStore()
        self.lock = threading.RLock()
        self.down = False
        self.mute = False

    def offer(self) -> None:
        """Make what the first broker of Pulsar 4.2 makes."""
        self.nodes.create(PARTICIPANTS_PATH, b"", make_parents=True)

    def set_phase(self, phase: str, target_url: str | None = TARGET_URL) -> None:
        self.set_flag(json.dumps({"phase": phase, "targetUrl": target_url}).encode())

    def set_flag(self, value: bytes) -> None:
        node = self.nodes.get(MIGRATION_PATH)
        if node is None:
            self.nodes.create(MIGRATION_PATH, value, make_parents=True)
        else:
            self.nodes.put(MIGRATION_PATH, value, node.version)

    def remove_flag(self) -> None:
        node = self.nodes.get(MIGRATION_PATH)
        assert node is not None
        self.nodes.delete_many([(MIGRATION_PATH, node.version)])

    def participants(self) -> list[str]:
        with suppress(NotFoundError):
            return self.nodes.list_children(PARTICIPANTS_PATH)
        return []


class Session(ConditionalStore):
    """A client of the server; its writes are atomic with their conditions."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ephemerals: list[str] = []
        self._lost = 0
        self._closed = False
        self._conditions: WriteConditions = NoConditions()
        self._of = self
        self.before_write: Callable[[], None] = lambda: None
        self.refuses_nodes = False
        self.refused = False

    def under(self, conditions: WriteConditions) -> MetadataStore:
        view = Session(self._server)
        view._of, view._conditions = self, conditions
        return view

    @property
    def sessions_lost(self) -> int:
        return self._lost

    def expire(self) -> None:
        """End the session on the server; the client knows it by its next look."""
        with self._server.lock:
            for path in self._ephemerals:
                self._server.nodes.delete_many([(path, 0)])
            self._ephemerals.clear()
            self._lost += 1

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        return self._nodes().get_many(paths)

    def list_children(self, path: str) -> list[str]:
        return self._nodes().list_children(path)

    def next_number(self, path: str) -> int:
        return self._nodes().next_number(path)

    def sync(self) -> None:
        self._nodes()

    def delete_many(
        self,
        expected: Sequence[tuple[str, int]],
        *,
        created_ms: Sequence[int] | None = None,
        conditions: Sequence[Conditions] | None = None,
    ) -> list[DeleteResult]:
        return self._write(lambda nodes: nodes.delete_many(expected, created_ms=created_ms, conditions=conditions))

    def put(self, path: str, value: bytes, version: int) -> int:
        return self._write(lambda nodes: nodes.put(path, value, version))

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        self._write(lambda nodes: nodes.create(path, value, make_parents=make_parents))

    def ephemeral_sequential(self, prefix: str, value: bytes) -> str:
        if self._of.refuses_nodes and prefix.startswith(PARTICIPANTS_PATH):
            raise StoreAccessError("no right to create")
        path = self._write(lambda nodes: nodes.ephemeral_sequential(prefix, value))
        self._of._ephemerals.append(path)
        return path

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        def news(at: str) -> None:
            if not (self._server.mute or self._closed):
                threading.Thread(target=changed, args=(at,)).start()

        return self._nodes().watch(path, news)

    def close(self) -> None:
        if not self._closed:
            self.expire()
        self._closed = True

    def _nodes(self) -> MemoryStore:
        if self._of._closed:
            raise StoreUnavailableError("this metadata store was closed")
        if self._server.down:
            raise StoreUnavailableError("no connection")
        return self._server.nodes

    def _write(self, call: Callable[[MemoryStore], T]) -> T:
        while True:
            demanded = self._conditions.current()
            if not isinstance(self._conditions, NoConditions):
                self._of.before_write()
            with self._server.lock:
                nodes = self._nodes()
                failed = [
                    one for one in demanded if (node := nodes.get(one.path)) is None or node.version != one.version
                ]
                if not failed:
                    return call(nodes)
            self._of.refused = True
            self._conditions.failed(failed[0])


class Site:
    """A server, and stores on it that are closed in the end; ``targets`` are what they opened as their targets."""

    def __init__(self) -> None:
        self.server = Server()
        self.sessions: list[Session] = []
        self.stores: list[MigratingStore] = []
        self.target = MemoryStore()
        self.targets: list[OpenedTarget] = []
        self.target_is_down = False
        self.pool = ThreadPoolExecutor(4)

    def store(self, times: MigrationTimes = TIMES) -> MigratingStore:
        self.sessions.append(Session(self.server))
        self.stores.append(MigratingStore(self.sessions[-1], open_target=self.open_target, times=times))
        return self.stores[-1]

    def open_target(self, url: str) -> MetadataStore:
        assert url == TARGET_URL
        if self.target_is_down:
            raise StoreUnavailableError("the target is down")
        self.targets.append(OpenedTarget(self.target))
        return self.targets[-1]

    def copy(self) -> None:
        """Copy what the test has in the source, as the coordinator does."""
        for path in ("/a", "/b"):
            node = self.server.nodes.get(path)
            if node is not None:
                self.target.create(path, node.value)

    def close(self) -> None:
        for store in self.stores:
            store.close()
        self.pool.shutdown()


class OpenedTarget(Session):
    """A session with the target."""

    def __init__(self, nodes: MemoryStore) -> None:
        server = Server()
        server.nodes = nodes
        super().__init__(server)

    @property
    def is_closed(self) -> bool:
        return self._closed


class Held:
    """Writes of a session that have their permission and are not carried out yet."""

    def __init__(self, session: Session) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        session.before_write = self.wait

    def wait(self) -> None:
        self.begun.set()
        assert self.go_on.wait(30)
