"""What goes wrong between the product and the world: sessions that fail, lag and lose answers, and a process killed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from bookwarden.errors import OutcomeUnknownError, StoreAccessError, StoreUnavailableError
from bookwarden.ledgers.metadata import Conditions, DeleteResult
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.memory import MemoryStore

T = TypeVar("T")
# Every outage ends. Whoever begins a step of many calls anew after each failure would else hardly ever come through.
_MOST_FAILURES = 20


class Killed(BaseException):
    """The process was killed here; nothing of the product may take it for a failure and go on."""


class Clock:
    """The true time of the world, in seconds; it goes on only when the script says so."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    @property
    def ms(self) -> int:
        """The time in milliseconds."""
        return int(self.now * 1000)


class Nodes(MemoryStore):
    """The ensemble: one tree of nodes, of which a lagging server can be behind; ``hidden`` are refused by an ACL."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._truth = clock
        self.hidden: set[str] = set()
        # What the product's sessions go through while the metadata moves.
        self.served_by: MetadataStore | None = None

    def snapshot(self) -> Nodes:
        """Copy what is there now."""
        copy = Nodes(self._truth)
        copy._nodes = dict(self._nodes)
        copy._children = {path: set(names) for path, names in self._children.items()}
        copy._sequences = dict(self._sequences)
        return copy

    def items(self) -> list[tuple[str, Versioned]]:
        """Return all nodes, by path."""
        return list(self._nodes.items())

    def number(self, path: str, following: int) -> None:
        """Set which number the next sequential node directly below gets."""
        self._sequences[path] = following

    def make_anew(self) -> None:
        """Make each node as a copy of itself, with a version and times of its own: all that a move carries over."""
        for path, node in self._nodes.items():
            self._nodes[path] = Versioned(node.value, 0, self._now_ms(), self._now_ms(), ephemeral=node.ephemeral)
        self._sequences.clear()

    def has(self, path: str) -> bool:
        """Say whether there is such a node."""
        return path in self._nodes

    def is_emptied(self, path: str) -> bool:
        """Say whether the node had bytes and has none any more."""
        found = self.get(path)
        return found is not None and not found.value and not found.is_as_created

    def write(self, path: str, value: bytes) -> None:
        """Put a node there, whatever was."""
        found = self.get(path)
        if found is None:
            self.create(path, value, make_parents=True)
        else:
            self.put(path, value, found.version)

    def remove(self, path: str) -> bool:
        """Take a node away, with what is below it; say whether it was there."""
        for name in self.children_of(path):
            self.remove(f"{path}/{name}")
        found = self.get(path)
        if found is not None:
            self.delete_many([(path, found.version)])
        return found is not None


@dataclass(frozen=True)
class Troubles:
    """How much goes wrong in one run of the product; the shares are of its calls."""

    failures: float = 0.0
    interleaved: float = 0.0
    kill_at: int | None = None
    lags: bool = False
    truncates: bool = False


CALM = Troubles()


class Faults:
    """Decides at each call what goes wrong; from a seed, and by the number of calls so far."""

    def __init__(self, seed: int, troubles: Troubles, interleave: Callable[[Random], None] | None = None) -> None:
        self.troubles = troubles
        self.seed = seed
        self._rng = Random(seed)
        self._interleave = interleave
        self._calls = 0
        self._failures = 0
        self._failed: set[str] = set()
        self._truncated = not troubles.truncates

    def step(self) -> None:
        """Pass one place at which the process may be killed, and other things may happen."""
        self._calls += 1
        if self._calls == self.troubles.kill_at:
            raise Killed
        if self._interleave is not None and self._rng.random() < self.troubles.interleaved:
            self._interleave(self._rng)

    def fails(self) -> bool:
        """Say whether this call fails."""
        return self._fails(self.troubles.failures)

    def breaks(self) -> bool:
        """Say whether the connection breaks under a call of which there are few."""
        return self._fails(5 * self.troubles.failures)

    def _fails(self, share: float) -> bool:
        if self._failures == _MOST_FAILURES or self._rng.random() >= share:
            return False
        self._failures += 1
        return True

    def happens(self, share: float) -> bool:
        """Draw for one thing in this many."""
        return self._rng.random() < share

    def truncated(self, names: list[str]) -> list[str]:
        """Give a part of a listing for the whole, once."""
        if self._truncated or len(names) < 2 or self._rng.random() > 0.1:
            return names
        self._truncated = True
        return names[: self._rng.randrange(1, len(names))]

    def in_thread(self, what: str) -> bool:
        """Decide by what is done alone, for calls whose order is not known; what is tried again comes through."""
        share = zlib.crc32(f"{self.seed} {what}".encode()) / 2**32
        fails = share < self.troubles.failures and what not in self._failed
        self._failed.add(what)
        return fails


class Session(MetadataStore):
    """The product's connection to the ensemble, below a chroot; `on_delete` is told of each delete before it."""

    answers_at_once = True

    def __init__(
        self,
        nodes: Nodes,
        faults: Faults,
        chroot: str = "",
        on_delete: Callable[[Sequence[tuple[str, int]]], None] = lambda _: None,
        *,
        lists_whole: bool = False,
    ) -> None:
        self._nodes = nodes
        self.faults = faults
        self._chroot = chroot
        self._on_delete = on_delete
        self._lists_whole = lists_whole
        self._seen: Nodes | None = None

    def fall_behind(self) -> None:
        """Answer from now on, until the next sync, by what there is now."""
        self._seen = self._nodes.snapshot()

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        self._pass("reading")
        full = [self._full(path) for path in paths]
        refused = self._nodes.hidden.intersection(full)
        if refused:
            raise StoreAccessError(f"the access list of {min(refused)} does not let us read it")
        return self._read().get_many(full)

    def list_children(self, path: str) -> list[str]:
        self._pass("listing")
        names = self._read().list_children(self._full(path))
        return names if self._lists_whole else self.faults.truncated(names)

    def sync(self) -> None:
        self._pass("sync")
        self._seen = None
        if self._nodes.served_by is not None:
            self._nodes.served_by.sync()
        elif self.faults.troubles.lags:
            self.fall_behind()

    def delete_many(
        self,
        expected: Sequence[tuple[str, int]],
        *,
        created_ms: Sequence[int] | None = None,
        conditions: Sequence[Conditions] | None = None,
    ) -> list[DeleteResult]:
        self._pass("deleting")
        pairs = [(self._full(path), version) for path, version in expected]
        self._on_delete(pairs)
        if not self.faults.breaks():
            results = self._store.delete_many(pairs, conditions=conditions)
        else:
            # The connection breaks somewhere in the middle; nobody knows what was done.
            demanded = conditions or [()] * len(pairs)
            through = [both for both in zip(pairs, demanded, strict=True) if self.faults.happens(0.5)]
            self._store.delete_many([pair for pair, _ in through], conditions=[one for _, one in through])
            results = [DeleteResult.UNKNOWN] * len(pairs)
        self.faults.step()
        return results

    def put(self, path: str, value: bytes, version: int) -> int:
        return self._write(lambda: self._store.put(self._full(path), value, version))

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        # Undo creates from threads: what goes wrong must not depend on their order.
        if self.faults.in_thread(f"before {path}"):
            raise StoreUnavailableError("the connection broke before a node was created")
        self._store.create(self._full(path), value, make_parents=make_parents)
        if self.faults.in_thread(f"after {path}"):
            raise OutcomeUnknownError("the connection broke while a node was created")

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        return self._store.watch(self._full(path), changed)

    def ephemeral_sequential(self, prefix: str, value: bytes) -> str:
        return self._store.ephemeral_sequential(self._full(prefix), value).removeprefix(self._chroot)

    def next_number(self, path: str) -> int:
        self._pass("numbering")
        return self._read().next_number(self._full(path))

    def close(self) -> None:
        self._seen = None

    def _full(self, path: str) -> str:
        return self._chroot + path if path != "/" else self._chroot or "/"

    @property
    def _store(self) -> MetadataStore:
        return self._nodes.served_by or self._nodes

    def _read(self) -> MetadataStore:
        return self._store if self._seen is None or self._nodes.served_by else self._seen

    def _pass(self, what: str) -> None:
        self.faults.step()
        if self.faults.fails():
            raise StoreUnavailableError(f"no connection: {what}")

    def _write(self, call: Callable[[], T]) -> T:
        self._pass("writing")
        if self.faults.fails():
            if self.faults.happens(0.5):
                call()
            raise OutcomeUnknownError("the connection broke under a write")
        return call()
