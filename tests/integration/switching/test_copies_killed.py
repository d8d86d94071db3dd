"""Copies on real servers, whose copier and bookies are killed: each is the ledger, or is not read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from servers.switching.copying_process import say
from servers.switching.copying_storm import CLUSTERS, storm
from servers.switching.site import SwitchingSite, switching_site

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with switching_site(tmp_path_factory.mktemp("copies"), ("4.0.8",), CLUSTERS) as running:
        yield running


def test_what_killed_copiers_leave_is_finished_by_the_next_one(site: SwitchingSite) -> None:
    storm(site, 4, 20261123, say)
