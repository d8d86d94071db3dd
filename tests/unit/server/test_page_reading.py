"""What the page shows, as it is read: once in ten seconds whoever asks, from folders, and from a Prometheus."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from bookwarden.bookie_clusters.order import Phase
from bookwarden.bookie_clusters.registry import REGISTRY_PATH
from bookwarden.config import Settings, load_settings
from bookwarden.errors import ConfigError, FormatError, StoreUnavailableError
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.outcomes import DropOutcome, Outcome, OutcomeRow
from bookwarden.ledgers.trash import FormerNode, KeepRule, TrashLease, TrashRecord
from bookwarden.metastore.following.flag import MIGRATION_PATH
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from bookwarden.orphans.plan import PlanCounts, PlanManifest, ScannedCluster
from bookwarden.orphans.progress import ApplyProgress
from bookwarden.orphans.summary import Cell, ScanFindings, Summary, summarize
from bookwarden.pipelines.scan.folder import plans_of
from bookwarden.pipelines.streams.outcome_table import OutcomeTable, outcome_batch
from bookwarden.server.page.cached import CachedReading
from bookwarden.server.page.moves_reading import MoveSources, read_clients
from bookwarden.server.page.reading import (
    PageReader,
    _Kept,
    _OutcomeTables,
    read_alarms,
    read_disk,
    read_report,
    read_scans,
    read_trash,
)
from bookwarden.server.page.values import (
    Activity,
    Alarm,
    Alarms,
    CauseCount,
    ClientMove,
    DiskFolder,
    HourCount,
    Job,
    OutcomeCount,
    Scans,
    StoreMove,
    Wanted,
)
from bookwarden.wire.broker_marks import OUTBOX_ROOT
from bookwarden.wire.pb import managed_ledger_pb2 as pb
from bookwarden.wire.trash import TRASH_LEASE, TRASH_RECORDS, encode_lease, encode_records
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.cluster_migration import ClusterMigration
from servers.waiting import eventually

#: 2026-11-28 12:04:31 UTC, and when its hour begins.
NOW_MS, HOUR_MS = 1_795_867_471_000, 1_795_867_200_000
UTC_NOW = datetime.fromtimestamp(NOW_MS / 1000, timezone.utc)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Source:
    """A source that counts its readings, and hangs or fails as a test wants."""

    def __init__(self) -> None:
        self.readings = 0
        self.running = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.error: Exception | None = None

    def read(self) -> int:
        self.readings += 1
        self.running += 1
        number = self.readings
        assert self.goes_on.wait(60)
        self.running -= 1
        if self.error is not None:
            raise self.error
        return number


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source()
    yield made
    made.goes_on.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def cached(source: Source, clock: Clock, wait_s: float = 30.0) -> CachedReading[int]:
    return CachedReading("test", source.read, wait_s=wait_s, clock=clock)


def test_many_requests_are_one_reading_in_ten_seconds(source: Source, clock: Clock) -> None:
    reading = cached(source, clock)
    assert {reading.get().value for _ in range(100)} == {1}
    clock.now_s += 9.9
    assert reading.get().value == 1
    clock.now_s += 0.1
    assert (reading.get().value, source.readings) == (2, 2)
    # A clock that was set back.
    clock.now_s -= 5_000
    assert reading.get().value == 3


def test_many_threads_are_one_reading(source: Source, clock: Clock) -> None:
    source.goes_on.clear()
    reading, found = cached(source, clock), list[int | None]()
    threads = [threading.Thread(target=lambda: found.append(reading.get().value)) for _ in range(20)]
    for thread in threads:
        thread.start()
    eventually(lambda: source.running == 1)
    source.goes_on.set()
    for thread in threads:
        thread.join(30)
    assert (found, source.readings) == ([1] * 20, 1)


def test_a_reading_that_hangs_keeps_nobody_and_is_the_only_one(source: Source, clock: Clock) -> None:
    reading = cached(source, clock, wait_s=0.0)
    eventually(lambda: reading.get().value == 1)
    source.goes_on.clear()
    clock.now_s = 2_000.0
    assert reading.get().silent_since_ms == 0, "it may be only slow"
    for now_s in (2_005.0, 2_100.0, 9_000.0):
        clock.now_s = now_s
        shown = reading.get()
        assert (shown.value, shown.read_ms, shown.silent_since_ms) == (1, 1_000_000, 2_000_000)
    assert source.readings == 2
    source.goes_on.set()
    # The answer that came at last counts as of when it was asked for; the next one is asked for at once.
    eventually(lambda: reading.get().value == 3)
    assert reading.get().silent_since_ms == 0


def test_a_long_reading_is_followed_by_a_rest(source: Source, clock: Clock) -> None:
    reading = CachedReading("test", source.read, wait_s=0.0, rest=9.0, clock=clock)
    for begun_s, took_s, again_s in ((1_000.0, 0.5, 1_010.0), (2_000.0, 20.0, 2_200.0), (3_000.0, 900.0, 4_200.0)):
        clock.now_s = begun_s
        before = source.readings
        source.goes_on.clear()
        reading.begin()
        eventually(lambda: source.running == 1)
        clock.now_s = begun_s + took_s
        source.goes_on.set()
        eventually(lambda before=before: reading._last.value == before + 1)
        clock.now_s = again_s - 0.1
        reading.begin()
        assert source.readings == before + 1
        clock.now_s = again_s
        reading.begin()
        eventually(lambda before=before: reading._last.value == before + 2)


@pytest.mark.parametrize("error", [StoreUnavailableError("it is away"), OSError("it is away")])
def test_an_error_is_shown_with_what_was_read_before(source: Source, clock: Clock, error: Exception) -> None:
    reading = cached(source, clock)
    reading.get()
    source.error = error
    for now_s in (1_010.0, 1_020.0):
        clock.now_s = now_s
        shown = reading.get()
        assert (shown.value, shown.read_ms, shown.error) == (1, 1_000_000, "it is away")
        assert shown.silent_since_ms == 1_010_000
    source.error, clock.now_s = None, 1_030.0
    assert (reading.get().value, reading.get().silent_since_ms, reading.get().error) == (4, 0, "")


def test_an_unexpected_failure_does_not_end_the_readings(
    source: Source, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda failed: logged.append(failed.exc_type))
    reading = cached(source, clock)
    source.error = ZeroDivisionError()
    assert "unexpected" in reading.get().error
    assert eventually(lambda: logged) == [ZeroDivisionError]
    source.error, clock.now_s = None, 1_010.0
    assert reading.get().value == 2


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(
        overrides={
            **{f"{name}.outcomes": str(tmp_path / name) for name in ("sweep", "follow")},
            **{f"{name}.folder": str(tmp_path / name) for name in ("disk", "orphans")},
        }
    )


def row(outcome: Outcome | DropOutcome, at_ms: int, reason: str = "", size: int | None = 10) -> OutcomeRow:
    holder = str(ManagedLedgerHolder("t/n/persistent/x"))
    return OutcomeRow(
        1, holder, "MANAGED_LEDGER", "LEDGER", outcome, reason, 0, None, 0, at_ms, None, size, "t", "1:1:-1", ""
    )


def write(location: str, batch: int, *rows: OutcomeRow) -> None:
    table = pa.Table.from_batches([outcome_batch(rows, batch)])
    OutcomeTable(location).write(table, "query", batch, UTC_NOW)


def test_outcomes_are_counted_by_hour_and_cause(settings: Settings) -> None:
    tables = _OutcomeTables(settings, lambda: NOW_MS / 1000)
    assert tables.read() == Activity()
    before = HOUR_MS - 30 * 3_600_000
    write(
        settings.sweep.outcomes,
        1,
        row(Outcome.DELETED, NOW_MS),
        row(Outcome.DELETED, HOUR_MS, size=None),
        row(Outcome.DELETED, before + 1),
        row(Outcome.MISMATCH, NOW_MS - 1),
    )
    reason = "dropped by the broker at 2026-11-28T12:00:00Z (trimmed)"
    write(
        settings.follow.outcomes,
        1,
        row(DropOutcome.MARKED, HOUR_MS + 5, reason),
        row(DropOutcome.MARKED, HOUR_MS + 5, "by hand"),
        row(DropOutcome.GONE, HOUR_MS + 9),
    )
    found = tables.read()
    assert found.deleted == (HourCount(before, "data", 1, 10), HourCount(HOUR_MS, "data", 2, 10))
    assert found.leaks == (HourCount(HOUR_MS, "not known", 1, 10), HourCount(HOUR_MS, "trimmed", 1, 10))
    assert set(found.swept) == {OutcomeCount("deleted", 2), OutcomeCount("mismatch", 1)}
    assert found.followed == (OutcomeCount("marked", 2), OutcomeCount("gone", 1))
    assert (found.swept_ms, found.followed_ms) == (NOW_MS, HOUR_MS + 9)
    write(settings.sweep.outcomes, 2, row(Outcome.DELETED, NOW_MS))
    assert tables.read().deleted[-1].ledgers == 3


def test_a_merge_that_was_interrupted_counts_nothing_twice(settings: Settings) -> None:
    location = Path(settings.sweep.outcomes)
    for batch in (1, 2):
        write(str(location), batch, row(Outcome.DELETED, NOW_MS))
    (day,) = location.iterdir()
    first, second = sorted(day.glob("*.parquet"))
    (day / "query-000000000001-000000000002.parquet").write_bytes(first.read_bytes())
    assert _OutcomeTables(settings, lambda: NOW_MS / 1000).read().deleted[0].ledgers == 1
    assert second.exists()


@pytest.mark.parametrize("content", [b"", b"PAR1", b"<script>"])
def test_a_damaged_file_of_outcomes_is_named(settings: Settings, content: bytes) -> None:
    write(settings.sweep.outcomes, 1, row(Outcome.DELETED, NOW_MS))
    (file,) = Path(settings.sweep.outcomes).glob("*/*.parquet")
    file.write_bytes(content)
    with pytest.raises(FormatError, match=rf"{file.name} is no file of outcomes .*: move it away"):
        _OutcomeTables(settings, lambda: 0.0).read()


def plan(plan_id: str, missing: int) -> PlanManifest:
    return PlanManifest(
        plan_id=plan_id,
        scan_id=f"s-{plan_id}",
        tool_version="1",
        begun_ms=1,
        created_ms=2,
        cutoff_ms=1,
        cluster=ScannedCluster("i", "zk:z", "/l", ()),
        counts=PlanCounts(9, 90, 9, 0, 0, missing),
        candidates=(),
    )


def test_the_newest_plans_are_read_and_a_damaged_one_is_named(settings: Settings) -> None:
    assert read_scans(settings, {}) == Scans()
    plans = plans_of(settings)
    for number in range(7):
        cells = [Cell("inside the list", "MANAGED_LEDGER", "t/n", "", "<3d", 3, 30)]
        summary = summarize(
            [*cells, Cell("orphan", "MANAGED_LEDGER", "t/n", "trimmed, never deleted", "<3d", 2, 20)],
            ScanFindings(),
            plan_id=f"p{number}",
            scan_id=f"s-p{number}",
            created_ms=2,
            cutoff_ms=1,
            cluster="i",
        )
        written = plans.write(plan(f"p{number}", missing=number), [], {"summary.json": summary.encode()})
        if number == 6:
            plans.record(written, ApplyProgress(f"p{number}", marked=4, updated_ms=5))
    (Path(plans.folder.location) / "p5/manifest.json").write_text("{}")
    (Path(settings.orphans.folder) / "scans/s-p7").mkdir(parents=True)
    known: dict[object, Summary] = {}
    found = read_scans(settings, known)
    assert [one.plan_id for one in found.plans] == ["p6", "p4", "p3", "p2"]
    assert (found.plans[0].missing, found.plans[0].marked, found.plans[0].applied_ms) == (6, 4, 5)
    assert (found.causes, found.inside_lists) == ((CauseCount("trimmed, never deleted", 2, 20),), 3)
    (damaged,) = found.damaged
    assert "plans/p5: " in damaged
    assert [one.plan for one in found.reports] == list(found.plans)
    assert read_report(settings, "p6") == found.reports[0]
    assert found.unfinished == ("s-p7",)
    (Path(plans.folder.location) / "p6/summary.json").unlink()
    again = read_scans(settings, known)
    assert all(one.summary is two.summary for one, two in zip(again.reports, found.reports, strict=True))
    found = read_scans(settings, {})
    assert "plan p6 has no summary.json" in found.damaged[0]
    assert [one.plan.plan_id for one in found.reports] == ["p4", "p3", "p2"]
    assert (found.plans[0].plan_id, found.causes, found.inside_lists) == ("p6", (), 0)


def test_a_folder_without_an_account_is_no_error(settings: Settings) -> None:
    assert read_disk(settings) == DiskFolder(settings.disk.folder)


@contextmanager
def prometheus(content: bytes, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/p/api/v1/alerts" else 404)
            self.send_header("Location", "http://127.0.0.1:9/")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/p"
        server.shutdown()
        thread.join(30)


def test_alerts_are_those_of_prometheus_the_firing_first() -> None:
    alerts: list[Any] = [
        {"labels": {"alertname": "B"}, "state": "pending", "activeAt": "2026-11-28T12:00:01.123Z"},
        {
            "labels": {"alertname": "A", "severity": "critical"},
            "annotations": {
                "summary": "<script>",
                "runbook_url": "https://b.example/x/runbook/howto/move-metadata#after-failed",
            },
            "state": "firing",
        },
        {"labels": {"alertname": "C"}, "annotations": {"runbook_url": "https://runbooks.example/runbook/C"}},
        "nonsense",
        {"labels": 5, "state": "firing"},
    ]
    with prometheus(json.dumps({"status": "success", "data": {"alerts": alerts}}).encode()) as address:
        assert read_alarms(f"{address}/") == Alarms(
            f"{address}/",
            (
                Alarm("A", "firing", "", "critical", "<script>", "howto/move-metadata#after-failed"),
                Alarm("not known", "firing", "", "", ""),
                Alarm("B", "pending", "2026-11-28T12:00:01", "", ""),
                # Runbooks of others are not ours to show.
                Alarm("C", "", "", "", ""),
            ),
        )


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"<html>", 200), (b"[]", 200), (b'{"data": null}', 200), (b'{"data": {"alerts": {}}}', 200), (b"", 302)],
)
def test_what_is_no_prometheus_is_named(content: bytes, status: int) -> None:
    with prometheus(content, status) as address, pytest.raises(FormatError, match=r"serve\.prometheus_url names it"):
        read_alarms(address)


def test_a_prometheus_that_is_away_is_named() -> None:
    with pytest.raises(OSError, match=r"http://127\.0\.0\.1:9/api/v1/alerts does not answer .*serve\.prometheus_url"):
        read_alarms("http://127.0.0.1:9")
    assert read_alarms("") == Alarms()


@pytest.mark.parametrize("address", ["prometheus:9090", "ftp://p", "http://user:secret@p", "http://p?x=1", "http://"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"serve\.prometheus_url"):
        load_settings(overrides={"serve.prometheus_url": address})


def test_one_part_that_hangs_leaves_the_others(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr("bookwarden.server.page.reading._Kept.read", lambda *_: ended.wait(60))
    clock = Clock()
    pulsar = settings.pulsar.model_copy(update={"admin_url": "https://user:geheim@admin.example:8443"})
    reader = PageReader(settings.model_copy(update={"pulsar": pulsar}), clock)
    reader.read()
    clock.now_s += 9.0
    shown = reader.read()
    assert shown.cluster == "https://admin.example:8443"
    assert (shown.queues.silent_since_ms, shown.store.silent_since_ms) == (1_000_000, 1_000_000)
    assert shown.scans.value == Scans()
    assert shown.disk.value == DiskFolder(settings.disk.folder)
    ended.set()


def test_what_is_kept_open_is_closed_also_what_is_being_read(settings: Settings) -> None:
    closed: list[str] = []
    entered, ended = threading.Event(), threading.Event()

    class Counted(Cluster):
        def close(self) -> None:
            closed.append("closed")
            super().close()

    kept = _Kept(lambda: Counted(settings))
    assert kept.read(lambda _: 1) == 1
    assert closed == []
    kept.close()
    assert closed == ["closed"]
    other = _Kept(lambda: Counted(settings))

    def slow(_: Cluster) -> None:
        entered.set()
        ended.wait(60)

    reading = threading.Thread(target=other.read, args=(slow,))
    reading.start()
    assert entered.wait(60)
    other.close()
    ended.set()
    reading.join(60)
    assert closed == ["closed", "closed"]


def test_of_two_readings_at_the_same_time_one_is_kept_and_the_other_closed(settings: Settings) -> None:
    closed: list[str] = []

    class Counted(Cluster):
        def close(self) -> None:
            closed.append("closed")
            super().close()

    kept = _Kept(lambda: Counted(settings))
    assert kept.read(lambda _: kept.read(lambda _: 1)) == 1
    assert closed == ["closed"]
    kept.close()
    assert closed == ["closed", "closed"]


def test_the_store_is_kept_open_and_a_node_of_the_outbox_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    name = uuid4().hex
    store = shared_memory_store(name)
    for number in range(3):
        store.create(f"{OUTBOX_ROOT}/broker-1/0/{number}", b"node", make_parents=True)
    clock = Clock()
    reader = PageReader(load_settings(overrides={"metadata_store.urls": f"['memory:{name}']"}), clock)
    read: list[str] = []
    get_many = MemoryStore.get_many

    def watched(self: MemoryStore, paths: Sequence[str]) -> Any:
        read.extend(path for path in paths if path.startswith(OUTBOX_ROOT))
        return get_many(self, paths)

    monkeypatch.setattr(MemoryStore, "get_many", watched)
    for _ in range(2):
        shown = reader.read()
        assert shown.store.value is not None
        assert (shown.store.value.outbox_nodes, shown.store.error) == (3, "")
        assert shown.store.value.jobs == (Job("sweep", ""), Job("follow", ""))
        clock.now_s += 10.0
    assert len(read) == 3


def record(name: str, time_ms: int, ledger_id: int) -> TrashRecord:
    list_of_one = pb.ManagedLedgerInfo(ledgerInfo=[pb.ManagedLedgerInfo.LedgerInfo(ledgerId=ledger_id, size=5)])
    node = FormerNode(list_of_one.SerializeToString(), 0, 1, 2)
    return TrashRecord(f"t/n/persistent/{name}", time_ms, 1, data=(ledger_id,), node=node)


def test_the_trash_is_read_only_where_it_is_shown_and_the_newest_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookwarden.server.page.reading._GENERATIONS", 3)
    name = uuid4().hex
    store = shared_memory_store(name)
    store.create("/ledgers", b"")
    folder = f"{TRASH_RECORDS}/b1:8080-00000001/0"
    records = [record(f"x{number}", 100 + number, number) for number in range(5)]
    store.create(f"{folder}/0", encode_records(records), make_parents=True)
    store.create(f"{folder}/1", b"<script>")
    held = TrashLease(NOW_MS, "sweep", 9, (KeepRule("*/*", 3_600, 0),))
    store.create(TRASH_LEASE, encode_lease(held), make_parents=True)
    settings = load_settings(overrides={"metadata_store.urls": f"['memory:{name}']"})
    reader = PageReader(settings, Clock())
    shown = reader.read()
    assert shown.trash is None
    assert shown.store.value is not None
    assert (shown.store.value.lease, shown.store.value.has_trash) == (held, False)
    read = reader.read(Wanted(trash=True)).trash
    assert read is not None
    found = read.value
    assert found is not None
    assert [one.topic for one in found.generations] == [f"persistent://t/n/x{number}" for number in (4, 3, 2)]
    assert [one.expires_ms for one in found.generations] == [3_600_100 + number for number in (4, 3, 2)]
    assert (found.left_out, found.ledgers) == (2, 5)
    assert "1 ledgers that BookKeeper has no more: 4" in found.generations[0].missing
    assert [one.path for one in found.unreadable] == [f"{folder}/1"]
    monkeypatch.setattr("bookwarden.server.page.reading._TRASHED_LEDGERS", 0)
    assert len(read_trash(Cluster(settings)).generations) == 1, "the largest is shown alone"


def test_moves_are_read_from_the_stores_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    name, moved, damaged = uuid4().hex, MemoryStore(), MemoryStore()
    shared_memory_store(name)
    flag = {"phase": "COPYING", "targetUrl": "oxia://o:6648/pulsar"}
    moved.create(MIGRATION_PATH, json.dumps(flag).encode(), make_parents=True)
    damaged.create(MIGRATION_PATH, b"<script>", make_parents=True)
    opened: list[str] = []

    def opener(store: MemoryStore, url: str) -> Callable[[], MemoryStore]:
        return lambda: opened.append(url) or store  # type: ignore[func-returns-value]

    stores = {"zk:moved": opener(moved, "zk:moved"), "zk:damaged": opener(damaged, "zk:damaged")}
    monkeypatch.setattr("bookwarden.server.page.moves_reading.movable_stores_of", lambda _: stores)
    sources = MoveSources(load_settings(overrides={"metadata_store.urls": f"['memory:{name}']"}))
    for _ in range(2):
        found = sources.read()
        first, second = found.stores
        assert first.snapshot is not None
        assert (first.url, first.snapshot.phase, first.snapshot.target_url) == (
            "zk:moved",
            "COPYING",
            flag["targetUrl"],
        )
        assert (second.snapshot, "cannot be understood" in second.error) == (None, True)
        assert found.switch is not None
        assert (found.switch.state.phase, found.switch.build, found.switch.move) == (Phase.NOT_REGISTERED, None, None)
    assert opened == ["zk:moved", "zk:damaged"], "they stay open"
    shared_memory_store(name).create(REGISTRY_PATH, b"<script>", make_parents=True)
    broken = sources.read()
    assert broken.switch is None
    assert broken.error
    sources.close()


def test_a_store_that_was_moved_and_is_off_hides_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> MemoryStore:
        raise StoreUnavailableError("it is off")

    monkeypatch.setattr("bookwarden.server.page.moves_reading.movable_stores_of", lambda _: {"zk:old": away})
    name = uuid4().hex
    shared_memory_store(name)
    sources = MoveSources(load_settings(overrides={"metadata_store.urls": f"['memory:{name}']"}))
    found = sources.read()
    assert found.stores == (StoreMove("zk:old", error="it is off"),)
    assert found.switch is not None


def test_clients_are_looked_at_where_a_namespace_is_migrated(tmp_path: Path) -> None:
    names = {side: uuid4().hex for side in ("blue", "green")}
    blue = shared_memory_store(names["blue"])
    shared_memory_store(names["green"])
    settings = load_settings(
        overrides={
            "metadata_store.urls": f"['memory:{names['blue']}']",
            "pulsar.admin_url": "http://127.0.0.1:1",
            "cluster_migration.journal": str(tmp_path),
            "cluster_migration.blue.cluster": "blue",
            "cluster_migration.green.pulsar": json.dumps({"admin_url": "http://127.0.0.1:1"}),
            "cluster_migration.green.metadata_store": json.dumps({"urls": [f"memory:{names['green']}"]}),
        }
    )
    migration = ClusterMigration(settings)
    assert read_clients(migration) == ClientMove(has_green=True)
    blue.create("/admin/local-policies/t/n", json.dumps({"migrated": True}).encode(), make_parents=True)
    blue.create("/admin/clusters/blue", b"{}", make_parents=True)
    blue.create("/managed-ledgers/t/n/persistent/a", b"", make_parents=True)
    found = read_clients(migration).snapshot
    assert found is not None
    assert found.flagged == {"t/n": True}
    assert [seen.topic for seen in found.topics] == ["persistent://t/n/a"]
    migration.close()
