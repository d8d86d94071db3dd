"""The documents: every link leads somewhere, every section that is named is there, and a line fits a screen."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
DOCUMENTS = sorted([*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/**/*.md")])
# What else sends its readers to a document.
TEXTS = sorted(
    path
    for folder in ("src", "conf", "streaming", "jobs", "tests", "benchmarks")
    for path in (CHECKOUT / folder).rglob("*")
    if path.suffix in {".py", ".yaml", ".service", ".j2", ".json"} and "out" not in path.parts
)
LONGEST_LINE = 160
LINK = re.compile(r"\]\(([^)\s]+)\)")
MENTION = re.compile(r"\b(docs/(?:[\w-]+/)*[\w-]+\.md|README\.md|CHANGELOG\.md|SECURITY\.md|CONTRIBUTING\.md)\b")
# docs/sweep.md, *One sweep at a time*, in code with quotes.
SECTION = re.compile(r"\b(docs/(?:[\w-]+/)*[\w-]+\.md), (?:\*([^*]+)\*|'([^']+)'|\"([^\"]+)\")")


def prose(path: Path) -> str:
    """Return a document without its code blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def headings(path: Path) -> list[str]:
    return [re.sub(r"[`*]", "", text).strip() for text in re.findall(r"^#{1,6} (.+)$", prose(path), re.MULTILINE)]


def anchors(path: Path) -> set[str]:
    """List the anchors that GitHub makes of a document's headings."""
    found: set[str] = set()
    for heading in headings(path):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (name := f"{anchor}-{number}" if number else anchor) in found:
            number += 1
        found.add(name)
    return found


def label(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=label)
def test_every_link_resolves(document: Path) -> None:
    lost = []
    for target in LINK.findall(prose(document)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name) if name else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            lost.append(target)
    assert lost == []


def test_every_document_that_is_named_is_there() -> None:
    named = {
        (label(path), name)
        for path in (*DOCUMENTS, *TEXTS)
        for name in MENTION.findall(path.read_text(encoding="utf-8"))
    }
    assert ("README.md", "docs/safety.md") in named
    assert [(where, name) for where, name in sorted(named) if not (CHECKOUT / name).is_file()] == []


def test_every_section_that_is_named_is_there() -> None:
    named = {
        (label(path), found[0], " ".join("".join(found[1:]).split()))
        for path in (*DOCUMENTS, *TEXTS)
        for found in SECTION.findall(path.read_text(encoding="utf-8"))
    }
    assert named
    assert [one for one in sorted(named) if one[2] not in headings(CHECKOUT / one[1])] == []


def test_every_test_and_module_that_is_named_is_there() -> None:
    """docs/safety.md names a test for each rule, by its file or its function."""
    sources = [path.read_text(encoding="utf-8") for path in (CHECKOUT / "tests").rglob("*.py")]
    tests = {path.stem for path in (CHECKOUT / "tests").rglob("test_*.py")}
    tests |= {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}
    roots = (CHECKOUT, CHECKOUT / "src", CHECKOUT / "src" / "bookwarden")
    lost = []
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        lost += [(label(document), name) for name in re.findall(r"\btest_\w+", text) if name not in tests]
        modules = re.findall(r"(?<![/\w])\w+(?:/\w+)+\.py\b", text)
        lost += [(label(document), name) for name in modules if not any((root / name).is_file() for root in roots)]
    assert lost == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=label)
def test_a_line_fits_a_screen_and_a_table_row_is_whole(document: Path) -> None:
    lines = list(enumerate(document.read_text(encoding="utf-8").splitlines(), 1))
    wide = [number for number, line in lines if len(line) > LONGEST_LINE and not line.startswith("|")]
    cut = [
        number for (number, line), (_, below) in pairwise(lines) if re.match(r"\|\s+\|", line) and "---" not in below
    ]
    assert (wide, cut) == ([], [])
