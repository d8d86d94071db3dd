"""The language of docstrings: functions begin with a verb of the field, modules with what they hold."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src" / "bookwarden"
GENERATED = SOURCES / "wire" / "pb"
# Return, List, Read, Check, Report, Allow say which of these is meant.
VERBS = re.compile(r"(Say|Name|Give|Tell|Let)\b")
QUESTIONS = re.compile(r"(What|Which|How|Where|Whether|Who|Whose|When|Why)\b")


def docstrings(*kinds: type[ast.Module | ast.FunctionDef]) -> Iterator[tuple[str, str]]:
    """Yield each docstring of such nodes, with where it stands."""
    for path in sorted(SOURCES.rglob("*.py")):
        if GENERATED not in path.parents:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                    yield f"{path.relative_to(SOURCES)}: {text.splitlines()[0]}", text


def test_functions_begin_with_a_verb_of_the_field() -> None:
    found = list(docstrings(ast.FunctionDef))
    assert found
    assert [where for where, text in found if VERBS.match(text)] == []


def test_modules_begin_with_what_they_hold() -> None:
    found = list(docstrings(ast.Module))
    assert found
    assert [where for where, text in found if QUESTIONS.match(text)] == []
