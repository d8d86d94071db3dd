"""Open ledgers on real bookies, closed by us where BookKeeper's own client closes them."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.digests import Entry, digest_of, master_key_of, pack_entry
from bookwarden.clusters.bookkeeper.bookies.probe import Bookie, Presence
from bookwarden.clusters.bookkeeper.bookies.proof import WholeLedgers
from bookwarden.clusters.bookkeeper.bookies.protocol import OK, AddEntry
from bookwarden.clusters.bookkeeper.bookies.reader import open_ledger
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions, Bookies
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.copying.recovery import LedgerRecovery
from bookwarden.clusters.bookkeeper.listing import read_every_ledger
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.errors import BookieUnavailableError
from bookwarden.java import find_java
from bookwarden.ledgers.metadata import LedgerState, StoredLedger
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster import ServerProcess
from bookwarden_dev.devcluster.releases.distribution import ensure_distribution
from bookwarden_dev.devcluster.servers.java import java_command
from servers.pool import ENTRIES_PER_LEDGER
from servers.pulsar_topics import TopicUnderTest
from servers.three_bookies import ThreeBookies
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

JAVA = Path(__file__).parents[1] / "java"
ENTRIES = 40
PASSWORD = b"a password"
# Each by another kind of writer, and twice: one for us, one for BookKeeper's client.
KINDS = [f"CRC32C,3,2,2,{ENTRIES},,open", f"MAC,3,3,2,{ENTRIES},a password,open", "CRC32,3,2,2,0,,open"]
# For the tests of faults.
MORE = [f"MAC,3,3,2,{ENTRIES},a password,open"] * 2


@dataclass
class Site:
    """Three bookies with ledgers that their writer, which was killed, left open."""

    three: ThreeBookies
    store: MetadataStore
    ours: list[int]
    javas: list[int]
    others: list[int]

    def stored(self, ledger_id: int) -> StoredLedger:
        (reading,) = BookKeeperCatalog(self.store).read_many([ledger_id])
        assert isinstance(reading, StoredLedger), reading
        return reading

    def bookies(self) -> Bookies:
        return Bookies(BookieAddresses(self.store, "/ledgers"), BookieOptions(request_timeout_s=60))

    def recover(self, ledger_id: int) -> StoredLedger:
        with self.bookies() as bookies:
            return LedgerRecovery(self.store, "/ledgers", bookies).recover(ledger_id)

    def servers(self) -> list[ServerProcess]:
        return list(self.three.bookies.values())

    def contents(self, ledger_id: int) -> str:
        """What LedgerContents.java prints of a ledger, by our own reading, after its id."""
        with self.bookies() as bookies:
            stored = self.stored(ledger_id)
            payloads = b"".join(entry.payload for entry in open_ledger(stored, bookies).read())
        return f"{stored.metadata.last_entry_id} {len(payloads)} {hashlib.sha256(payloads).hexdigest()}"

    def javas_contents(self, *asked: str) -> list[str]:
        """The same by BookKeeper's client, which recovers what is open."""
        told = _java(JAVA / "LedgerContents.java", f"metadata-store:{self.three.cluster.store_url}", *asked)
        return re.findall(r"^contents \d+ (.*)$", told, re.MULTILINE)


@pytest.fixture(scope="module")
def site(three_bookies: ThreeBookies) -> Iterator[Site]:
    url = three_bookies.cluster.store_url
    with closing(open_store(url)) as store:
        told = _java(JAVA / "LedgerWriter.java", f"metadata-store:{url}", *KINDS, *KINDS, *MORE)
        made = [int(found) for found in re.findall(r"^ledger (\d+)$", told, re.MULTILINE)]
        count = len(KINDS)
        yield Site(three_bookies, store, made[:count], made[count : 2 * count], made[2 * count :])


def _java(main: Path, *arguments: str) -> str:
    command = java_command(find_java(), ensure_distribution(), str(main), arguments, heap_mb=256)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def test_it_ends_where_bookkeepers_client_ends_its_twin(site: Site) -> None:
    asked = [",".join((str(ledger), *_credentials(spec))) for ledger, spec in zip(site.javas, KINDS, strict=True)]
    javas = site.javas_contents(*asked)
    for ours, theirs, told in zip(site.ours, site.javas, javas, strict=True):
        before = site.stored(ours)
        assert before.metadata.state is LedgerState.OPEN
        closed = site.recover(ours)
        assert site.contents(ours) == told
        twin = site.stored(theirs).metadata
        assert closed.metadata == twin._replace(segments=before.metadata.segments, ctime_ms=before.metadata.ctime_ms)
        assert site.recover(ours) == closed
        with site.bookies() as bookies:
            assert WholeLedgers(lambda opened=bookies: opened).problem_of(closed) is None


def test_an_entry_on_one_bookie_alone_is_written_to_the_others(site: Site) -> None:
    """And what a writer that lives after all sends later is refused by every bookie."""
    ledger_id = site.others[0]
    stored = site.stored(ledger_id)
    digest = digest_of("HMAC", PASSWORD)
    length = sum(number * 37 % 2048 for number in range(ENTRIES))

    def add(bookies: Bookies, bookie_id: str, entry_id: int) -> bool:
        packet = pack_entry(digest, Entry(ledger_id, entry_id, ENTRIES - 1, length + 4, b"last"))
        with bookies.exchange():
            bookies.ask(bookie_id, AddEntry(ledger_id, entry_id, master_key_of(PASSWORD), packet))
            (answer,) = bookies.answers()
        assert answer.response is not None
        return answer.response.status == OK

    write_set = Replicas(stored.metadata).of(ENTRIES)
    with site.bookies() as bookies:
        assert add(bookies, write_set[1], ENTRIES)
        closed = site.recover(ledger_id)
        assert (closed.metadata.last_entry_id, closed.metadata.length) == (ENTRIES, length + 4)
        held = [Bookie(bookie_id, bookies).holdings([ledger_id], ENTRIES) for bookie_id in write_set]
        assert [one[ledger_id].presence for one in held] == [Presence.HELD] * 3
        assert [add(bookies, bookie_id, ENTRIES + 1) for bookie_id in write_set] == [False] * 3
    assert site.javas_contents(f"{ledger_id},MAC,a password") == [site.contents(ledger_id)]


def test_it_needs_as_many_bookies_as_tell_the_end_and_no_more(site: Site) -> None:
    ledger_id = site.others[1]
    before = site.stored(ledger_id)
    first, second, _ = site.servers()
    try:
        first.kill()
        second.kill()
        with pytest.raises(BookieUnavailableError, match=rf"ledger {ledger_id} is not closed.* when they are up"):
            site.recover(ledger_id)
        assert site.stored(ledger_id) == before
        second.start()
        closed = eventually(lambda: _recovered(site, ledger_id), timeout=120, pause=0.5)
        assert closed.metadata.last_entry_id == ENTRIES - 1
    finally:
        for server in (first, second):
            if not server.is_running():
                server.start()
    assert site.recover(ledger_id) == closed


def test_after_a_killed_broker_everything_acknowledged_is_there(site: Site) -> None:
    """Last of this module: the broker is started again."""
    cluster = site.three.cluster
    connection = cluster.connection()
    namespace = "public/recovered"
    policy = {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}
    with closing(PulsarAdmin(connection, timeout_s=60)) as admin:
        admin.put(f"/namespaces/{namespace}")
        admin.post(f"/namespaces/{namespace}/persistence", {**policy, "managedLedgerMaxMarkDeleteRate": 0})
    topic = TopicUnderTest(connection, namespace, "orders", 0)
    # As many as one ledger has room for.
    sent = [b"message %04d" % number for number in range(ENTRIES_PER_LEDGER - 1)]
    client = connection.client()
    try:
        consumer = client.subscribe(topic.name, "s")
        producer = client.create_producer(topic.name, batching_enabled=False)
        for payload in sent:
            producer.send(payload)
        for _ in range(5):
            consumer.acknowledge(consumer.receive(30_000))
        data = topic.positions().ledgers[-1].ledger_id
        cluster.broker.kill()
    finally:
        client.close()
    left_open = _open_ledgers(site)
    assert data in left_open
    for ledger_id in left_open:
        site.recover(ledger_id)
    assert _open_ledgers(site) == []
    assert site.stored(data).metadata.last_entry_id == len(sent) - 1
    cluster.broker.start()
    assert topic.read_back() == sent


def _recovered(site: Site, ledger_id: int) -> StoredLedger | None:
    """Recover it, unless bookies are missing: one is registered before it listens."""
    try:
        return site.recover(ledger_id)
    except BookieUnavailableError:
        return None


def _open_ledgers(site: Site) -> list[int]:
    return [
        ledger_id
        for ledger_id, metadata in read_every_ledger(site.store, "/ledgers")
        if metadata is not None and metadata.state is not LedgerState.CLOSED
    ]


def _credentials(spec: str) -> tuple[str, str]:
    parts = spec.split(",")
    return parts[0], parts[5]
