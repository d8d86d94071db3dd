"""Ledgers copied while bookies are slow, full, lost or damaged: a copy is the whole ledger, or counts for nobody.

Bookies replicate by themselves; an auditor acts as soon as a bookie's registration is gone.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
import urllib3

from bookwarden.bookie_clusters.moving.scope import Route
from bookwarden.clusters.bookkeeper.bookies.probe import Presence, ReplicaProbe
from bookwarden.clusters.bookkeeper.bookies.proof import WholeLedgers
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits
from bookwarden.config import load_settings
from bookwarden.ledgers.custom_metadata import COPY_KEY, is_unfinished
from bookwarden.ledgers.metadata import DeleteResult, LedgerMetadata, LedgerState, StoredLedger
from bookwarden.ledgers.outcomes import CopyOutcome, CopyResult
from bookwarden.pipelines.copying.stages import copier_of
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.demo.ledger_places import ledgers_of_topic
from bookwarden_dev.devcluster import ServerProcess
from bookwarden_dev.devcluster.ports import LOOPBACK
from bookwarden_dev.devcluster.servers.settings import read_settings
from servers.pool import ServerPool
from servers.pulsar_topics import unload
from servers.switching.copying_storm import contents, copying
from servers.switching.shared_site import REPLICATING, shared_site
from servers.switching.site import SwitchingSite
from servers.topic_contents import read_back, send
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]

MESSAGES = 320
SENT = [*(str(number).encode() for number in range(MESSAGES)), b"0"]
REQUEST_SECONDS = 2
# So that the ledgers of a topic take some seconds.
BYTES_PER_SECOND = 3_000
# The one that is damaged.
ENTRY = 50
PATIENCE = 60


class Faults:
    """The site, with topics whose ledgers are in a, but for the last one of each, and a copier from there to b."""

    def __init__(self, site: SwitchingSite) -> None:
        self.site = site
        self._topics: list[str] = []

    def next_topic(self) -> tuple[str, list[int]]:
        """Take a topic that was not copied, and its ledgers in a."""
        if not self._topics:
            self._make_topics()
        topic = self._topics.pop()
        ledgers = sorted(ledgers_of_topic(self.site.store, topic) & self.site.places().by_cluster["a"])
        assert len(ledgers) >= 3
        return topic, ledgers

    def _make_topics(self) -> None:
        """Make as many topics as all tests take."""
        site = self.site
        site.ensure("a")
        self._topics = site.new_topics(8)
        with closing(site.connection.client()) as client:
            for topic in self._topics:
                send(client, topic, MESSAGES)
            site.switch("b")
            for topic in self._topics:
                unload(site.admin, topic)
                send(client, topic, 1)

    def copy(self, ledger_ids: Sequence[int], limit: float | None = None) -> dict[int, CopyResult]:
        """Copy these ledgers here, and return what came of each."""
        with self._opened() as opened:
            copier = copier_of(opened, Route("a", "b"), limits=CopyLimits(bytes_per_second=limit))
            return {result.ledger_id: result for result in copier.copy(ledger_ids)}

    def problem_of_copy(self, ledger_id: int) -> str | None:
        """Return what is wrong with a ledger in b, as it is asked before the one in a is deleted."""
        root = self.site.servers.clusters["b"].ledgers_root
        (found,) = BookKeeperCatalog(self.site.store, root).read_many([ledger_id])
        assert isinstance(found, StoredLedger)
        with self._opened() as opened:
            return WholeLedgers(lambda: opened.bookkeeper.bookies).problem_of(found)

    def has_first_entry(self, ledger_id: int) -> bool:
        """Return whether all bookies of a copy have its first entry."""
        with self._opened() as opened:
            (held,) = ReplicaProbe(opened.bookkeeper.bookies).holdings([(ledger_id, self.copies()[ledger_id], 0)])
        return {one.presence for one in held.values()} == {Presence.HELD}

    def _opened(self) -> Cluster:
        words = [word for word in self.site.options if word != "--set"]
        values: dict[str, Any] = dict(word.partition("=")[::2] for word in words)
        values["bookkeeper.request_timeout_seconds"] = str(REQUEST_SECONDS)
        return Cluster(load_settings(None, values))

    @contextmanager
    def under_way(self, ledger_ids: Sequence[int]) -> Iterator[Future[dict[int, CopyResult]]]:
        """Copy slowly in another thread; begin the block once the copies are there, and unfinished."""
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(self.copy, ledger_ids, BYTES_PER_SECOND)
            eventually(lambda: result.done() or set(ledger_ids) <= self.copies().keys(), PATIENCE)
            assert not result.done(), result.result()
            yield result

    def copies(self) -> dict[int, LedgerMetadata]:
        return self.site.ledgers_of("b")

    def server(self, bookie: str) -> ServerProcess:
        return {**self.site.servers.clusters["a"].bookies, **self.site.servers.clusters["b"].bookies}[bookie]

    @contextmanager
    def read_only(self, bookie: str) -> Iterator[None]:
        """Turn a bookie of b read-only for the block, as it does itself when its disks are full."""
        self._turn(bookie, read_only=True)
        try:
            yield
        finally:
            self._turn(bookie, read_only=False)

    @contextmanager
    def nothing_replicated(self, name: str) -> Iterator[None]:
        """Keep the replication workers of a cluster from putting another bookie in the place of one that is stopped."""
        # What `bookkeeper shell autorecovery -disable` writes.
        path = f"{self.site.servers.clusters[name].ledgers_root}/underreplication/disable"
        self.site.store.create(path, b"")
        try:
            yield
        finally:
            (found,) = self.site.store.get_many([path])
            assert found is not None
            assert self.site.store.delete_many([(path, found.version)]) == [DeleteResult.DELETED]

    def _turn(self, bookie: str, *, read_only: bool) -> None:
        settings = read_settings(self.server(bookie).spec.working_folder / "conf/bookie.conf")
        url = f"http://{LOOPBACK}:{settings['httpServerPort']}/api/v1/bookie/state/readonly"
        with urllib3.PoolManager(timeout=30.0) as pool:
            answer = pool.request("PUT", url, body=json.dumps({"readOnly": read_only}))
            assert (answer.status, answer.json()) == (200, {"readOnly": read_only})
        eventually(lambda: (bookie in self.site.writable_bookies("b")) is not read_only, PATIENCE)

    def require_told(self, results: Mapping[int, CopyResult], others: Set[CopyOutcome]) -> None:
        """Check that what was copied counts, and that what was not is unfinished and ended like this."""
        copies = self.copies()
        for ledger_id, result in results.items():
            is_whole = result.outcome in (CopyOutcome.COPIED, CopyOutcome.COMPLETE)
            assert is_whole or result.outcome in others, result
            assert is_unfinished(copies[ledger_id]) is not is_whole

    def require_readable(self, topic: str) -> None:
        """Check that brokers that open it anew read the whole topic."""
        unload(self.site.admin, topic)
        self.site.wait_until_served([topic])
        with closing(self.site.connection.client()) as client:
            assert read_back(client, topic) == SENT


@pytest.fixture(scope="module")
def faults(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    with shared_site(pool, tmp_path_factory, REPLICATING) as site:
        yield Faults(site)
        # What BookKeeper's own client reads of what counts.
        copies = sorted(
            number
            for number, copy in site.ledgers_of("b").items()
            if COPY_KEY in copy.custom and not is_unfinished(copy)
        )
        assert copies
        assert contents(site, "b", copies) == contents(site, "a", copies)


def bookies_of(ledger: LedgerMetadata) -> set[str]:
    return {bookie for segment in ledger.segments for bookie in segment.ensemble}


def outcomes(results: Mapping[int, CopyResult]) -> set[CopyOutcome]:
    return {result.outcome for result in results.values()}


def damage(server: ServerProcess, ledger_id: int, entry_id: int) -> None:
    """Change a byte of an entry's payload in the entry logs and the journal of a bookie that is stopped."""
    begin = struct.pack(">qq", ledger_id, entry_id)
    # Behind its ids: last confirmed entry, length, CRC32C.
    payload = len(begin) + 8 + 8 + 4
    count = 0
    data = server.spec.working_folder / "bookie"
    for log in (*data.glob("ledgers/current/*.log"), *data.glob("journal/current/*.txn")):
        content = bytearray(log.read_bytes())
        at = content.find(begin)
        while at >= 0:
            content[at + payload] ^= 0xFF
            count += 1
            at = content.find(begin, at + 1)
        log.write_bytes(content)
    assert count


def test_slow_bookies_of_the_target_are_gone_round_and_with_too_few_the_rest_waits(faults: Faults) -> None:
    _, ledgers = faults.next_topic()
    with faults.under_way(ledgers) as copied:
        # The last ledger is begun last.
        slow = min(bookies_of(faults.copies()[ledgers[-1]]))
        with faults.server(slow).paused():
            faults.require_told(copied.result(PATIENCE), set())
        assert slow not in bookies_of(faults.copies()[ledgers[-1]])

    _, ledgers = faults.next_topic()
    with faults.under_way(ledgers) as copied, ExitStack() as slow_ones:
        for bookie in bookies_of(faults.copies()[ledgers[-1]]):
            slow_ones.enter_context(faults.server(bookie).paused())
        results = copied.result(PATIENCE)
        faults.require_told(results, {CopyOutcome.DEFERRED})
        assert "there are 1: 1 missing" in results[ledgers[-1]].reason
    faults.require_told(faults.copy(ledgers), set())


def test_a_slow_bookie_of_the_source_is_gone_round(faults: Faults) -> None:
    _, ledgers = faults.next_topic()
    slow = min(bookies_of(faults.site.ledgers_of("a")[ledgers[-1]]))
    with faults.under_way(ledgers) as copied, faults.server(slow).paused():
        faults.require_told(copied.result(PATIENCE), set())


def test_bookies_that_turn_read_only_are_gone_round_and_with_too_few_the_rest_waits(faults: Faults) -> None:
    _, ledgers = faults.next_topic()
    with faults.under_way(ledgers) as copied:
        full, next_one = sorted(bookies_of(faults.copies()[ledgers[-1]]))
        with faults.read_only(full):
            faults.require_told(copied.result(PATIENCE), set())
            assert full not in bookies_of(faults.copies()[ledgers[-1]])

            _, more = faults.next_topic()
            with faults.under_way(more) as copied_next, faults.read_only(next_one):
                results = copied_next.result(PATIENCE)
                faults.require_told(results, {CopyOutcome.DEFERRED})
                assert "there are 1: 1 missing" in results[more[-1]].reason
    faults.require_told(faults.copy(more), set())


def test_what_an_auditor_closes_of_a_killed_copier_is_not_read_and_made_whole(faults: Faults) -> None:
    topic, ledgers = faults.next_topic()
    first = ledgers[0]
    # It takes a quarter of a minute.
    with copying(faults.site, ledgers, BYTES_PER_SECOND / 15) as copier:
        assert copier.stdin is not None
        copier.stdin.write(json.dumps([first]))
        copier.stdin.close()
        copier.stdin = None
        eventually(lambda: first in faults.copies(), PATIENCE)
        # Something of it is there, and by far not all.
        eventually(lambda: faults.has_first_entry(first), PATIENCE)
        copier.kill()
    lost = min(bookies_of(faults.copies()[first]))
    # In order, so that its registration goes at once.
    faults.server(lost).stop()
    try:
        eventually(lambda: faults.copies()[first].state is LedgerState.CLOSED, PATIENCE)
        closed = faults.copies()[first]
        assert is_unfinished(closed)
        assert 0 < closed.length < faults.site.ledgers_of("a")[first].length
        faults.require_readable(topic)
        assert outcomes(faults.copy(ledgers)) == {CopyOutcome.COPIED}
    finally:
        faults.server(lost).start()


def test_a_damaged_replica_is_passed_over_and_an_entry_without_a_good_one_is_named(faults: Faults) -> None:
    _, (once, everywhere, *others) = faults.next_topic()
    originals = faults.site.ledgers_of("a")
    # The bookie that is asked first.
    first, holders = Replicas(originals[once]).of(ENTRY)[0], bookies_of(originals[everywhere])
    servers = {bookie: faults.server(bookie) for bookie in {first, *holders}}
    with faults.nothing_replicated("a"):
        # All that is acknowledged is in their journals.
        for server in servers.values():
            server.kill()
        damage(servers[first], once, ENTRY)
        for bookie in holders:
            damage(servers[bookie], everywhere, ENTRY)
        for server in servers.values():
            server.start(wait=False)
        for server in servers.values():
            server.wait_until_ready()
    for outcome in (CopyOutcome.COPIED, CopyOutcome.COMPLETE):
        results = faults.copy([once, everywhere, *others])
        failed = results.pop(everywhere)
        assert (outcomes(results), failed.outcome) == ({outcome}, CopyOutcome.FAILED)
        assert f"entry {ENTRY} of ledger {everywhere} cannot be read" in failed.reason
        assert all(bookie in failed.reason for bookie in holders)
        assert is_unfinished(faults.copies()[everywhere])
    assert faults.site.ledgers_of("a")[everywhere] == originals[everywhere]


def test_a_copy_that_is_damaged_after_it_was_closed_is_not_proven_any_more(faults: Faults) -> None:
    _, (ledger_id, *_) = faults.next_topic()
    assert faults.copy([ledger_id])[ledger_id].outcome is CopyOutcome.COPIED
    assert faults.problem_of_copy(ledger_id) is None
    # The replica that nobody asks as long as the other one answers.
    bookie = Replicas(faults.copies()[ledger_id]).of(ENTRY)[1]
    with faults.nothing_replicated("b"):
        faults.server(bookie).kill()
        damage(faults.server(bookie), ledger_id, ENTRY)
        faults.server(bookie).start()
        problem = faults.problem_of_copy(ledger_id)
    assert problem is not None
    assert bookie in problem
    assert f"entry {ENTRY}" in problem
