"""The lock that keeps two processes from doing the same work: an ephemeral node of the one that does it.

It saves work and confusion, and no safety depends on it: a subscription gives each message to one sweep's batch at a
time, a topic's node is changed by its version, and everything may run twice. So its holder goes on without it if the
store does not answer, or refuses the node.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from bookwarden.errors import LostRaceError, NotFoundError, RefusedError, StoreError
from bookwarden.leases import Renewal, describe_holder, holder_here
from bookwarden.metastore.interface import MetadataStore
from bookwarden.processes import has_certainly_ended

logger = logging.getLogger(__name__)
LOOK_SECONDS = 5.0


class StoreLock:
    """Held by the process whose node is the first below ``path``.

    ``what`` is what its holders are, for people. A node's value is JSON:
    host, pid, began (UTC), id; ids and started tell on the same machine whether it is dead.
    """

    def __init__(self, store: MetadataStore, path: str, *, what: str = "sweep", look_s: float = LOOK_SECONDS) -> None:
        self._store = store
        self._what = what
        self._path = path
        self._look_s = look_s
        self._held = False
        self._other: str | None = None
        self._error = ""
        self._value = json.dumps(holder_here()).encode()

    def acquire(self, wait_s: float) -> None:
        """Take the lock; RefusedError, with its holder, if held longer than a dead holder's session lasts."""
        end = time.monotonic() + wait_s
        other = self._take_if_reachable()
        if other and wait_s > 0:
            logger.warning("%s; waiting up to %.0f s, in case it is dead", other, wait_s)
        while other and time.monotonic() < end:
            time.sleep(min(self._look_s, 1.0))
            other = self._take_if_reachable()
        if other:
            raise RefusedError(f"{other}: stop that one first, or leave the work to it")

    def release(self) -> None:
        """Release it before the store is closed; one that cannot be ends with the session."""
        with suppress(StoreError, NotFoundError):
            self._remove(self._value)

    @contextmanager
    def kept(self, lost: Callable[[], None]) -> Iterator[None]:
        """Watch the lock during the body; it ends when the store is closed, which its caller does next.

        A lock whose session was lost is taken again. If another sweep has it by then, `lost` is called once, and
        RefusedError raised after the body.
        """

        def look() -> bool:
            self._other = self._take_if_reachable()
            if self._other:
                logger.error("%s; this one ends", self._other)
                lost()
            return self._other is None

        # A request to an unreachable store takes long; it must not keep the process from ending.
        with Renewal(look, self._look_s, name="store-lock", end_wait_s=self._look_s):
            yield
        if self._other:
            raise RefusedError(f"{self._other}; it took the lock when this one had lost its session, so this one ended")

    def _take_if_reachable(self) -> str | None:
        try:
            return self._take()
        except (StoreError, NotFoundError) as error:
            if str(error) != self._error:
                logger.warning("the lock %s of the %s: %s; it goes on without it", self._path, self._what, error)
            self._error = str(error)
            return None

    def _take(self) -> str | None:
        """Take the lock unless another holds it; describe that holder."""
        first = self._first()
        if first is not None and _is_dead(first):
            # Its session would keep it for a while.
            self._remove(first)
            first = self._first()
        if first is None:
            if self._held:
                logger.warning("the lock %s of the %s went with its session; taking it again", self._path, self._what)
            self._store.ephemeral_sequential(f"{self._path}/driver-", self._value)
            first = self._first()
        self._held = first == self._value
        if self._held or first is None:
            return None
        self._remove(self._value)
        return _describe(first, self._what)

    def _first(self) -> bytes | None:
        while True:
            try:
                names = self._store.list_children(self._path)
            except NotFoundError:
                with suppress(LostRaceError):
                    self._store.create(self._path, b"", make_parents=True)
                return None
            found = self._store.get_many([f"{self._path}/{name}" for name in names])
            first = next((node.value for node in found if node is not None), None)
            # If all are gone, the names are outdated, or of the store that a migration has just left.
            if first is not None or not names:
                return first

    def _remove(self, value: bytes) -> None:
        paths = [f"{self._path}/{name}" for name in self._store.list_children(self._path)]
        nodes = zip(paths, self._store.get_many(paths), strict=True)
        self._store.delete_many([(path, node.version) for path, node in nodes if node and node.value == value])


@contextmanager
def locked(store: MetadataStore, path: str, names: Iterable[str], *, what: str, wait_s: float) -> Iterator[None]:
    """Hold the lock below ``path`` of each of these names during the body; it ends with its process too.

    RefusedError, with its holder, where another process has one for longer than ``wait_s``; ``what`` is for people, as
    in "another WHAT NAME runs on".
    """
    with ExitStack() as held:
        for name in sorted(set(names)):
            lock = StoreLock(store, f"{path}/{name}", what=f"{what} {name}")
            lock.acquire(wait_s)
            held.callback(lock.release)
            held.enter_context(lock.kept(lambda: None))
        yield


def holder_of(store: MetadataStore, path: str) -> str:
    """Return the host and process that hold a lock, and since when; "" where none does. Raises StoreError."""
    values = [node.value for node in store.get_many([f"{path}/{name}" for name in store.children_of(path)]) if node]
    return next((_described(value) for value in values if not _is_dead(value)), "")


def _is_dead(value: bytes) -> bool:
    try:
        return has_certainly_ended(json.loads(value))
    except ValueError:
        return False


def _describe(value: bytes, what: str) -> str:
    return f"another {what} runs on {_described(value)}"


def _described(value: bytes) -> str:
    try:
        record = json.loads(value)
    except ValueError:
        record = None
    return describe_holder(record)
