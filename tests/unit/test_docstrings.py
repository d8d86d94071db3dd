"""The language of docstrings: functions begin with a verb, modules and classes with a noun; fields are explained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
GENERATED = SOURCES / "bookwarden" / "wire" / "pb"
# Return, List, Read, Check, Report, Allow say which of these is meant.
VERBS = re.compile(r"(Say|Name|Give|Tell|Let)\b")
QUESTIONS = re.compile(r"(What|Which|How|Where|Whether|Who|Whom|Whose|When|Why)\b")


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


def classes() -> Iterator[tuple[str, ast.ClassDef, list[str]]]:
    """Yield each class, with where it stands and the lines of its file."""
    for path in sorted(SOURCES.rglob("*.py")):
        if GENERATED not in path.parents:
            lines = path.read_text(encoding="utf-8").splitlines()
            for node in ast.walk(ast.parse("\n".join(lines))):
                if isinstance(node, ast.ClassDef):
                    yield f"{path.relative_to(SOURCES)}: {node.name}", node, lines


def explained(field: ast.AnnAssign, lines: list[str]) -> bool:
    """Return whether ``#:`` stands on the field's own lines, or right above them, or the field has a description."""
    if isinstance(field.value, ast.Call) and any(keyword.arg == "description" for keyword in field.value.keywords):
        return True
    above = field.lineno - 2
    while lines[above].lstrip().startswith("#"):
        above -= 1
    return any("#: " in line for line in lines[above + 1 : field.end_lineno])


def test_classes_begin_with_what_they_are() -> None:
    found = list(classes())
    assert found
    assert [where for where, node, _ in found if QUESTIONS.match(ast.get_docstring(node) or "")] == []


def test_fields_of_larger_classes_are_explained() -> None:
    found = list(classes())
    assert found
    unexplained = []
    for where, node, lines in found:
        fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
        if len(fields) >= 6 and not where.startswith("bookwarden/config.py"):
            unexplained += [f"{where}.{ast.unparse(field.target)}" for field in fields if not explained(field, lines)]
    assert unexplained == []
