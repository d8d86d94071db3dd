"""The interface of a metadata store: batches of paths in, a result for each out.

All calls are synchronous and safe to use from several threads. Reads see everything that was committed before
the last `sync` returned. Reads and `sync` may be retried freely. A write is atomic for its
node; `delete_many` is not atomic over its nodes, `write_together` only in a store with transactions. Whatever the
implementation, the errors are:

- StoreUnavailableError: no connection, session lost, or no answer in time; a write that raises it changed nothing.
- OutcomeUnknownError: the connection broke under a write; read back before trying again.
- LostRaceError: the version differs, or the node exists (create) or does not (put).
- StoreAccessError: the store refuses our credentials.
- NotFoundError: the parent of a created node, or the listed node, does not exist.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from bookwarden.errors import LostRaceError, NotFoundError, OutcomeUnknownError, StoreError
from bookwarden.ledgers.metadata import Conditions, DeleteResult
from bookwarden.metastore.changes import ChangeFeed

_WRITES_IN_FLIGHT: Final = 16


class Versioned(NamedTuple):
    """A node's value with version and times of the same read; a tuple, since scans make many."""

    value: bytes  #: Empty for a node without one.
    version: int  #: Changes with every write.
    created_ms: int  #: By the store's clock, in ms since the epoch.
    modified_ms: int = 0  #: The last write of the value, likewise.
    #: Number of nodes directly below; None where the store does not tell it with the value.
    children: int | None = None
    ephemeral: bool = False  #: It ends with a session.
    modifications: int | None = None  #: How often the value was replaced; None where the version says that.
    session: int | None = None  #: Id of the session it ends with; None where the store does not tell it.
    #: Whose session that is, where a client has several sessions, as Oxia's, one for each shard; "" if it is unknown.
    client: str | None = None

    @property
    def keeper(self) -> int | str | None:
        """What nodes have in common that end with one client of the store; None where that is not known."""
        return self.session if self.client is None else self.client or None

    @property
    def is_as_created(self) -> bool:
        """True while the node was not written since its creation."""
        return (self.version if self.modifications is None else self.modifications) == 0


class NewNode(NamedTuple):
    """A node to create; ``version`` counts the later writes of its value, for stores that let a writer set it."""

    path: str
    value: bytes
    version: int = 0


class Write(NamedTuple):
    """A node to be written: replaced if it has this version, or created, with its parents, for None."""

    path: str
    value: bytes
    version: int | None


class CreateResult(enum.Enum):
    """The result of creating one node; only CREATED changed anything."""

    CREATED = "created"
    EXISTS = "exists already"
    TOO_LARGE = "too large"
    BAD_NAME = "bad name"


class MetadataStore(ABC):
    """A hierarchical store of small versioned values, such as ZooKeeper.

    ``answers_at_once``: no call waits for a server, so that concurrent calls gain nothing.
    """

    answers_at_once = False

    @abstractmethod
    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        """Read each path, in the order asked; None where there is no node."""

    @abstractmethod
    def delete_many(
        self,
        expected: Sequence[tuple[str, int]],
        *,
        created_ms: Sequence[int] | None = None,
        conditions: Sequence[Conditions] | None = None,
    ) -> list[DeleteResult]:
        """Delete each (path, expected version); the results are in the order asked.

        A node with children, or with another version, is LOST_RACE; a pair that occurs twice is deleted once and
        has one result. After a broken connection the nodes in doubt are read back: absent is DELETED (by us, or by
        someone who wanted the same), unchanged is tried again, and one that stays in doubt is UNKNOWN.
        ``created_ms``, one for each, keeps a node that was created again from being taken for the old one.
        ``conditions``, one list for each, are other nodes that have to be as they were read: a store with transactions,
        as ZooKeeper, demands them in the one that deletes, and a node whose conditions fail is LOST_RACE; Oxia has no
        transactions, and ignores them.
        Raises StoreUnavailableError only if nothing at all was sent, StoreAccessError only if nothing was deleted.
        """

    @abstractmethod
    def put(self, path: str, value: bytes, version: int) -> int:
        """Replace the value if the node has this version; return the new version."""

    @abstractmethod
    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        """Create the node; LostRaceError if it exists."""

    def write_many(self, writes: Sequence[Write]) -> list[StoreError | None]:
        """Write these nodes, each there once, many at the same time; not atomic.

        The results are in the order asked: None, or LostRaceError or OutcomeUnknownError as `put` and `create` raise
        them. Any other StoreError is raised, and some may have been written then.
        """
        if self.answers_at_once:
            return list(map(self._written, writes))
        with ThreadPoolExecutor(_WRITES_IN_FLIGHT, thread_name_prefix="writes") as pool:
            # All results are awaited, so that the first error is raised; the other calls are under way or done anyway.
            return list(pool.map(self._written, writes))

    def write_together(self, writes: Sequence[Write]) -> None:
        """Write these nodes, each there once: all or none of them in a store with transactions, as ZooKeeper.

        In one without, as Oxia, they are written one after the other, in the order given, and the first error ends it:
        put last what makes the others count. Parents are made before, but for those that are written themselves: that
        of a node may come after it. Raises LostRaceError, which names the node, OutcomeUnknownError, and StoreError
        for more than the servers take at once: with an error read all of them back.
        """
        raise StoreError("this metadata store does not write several nodes together")

    def _written(self, write: Write) -> StoreError | None:
        try:
            if write.version is None:
                self.create(write.path, write.value, make_parents=True)
            else:
                self.put(write.path, write.value, write.version)
        except (LostRaceError, OutcomeUnknownError) as error:
            return error
        return None

    @abstractmethod
    def list_children(self, path: str) -> list[str]:
        """List the direct children, sorted; NotFoundError if there is no such node."""

    def list_many(self, paths: Sequence[str]) -> list[list[str]]:
        """List the direct children of each path, sorted; an empty list where there is no such node.

        Stores answer best for siblings, and for not more than some thousand children in all.
        """
        return [self.children_of(path) for path in paths]

    def parents_among(self, paths: Sequence[str]) -> set[str]:
        """Return the paths that have nodes below them."""
        return {
            path
            for path, node in zip(paths, self.get_many(paths), strict=True)
            if node is not None and (self.children_of(path) if node.children is None else node.children)
        }

    @abstractmethod
    def sync(self) -> None:
        """Make later reads see everything that was committed before this call."""

    @abstractmethod
    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call `changed(path)` after the node is created, changed or deleted; return a call that ends the watch.

        A change may be reported late, twice, or without a visible difference, but not missed while connected;
        after a lost session it is called once more so that the caller reads again.
        """

    def follow_below(self, prefixes: Sequence[str]) -> ChangeFeed:
        """Begin to collect the nodes that change below these, all levels down, from this call on.

        They need not exist. Raises StoreError where the store reports no changes, and StoreUnavailableError.
        """
        raise StoreError("this metadata store reports no changes of its nodes")

    @abstractmethod
    def ephemeral_sequential(self, prefix: str, value: bytes) -> str:
        """Create a node named prefix + a growing ten-digit number, that ends with our session; return its path."""

    def next_number(self, path: str) -> int:
        """Return the number of the next sequential node directly below; NotFoundError if there is no such node.

        Raises StoreError where the store does not tell it.
        """
        raise StoreError(f"this metadata store does not tell how it numbers the nodes below {path}")

    @abstractmethod
    def close(self) -> None:
        """End the session; further calls raise StoreUnavailableError."""

    def get(self, path: str) -> Versioned | None:
        """Read one path."""
        return self.get_many([path])[0]

    def children_of(self, path: str) -> list[str]:
        """List the direct children, sorted; an empty list if the node does not exist, or no longer."""
        try:
            return self.list_children(path)
        except NotFoundError:
            return []


class TargetSeen(NamedTuple):
    """A target that answers: the nodes of its first level, whether its keys are sorted as Pulsar needs it, its age.

    ``hierarchical`` is None where there is no key to tell it by. ``is_0_15``: Oxia 0.15 or newer.
    """

    names: tuple[str, ...]
    hierarchical: bool | None
    is_0_15: bool


class ScratchStore(MetadataStore):
    """A metadata store that a copy can be made in."""

    @abstractmethod
    def create_many(self, nodes: Sequence[NewNode]) -> list[CreateResult]:
        """Create nodes at once, never replacing one; a result for each, in the order asked.

        Their paths differ. Where it raises, some may have been created.
        """


class MigrationTarget(ScratchStore):
    """A metadata store of the kind that Pulsar moves metadata to."""

    @abstractmethod
    def probe(self, *, may_write: bool) -> TargetSeen:
        """Look at it; raises StoreError or ConfigError where it does not answer.

        An empty one does not show the order of its keys: with ``may_write`` a key is written to it, and deleted.
        """

    @abstractmethod
    def set_next_number(self, path: str, number: int) -> int:
        """Raise the number of the next sequential node below to this one if it is smaller; return the number now.

        A server before Oxia 0.15 cannot raise it this way: use `count_up` there. NotFoundError without such a node.
        """

    @abstractmethod
    def count_up(self, path: str, number: int, *, progress: Callable[[int], object] = lambda _: None) -> int:
        """Write the node until that number is this one or larger; return the number now.

        ``progress`` is called with the numbers on the way. Where it raises, a part of the way is done.
        """
