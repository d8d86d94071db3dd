"""Copies on real servers, whose copier and bookies are killed: each is the ledger, or is not read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from servers.pool import ServerPool
from servers.switching.copying_process import say
from servers.switching.copying_storm import storm
from servers.switching.shared_site import ONE_BROKER, shared_site
from servers.switching.site import SwitchingSite

pytestmark = [pytest.mark.servers, pytest.mark.storm, pytest.mark.timeout(600)]


@pytest.fixture
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, ONE_BROKER, anew=True) as running:
        yield running


def test_what_killed_copiers_leave_is_finished_by_the_next_one(site: SwitchingSite) -> None:
    storm(site, 4, 20261123, say)
