"""The rules of the house that no linter knows: how long a module may be, and how much a folder holds."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SOURCES = CHECKOUT / "src" / "bookwarden"
TESTS = CHECKOUT / "tests"
DOCUMENT = CHECKOUT / "docs" / "house.md"
GENERATED = SOURCES / "wire" / "pb"


def modules_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.py") if GENERATED not in path.parents]


@pytest.mark.parametrize("folder", [SOURCES, TESTS, CHECKOUT / "benchmarks"], ids=lambda folder: folder.name)
def test_no_module_is_longer_than_500_lines(folder: Path) -> None:
    lines = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in modules_below(folder)}
    assert lines
    assert {path: count for path, count in lines.items() if count > 500} == {}


@pytest.mark.parametrize(("folder", "most"), [(SOURCES, 20), (TESTS, 40)], ids=["bookwarden", "tests"])
def test_no_folder_holds_more_modules_than_can_be_seen_at_once(folder: Path, most: int) -> None:
    counts = Counter(str(path.parent.relative_to(CHECKOUT)) for path in modules_below(folder))
    assert counts
    assert {name: count for name, count in counts.items() if count > most} == {}


def test_what_has_a_folder_lies_in_it() -> None:
    """A module that begins with the name of a folder beside it belongs into that folder, and loses the prefix."""
    folders = {path for path in SOURCES.rglob("*") if (path / "__init__.py").is_file()}
    assert folders
    assert [path for folder in folders for path in folder.parent.glob(f"{folder.name}_*.py")] == []


def test_the_document_names_every_room_and_no_other() -> None:
    named = set(re.findall(r"`([a-z_/]+(?:\.py)?)`", DOCUMENT.read_text(encoding="utf-8")))
    rooms = {str(path.parent.relative_to(SOURCES)) for path in SOURCES.rglob("*/__init__.py")}
    assert rooms - named == set()
    places = [name for name in named if "/" in name]
    assert places
    assert [name for name in places if not (SOURCES / name).exists()] == []
