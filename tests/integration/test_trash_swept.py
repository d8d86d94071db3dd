"""The trash of a running sweep: its lease, and what is due marked and swept by the same process."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.trash import TrashRecord
from bookwarden.metastore.interface import MetadataStore
from bookwarden.pipelines.sweep.driver import run_sweep
from bookwarden.wire.trash import TRASH_LEASE, TRASH_NAMESPACES, TRASH_RECORDS, decode_lease, encode_records
from bookwarden.wiring.cluster import Cluster
from servers.deletion_site import DeletionSite
from servers.population import Population
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]
LEDGER = 6_900_000_000


@pytest.mark.parametrize("min_free_ratio", [0.001, 0.9999], ids=["bookies have space", "bookies have none"])
def test_a_sweep_renews_the_lease_while_bookies_have_space_and_sweeps_what_is_due(
    site: DeletionSite, store: MetadataStore, spark: SparkSession, min_free_ratio: float
) -> None:
    rule = {"namespaces": site.namespace, "keep_deleted_hours": 1}
    site.overrides = {"trash.rules": f"[{rule}]", "trash.min_free_disk_ratio": str(min_free_ratio)}
    has_space = min_free_ratio < 0.5
    first = LEDGER + (0 if has_space else 10)
    with Cluster(site.settings) as cluster:
        topics = cluster.deletion_topics
        topics.publish()
    holder = ManagedLedgerHolder(f"{site.namespace}/persistent/orders")
    paths = [Population(store).ledger(first + number, holder) for number in range(2)]
    now_ms = int(time.time() * 1000)
    # The second was dropped just now.
    dropped = [
        TrashRecord(holder.name, dropped_ms, 1, data=(first + number,))
        for number, dropped_ms in enumerate((now_ms - 3_700_000, now_ms))
    ]
    node = f"{TRASH_RECORDS}/b1:8080-{site.namespace.replace('/', '-')}/0/0"
    store.create(node, encode_records(dropped), make_parents=True)

    def copies() -> list[str]:
        return store.children_of(TRASH_NAMESPACES)

    def operate() -> None:
        try:
            eventually(lambda: store.get(paths[0]) is None, 120)
            lease = store.get(TRASH_LEASE)
            assert (lease is not None) is has_space
            if lease is not None:
                assert decode_lease(lease.value).keep == site.settings.trash.keep_rules
                assert decode_lease(lease.value).is_valid(int(time.time() * 1000))
            eventually(lambda: any(site.namespace.replace("/", "%2F") in one for one in copies()), 30)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        operator = pool.submit(operate)
        run_sweep(spark, site.settings)
        operator.result()
    # Without bytes in a list it takes no space that could be won.
    assert store.get(paths[1]) is not None
    left = store.get(node)
    assert left is not None
    assert left.value == encode_records(dropped[1:])
    lease = store.get(TRASH_LEASE)
    store.delete_many([(node, left.version), *([] if lease is None else [(TRASH_LEASE, lease.version)])])
