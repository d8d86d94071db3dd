"""The simulation finds nothing in what stands, replays exactly, and makes what fails small."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from simulation.mutations import MUTATIONS
from simulation.runner import STEPS_OF_A_LIFE, hunt, run
from simulation.script import FEATURES, KNOWN, play, script_of, shrunk
from simulation.violation import Violation

STEPS = 20_000
MOST_STEPS = 8_000


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
def test_nothing_needed_goes_nothing_is_lost_sight_of_and_no_leak_stays_untold() -> None:
    failure = hunt(STEPS, FEATURES - KNOWN.keys())
    assert failure is None, str(failure)


def test_a_life_replays_exactly() -> None:
    features = FEATURES - KNOWN.keys()
    first, second = (play(script_of(7, STEPS_OF_A_LIFE, features), features) for _ in range(2))
    assert first.sweeper.rows == second.sweeper.rows
    assert first.told == second.told
    assert first.world.nodes.snapshot()._nodes == second.world.nodes.snapshot()._nodes


def test_a_script_is_made_as_small_as_it_can_be() -> None:
    script = script_of(3, 100, FEATURES)
    wanted = {script.operations[index] for index in (11, 48, 97)}
    small = shrunk(script, lambda smaller: wanted <= set(smaller.operations))
    assert set(small.operations) == wanted


def test_a_violation_tells_how_to_play_it_again() -> None:
    assert str(Violation("lost", "ledger 5")) == "lost: ledger 5"
    assert KNOWN.keys() <= FEATURES


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_hole_that_is_put_back_is_found(name: str) -> None:
    hole = MUTATIONS[name]
    features = FEATURES - KNOWN.keys() if hole.only is None else frozenset(hole.only)
    with pytest.MonkeyPatch.context() as patch:
        hole.put_back(patch)
        found = hunt(MOST_STEPS, features, often=hole.often, first_seed=hole.first, shrink=False)
    assert found is not None, f"nothing was violated in {MOST_STEPS:,} steps"
    assert hole.is_told_by(found.violation.kind), str(found.violation)
    sound = run(found.seed, found.steps, features, often=hole.often)
    assert sound is None, f"the same life is not sound without the hole: {sound}"
