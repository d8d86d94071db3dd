"""Ledgers on real bookies: what the broker and BookKeeper's client wrote is read, and what we write they read."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.digests import Entry, digest_of, pack_entry, verify_entry
from bookwarden.clusters.bookkeeper.bookies.probe import Bookie, Presence
from bookwarden.clusters.bookkeeper.bookies.protocol import ReadEntry
from bookwarden.clusters.bookkeeper.bookies.reader import LedgerReader, open_ledger
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions, Bookies
from bookwarden.clusters.bookkeeper.bookies.tls import BookieTls
from bookwarden.clusters.bookkeeper.bookies.writer import EntryWriting
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.errors import BookieAccessError, BookieError, BookieUnavailableError, EntryAbsentError
from bookwarden.java import find_java
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment, StoredLedger
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden.wire.ledger_metadata import decode_ledger_metadata, decode_ledger_password, encode_ledger_metadata
from bookwarden_dev.devcluster import DevCluster, ServerProcess
from bookwarden_dev.devcluster.releases.distribution import ensure_distribution
from bookwarden_dev.devcluster.servers.java import java_command
from servers.pulsar_topics import TopicUnderTest
from servers.three_bookies import NAMED, ThreeBookies
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

WRITER = Path(__file__).parents[1] / "java/LedgerWriter.java"
CONTENTS = Path(__file__).parents[1] / "java/LedgerContents.java"
SHELL = "org.apache.bookkeeper.bookie.BookieShell"
ENTRIES = 40
# What the writer is asked for, by the name that a test uses for the ledger.
SPECS = {
    "CRC32C": f"CRC32C,3,2,2,{ENTRIES},,closed",
    "CRC32": f"CRC32,3,2,2,{ENTRIES},a password,closed",
    "HMAC": f"MAC,3,2,2,{ENTRIES},a password,closed",
    "DUMMY": f"DUMMY,3,2,2,{ENTRIES},,closed",
    "HMAC without password": f"MAC,3,3,2,{ENTRIES},,closed",
    "empty": "CRC32C,3,2,2,0,,closed",
    "open": f"MAC,3,2,2,{ENTRIES},a password,open",
    "open and told": f"CRC32C,3,2,2,{ENTRIES},,told",
    "open and empty": "CRC32C,3,2,2,0,,open",
}


@dataclass
class Site:
    """Three bookies with TLS, one of them with a name for an id, and the ledgers of SPECS on them."""

    servers: ThreeBookies
    store: MetadataStore
    ledgers: dict[str, int]

    @property
    def cluster(self) -> DevCluster:
        return self.servers.cluster

    def stored(self, name: str | int) -> StoredLedger:
        (reading,) = BookKeeperCatalog(self.store).read_many([self.ledgers[name] if isinstance(name, str) else name])
        assert isinstance(reading, StoredLedger), reading
        return reading

    def bookies(self, options: BookieOptions | None = None) -> Bookies:
        return Bookies(BookieAddresses(self.store, "/ledgers"), options or BookieOptions())

    def server(self, bookie_id: str) -> ServerProcess:
        return self.servers.bookies[bookie_id]

    def reader(self, name: str | int, bookies: Bookies) -> LedgerReader:
        return open_ledger(self.stored(name), bookies)


@pytest.fixture(scope="module")
def site(three_bookies: ThreeBookies) -> Iterator[Site]:
    with closing(open_store(three_bookies.cluster.store_url)) as store:
        ledgers = dict(zip(SPECS, _write_ledgers(three_bookies.cluster, list(SPECS.values())), strict=True))
        yield Site(three_bookies, store, ledgers)


def _java(main: str, *arguments: str) -> str:
    command = java_command(find_java(), ensure_distribution(), main, arguments, heap_mb=256)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def _write_ledgers(cluster: DevCluster, specs: Sequence[str]) -> list[int]:
    output = _java(str(WRITER), f"metadata-store:{cluster.store_url}", *specs)
    return [int(found) for found in re.findall(r"^ledger (\d+)$", output, re.MULTILINE)]


def _shell_reads(site: Site, ledger_id: int, last: int) -> list[tuple[int, int, bytes]]:
    """Read a ledger by `bookkeeper shell readledger`: entry id, length of the ledger so far, payload."""
    arguments = ("-conf", str(site.cluster.home / "conf/bookie.conf"), "-entryformat", "hex")
    output = _java(SHELL, *arguments, "readledger", "-l", str(ledger_id), "-fe", "0", "-le", str(last), "-m")
    _, *parts = re.split(rf"--------- Lid={ledger_id}, Eid=(\d+), EntrySize=(\d+) ---------", output)
    assert len(parts) == 3 * (last + 1), output[-2000:]
    return [(int(parts[i]), int(parts[i + 1]), _from_dump(parts[i + 2])) for i in range(0, len(parts), 3)]


def _from_dump(text: str) -> bytes:
    rows = re.findall(r"^[0-9A-F]{8} ((?:[0-9A-F]{2} ){1,16})", text, re.MULTILINE)
    return bytes.fromhex("".join(rows))


def _written(entry_id: int) -> bytes:
    """What LedgerWriter.java writes as this entry."""
    return bytes((entry_id + index) % 256 for index in range(entry_id * 37 % 2048))


def _assert_as_written(entries: Sequence[Entry], ledger_id: int, count: int) -> None:
    length = 0
    assert len(entries) == count
    for number, entry in enumerate(entries):
        length += len(_written(number))
        assert entry == Entry(ledger_id, number, number - 1, length, _written(number))


@pytest.mark.parametrize("name", ["CRC32C", "CRC32", "HMAC", "DUMMY", "HMAC without password"])
def test_what_javas_client_wrote_is_read(site: Site, name: str) -> None:
    with site.bookies() as bookies:
        stored = site.stored(name)
        assert stored.metadata.digest_type == name.partition(" ")[0]
        reader = open_ledger(stored, bookies)
        assert reader.last_confirmed() == ENTRIES - 1
        _assert_as_written(list(reader.read()), stored.ledger_id, ENTRIES)
        _assert_as_written(list(reader.read(0, 9)), stored.ledger_id, 10)
        assert [entry.entry_id for entry in reader.read(30, 32)] == [30, 31, 32]


@pytest.mark.parametrize("name", ["CRC32C", "CRC32", "HMAC", "DUMMY"])
def test_entry_by_entry_it_is_what_the_shell_reads(site: Site, name: str) -> None:
    with site.bookies() as bookies:
        ours = [(entry.entry_id, entry.length, entry.payload) for entry in site.reader(name, bookies).read()]
    assert ours == _shell_reads(site, site.ledgers[name], ENTRIES - 1)


def test_the_brokers_ledgers_are_read_and_its_open_one_is_not_fenced(site: Site) -> None:
    with closing(TopicOnTwoBookies(site)) as topic:
        topic.send(range(25))
        closed, _, still_open = topic.ledgers()
        with site.bookies() as bookies:
            ours = list(site.reader(closed, bookies).read())
            assert [entry.payload.endswith(b"message %04d" % number) for number, entry in enumerate(ours)] == [
                True
            ] * 10
            shell = _shell_reads(site, closed, 9)
            assert [(entry.entry_id, entry.length, entry.payload) for entry in ours] == shell
            stored = site.stored(still_open)
            assert (stored.metadata.state, stored.metadata.last_entry_id) == (LedgerState.OPEN, None)
            # The last entry is confirmed to the bookies only with the next one, or after the broker's explicit note.
            reader = open_ledger(stored, bookies)
            eventually(lambda: reader.last_confirmed() >= 3)
            assert [entry.entry_id for entry in reader.read(0, 3)] == [0, 1, 2, 3]
            topic.send(range(25, 28))
            assert topic.ledgers()[-1] == still_open
            eventually(lambda: reader.last_confirmed() >= 6)
            assert [entry.payload[-4:] for entry in reader.read(0, 6)] == [b"%04d" % number for number in range(20, 27)]


class TopicOnTwoBookies:
    """A topic whose ledgers have two copies on two of the bookies; messages are not batched."""

    def __init__(self, site: Site) -> None:
        namespace = "public/two-bookies"
        self.connection = site.cluster.connection()
        admin = TopicUnderTest(self.connection, "public/default", "maker", 0).admin
        admin.put(f"/namespaces/{namespace}")
        policy = {"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}
        admin.post(f"/namespaces/{namespace}/persistence", {**policy, "managedLedgerMaxMarkDeleteRate": 0})
        self._topic = TopicUnderTest(self.connection, namespace, "orders", 0)
        self._client = self.connection.client()
        self._producer = self._client.create_producer(self._topic.name, batching_enabled=False)

    def send(self, numbers: range) -> None:
        for number in numbers:
            self._producer.send(b"message %04d" % number)

    def ledgers(self) -> list[int]:
        return [ledger.ledger_id for ledger in self._topic.positions().ledgers]

    def close(self) -> None:
        self._client.close()


def test_an_open_ledger_is_read_up_to_what_is_confirmed(site: Site) -> None:
    with site.bookies() as bookies:
        # The bookies know that an entry is confirmed from the entry behind it, or because the writer told them.
        for name, confirmed in (("open", ENTRIES - 2), ("open and told", ENTRIES - 1), ("open and empty", -1)):
            reader = site.reader(name, bookies)
            assert reader.last_confirmed() == confirmed
            _assert_as_written(list(reader.read()), site.ledgers[name], confirmed + 1)
            assert site.stored(name).metadata.state is LedgerState.OPEN
        assert list(site.reader("empty", bookies).read()) == []
        with pytest.raises(EntryAbsentError, match=f"entry {ENTRIES} of ledger"):
            list(site.reader("CRC32C", bookies).read(0, ENTRIES))


def test_entries_come_over_tls_to_a_client_with_a_certificate(site: Site) -> None:
    certificate, private_key = map(str, site.servers.client_certificate)
    known = BookieTls(str(site.servers.authority), certificate, private_key)
    with site.bookies(BookieOptions(tls=known)) as bookies:
        _assert_as_written(list(site.reader("HMAC", bookies).read()), site.ledgers["HMAC"], ENTRIES)
    for refused in (BookieTls(str(site.servers.authority)), BookieTls(certificate, certificate, private_key)):
        with (
            site.bookies(BookieOptions(tls=refused)) as bookies,
            pytest.raises(BookieUnavailableError, match="try again"),
        ):
            list(site.reader("HMAC", bookies).read())


def test_a_bookie_says_what_it_holds(site: Site) -> None:
    stored = site.stored("CRC32C")
    first_set = stored.metadata.segments[0].ensemble[:2]
    with site.bookies() as bookies:
        for bookie_id in stored.metadata.segments[0].ensemble:
            holdings = Bookie(bookie_id, bookies).holdings([stored.ledger_id, 987_654])
            expected = Presence.HELD if bookie_id in first_set else Presence.NOT_HELD
            assert [holdings[ledger].presence for ledger in (stored.ledger_id, 987_654)] == [
                expected,
                Presence.NOT_HELD,
            ]
        (unknown,) = Bookie("127.0.0.1:1", bookies).holdings([1]).values()
        assert unknown.presence is Presence.UNKNOWN
        assert "127.0.0.1:1 does not answer" in unknown.reason


@pytest.mark.parametrize("name", ["CRC32C", "CRC32", "HMAC", "DUMMY", "HMAC without password"])
def test_what_javas_client_wrote_is_packed_again_byte_for_byte(site: Site, name: str) -> None:
    stored = site.stored(name)
    digest = digest_of(stored.metadata.digest_type, decode_ledger_password(stored.raw))
    packets: set[bytes] = set()
    with site.bookies() as bookies, bookies.exchange():
        for entry_id in range(ENTRIES):
            for bookie_id in Replicas(stored.metadata).of(entry_id):
                bookies.ask(bookie_id, ReadEntry(stored.ledger_id, entry_id))
        while answers := bookies.answers():
            for answer in answers:
                assert answer.response is not None, answer
                packet = answer.response.entry
                assert pack_entry(digest, verify_entry(digest, stored.ledger_id, None, packet)) == packet
                packets.add(packet)
    assert len(packets) == ENTRIES
    # Only the token is Java's own, the last field, by which it knows its own creation again.
    again = encode_ledger_metadata(stored.metadata, password=decode_ledger_password(stored.raw))
    assert decode_ledger_metadata(again) == stored.metadata
    assert _body(stored.raw).startswith(_body(again))


def _body(raw: bytes) -> bytes:
    """The message behind the header and its length."""
    rest = raw.partition(b"\n")[2]
    return rest[1 + next(index for index, byte in enumerate(rest) if byte < 0x80) :]


# Digest, by BookKeeper's own names, and password.
OURS = [("CRC32C", ""), ("CRC32", "a password"), ("MAC", "a password"), ("MAC", "")]


def _new_ledger(site: Site, kind: str) -> tuple[int, LedgerMetadata]:
    """Return an id that no broker gets, and metadata with a change of the ensemble at entry 300."""
    ledger_id = LedgerIds(site.store, "/ledgers").take()
    first = site.stored("CRC32C").metadata.segments[0].ensemble
    segments = (Segment(0, first), Segment(300, first[::-1]))
    digest = "HMAC" if kind == "MAC" else kind
    return ledger_id, LedgerMetadata(3, LedgerState.OPEN, 3, 2, 2, segments, digest_type=digest)


def test_what_we_write_is_read_by_javas_client_and_by_us(site: Site) -> None:
    count = 900
    certificate, private_key = map(str, site.servers.client_certificate)
    options = BookieOptions(tls=BookieTls(str(site.servers.authority), certificate, private_key))
    expected: list[str] = []
    asked: list[str] = []
    with site.bookies(options) as bookies:
        with EntryWriting(bookies) as writing:
            made = [(kind, password, *_new_ledger(site, kind)) for kind, password in OURS]
            writers = [writing.ledger(ledger, metadata, word.encode()) for _, word, ledger, metadata in made]
            for entry_id in range(count):
                for writer in writers:
                    writer.add(_written(entry_id))
            for writer in writers:
                writer.finish()
        for (kind, password, ledger_id, metadata), writer in zip(made, writers, strict=True):
            length = sum(len(_written(entry_id)) for entry_id in range(count))
            assert (writer.last_entry_id, writer.length) == (count - 1, length)
            closed = metadata._replace(state=LedgerState.CLOSED, last_entry_id=count - 1, length=length)
            raw = encode_ledger_metadata(closed, password=password.encode())
            site.store.create(ledger_path("/ledgers", ledger_id), raw, make_parents=True)
            found = list(open_ledger(site.stored(ledger_id), bookies).read())
            assert [(one.entry_id, one.payload) for one in found] == [(n, _written(n)) for n in range(count)]
            # Every bookie has its part, not only those that a reader asks first.
            holders = [Bookie(bookie_id, bookies) for bookie_id in Replicas(closed).of(count - 1)]
            assert all(
                holder.holdings([ledger_id], count - 1)[ledger_id].presence is Presence.HELD for holder in holders
            )
            payloads = hashlib.sha256(b"".join(map(_written, range(count)))).hexdigest()
            expected.append(f"{ledger_id} {count - 1} {length} {payloads}")
            asked.append(f"{ledger_id},{kind},{password}")
    told = _java(str(CONTENTS), f"metadata-store:{site.cluster.store_url}", *asked)
    assert re.findall(r"^contents (.*)$", told, re.MULTILINE) == expected


def test_a_ledger_that_is_not_ours_to_write_is_refused(site: Site) -> None:
    """Of Java's ledgers one has another password, the other was opened, and with that fenced, by Java's reader."""
    fenced = site.ledgers["open and empty"]
    _java(str(CONTENTS), f"metadata-store:{site.cluster.store_url}", f"{fenced},CRC32C,")
    with site.bookies() as bookies, EntryWriting(bookies) as writing:
        for name, kind, says in (("CRC32", BookieAccessError, "EUA"), ("open and empty", BookieError, "EFENCED")):
            stored = site.stored(name)
            writer = writing.ledger(stored.ledger_id, stored.metadata, b"")
            writer.add(b"of somebody else")
            with pytest.raises(kind, match=f"ledger {stored.ledger_id} cannot be written: bookie .* answered {says}"):
                writer.finish()
        # As an unfinished copy of ours is begun anew after an auditor has fenced it.
        stored = site.stored("open and empty")
        writer = writing.ledger(stored.ledger_id, stored.metadata, b"", recovery=True)
        writer.add(b"of ours")
        writer.finish()
    assert writer.last_confirmed == 0


def _command(site: Site, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["--set", f"metadata_store.urls=['{site.cluster.store_url}']", *arguments])


def test_the_commands_show_and_read_ledgers(site: Site) -> None:
    ledger_id = str(site.ledgers["HMAC"])
    raw = _command(site, "ledger", "read", ledger_id, "--format", "raw")
    assert (raw.exit_code, raw.stderr) == (0, "")
    assert raw.stdout_bytes == b"".join(map(_written, range(ENTRIES)))
    two = _command(site, "-o", "json", "ledger", "read", ledger_id, "--first", "5", "--limit", "2")
    lines = two.stdout.splitlines()
    assert [base64.b64decode(json.loads(line)["payload_base64"]) for line in lines] == [_written(5), _written(6)]
    dump = _command(site, "ledger", "read", ledger_id, "--last", "1").stdout
    assert dump.startswith("entry 0, 0 bytes, last add confirmed -1")
    assert "00000000  01 02 03 04" in dump
    shown = _command(site, "ledger", "show", ledger_id).stdout
    assert "HMAC" in shown
    assert NAMED in shown
    as_json = _command(site, "-o", "json", "ledger", "show", ledger_id).stdout
    assert json.loads(as_json)["metadata"]["last_entry_id"] == ENTRIES - 1
    assert "a password" not in shown + as_json
    absent = _command(site, "ledger", "read", "987654")
    assert (absent.exit_code, absent.stdout) == (4, "")
    beyond = _command(site, "ledger", "read", ledger_id, "--first", str(ENTRIES), "--last", str(ENTRIES))
    assert beyond.exit_code == 13
    assert "has no such entry" in beyond.stderr


def test_another_replica_answers_for_a_bookie_that_dies_while_reading(site: Site) -> None:
    """Last of this module: it leaves the bookies as they were, but the broker may have moved on to other ledgers."""
    stored = site.stored("CRC32C")
    unnamed = [bookie_id for bookie_id in stored.metadata.segments[0].ensemble if bookie_id != NAMED]
    with site.bookies(BookieOptions(reads_in_flight=4, request_timeout_s=60)) as bookies:
        entries = open_ledger(stored, bookies).read()
        found = [next(entries) for _ in range(10)]
        try:
            site.server(unnamed[0]).kill()
            found += [next(entries) for _ in range(10)]
            site.server(unnamed[0]).start()
            found += list(entries)
            _assert_as_written(found, stored.ledger_id, ENTRIES)
            for bookie_id in unnamed:
                site.server(bookie_id).kill()
            with pytest.raises(BookieUnavailableError, match=r"cannot be read: bookie .* try again"):
                list(open_ledger(stored, bookies).read())
            with pytest.raises(BookieUnavailableError, match="last confirmed entry of ledger"):
                site.reader("open", bookies).last_confirmed()
        finally:
            for bookie_id in unnamed:
                if not site.server(bookie_id).is_running():
                    site.server(bookie_id).start()
        _assert_as_written(list(open_ledger(stored, bookies).read()), stored.ledger_id, ENTRIES)
