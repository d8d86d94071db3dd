"""The documents of this installation: the folder that they are in, and their names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import bookwarden
from bookwarden.errors import NotFoundError

_SHARE: Final = Path("share", "bookwarden")
#: Every installation has it, a checkout too.
_LANDMARK: Final = Path("docs", "cli.md")
_PATTERNS: Final = ("*.md", "conf/*.yaml", "docs/**/*.md")


def find_home() -> Path:
    """Return the folder with docs and conf: the checkout, or share/bookwarden of what pip installed."""
    for folder in _candidates():
        if (folder / _LANDMARK).is_file():
            return folder.resolve()
    raise NotFoundError(
        f"the documents of this installation are not there (PREFIX/{_SHARE}): install the wheel again, or read them "
        "in its archive"
    )


def _candidates() -> Iterator[Path]:
    package = Path(bookwarden.__file__).parent
    yield package.parents[1]
    # Imported late: a checkout needs it not.
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        files = distribution("bookwarden").files or ()
    except PackageNotFoundError:
        files = ()
    # Where pip put them, also with --user or --prefix.
    for file in files:
        if file.parts[-4:] == (*_SHARE.parts, *_LANDMARK.parts):
            yield Path(str(file.locate())).parents[1]
    yield Path(sys.prefix) / _SHARE
    # Of pip install --target.
    yield package.parent / _SHARE


def find_pages(home: Path) -> dict[str, Path]:
    """List the pages by name: the path without docs/ and .md, unless another page has that name already."""
    found: dict[str, Path] = {}
    for pattern in _PATTERNS:
        for path in sorted(home.glob(pattern)):
            whole = path.relative_to(home).as_posix().removesuffix(".md")
            name = whole.removeprefix("docs/")
            found[whole if name in found else name] = path
    return found
