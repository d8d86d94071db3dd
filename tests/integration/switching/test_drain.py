"""A former bookie cluster is emptied and unregistered under load; its bookies are stopped, and nothing is missed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.demo.ledger_places import ledgers_of_topic
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.switching.moving.report import MORE_LATER
from bookwarden.switching.order import Phase
from bookwarden.wire.ledger_metadata import decode_ledger_metadata, decode_ledger_password, encode_ledger_metadata
from servers.pool import ServerPool
from servers.switching.drained import drain, empty_and_unregister, run
from servers.switching.shared_site import ONE_BROKER, shared_site
from servers.switching.site import SwitchingSite
from servers.switching.watched_load import watched_load
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    # The cluster that stays has a ZooKeeper of its own.
    with shared_site(pool, tmp_path_factory, ONE_BROKER, anew=True) as running:
        yield running


def forget_holders(site: SwitchingSite, topics: Sequence[str]) -> set[int]:
    """Have a closed ledger of topics say nothing of its holder, as ancient brokers made them; return their ids.

    Each topic has at most one; none is closed where no topic has rolled its ledger yet.
    """
    root, ids = site.servers.clusters["a"].ledgers_root, set[int]()
    for topic in topics:
        for ledger_id in sorted(ledgers_of_topic(site.store, topic) & site.places().by_cluster["a"]):
            path = ledger_path(root, ledger_id)
            node = site.store.get(path)
            assert node is not None
            metadata = decode_ledger_metadata(node.value)
            if metadata.state is LedgerState.CLOSED and metadata.length:
                raw = encode_ledger_metadata(metadata._replace(custom={}), password=decode_ledger_password(node.value))
                site.store.put(path, raw, node.version)
                ids.add(ledger_id)
                break
    return ids


@pytest.mark.usefixtures("spark")
def test_a_cluster_is_emptied_under_load_and_leaves(site: SwitchingSite, tmp_path: Path) -> None:
    site.register("b")
    site.wait_until_followed()
    with watched_load(site) as load:
        load.goes_on()
        assert site.command("switch", "--target", "b", "--yes")["phase"] == "DONE"
        load.goes_on()
        ancient = eventually(lambda: forget_holders(site, load.topics), 60, 0.5)
        run(site, tmp_path, "init")
        before = drain(site, tmp_path, "a", "--dry-run")
        assert before["ledgers"] > before["open"] >= len(load.topics)
        assert before["mayGo"] == 0
        # Within the rollback window nothing is marked; everything else is done.
        first = drain(site, tmp_path, "a", "--yes", "--per-second", "20", exit_codes=(MORE_LATER,))
        assert (first["open"], first["marked"], first["failed"]) == (0, 0, 0)
        assert first["mayGo"] >= before["ledgers"] // 2
        empty_and_unregister(site, tmp_path, "a")
        assert site.places().by_cluster["b"] >= ancient
        for bookie in site.servers.clusters["a"].processes:
            bookie.kill()
        load.goes_on()
        # Brokers that find everything anew.
        site.kill_brokers(load.topics)
        load.goes_on()
        found = load.end()
    # One cluster is left, so that nothing is to be switched.
    assert found.harm == {"phase": Phase.NOT_REGISTERED}
    assert found.ledgers.get("a", 0) == 0
