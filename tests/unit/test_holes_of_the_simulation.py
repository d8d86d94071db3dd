"""Each hole that the simulation puts back still fits the product: a name in it that went would show much later."""

from __future__ import annotations

import pytest

from simulation.mutations import MUTATIONS


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_hole_can_be_put_back(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        MUTATIONS[name].put_back(patch)
