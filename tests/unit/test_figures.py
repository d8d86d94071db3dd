"""Figures that a change would make worse unseen: what a small command loads, and what a sweep is made of."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from bookwarden.deletion.phase_two.sweeping import Sweep
from figures import Tree, figures, modules_of_list

CHECKOUT = Path(__file__).parents[2]


def test_a_command_that_reads_one_node_loads_few_modules() -> None:
    assert modules_of_list(CHECKOUT / "src") <= 120


def test_a_sweep_has_nine_parameters_or_fewer() -> None:
    assert len(inspect.signature(Sweep).parameters) <= 9


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout of two modules, of which one uses the other."""
    package = tmp_path / "src" / "product"
    (package / "pb").mkdir(parents=True)
    (package / "pb" / "generated.py").write_text("x = 1\n")
    (package / "__init__.py").write_text("")
    (package / "small.py").write_text('class Reads(Protocol[T]):\n    """A protocol."""\n')
    text = "from product.small import Reads\n\n\ndef read(a: Callable[[], Any], b: int) -> None:\n    pass\n"
    (package / "user.py").write_text(text)
    return tmp_path


def test_figures_count_the_source_without_what_is_generated(tree: Path) -> None:
    counted = Tree(tree)
    assert (sorted(counted.files), counted.protocols) == (["product", "product.small", "product.user"], ["Reads"])
    assert counted.small_with_one_user == ["product.small"]
    found = {}
    for what, figure in figures(counted):
        found[what] = figure
        if what == "packages":
            break
    assert found["modules, lines"] == "3, 7"
    assert found["Callable[ in annotations"] == 1
    assert found["most parameters of one function"] == "2 (read)"
