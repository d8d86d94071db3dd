"""The command that shows the documents of this installation."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.errors import NotFoundError
from bookwarden.installed_docs import find_home, find_pages

_EPILOG = """\b
Examples:
  bookwarden docs                        the folders, and every page
  bookwarden docs undo                   docs/undo.md
  bookwarden docs howto/move-metadata
  bookwarden docs conf/bookwarden.yaml   every setting, its default and unit"""


def _page_of(text: str, home: Path, pages: Mapping[str, Path]) -> Path:
    """Return the page of a path as messages name it, of a name, or of the last part of one."""
    paths = {path.relative_to(home).as_posix(): path for path in pages.values()}
    name = text.removesuffix(".md")
    path = paths.get(text) or paths.get(f"{text}.md") or pages.get(name)
    if path is not None:
        return path
    ends = [path for known, path in pages.items() if known.rpartition("/")[2] == name]
    if len(ends) == 1:
        return ends[0]
    near = _near(name, pages)
    hint = f"the nearest: {', '.join(near)}; " if near else ""
    raise click.UsageError(f"there is no page {text!r}: {hint}`bookwarden docs` lists all")


def _near(name: str, pages: Mapping[str, Path]) -> list[str]:
    last = name.lower().rpartition("/")[2]
    by_word = [known for known in pages if last and last in known.lower()]
    short = {known.lower().rpartition("/")[2]: known for known in pages}
    by_letters = [short[match] for match in difflib.get_close_matches(last, short, n=3, cutoff=0.5)]
    return list(dict.fromkeys([*by_letters, *by_word]))[:5]


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    try:
        pages = find_pages(find_home())
    except NotFoundError:
        return []
    return [name for name in pages if name.startswith(incomplete)]


@click.command(epilog=_EPILOG)
@click.argument("page", required=False, shell_complete=_complete)
@pass_invocation
def docs(invocation: Invocation, page: str | None) -> None:
    """Show a page of the documents, or where they are.

    Messages name pages by their paths, such as docs/undo.md or conf/bookwarden.yaml: both that and the short name are
    taken.
    """
    home = find_home()
    pages = find_pages(home)
    if page is None:
        _list(invocation, home, pages)
        return
    path = _page_of(page, home, pages)
    text = path.read_text(encoding="utf-8")
    if invocation.output == "json":
        from bookwarden.cli.shell.output import Document

        invocation.write(Document({"path": path, "text": text}, ()))
    elif sys.stdout.isatty():
        click.echo_via_pager(text)
    else:
        click.echo(text, nl=False)


def _list(invocation: Invocation, home: Path, pages: Mapping[str, Path]) -> None:
    from bookwarden.cli.shell.output import Column, Document, Facts, Note, Table

    titles = {name: _title(path) for name, path in pages.items()}
    folders = (("documents", str(home / "docs")), ("settings", str(home / "conf")))
    data = {
        "docs": home / "docs",
        "conf": home / "conf",
        "pages": [{"name": name, "path": path, "title": titles[name]} for name, path in pages.items()],
    }
    table = Table((Column("page"), Column("title", whole=False)), tuple(titles.items()))
    note = Note("Show one: bookwarden docs PAGE. By symptom or task: bookwarden docs docs/README.md.")
    invocation.write(Document(data, (Facts(folders), table, note)))


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next((line.strip("# \n").partition(". ")[0] for line in lines if line.startswith("# ")), "")
