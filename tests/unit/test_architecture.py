"""Where modules lie: in the folder that their names begin with, and each folder in the document."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
SOURCES = CHECKOUT / "src" / "bookwarden"
DEV = CHECKOUT / "src" / "bookwarden_dev"
DOCUMENT = CHECKOUT / "docs" / "architecture.md"


def test_what_has_a_folder_lies_in_it() -> None:
    """A module that begins with the name of a folder beside it belongs into that folder, and loses the prefix."""
    folders = {path for path in SOURCES.parent.rglob("*") if (path / "__init__.py").is_file()}
    assert folders
    assert [path for folder in folders for path in folder.parent.glob(f"{folder.name}_*.py")] == []


def test_the_document_names_every_package_and_no_other() -> None:
    named = set(re.findall(r"`([a-z_/]+(?:\.py)?)`", DOCUMENT.read_text(encoding="utf-8")))
    packages = {str(path.parent.relative_to(SOURCES)) for path in SOURCES.rglob("*/__init__.py")}
    packages |= {str(path.parent.relative_to(DEV.parent)) for path in DEV.rglob("*/__init__.py")}
    assert packages - named == set()
    places = [name for name in named if "/" in name]
    assert places
    assert [name for name in places if not (SOURCES / name).exists() and not (DEV.parent / name).exists()] == []
