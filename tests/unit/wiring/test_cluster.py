"""A cluster opens each part once, when it is asked for, and closes what is open; and whom phase one tells of marks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import bookwarden.wiring.cluster
import bookwarden.wiring.deletion
import bookwarden.wiring.deletion_topics
import bookwarden.wiring.pulsar
from bookwarden.config import Settings, load_settings
from bookwarden.errors import ConfigError
from bookwarden.follow.following import FollowTally
from bookwarden.follow.table import FollowedNodes, NodeNow
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.naming import pack, pack_ids
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.pipelines.metrics import MarkMetrics
from bookwarden.resources import Resources
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import PhaseOne, cluster_to_sweep, sweep_of
from bookwarden.wiring.following import dropped_ledgers_of

USERS: dict[str, Callable[[Cluster], object]] = {
    "nothing": lambda cluster: cluster.settings,
    "registry": lambda cluster: cluster.registry,
    "references": lambda cluster: cluster.references,
    "phase one": PhaseOne,
    "sweep": sweep_of,
}
#: What is opened for them, in this order.
OPENED = {
    "nothing": [],
    "registry": ["memory:one"],
    "references": ["memory:one", "memory:two", "PulsarAdmin"],
    "phase one": ["PendingDeletionSender", "memory:one", "PulsarAdmin", "memory:two"],
    "sweep": ["memory:one", "memory:two", "journal_of", "PulsarAdmin", "RetrySender"],
}


class Ledger:
    """Writes down what is opened and closed."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.stores: list[Any] = []
        self.failing: str | None = None

    def maker(self, name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **options: Any) -> Any:
            return self.watched(name, make(*arguments, **options))

        return made

    def watched_store(self, url: str, store: Any) -> Any:
        self.stores.append(store)
        return self.watched(url, store)

    def watched(self, name: str, thing: Any) -> Any:
        if name == self.failing:
            raise ConfigError(f"{name} cannot be opened")
        self.opened.append(name)
        close = thing.close

        def closing() -> None:
            self.closed.append(name)
            close()

        thing.close = closing
        return thing


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    stores = {"metadata_store.urls": "['memory:one']", "metadata_store.bookkeeper_url": "memory:two"}
    return load_settings(overrides={**stores, "sweep.journal": str(tmp_path / "journal")})


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    found = Ledger()
    opening = bookwarden.wiring.cluster.open_metadata_store
    monkeypatch.setattr(
        bookwarden.wiring.cluster,
        "open_metadata_store",
        lambda settings, url, **options: found.watched_store(url, opening(settings, url, **options)),
    )
    for module, *names in (
        (bookwarden.wiring.pulsar, "PulsarAdmin"),
        (bookwarden.wiring.deletion, "RetrySender", "journal_of"),
        (bookwarden.wiring.deletion_topics, "PendingDeletionSender"),
    ):
        for name in names:
            monkeypatch.setattr(module, name, found.maker(name, getattr(module, name)))
    return found


@pytest.mark.parametrize("user", OPENED)
def test_each_part_is_opened_once_when_it_is_asked_for_and_closed(
    user: str, settings: Settings, ledger: Ledger
) -> None:
    with Cluster(settings) as cluster:
        USERS[user](cluster)
        if user != "nothing":
            assert cluster.store is cluster.registry.store
        assert (ledger.opened, ledger.closed) == (OPENED[user], [])
    cluster.close()
    assert sorted(ledger.closed) == sorted(OPENED[user])


@pytest.mark.parametrize(("user", "failing"), [(user, name) for user, names in OPENED.items() for name in names])
def test_a_part_that_cannot_be_opened_leaves_nothing_open(
    user: str, failing: str, settings: Settings, ledger: Ledger
) -> None:
    ledger.failing = failing
    with pytest.raises(ConfigError, match=f"{failing} cannot be opened"), Cluster(settings) as cluster:
        USERS[user](cluster)
    assert ledger.opened == OPENED[user][: OPENED[user].index(failing)]
    assert sorted(ledger.closed) == sorted(ledger.opened)


@pytest.mark.parametrize(("dry_run", "proves"), [("false", True), ("true", False)])
def test_what_deletes_has_the_leaders_of_an_oxia_proven_and_what_only_reads_has_not(
    tmp_path: Path, ledger: Ledger, dry_run: str, proves: bool
) -> None:
    overrides = {"metadata_store.urls": "['oxia://o:6648/broker']", "sweep.journal": str(tmp_path / "journal")}
    overrides |= {"metadata_store.bookkeeper_url": "oxia://o:6648/bookkeeper", "sweep.dry_run": dry_run}
    settings = load_settings(overrides=overrides)
    for cluster in (Cluster(settings), cluster_to_sweep(settings)):
        with cluster:
            assert cluster.bookkeeper
    stores = [store for store in ledger.stores if isinstance(store, OxiaStore)]
    assert [store.connection.proves_leaders for store in stores] == [False] * 2 + [proves] * 2


class Fragile:
    """Something whose close may fail."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.closed = False
        self._problem = problem

    def close(self) -> None:
        self.closed = True
        if self._problem:
            raise self._problem


class Three(Resources):
    """Opens three things, of which the middle one does not close well."""

    def __init__(self) -> None:
        super().__init__()
        self.things = [self.keep(Fragile(problem)) for problem in (None, OSError("disk full"), None)]


def test_what_fails_to_close_keeps_nothing_else_open() -> None:
    three = Three()
    with pytest.raises(OSError, match="disk full"):
        three.close()
    assert all(thing.closed for thing in three.things)


def test_a_program_that_asks_for_metrics_of_phase_one_gets_them(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    monkeypatch.setattr(
        bookwarden.wiring.deletion_topics.PendingDeletionSender,
        "send_all",
        lambda _, marks: ["no answer"] + [None] * (len(marks) - 1),
    )
    marks = [
        PendingDeletion("t/n/persistent/orders", LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger_id)
        for ledger_id in range(3)
    ]
    with Cluster(settings) as cluster:
        PhaseOne(cluster, on_report=MarkMetrics(registry).count).marker.mark(marks)
    sent = {"ledger_type": "LEDGER", "destination": "deletion"}
    assert registry.get_sample_value("bookwarden_pending_deletions_sent_total", sent) == 2
    assert registry.get_sample_value("bookwarden_marks_failed_total", {"ledger_type": "LEDGER"}) == 1


def test_a_clock_that_is_set_while_follow_runs_changes_no_time_of_a_look(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = 3600.0
    path = "/managed-ledgers/t/n/persistent/orders"
    nodes, steady = FollowedNodes(600_000), [hour]
    monkeypatch.setattr(time, "monotonic", lambda: steady[0])
    monkeypatch.setattr(time, "time", lambda: 1_000 * hour)
    with Cluster(settings) as cluster:
        dropped = dropped_ledgers_of(cluster, nodes, lambda *_: [], lambda _: None)
        dropped.take([NodeNow("zk:one", path, pack("topic", pack_ids([1])), 5, listing=1)], FollowTally())
        dropped.take([], FollowTally(), 1)
        dropped.take([NodeNow("zk:one", path, None, 5)], FollowTally())
        for wall in (1.0, 1_000_000 * hour):
            monkeypatch.setattr(time, "time", lambda wall=wall: wall)
            assert not dropped.has_due
        monkeypatch.setattr(time, "time", lambda: 1.0)
        steady[0] += 601.0
        assert dropped.has_due
