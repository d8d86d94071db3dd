"""The geometry of charts: treemaps fill their drawing, bars and lines stay within it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.server.page.charts import Figure, shortened, stacked_bar, treemap, trend

SIZES = st.lists(st.integers(0, 2**60), max_size=60).map(lambda sizes: sorted(sizes, reverse=True))


@given(SIZES, st.floats(10, 2_000), st.floats(10, 2_000))
def test_a_treemap_gives_each_size_its_area_within_the_drawing(sizes: list[int], width: float, height: float) -> None:
    tiles = treemap(sizes, width, height)
    assert len(tiles) == len(sizes)
    whole = sum(sizes)
    for size, tile in zip(sizes, tiles, strict=True):
        expected = size * width * height / whole if whole else 0.0
        assert tile.width * tile.height == pytest.approx(expected, rel=1e-6, abs=1e-2)
        # A tenth of a pixel is not seen.
        assert tile.x + tile.width <= width + 0.1
        assert tile.y + tile.height <= height + 0.1
        assert min(tile.x, tile.y, tile.width, tile.height) >= 0


def test_tiles_are_as_square_as_may_be() -> None:
    tiles = treemap([6, 6, 4, 3, 2, 2, 1], 6, 4)
    # The example of the paper by Bruls, Huizing and van Wijk.
    assert [(round(tile.width, 2), round(tile.height, 2)) for tile in tiles[:3]] == [(3, 2), (3, 2), (1.71, 2.33)]


def test_the_parts_of_a_bar_lie_one_after_the_other() -> None:
    chart = stacked_bar([Figure("a", 1, "", ""), Figure("b", 2, "", ""), Figure("c", 9, "", "")], 4)
    # What is more than the whole does not leave the drawing.
    assert [(bar.x, bar.width) for bar in chart.bars] == [(0, 25), (25, 50), (75, 25)]
    assert [bar.width for bar in stacked_bar([Figure("a", 0, "", "")], 0).bars] == [0]


def test_a_trend_goes_on_to_its_limit() -> None:
    chart = trend([(0.0, 0.0), (10.0, 50.0)], 100.0, 5.0, 1.0, 20.0)
    assert chart.line == "0.0,200.0 500.0,104.8"
    assert chart.forecast == f"500.0,104.8 1000.0,{chart.limit:.1f}"
    assert len(chart.band.split()) == 3
    alone = trend([(3.0, 1.0)], 0.0, None, 0.0, 3.0)
    assert (alone.forecast, alone.band) == ("", "")


@given(st.text(max_size=40), st.integers(3, 40))
def test_a_shortened_label_fits(label: str, most: int) -> None:
    found = shortened(label, most)
    assert len(found) <= most
    assert found == label or (found[0], found[-1]) == (label[0], label[-1])
