"""The bookies of a cluster: those that run, and those that ever joined and were not decommissioned.

Format: discover.ZKRegistrationManager of BookKeeper 4.17: ``<root>/available`` has a node for each bookie that takes
new ledgers, ``available/readonly`` for each that does not, ``cookies`` one for each that joined.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from bookwarden.errors import NoBookieError
from bookwarden.ledgers.cluster_identity import INSTANCE_NODE, instance_id_in
from bookwarden.metastore.deadline import retry_while_unavailable
from bookwarden.metastore.interface import MetadataStore

# A single bookie that is started again is without a registration for less than this, by a wide margin.
AWAITED_SECONDS: Final = 30.0
_READ_ONLY: Final = "readonly"


class Members(NamedTuple):
    """Ids of bookies."""

    writable: frozenset[str]
    read_only: frozenset[str]
    known: frozenset[str]


def read_members(store: MetadataStore, root: str) -> Members:
    """Read the bookies below this ledgers root."""
    available = f"{root}/available"
    writable, read_only, known = store.list_many([available, f"{available}/{_READ_ONLY}", f"{root}/cookies"])
    return Members(frozenset(writable) - {_READ_ONLY}, frozenset(read_only), frozenset(known))


class RunningBookies:
    """The bookies of the cluster that takes new ledgers.

    ``find`` returns its store and ledgers root, ``name`` how it is called. Where none is registered its metadata is a
    copy, such as a restored one, or the whole cluster is down: then what is not there proves nothing.
    """

    def __init__(
        self,
        find: Callable[[], tuple[MetadataStore, str]],
        name: Callable[[], str],
        *,
        await_s: float = AWAITED_SECONDS,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._find = find
        self._name = name
        self._await_s = await_s
        self._pause = pause

    def require(self) -> None:
        """Raise NoBookieError where none is registered now, StoreError when the store does not answer."""
        store, root = self._find()
        available = f"{root}/available"
        writable, read_only = store.list_many([available, f"{available}/{_READ_ONLY}"])
        if not read_only and not frozenset(writable) - {_READ_ONLY}:
            raise NoBookieError(
                f"no bookie is registered in {available} of {self._name()}: BookKeeper is not in service there. If this"
                " is the right place (metadata_store.bookkeeper_url, ledgers_root) and no copy of it, start its bookies"
                ", and restart those that run, since a bookie can lose its registration"
            )

    def require_soon(self) -> None:
        """Raise as `require`, but only when that is so for a while: one may be starting again."""
        retry_while_unavailable(self.require, self._await_s, self._pause)


def read_instance(store: MetadataStore, root: str) -> str:
    """Read the instance id of the cluster at this root; "" if there is none. FormatError for what is no text."""
    node = store.get(f"{root}/{INSTANCE_NODE}")
    return instance_id_in(None if node is None else node.value)
