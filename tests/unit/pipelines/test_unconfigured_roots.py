"""Nothing is scanned, applied or swept while a root that the settings do not name shares the BookKeeper, or may."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from bookwarden.bookie_clusters.registry import REGISTRY_PATH, BookieCluster, Registry, serialize_registry
from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.bookie_cluster import RunningBookies
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.roots import proof
from bookwarden.clusters.pulsar.roots.proof import SampleLookup
from bookwarden.clusters.pulsar.roots.sample import NamedLedger
from bookwarden.config import load_settings
from bookwarden.errors import (
    ConfigError,
    FormatError,
    NoBookieError,
    RefusedError,
    StoreAccessError,
    StoreUnavailableError,
)
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.urls import split_chroot, with_chroot
from bookwarden.pipelines.scan.operation import OrphanScan
from bookwarden.pipelines.streams.checks import looked_at_again, once_answered, prove_roots
from bookwarden.pipelines.streams.supervisor import StreamLimits
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import sweep_of
from bookwarden.wiring.roots import roots_proof_of
from bookwarden.wiring.scan import ScanSources
from servers.population import Population, closed_ledger, tags_of
from unit.deletion.test_sweeping import mark

TOPIC = ManagedLedgerHolder("shop/orders/persistent/t")


class Chroot(MemoryStore):
    """A part of an ensemble; the ensemble outlives it. What is in ``shut`` may not be looked at."""

    def __init__(self, whole: MemoryStore, chroot: str, shut: set[str]) -> None:
        super().__init__()
        self._whole = whole
        self._chroot = chroot
        self._shut = shut

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        return self._whole.get_many([self._open(path) for path in paths])

    def list_children(self, path: str) -> list[str]:
        return self._whole.list_children(self._open(path).rstrip("/") or "/")

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        self._whole.create(self._open(path), value, make_parents=True)

    def put(self, path: str, value: bytes, version: int) -> int:
        return self._whole.put(self._open(path), value, version)

    def _open(self, path: str) -> str:
        if self._chroot + path in self._shut:
            raise StoreAccessError(f"{path} may not be read")
        return self._chroot + path


class Ensembles:
    """Ensembles by their URLs, each with its chroots."""

    def __init__(self) -> None:
        self.shut: set[str] = set()
        self._made: dict[str, MemoryStore] = {}

    def open(self, _: Any, url: str, **__: Any) -> Chroot:
        ensemble, chroot = split_chroot(url)
        return Chroot(self._made.setdefault(ensemble, MemoryStore()), chroot, self.shut)

    def population(self, url: str) -> Population:
        return Population(self.open(None, url))

    def remove(self, url: str, path: str) -> None:
        ensemble, chroot = split_chroot(url)
        assert self._made[ensemble].delete_many([(chroot + path, 0)]) == [DeleteResult.DELETED]


@pytest.fixture
def ensembles(monkeypatch: pytest.MonkeyPatch) -> Ensembles:
    made = Ensembles()
    monkeypatch.setattr("bookwarden.wiring.roots.open_single_store", made.open)
    monkeypatch.setattr("bookwarden.wiring.cluster.open_metadata_store", made.open)
    return made


def look(*urls: str, **others: str) -> list[str]:
    settings = load_settings(overrides={"metadata_store.urls": str(list(urls)), **others})
    with Cluster(settings) as opened:
        return roots_proof_of(opened).require_all_roots()


def shared(ensembles: Ensembles, ours: str = "zk:a:1/blue", theirs: str = "zk:a:1/green", books: str = "") -> None:
    """Let a root name a ledger that is in our BookKeeper, and ours another one of the same topic."""
    ensembles.population(ours).names(TOPIC, [5], closed=True)
    ensembles.population(theirs).names(TOPIC, [7])
    for ledger_id in (5, 7):
        ensembles.population(books or ours).ledger(ledger_id, TOPIC)


def test_a_root_that_shares_our_bookkeeper_is_a_refusal_that_names_the_evidence(ensembles: Ensembles) -> None:
    shared(ensembles)
    # As the default set-up leaves it, and nobody uses it.
    ensembles.open(None, "zk:a:1/green").create("/ledgers/INSTANCEID", b"unused")
    evidence = "zk:a:1/green is the metadata root of .* ledger 7 of shop/orders/persistent/t"
    with pytest.raises(RefusedError, match=evidence):
        look("zk:a:1/blue")
    assert look("zk:a:1/blue", "zk:a:1/green") == []


def test_the_ensemble_of_bookkeeper_is_looked_at_too(ensembles: Ensembles) -> None:
    shared(ensembles, theirs="zk:books:1/green", books="zk:books:1")
    with pytest.raises(RefusedError, match="zk:books:1/green"):
        look("zk:a:1/blue", **{"metadata_store.bookkeeper_url": "zk:books:1"})


def test_the_ensemble_of_a_further_registered_bookie_cluster_is_looked_at_too(ensembles: Ensembles) -> None:
    ours = ensembles.population("zk:a:1")
    ours.store.create("/ledgers/INSTANCEID", b"instance-a")
    ensembles.population("zk:c:1/green").names(TOPIC, [7])
    registry = Registry(
        *(1, "5f2c9a41", "/ledgers", "a"),
        {"a": BookieCluster("a", "zk+hierarchical://a:1/ledgers", None, "/ledgers", "instance-a", 1, bootstrap=True)},
    )
    ours.store.create(REGISTRY_PATH, serialize_registry(registry), make_parents=True)
    assert look("zk:a:1") == []
    other = ensembles.open(None, "zk:c:1")
    other.create("/bookies-b/INSTANCEID", b"instance-b", make_parents=True)
    other.create(ledger_path("/bookies-b", 7), closed_ledger(tags_of(TOPIC)), make_parents=True)
    added = BookieCluster("b", "zk+hierarchical://c:1/bookies-b", "zk:c:1", "/bookies-b", "instance-b", 2)
    ours.store.put(REGISTRY_PATH, serialize_registry(registry.with_cluster(added)), 0)
    with pytest.raises(RefusedError, match=r"zk:c:1/green is the metadata root of .* ledger 7 of shop/orders"):
        look("zk:a:1")


def test_a_root_with_another_bookkeeper_is_told_with_the_ledgers_looked_up(ensembles: Ensembles) -> None:
    ensembles.population("zk:a:1/blue").names(TOPIC, [])
    theirs = ensembles.population("zk:a:1/green")
    theirs.names(TOPIC, range(3))
    ensembles.population("zk:a:1/red")
    told = look("zk:a:1/blue")
    assert "zk:a:1/green is another metadata root: 3 ledgers that it names were looked up" in told[0]
    assert "zk:a:1/red has managed ledgers, and names no ledger" in told[1]


def test_a_root_that_is_said_to_have_another_bookkeeper_is_not_looked_at(ensembles: Ensembles) -> None:
    shared(ensembles)
    told = look("zk:a:1/blue", **{"metadata_store.separate_roots": "['zk:a:1/green/']"})
    assert told == ["zk:a:1/green has a BookKeeper of its own, as metadata_store.separate_roots says"]


def test_a_root_that_cannot_be_understood_is_a_refusal(ensembles: Ensembles) -> None:
    ensembles.population("zk:a:1/blue")
    ensembles.open(None, "zk:a:1/green").create(f"/managed-ledgers/{TOPIC.name}", b"\xff\xff")
    with pytest.raises(RefusedError, match="could not be seen whether it names ledgers"):
        look("zk:a:1/blue")


@pytest.mark.parametrize("path", ["/", "/hidden", "/hidden/managed-ledgers"])
def test_what_may_not_be_looked_at_is_a_refusal_unless_that_is_allowed(ensembles: Ensembles, path: str) -> None:
    ensembles.population("zk:a:1/blue")
    ensembles.population("zk:a:1/hidden")
    ensembles.shut.add(path)
    with pytest.raises(RefusedError, match="allow_unseen_roots"):
        look("zk:a:1/blue")
    told = look("zk:a:1/blue", **{"metadata_store.allow_unseen_roots": "true"})
    assert "may not be" in told[0]


def test_clusters_beside_those_of_the_roots_are_told(ensembles: Ensembles) -> None:
    population = ensembles.population("zk:a:1/blue")
    for name in ("blue", "global"):
        population.store.create(f"/admin/clusters/{name}", b"{}")
    assert look("zk:a:1/blue") == []
    population.store.create("/admin/clusters/green", b"{}")
    assert "these know the clusters blue, green" in look("zk:a:1/blue")[0]


def test_the_chroots_of_a_snapshot_are_looked_at_in_the_file(ensembles: Ensembles, tmp_path: Path) -> None:
    file = f"zk-snapshot:{tmp_path}/snapshot.4f"
    shared(ensembles, f"{file}#/blue", f"{file}#/green")
    for separate, refused in (("[]", True), ("['zk:a:1/green']", False)):
        overrides = {"metadata_store.urls": "['zk:a:1/blue']", "metadata_store.separate_roots": separate}
        with ScanSources(load_settings(overrides=overrides), file) as context:
            if refused:
                with pytest.raises(RefusedError, match=f"{file}#/green is the metadata root"):
                    context.plan_cluster.prove_roots()
            else:
                assert len(context.plan_cluster.prove_roots()) == 1


def test_no_scan_begins_while_a_root_is_not_configured(ensembles: Ensembles, tmp_path: Path) -> None:
    shared(ensembles)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
    urls = {"metadata_store.urls": "['zk:a:1/blue']", "orphans.folder": str(tmp_path)}
    with pytest.raises(RefusedError, match="zk:a:1/green"):
        OrphanScan(spark, load_settings(overrides=urls)).begin()
    assert list(tmp_path.iterdir()) == []


def prove(*urls: str, waits: Sequence[bool] = (), **others: str) -> list[float]:
    """Prove as a sweep does; return how long it waited."""
    settings = load_settings(overrides={"metadata_store.urls": str(list(urls)), **others})
    waited: list[float] = []
    answers = iter(waits)

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return next(answers)

    with Cluster(settings) as opened:
        limits = StreamLimits(max_failures=3, backoff=1.0)
        prove_roots(opened, partial(once_answered, limits=limits, wait=wait))
    return waited


def test_a_sweep_proves_that_its_roots_belong_to_its_bookkeeper(ensembles: Ensembles) -> None:
    shared(ensembles)
    assert prove("zk:a:1/blue", "zk:a:1/green") == []
    with pytest.raises(RefusedError, match="zk:a:1/green"):
        prove("zk:a:1/blue")
    # Another cluster's BookKeeper, in which the same ids are other topics'.
    books = ensembles.population("zk:books:1")
    books.ledger(5, ManagedLedgerHolder("another/n/persistent/x"))
    elsewhere = {"metadata_store.bookkeeper_url": "zk:books:1"}
    with pytest.raises(ConfigError, match=r"none of 1 ledgers that zk:a:1/blue names .*ledger 5 of .*do not belong"):
        prove("zk:a:1/blue", **elsewhere)
    books.ledger(50, TOPIC)
    ensembles.population("zk:a:1/blue").names(TOPIC, [5, 50], closed=True)
    with Cluster(load_settings(overrides={"metadata_store.urls": "['zk:a:1/blue']", **elsewhere})) as opened:
        roots_proof_of(opened).require_roots_of_bookkeeper()


def topics(ensembles: Ensembles, url: str, count: int) -> list[tuple[ManagedLedgerHolder, int, int]]:
    """Let so many topics name a ledger and a newer one, both closed; return each with its ledgers."""
    root = ensembles.population(url)
    found = [(ManagedLedgerHolder(f"t/n/persistent/topic-{number}"), number, 1000 + number) for number in range(count)]
    for holder, older, newest in found:
        root.names(holder, [older, newest], closed=True)
    return found


def test_a_copy_of_the_bookkeeper_from_hours_ago_is_refused(ensembles: Ensembles) -> None:
    """It has the older ledger of every topic, and the newest of few."""
    books = ensembles.population("zk:books:1")
    elsewhere = {"metadata_store.bookkeeper_url": "zk:books:1"}
    found = topics(ensembles, "zk:a:1/blue", 20)
    for holder, older, newest in found:
        books.ledger(older, holder)
        if older < 9:
            books.ledger(newest, holder)
    message = (
        r"newest closed ledgers of 11 of 20 topics .*, such as ledger 10\d\d of .*: it is an older copy of the right"
    )
    with pytest.raises(ConfigError, match=message):
        prove("zk:a:1/blue", **elsewhere)
    # Half of them is what a cluster may lose by hand.
    books.ledger(1009, found[9][0])
    assert prove("zk:a:1/blue", **elsewhere) == []


def test_topics_that_were_trimmed_meanwhile_make_no_copy_of_a_bookkeeper(
    ensembles: Ensembles, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = topics(ensembles, "zk:a:1/blue", 20)
    root = ensembles.population("zk:a:1/blue")
    for holder, older, _ in found:
        root.ledger(older, holder)
    looked_up = proof.look_up

    def trimmed(sample: Sequence[NamedLedger], catalog: Any) -> SampleLookup:
        result = looked_up(sample, catalog)
        for holder, older, _ in found:
            root.names(holder, [older], closed=True)
        return result

    monkeypatch.setattr(proof, "look_up", trimmed)
    assert prove("zk:a:1/blue") == []


def test_few_topics_prove_no_copy(ensembles: Ensembles) -> None:
    for holder, older, _ in topics(ensembles, "zk:a:1/blue", 19):
        ensembles.population("zk:a:1/blue").ledger(older, holder)
    assert prove("zk:a:1/blue") == []


def test_no_scan_begins_and_nothing_is_explained_in_another_bookkeeper(ensembles: Ensembles, tmp_path: Path) -> None:
    shared(ensembles)
    ensembles.population("zk:books:1").ledger(5, ManagedLedgerHolder("another/n/persistent/x"))
    overrides = {
        "metadata_store.urls": "['zk:a:1/blue', 'zk:a:1/green']",
        "metadata_store.bookkeeper_url": "zk:books:1",
        "orphans.folder": str(tmp_path),
    }
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
    with pytest.raises(ConfigError, match="they do not belong together"):
        OrphanScan(spark, load_settings(overrides=overrides)).begin()
    assert list(tmp_path.iterdir()) == []
    options = [word for name, value in overrides.items() for word in ("--set", f"{name}={value}")]
    explained = CliRunner().invoke(cli, [*options, "ledger", "explain", "5"])
    assert (explained.exit_code, "they do not belong together" in explained.stderr) == (3, True)


def test_a_bookkeeper_without_a_bookie_is_not_in_service(
    ensembles: Ensembles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a copy of its metadata, whose ledgers are all there: only the registrations of its bookies are not."""
    monkeypatch.setattr(RunningBookies, "require_soon", RunningBookies.require)
    ensembles.population("zk:a:1/blue").names(TOPIC, [5], closed=True)
    ensembles.population("zk:a:1/blue").ledger(5, TOPIC)
    assert prove("zk:a:1/blue") == []
    ensembles.remove("zk:a:1/blue", "/ledgers/available/127.0.0.1:3181")
    missing = "no bookie is registered in /ledgers/available of zk:a:1/blue, /ledgers: BookKeeper is not in service"
    with pytest.raises(NoBookieError, match=missing):
        prove("zk:a:1/blue", waits=[False, False])
    overrides = {"metadata_store.urls": "['zk:a:1/blue']", "orphans.folder": str(tmp_path)}
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
    with pytest.raises(NoBookieError, match=missing):
        OrphanScan(spark, load_settings(overrides=overrides)).begin()
    assert list(tmp_path.iterdir()) == []
    options = [word for name, value in overrides.items() for word in ("--set", f"{name}={value}")]
    explained = CliRunner().invoke(cli, [*options, "ledger", "explain", "5"])
    assert (explained.exit_code, missing in explained.stderr) == (7, True)
    sweeping = {"sweep.max_unreachable_seconds": "0.001", "sweep.journal": str(tmp_path)}
    with (
        Cluster(load_settings(overrides={**overrides, **sweeping})) as opened,
        pytest.raises(NoBookieError, match=missing),
    ):
        list(sweep_of(opened).process([mark(5)], "run/0"))
    # The bookies of a snapshot need not run any more.
    file = f"zk-snapshot:{tmp_path}/snapshot.1"
    ensembles.population(f"{file}#/blue").names(TOPIC, [5], closed=True)
    ensembles.population(f"{file}#/blue").ledger(5, TOPIC)
    ensembles.remove(f"{file}#/blue", "/ledgers/available/127.0.0.1:3181")
    with ScanSources(load_settings(overrides=overrides), file) as context:
        assert context.plan_cluster.prove_roots() == []


def test_a_new_cluster_without_ledgers_may_be_swept(ensembles: Ensembles) -> None:
    ensembles.population("zk:a:1/blue").names(TOPIC, [])
    assert prove("zk:a:1/blue") == []


def test_a_sweep_waits_for_a_store_that_is_away_as_for_its_query(
    ensembles: Ensembles, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensembles.population("zk:a:1/blue")
    away = [True, True, False]

    def sync(_: Chroot) -> None:
        if away and away.pop(0):
            raise StoreUnavailableError("it is away")

    monkeypatch.setattr(Chroot, "sync", sync)
    assert prove("zk:a:1/blue", waits=[False, False]) == [1.0, 2.0]
    away[:] = [True, True, True]
    with pytest.raises(StoreUnavailableError):
        prove("zk:a:1/blue", waits=[False, False])
    away[:] = [True]
    assert prove("zk:a:1/blue", waits=[True]) == [1.0]


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("zk:b:1,a:1/x/y/", ("zk:a:1,b:1", "/x/y")),
        ("zk://a:1", ("zk:a:1", "")),
        ("zk-snapshot:/f?logs=/l#/x", ("zk-snapshot:/f?logs=/l", "/x")),
        ("memory:one", ("memory:one", "")),
    ],
)
def test_an_ensemble_has_one_url_whatever_the_order_of_its_hosts(url: str, parts: tuple[str, str]) -> None:
    assert split_chroot(url) == parts
    assert split_chroot(with_chroot(*parts)) == parts


def test_another_pulsar_that_comes_later_stops_the_sweep(ensembles: Ensembles) -> None:
    """At first the other has no ledger, then the store is away, then it has one."""
    ensembles.population("zk:a:1/blue").names(TOPIC, [])
    settings = load_settings(overrides={"metadata_store.urls": "['zk:a:1/blue']"})
    stopped, looks = threading.Event(), 0

    with Cluster(settings) as opened:

        def look() -> None:
            nonlocal looks
            looks += 1
            if looks == 2:
                raise StoreUnavailableError("away")
            if looks == 3:
                shared(ensembles)
            roots_proof_of(opened).require_all_roots()

        with pytest.raises(RefusedError, match="zk:a:1/green"), looked_at_again([look], stopped.set, 0.001):
            assert stopped.wait(60)
        with looked_at_again([look], stopped.set):
            pass
    assert looks == 3


def test_a_look_that_cannot_be_had_keeps_no_other_from_being_taken() -> None:
    looks, stopped = [0, 0], threading.Event()

    def damaged() -> None:
        looks[0] += 1
        raise FormatError("it is damaged")

    def counted() -> None:
        looks[1] += 1
        if looks[1] == 3:
            stopped.set()

    with looked_at_again([damaged, counted], stopped.set, 0.001):
        assert stopped.wait(60)
    assert min(looks) >= 3


def test_a_root_whose_lists_lost_all_their_bytes_cannot_be_judged(ensembles: Ensembles) -> None:
    ensembles.population("zk:a:1/blue").names(TOPIC, [])
    green = ensembles.population("zk:a:1/green")
    green.names(TOPIC, [5])
    green.names(TOPIC, [])
    with pytest.raises(RefusedError, match="it could not be seen whether it names ledgers"):
        prove("zk:a:1/blue")


@pytest.mark.parametrize(("named", "refused"), [(9, True), (10, False)])
def test_few_ledgers_tell_nothing_of_a_root_of_which_a_part_is_unreadable(
    ensembles: Ensembles, named: int, refused: bool
) -> None:
    ensembles.population("zk:a:1/blue").names(TOPIC, [])
    green = ensembles.population("zk:a:1/green")
    for number in range(named):
        green.names(ManagedLedgerHolder(f"shop/orders/persistent/other-{number}"), [1000 + number])
    green.names(TOPIC, [5])
    green.names(TOPIC, [])
    if refused:
        with pytest.raises(RefusedError, match="not all of it could be read; 9 ledgers"):
            look("zk:a:1/blue")
    else:
        assert len(look("zk:a:1/blue")) == 1
