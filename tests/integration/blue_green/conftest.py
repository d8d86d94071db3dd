"""The blue and green of 4.0.8 that the tests of several files share."""

from __future__ import annotations

from typing import Final

import pytest

from bookwarden_dev.devcluster import ClusterOptions
from servers.blue_green.site import QUICK_ROUNDS, BlueGreenSite, start_site
from servers.pool import ServerPool

# With coordinators, brokers make the topics for aborted transactions in every namespace, whether or not one is used.
_BLUE: Final = ClusterOptions(broker_settings={**QUICK_ROUNDS, "transactionCoordinatorEnabled": "true"})
_GREEN: Final = ClusterOptions(
    broker_settings={
        "brokerDeleteInactiveTopicsEnabled": "true",
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": "2",
        "brokerDeleteInactiveTopicsFrequencySeconds": "1",
    }
)


@pytest.fixture
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> BlueGreenSite:
    """Blue and green, running: use namespaces of your own, and bring back what you kill."""
    return pool.shared("blue and green", lambda: start_site(tmp_path_factory.mktemp("blue-green"), _BLUE, _GREEN))
