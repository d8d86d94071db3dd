"""Phase two while the metadata is moved: a step is finished or done again, and no ledger pays for it with a retry."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.metastore.following.phases import ParticipantState
from bookwarden.metastore.following.progress import MigrationTimes
from bookwarden.metastore.following.store import MigratingStore, Migrations
from servers.migration.coordinator import copy_all
from servers.migration.scripted import TIMES, TIMES_OF_THE_HURRIED, Held, Site
from servers.population import Population
from servers.sweep_parts import sweep_with
from servers.waiting import eventually
from unit.deletion.test_sweeping import DATA, NOW, POLICY, Recorder, mark

LEDGERS = range(1, 6)


class MigratingWorld:
    """Ledgers in a source that is moved, and a sweep over the store that follows."""

    def __init__(self, site: Site, times: MigrationTimes, *, dry_run: bool = False) -> None:
        self.site = site
        self.population = Population(site.server.nodes)
        site.server.offer()
        self.paths = [self.population.ledger(ledger_id, DATA) for ledger_id in LEDGERS]
        self.store = site.store(times)
        self.session = site.sessions[-1]
        self.recorder = Recorder()
        migrations = Migrations()
        migrations.follow("zk:source", self.store)
        self.sweep = sweep_with(
            BookKeeperCatalog(self.store),
            MetadataReferences([self.store]),
            self.recorder,
            self.recorder,
            POLICY,
            SweepLimits(1000, max_unreachable=0.0),
            migrations=migrations,
            dry_run=dry_run,
            clock=lambda: NOW,
        )

    def begin(self) -> Future[list[Outcome]]:
        return self.site.pool.submit(self.run)

    def run(self) -> list[Outcome]:
        return [row.outcome for rows in self.sweep.process([mark(each) for each in LEDGERS], "q/0") for row in rows]

    def left_in(self, nodes: object) -> int:
        assert isinstance(nodes, type(self.site.target))
        return sum(node is not None for node in nodes.get_many(self.paths))


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def wait_for(store: MigratingStore, *states: ParticipantState) -> None:
    eventually(lambda: store.state in states)


@pytest.mark.parametrize("times", [TIMES, TIMES_OF_THE_HURRIED], ids=["patient", "hurried"])
@pytest.mark.parametrize("end", ["COMPLETED", "FAILED"])
def test_a_step_that_a_migration_interrupts_is_done_again_where_the_metadata_is_then(
    site: Site, times: MigrationTimes, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = MigratingWorld(site, times)
    world.store.create("/another", b"")
    held = Held(world.session)
    work = world.begin()
    assert held.begun.wait(30)
    site.server.mute = True
    site.server.set_phase("PREPARATION")
    # The request, which was under way, is refused: our node is gone.
    (own,) = site.server.participants()
    site.server.nodes.delete_many([(f"/pulsar/migration-coordinator/participants/{own}", 0)])
    held.go_on.set()
    site.server.mute = False
    wait_for(world.store, ParticipantState.WAITING)
    site.server.set_phase("COPYING")
    copy_all(site.server.nodes, site.target)
    if times is TIMES_OF_THE_HURRIED:
        eventually(lambda: "waiting for the store: the metadata is being moved" in caplog.text)
    assert not work.done()
    site.server.set_phase(end)
    assert work.result(60) == [Outcome.DELETED] * len(LEDGERS)
    assert (world.recorder.retried, world.recorder.given_up) == ([], [])
    moved = end == "COMPLETED"
    assert world.left_in(site.server.nodes) == (len(LEDGERS) if moved else 0)
    assert world.left_in(site.target) == (0 if moved else len(LEDGERS))


def test_a_sweep_that_begins_in_a_migration_reads_nothing_before_its_end(site: Site) -> None:
    world = MigratingWorld(site, TIMES_OF_THE_HURRIED)
    site.server.set_phase("COPYING")
    work = world.begin()
    wait_for(world.store, ParticipantState.WAITING)
    copy_all(site.server.nodes, site.target)
    # What the brokers do in the target counts.
    Population(site.target).names(DATA, [max(LEDGERS)])
    assert world.recorder.journaled == []
    site.server.set_phase("COMPLETED")
    assert sorted(map(str, work.result(60))) == sorted(map(str, [Outcome.STILL_REFERENCED] + [Outcome.DELETED] * 4))
    assert max(LEDGERS) not in world.recorder.journaled


def test_a_flag_that_is_not_understood_is_waited_for_too(site: Site) -> None:
    world = MigratingWorld(site, TIMES)
    site.server.set_phase("SOMETHING NEW")
    work = world.begin()
    eventually(lambda: world.store.status.blocked)
    assert not work.done()
    site.server.set_phase("NOT_STARTED")
    assert work.result(60) == [Outcome.DELETED] * len(LEDGERS)


def test_a_dry_run_goes_on_while_the_metadata_is_moved(site: Site) -> None:
    world = MigratingWorld(site, TIMES, dry_run=True)
    site.server.set_phase("COPYING")
    assert world.run() == [Outcome.WOULD_DELETE] * len(LEDGERS)


def test_a_store_tells_for_how_long_and_how_often_it_was_stopped(site: Site) -> None:
    store = site.store()
    store.create("/a", b"")
    assert (store.status.stops, store.status.blocked_s, store.moved_to) == (0, 0.0, None)
    site.server.set_phase("PREPARATION")
    wait_for(store, ParticipantState.WAITING)
    during = store.status
    assert (during.stops, during.blocked, during.phase, during.target_url) == (1, True, "PREPARATION", "memory:target")
    site.server.set_phase("FAILED")
    wait_for(store, ParticipantState.READING)
    after = store.status
    assert (after.stops, after.blocked, after.blocked_s > 0) == (1, False, True)
    assert store.status.blocked_s == after.blocked_s
    site.server.set_phase("COMPLETED")
    wait_for(store, ParticipantState.SERVING_TARGET)
    assert (store.status.stops, store.status.blocked, store.moved_to) == (2, False, "memory:target")
