"""Ledgers moved to another bookie cluster, rolled back in each phase and changed meanwhile: all is read, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from servers.pool import ServerPool
from servers.switching.moving import Moving
from servers.switching.open_transactions import open_transactions
from servers.switching.rolled_back import RolledBack
from servers.switching.shared_site import ONE_BROKER, shared_site
from servers.switching.site import SwitchingSite
from servers.switching.topics_of_all_kinds import BROKER_SETTINGS, TopicsOfAllKinds
from servers.switching.watched_load import watched_load

pytestmark = [pytest.mark.servers, pytest.mark.storm, pytest.mark.timeout(900)]

LOADED = 3
PER_SECOND = 10


@pytest.fixture
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, ONE_BROKER, BROKER_SETTINGS, anew=True) as running:
        yield running


@pytest.mark.usefixtures("spark")
def test_what_is_rolled_back_in_any_phase_is_served_and_moved_back(site: SwitchingSite, tmp_path: Path) -> None:
    site.ensure("a")
    moving = Moving(site, tmp_path)
    (transacted,) = site.new_topics(1)
    with (
        closing(site.connection.client()) as client,
        open_transactions(site.connection.service_url, [transacted], tmp_path / "transactions.log") as transactions,
        watched_load(site, LOADED, PER_SECOND) as load,
    ):
        topics = TopicsOfAllKinds(site, client)
        transactions.wait_for(1)
        rolled_back = RolledBack(site, moving, topics, load)
        rolled_back.switched(lambda: transactions.go_on(2))
        rolled_back.killed_in_build()
        rolled_back.marked()
        # What was written on b meanwhile is moved to a, and copies of what never left are cleaned up.
        moving.leave("b")
        load.goes_on()
        topics.check()
        topics.check_gone()
        transactions.go_on(3)
        found = load.end()
    assert found.harm == {}
