"""Every second, faster way of doing something says what it must equal, and which test holds both against each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from pydoc import locate

CHECKOUT = Path(__file__).parents[2]
SOURCES = CHECKOUT / "src"
COMMENT = re.compile(r"# Fast path of (?P<name>[\w.]+), must equal it: (?P<test>tests/\S+\.py)")


def said() -> Iterator[tuple[str, str, re.Match[str] | None]]:
    """Yield each line that speaks of a fast path, with its module."""
    for path in sorted(SOURCES.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        for line in path.read_text(encoding="utf-8").splitlines():
            if re.search("fast path", line, re.IGNORECASE):
                yield module, line.strip(), COMMENT.fullmatch(line.strip())


def test_fast_paths_are_told_by_one_comment() -> None:
    assert [line for _, line, comment in said() if comment is None] == []


def test_what_a_fast_path_must_equal_is_there_and_held_against_it_by_a_property() -> None:
    found = [(module, line, comment) for module, line, comment in said() if comment]
    assert found
    for module, line, comment in found:
        assert callable(locate(f"{module}.{comment['name']}") or locate(comment["name"])), (module, line)
        test = CHECKOUT / comment["test"]
        assert test.is_file(), line
        assert "@given" in test.read_text(encoding="utf-8"), line
