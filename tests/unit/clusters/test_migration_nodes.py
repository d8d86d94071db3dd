"""Cursors of a namespace that is followed: told by their names, also those that are gone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bookwarden.clusters.pulsar.metadata.migrations import MigrationNodes
from bookwarden.metastore.changes import ChangedNodes, ChangeFeed
from bookwarden.metastore.memory import MemoryStore

ROOT = "/managed-ledgers/shop/live/persistent"
LEDGER = "shop/live/persistent/orders"


class Gaps(MemoryStore):
    """A store whose changes are as it is told."""

    def __init__(self, *answers: ChangedNodes) -> None:
        super().__init__()
        self.answers = list(answers)

    def follow_below(self, _prefixes: Sequence[str]) -> ChangeFeed:
        answers = self.answers

        class Feed(ChangeFeed):
            def take(self) -> ChangedNodes:
                return answers.pop(0)

            def close(self) -> None:
                answers.clear()

        return Feed()


def test_cursors_are_told_once_though_they_are_gone() -> None:
    store = MemoryStore()
    store.create(f"{ROOT}/orders", b"", make_parents=True)
    store.create("/managed-ledgers/shop/other/persistent/orders", b"", make_parents=True)
    feed = MigrationNodes(store, lambda _ledger_id: None).follow("shop/live")
    store.create(f"{ROOT}/orders/a%2Fb", b"")
    store.create(f"{ROOT}/orders/brief", b"")
    store.create("/managed-ledgers/shop/other/persistent/orders/app", b"")
    store.put(f"{ROOT}/orders", b"written", 0)
    store.delete_many([(f"{ROOT}/orders/brief", 0)])
    assert feed.take() == {(LEDGER, "a%2Fb"), (LEDGER, "brief")}
    assert feed.take() == set()
    feed.close()
    store.create(f"{ROOT}/orders/late", b"")
    assert feed.take() == set()


@pytest.mark.parametrize("lost", [ChangedNodes(frozenset(), "a gap"), ChangedNodes(frozenset(), "", unwatched=True)])
def test_a_gap_is_told_in_place_of_what_is_known(lost: ChangedNodes) -> None:
    feed = MigrationNodes(Gaps(lost), lambda _ledger_id: None).follow("shop/live")
    assert feed.take() is None
