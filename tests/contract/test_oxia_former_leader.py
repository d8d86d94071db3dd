"""Three Oxia servers, one of which leads shards no more and does not know it: nothing is deleted by what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.paths import MANAGED_LEDGERS_ROOT, cursor_path
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.errors import StoreError, StoreUnavailableError
from bookwarden.ledgers.kinds import CursorHolder, ManagedLedgerHolder
from bookwarden.ledgers.live_references import LiveReferences
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.metastore.oxia.shards import ShardMap
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.urls import open_store
from servers.oxia_ensemble import OxiaEnsemble, OxiaMember
from servers.population import ROOT
from servers.swept_store import SweptStore
from servers.waiting import eventually

# The first start on a machine builds Oxia.
pytestmark = [pytest.mark.servers, pytest.mark.timeout(1800)]

# So many that no one server leads all of them.
SHARDS = 8
TOPIC = "t/n/persistent/orders"
Opener = Callable[..., OxiaStore]


@pytest.fixture
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OxiaEnsemble]:
    made = OxiaEnsemble(tmp_path_factory.mktemp("oxia"), shards=SHARDS)
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.fixture
def opened() -> Iterator[Opener]:
    with ExitStack() as stores:

        def make(member: OxiaMember, *, proves_leaders: bool = False, timeout_s: float = 60.0) -> OxiaStore:
            store = open_store(member.url, operation_timeout_s=timeout_s, proves_leaders=proves_leaders)
            assert isinstance(store, OxiaStore)
            stores.callback(store.close)
            return store

        yield make


def shards_of(store: OxiaStore) -> ShardMap | None:
    """Say who leads which shard, None until all have a leader."""
    try:
        found = store._cluster.shards(store._cluster.deadline())
    except StoreError:
        return None
    return found if all(shard.leader for shard in found.shards) else None


def synced(store: OxiaStore) -> bool:
    try:
        store.sync()
    except StoreUnavailableError:
        return False
    return True


def test_nothing_is_deleted_by_what_a_former_leader_says(ensemble: OxiaEnsemble, opened: Opener) -> None:
    first = opened(ensemble.members[0])
    shards = eventually(lambda: shards_of(first), 60)
    leaders = {shard.leader for shard in shards.shards}
    assert len(leaders) > 1, "one server leads all shards"
    former = ensemble.member_at(shards.shards[0].leader)
    cursors = (CursorHolder(TOPIC, f"s{number}") for number in count())
    holder = next(one for one in cursors if shards.of(cursor_path(TOPIC, one.cursor)).leader == former.address)
    ledger = next(found for found in count(2) if shards.of(ledger_path(ROOT, found)).leader != former.address)
    before = SweptStore(first).population
    before.names(ManagedLedgerHolder(TOPIC), [0])
    before.names(holder, [1])
    misled, careful = opened(former), opened(former, proves_leaders=True, timeout_s=3.0)
    for store in (misled, careful):
        eventually(lambda store=store: synced(store), 60)

    healthy = opened(next(member for member in ensemble.members if member is not former))
    feed = healthy.follow_below([MANAGED_LEDGERS_ROOT])
    watched: list[str] = []
    healthy.watch(cursor_path(TOPIC, holder.cursor), watched.append)
    former.inner.cut_off()
    eventually(lambda: (found := shards_of(healthy)) and former.address not in {one.leader for one in found.shards}, 60)
    # The broker goes on where the others lead: the cursor has another ledger.
    site = SweptStore(healthy)
    site.ledgers(holder, ledger)
    path = site.population.names(holder, [ledger])
    # Its streams to the former leader go on, and tell nothing any more.
    assert eventually(lambda: (told := feed.take()).gap or path in told.paths, 60)
    eventually(lambda: watched, 60)

    # What the former leader answers; a sweep would have deleted the ledger by it.
    misled.sync()
    stale = SweptStore(misled).references.read([holder])[holder]
    assert isinstance(stale, LiveReferences)
    assert not stale.names(ledger)
    with pytest.raises(StoreUnavailableError, match=f"{former.address} commits nothing as the leader of shard"):
        SweptStore(careful, limits=SweepLimits(max_unreachable=0.1)).sweep(holder, ledger)
    assert site.left(ledger) == {ledger}
    proving = SweptStore(opened(ensemble.member_at(healthy.connection.address), proves_leaders=True))
    assert proving.outcomes(holder, ledger) == [Outcome.STILL_REFERENCED]
    assert healthy.get("/bookwarden-nothing") is None
