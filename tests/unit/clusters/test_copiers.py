"""The copier between any two bookie clusters: whom it asks what names a ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from bookwarden.bookie_clusters.moving.copiers import OfflineCopiers
from bookwarden.clusters.bookkeeper.bookie_cluster import ClusterStores
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.ledgers.custom_metadata import expected_custom_metadata
from bookwarden.ledgers.kinds import Holder, ManagedLedgerHolder
from bookwarden.ledgers.live_references import LiveReferences, References
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.ledger_metadata import encode_ledger_metadata

SOURCE, TARGET = LedgersRoot("memory:a", "/ledgers"), LedgersRoot("memory:b", "/bookies-b")
HOLDER = ManagedLedgerHolder("t/n/persistent/orders")


class Brokers:
    """References that brokers are asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def read(
        self, holders: Sequence[Holder], ledgers: Mapping[Holder, Collection[int]] | None = None
    ) -> Mapping[Holder, References]:
        self.asked += 1
        return dict.fromkeys(holders, LiveReferences(frozenset({6}), exists=True))


@pytest.mark.parametrize(("named", "copied"), [(frozenset({5}), 5), (None, 6)])
def test_where_no_broker_lives_what_was_read_counts(named: frozenset[int] | None, copied: int) -> None:
    stores = {place.url: MemoryStore() for place in (SOURCE, TARGET)}
    stores[TARGET.url].create(TARGET.ledgers_root, b"")
    custom = {key: value.encode() for key, value in expected_custom_metadata(HOLDER).items()}
    metadata = LedgerMetadata(
        *(3, LedgerState.CLOSED, 1, 1, 1, (Segment(0, ("a1:3181",)),), 1000, 9, "CRC32C", 7), custom=custom
    )
    for ledger_id in (5, 6):
        path = ledger_path(SOURCE.ledgers_root, ledger_id)
        stores[SOURCE.url].create(path, encode_ledger_metadata(metadata), make_parents=True)
    brokers = Brokers()
    copiers = OfflineCopiers(ClusterStores(stores.__getitem__), MemoryStore(), brokers, BookieOptions())
    with copiers.copier(SOURCE, TARGET, "5f2c9a41", named) as copier:
        outcomes = {result.ledger_id: result.outcome for result in copier.copy([5, 6])}
    # The target has no bookie to copy to.
    assert outcomes == {copied: CopyOutcome.DEFERRED, 11 - copied: CopyOutcome.GONE}
    assert (brokers.asked > 0) is (named is None)
