"""Switches while something is killed, while brokers disagree, and while a broker's metadata session is lost.

One broker is of 4.0.8 and one of 4.2.4. More of it: `make soak STORM=switch`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.pool import ServerPool
from servers.switching.disagreement import disagreement, move_bundles
from servers.switching.lost_session import switch_without
from servers.switching.shared_site import BOTH_VERSIONS, shared_site
from servers.switching.site import SwitchingSite
from servers.switching.storm import KINDS, Storm
from servers.switching.watched_load import watched_load

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]

# Each is killed right after a command kept its order; of the two commands that are killed one is a rollback.
SEED = 142
DISAGREEMENT = 6.0


@pytest.fixture(scope="module")
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, BOTH_VERSIONS) as running:
        yield running


def say(what: object) -> None:
    """Print it; of a test that fails pytest shows it."""
    sys.stdout.write(f"{what}\n")


def test_a_storm_of_kills_while_it_is_switched_back_and_forth(site: SwitchingSite, tmp_path: Path) -> None:
    site.ensure("a")
    with watched_load(site) as load:
        Storm(site, load, SEED, tmp_path).rage([*KINDS, "command"], say)
        found = load.end()
    say(found)
    assert found.harm == {}


def test_a_broker_that_lost_its_metadata_session_follows_what_was_switched_meanwhile(site: SwitchingSite) -> None:
    site.ensure("a")
    last = site.brokers[-1]
    with watched_load(site) as load:
        switch_without(site, last, last.process.paused(), "b")
        load.goes_on()
        found = load.end()
    say(found)
    assert found.harm == {}


def test_brokers_that_disagree_lose_nothing_while_bundles_move(site: SwitchingSite) -> None:
    site.ensure("a")
    with watched_load(site) as load:
        with disagreement(site):
            moves = move_bundles(site, load, DISAGREEMENT)
            made = site.places()
        load.goes_on()
        found = load.end()
    say(f"{moves} moves: {found}")
    assert found.harm == {}
    for topic in load.topics:
        counted = made.of_topic(site.store, topic)
        assert counted["a"]
        assert counted["b"]
