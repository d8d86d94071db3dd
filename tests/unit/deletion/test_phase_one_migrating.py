"""Phase one while the metadata is moved: marks are sent, and what follows them waits for the end, or fails at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.deletion.phase_one.operation import OperationResult
from bookwarden.deletion.phase_one.removal import Removal
from bookwarden.metastore.following.phases import ParticipantState
from bookwarden.metastore.following.progress import MigrationTimes
from bookwarden.metastore.following.store import MigratingStore
from servers.migration.coordinator import copy_all
from servers.migration.scripted import TIMES, Site
from servers.waiting import eventually
from unit.deletion.test_mark_operations import TOPIC, Broker, Place, managed_ledger

AT_ONCE = MigrationTimes(write_wait_s=0, retry_s=0.02)


class MigratingPlace(Place):
    """A topic in a source that is moved."""

    def __init__(self, site: Site, times: MigrationTimes) -> None:
        super().__init__(managed_ledger([1, 2, 3]))
        site.server.nodes = self.store
        site.server.offer()
        self.following = site.store(times)
        self.managed_ledgers = ManagedLedgers(self.following)

    def wait_for(self, state: ParticipantState) -> None:
        eventually(lambda: self.following.state is state)


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def test_a_trim_in_the_store_that_waits_for_the_end_updates_the_target(site: Site) -> None:
    place = MigratingPlace(site, TIMES)
    site.server.set_phase("COPYING")
    work = site.pool.submit(place.trim().plan(TOPIC).carry_out)
    eventually(lambda: [mark.ledger_id for mark in place.sender.sent] == [1, 2])
    copy_all(place.store, site.target)
    assert not work.done()
    site.server.set_phase("COMPLETED")
    result = work.result(30)
    assert (result.done, result.removed, result.problem) == (True, (1, 2), "")
    assert place.listed() == [3]
    in_source = ManagedLedgers(place.store).read("t/n/persistent/a")
    assert in_source is not None
    assert [ledger.ledger_id for ledger in in_source.info.ledgers] == [1, 2, 3]


def test_a_trim_that_waited_leaves_a_topic_alone_that_changed_or_was_loaded_meanwhile(site: Site) -> None:
    place = MigratingPlace(site, TIMES)
    site.server.set_phase("COPYING")
    work = site.pool.submit(place.trim().plan(TOPIC).carry_out)
    eventually(lambda: place.sender.sent)
    copy_all(place.store, site.target)
    place.loaded_by = "broker-1"
    site.server.set_phase("COMPLETED")
    result = work.result(30)
    assert not result.done
    assert "broker-1" in result.problem
    assert place.listed() == [1, 2, 3]


def test_a_trim_in_the_store_fails_at_once_if_asked_to_and_its_marks_are_sent(site: Site) -> None:
    place = MigratingPlace(site, AT_ONCE)
    site.server.set_phase("PREPARATION")
    result = place.trim().plan(TOPIC).carry_out()
    assert [mark.ledger_id for mark in place.sender.sent] == [1, 2]
    assert (result.done, result.removed) == (False, ())
    assert "marked, but not removed; the ledgers stay readable: the metadata is being moved" in result.problem
    assert "phase PREPARATION" in result.problem


Ask = Callable[[Place, Broker, MigratingStore], OperationResult]


def trim(place: Place, broker: Broker, migrations: MigratingStore) -> OperationResult:
    (plan,) = Removal(place.marker, place.managed_ledgers, broker, migrations=_Stops(migrations)).plan_trim(TOPIC)
    return plan.carry_out()


def delete(place: Place, broker: Broker, migrations: MigratingStore) -> OperationResult:
    return (
        Removal(place.marker, place.managed_ledgers, broker, migrations=_Stops(migrations))
        .plan_topic(TOPIC)
        .carry_out()
    )


class _Stops:
    def __init__(self, store: MigratingStore) -> None:
        self.await_writes = store.await_writes
        self.stops = 0


@pytest.mark.parametrize("ask", [trim, delete])
def test_a_broker_is_asked_after_the_end(site: Site, ask: Ask) -> None:
    place = MigratingPlace(site, TIMES)
    broker = Broker(place.sender)
    site.server.set_phase("COPYING")
    work = site.pool.submit(ask, place, broker, place.following)
    eventually(lambda: place.sender.sent)
    copy_all(place.store, site.target)
    assert broker.asked == []
    site.server.set_phase("COMPLETED")
    assert work.result(30).done
    assert len(broker.asked) == 1


@pytest.mark.parametrize("ask", [trim, delete])
def test_a_broker_is_not_asked_at_once_if_nobody_wants_to_wait(site: Site, ask: Ask) -> None:
    place = MigratingPlace(site, AT_ONCE)
    broker = Broker(place.sender)
    site.server.set_phase("COPYING")
    result = ask(place, broker, place.following)
    assert len(place.sender.sent) >= 2
    assert (result.done, broker.asked) == (False, [])
    assert "marked, but the broker was not asked: the metadata is being moved" in result.problem
