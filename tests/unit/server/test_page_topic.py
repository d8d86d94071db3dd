"""What the page of a topic reads: where each ledger is, what no list has, and never too much at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.config import load_settings
from bookwarden.errors import FormatError
from bookwarden.ledgers.managed_ledger import LedgerInfo, OffloadInfo
from bookwarden.ledgers.metadata import (
    AbsentLedger,
    LedgerMetadata,
    LedgerState,
    Segment,
    StoredLedger,
    UnreadableLedger,
)
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from bookwarden.orphans.plan import Candidate, PlanCounts, PlanManifest, ScannedCluster
from bookwarden.orphans.summary import InsideList, ScanFindings, summarize
from bookwarden.pipelines.plan_files import CANDIDATES
from bookwarden.pipelines.scan.folder import plans_of
from bookwarden.server.page.cached import CachedReadings
from bookwarden.server.page.reading import PageReader
from bookwarden.server.page.topic_reading import place_of, read_topic, topic_named
from bookwarden.server.page.values import LedgerPlace, Wanted
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden.wire.managed_ledger import new_ledger_entry, with_ledger_entries
from bookwarden.wiring.cluster import Cluster
from servers.waiting import eventually

ORDERS = "t/n/persistent/orders"
TOPIC = "persistent://t/n/orders"
NOW = 1_700_000_000_000
HOUR = 3_600_000


def listed(*ledgers: tuple[int, int, int, int]) -> bytes:
    return with_ledger_entries(b"", {ledger[0]: new_ledger_entry(*ledger) for ledger in ledgers})


def metadata(entries: int, ctime_ms: int = NOW - 5 * HOUR) -> bytes:
    return encode_ledger_metadata(
        LedgerMetadata(
            *(3, LedgerState.CLOSED, 1, 1, 1, (Segment(0, ("b:1",)),)),
            length=900,
            last_entry_id=entries - 1,
            digest_type="CRC32C",
            ctime_ms=ctime_ms,
        )
    )


@pytest.fixture
def store() -> tuple[str, MemoryStore]:
    name = uuid4().hex
    made = shared_memory_store(name)
    made.create("/ledgers", b"")
    return name, made


@pytest.fixture
def cluster(store: tuple[str, MemoryStore], tmp_path: Path) -> Iterator[Cluster]:
    settings = load_settings(
        overrides={
            "metadata_store.urls": f"['memory:{store[0]}']",
            "pulsar.admin_url": "http://127.0.0.1:1",
            "orphans.folder": str(tmp_path),
        }
    )
    with closing(Cluster(settings)) as opened:
        yield opened


def orphan(ledger_id: int, holder: str) -> Candidate:
    return Candidate(ledger_id, "MANAGED_LEDGER", holder, "trimmed, never deleted", "/p", 0, 1, 1, 9, "CLOSED", 1)


def write_plan(cluster: Cluster, candidates: list[Candidate], lost: list[InsideList]) -> None:
    summary = summarize(
        [], ScanFindings(inside_lists=tuple(lost)), plan_id="p", scan_id="s", created_ms=NOW, cutoff_ms=1, cluster="i"
    )
    plan = PlanManifest(
        plan_id="p",
        scan_id="s",
        tool_version="1",
        begun_ms=1,
        created_ms=NOW,
        cutoff_ms=1,
        cluster=ScannedCluster("i", "zk:z", "/ledgers", ()),
        counts=PlanCounts(9, 90, 9, 0, 0),
        candidates=(),
    )
    plans_of(cluster.settings).write(plan, [CANDIDATES.table(candidates)], {"summary.json": summary.encode()})


def test_each_ledger_has_its_place(store: tuple[str, MemoryStore], cluster: Cluster) -> None:
    made = store[1]
    ledgers = [(5, 10, 1_000, NOW - 4 * HOUR), (6, 10, 1_000, NOW - 3 * HOUR), (7, 0, 0, 0)]
    made.create(f"/managed-ledgers/{ORDERS}", listed(*ledgers), make_parents=True)
    for ledger_id in (2, 3, 4, 5, 7):
        made.create(ledger_path("/ledgers", ledger_id), metadata(10), make_parents=True)
    # 1 was deleted since, 5 is listed by now, 4 is another topic's.
    write_plan(
        cluster,
        [orphan(1, ORDERS), orphan(2, ORDERS), orphan(4, f"{ORDERS}2"), orphan(5, ORDERS)],
        [InsideList(3, 9, ORDERS, "it lies within"), InsideList(4, 9, f"{ORDERS}2", "it lies within")],
    )
    found = read_topic(cluster, "t/n/orders")
    (part,) = found.parts
    assert [(one.ledger_id, one.place) for one in part.ledgers] == [
        (2, LedgerPlace.ORPHAN),
        (3, LedgerPlace.GAP),
        (5, LedgerPlace.BOOKIES),
        (6, LedgerPlace.MISSING),
        (7, LedgerPlace.BOOKIES),
    ]
    assert (part.ledgers[2].begun_ms, part.ledgers[2].closed_ms) == (NOW - 5 * HOUR, NOW - 4 * HOUR)
    assert (found.name, found.plan, found.plan_ms, found.notes) == (TOPIC, "p", NOW, ())
    assert part.pins.ledgers == (5, 6, 7)


def test_what_is_trimmed_while_it_is_read_is_not_missing(
    store: tuple[str, MemoryStore], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, path = store[1], f"/managed-ledgers/{ORDERS}"
    made.create(path, listed((5, 10, 1_000, NOW), (6, 0, 0, 0)), make_parents=True)
    made.create(ledger_path("/ledgers", 6), metadata(10), make_parents=True)
    read = ManagedLedgers.read

    def and_then_trimmed(self: ManagedLedgers, name: str) -> object:
        found = read(self, name)
        made.put(path, listed((6, 0, 0, 0)), made.get(path).version)  # type: ignore[union-attr]
        return found

    monkeypatch.setattr(ManagedLedgers, "read", and_then_trimmed)
    (part,) = read_topic(cluster, TOPIC).parts
    assert [one.ledger_id for one in part.ledgers] == [6]


def test_a_plan_that_cannot_be_read_is_said(store: tuple[str, MemoryStore], cluster: Cluster) -> None:
    store[1].create(f"/managed-ledgers/{ORDERS}", listed(), make_parents=True)
    assert read_topic(cluster, TOPIC).notes == ("orphans and gaps: there is no plan of a scan",)
    write_plan(cluster, [orphan(2, ORDERS)], [])
    (Path(cluster.settings.orphans.folder) / "plans/p/candidates-00000.parquet").write_bytes(b"<script>")
    found = read_topic(cluster, TOPIC)
    assert found.plan == ""
    assert "was changed or damaged" in found.notes[0]


def test_of_many_partitions_the_first_are_read(store: tuple[str, MemoryStore], cluster: Cluster) -> None:
    store[1].create(f"/admin/partitioned-topics/{ORDERS}", b'{"partitions":12}', make_parents=True)
    for at in range(12):
        store[1].create(f"/managed-ledgers/{ORDERS}-partition-{at}", listed(), make_parents=True)
    found = read_topic(cluster, TOPIC)
    assert [part.pins.topic for part in found.parts] == [f"{TOPIC}-partition-{at}" for at in range(8)]
    assert found.others == tuple(f"{TOPIC}-partition-{at}" for at in range(8, 12))


def test_a_topic_that_is_none_is_said(store: tuple[str, MemoryStore], cluster: Cluster) -> None:
    assert "there is no such topic" in read_topic(cluster, TOPIC).absent
    store[1].create(f"/managed-ledgers/{ORDERS}", b"\xff", make_parents=True)
    damaged = read_topic(cluster, TOPIC)
    assert (damaged.parts, damaged.absent) == ((), "")
    assert damaged.notes[0].startswith(f"{TOPIC}: ")


@pytest.mark.parametrize("name", ["", "a/b", "a//c", "non-persistent://a/b/c", "x" * 1_001, "http://a/b/c"])
def test_what_names_no_topic_is_said_without_a_reading(name: str) -> None:
    with pytest.raises(FormatError):
        topic_named(name)
    if name:
        # Nothing is there that could be read.
        settings = load_settings(overrides={"metadata_store.urls": "['memory:none']"})
        found = PageReader(settings).read(Wanted(topic=name)).topic
        assert found is not None
        assert found.value is not None
        assert found.value.absent


def offloaded(*, complete: bool = True) -> OffloadInfo:
    return OffloadInfo(1, 2, complete, False, 3, "s3")


def stored(cluster: str = "", *others: str) -> StoredLedger:
    value = LedgerMetadata(3, LedgerState.CLOSED, 1, 1, 1, ())
    made = StoredLedger(1, "/p", 0, 1, b"", value, bookie_cluster=cluster)
    return made._replace(elsewhere=tuple(made._replace(bookie_cluster=other) for other in others))


@pytest.mark.parametrize(
    ("offload", "reading", "active", "is_shadow", "place"),
    [
        (None, None, "", False, LedgerPlace.UNSEEN),
        (None, stored(), "", False, LedgerPlace.BOOKIES),
        (None, stored("fast"), "fast", False, LedgerPlace.BOOKIES),
        (None, stored("old"), "fast", False, LedgerPlace.FORMER),
        (None, stored("old", "fast"), "fast", False, LedgerPlace.BOOKIES),
        (offloaded(), stored("fast"), "fast", False, LedgerPlace.BOTH),
        (offloaded(complete=False), stored(), "", False, LedgerPlace.BOOKIES),
        (offloaded(), AbsentLedger(1), "", False, LedgerPlace.OFFLOADED),
        (offloaded(complete=False), AbsentLedger(1), "", False, LedgerPlace.MISSING),
        (None, AbsentLedger(1), "", False, LedgerPlace.MISSING),
        (None, AbsentLedger(1), "", True, LedgerPlace.TRIMMED),
        (None, UnreadableLedger(1, "it is damaged"), "", False, LedgerPlace.UNREADABLE),
    ],
)
def test_the_place_of_a_listed_ledger(
    offload: OffloadInfo | None, reading: object, active: str, is_shadow: bool, place: LedgerPlace
) -> None:
    assert place_of(LedgerInfo(1, offload=offload), reading, active, is_shadow=is_shadow) is place  # type: ignore[arg-type]


def test_names_that_clients_invent_are_read_a_few_at_a_time_and_forgotten() -> None:
    goes_on, read = threading.Event(), list[str]()

    def slow(name: str) -> str:
        read.append(name)
        assert goes_on.wait(60)
        return name.upper()

    readings = CachedReadings("test", slow, most=3, at_once=2)
    threads = [threading.Thread(target=readings.get, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    eventually(lambda: len(read) == 2)
    refused = readings.get("c")
    assert (refused.value, refused.error) == (None, "2 others are being read: it comes after them")
    assert refused.silent_since_ms
    goes_on.set()
    for thread in threads:
        thread.join(60)
    assert [readings.get(name).value for name in "cdefa"] == ["C", "D", "E", "F", "A"]
    assert sorted(read) == ["a", "a", "b", "c", "d", "e", "f"], "the first was forgotten, and is read again"
    assert readings.get("f").value == "F"
    assert len(read) == 7
