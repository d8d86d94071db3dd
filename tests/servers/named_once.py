"""Watches, while a test runs, that no ledger is named again once it has left its last node."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.errors import StoreError
from bookwarden.ledgers.kinds import CompactedHolder
from bookwarden.ledgers.references import Doubt
from bookwarden.metastore.urls import open_store

_PAUSE_S = 0.2


class NamedOnce:
    """Reads all nodes that name ledgers, again and again; ``left`` are those that were named and are not any more."""

    def __init__(self, store_url: str) -> None:
        self._url = store_url
        self._named: set[int] = set()
        self._ended = threading.Event()
        self._crash: BaseException | None = None
        self.left: set[int] = set()
        self.came_back: set[int] = set()
        self.looks = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look on for the block, then check what was seen."""
        thread = threading.Thread(target=self._watch, name="named once", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(120)
        assert not thread.is_alive()
        assert self._crash is None, self._crash
        assert self.looks > 1
        assert self.came_back == set()

    def _watch(self) -> None:
        try:
            with closing(open_store(self._url)) as store:
                pieces = ReferencePieces({self._url: store})
                while not self._ended.wait(_PAUSE_S):
                    named = _named(pieces)
                    if named is not None:
                        self._compare(named)
        except BaseException as error:
            self._crash = error
            raise

    def _compare(self, named: set[int]) -> None:
        self.came_back |= named & self.left
        self.left |= self._named - named
        self._named |= named
        self._named -= self.left
        self.looks += 1


def _is_of_compacted(doubt: Doubt) -> bool:
    # Which compacted ledger is in use stands in an entry, which is not read here.
    return bool(doubt.about) and all(isinstance(holder, CompactedHolder) for holder in doubt.about)


def _named(pieces: ReferencePieces) -> set[int] | None:
    """Read what all nodes name; None while the store is away, or where a node cannot be read."""
    try:
        nodes = [found for piece in pieces.pieces() for _, found in pieces.nodes(piece)]
    except StoreError:
        return None
    if not all(node.doubt is None or _is_of_compacted(node.doubt) for node in nodes):
        return None
    return set().union(*(node.ledger_ids for node in nodes))
