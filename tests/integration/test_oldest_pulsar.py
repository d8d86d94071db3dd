"""What leaks on the oldest Pulsar that can be had is found, marked, swept and undone; `make matrix` has the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers.matrix.cells import CELLS, PULSARS
from servers.matrix.scenario import Scenario

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_leak_of_each_kind_is_found_swept_and_undone_on_the_oldest_pulsar(tmp_path: Path) -> None:
    (cell,) = (cell for cell in CELLS if cell.name == f"pulsar-{PULSARS[0]}")
    Scenario(cell, tmp_path, print).play("leaks")
