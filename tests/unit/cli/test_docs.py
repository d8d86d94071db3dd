"""`bookwarden docs`: where the documents are, and each page by the names that messages and people use."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

import bookwarden
from bookwarden.cli import docs
from bookwarden.cli.main import cli

CHECKOUT = Path(__file__).parents[3]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments], prog_name="bookwarden")


def test_it_tells_where_documents_and_settings_are_and_lists_every_page() -> None:
    done = run("-o", "json", "docs")
    found = json.loads(done.stdout)
    assert (found["docs"], found["conf"]) == (str(CHECKOUT / "docs"), str(CHECKOUT / "conf"))
    pages = {page["path"]: page["name"] for page in found["pages"]}
    written = {*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md"), CHECKOUT / "conf" / "bookwarden.yaml"}
    assert set(pages) == {str(path) for path in written}
    assert len(set(pages.values())) == len(pages)
    assert all(page["title"] for page in found["pages"])
    text = run("docs").stdout
    assert f"{CHECKOUT / 'docs'}\n" in text
    assert "undo  " in text


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("undo", "docs/undo.md"),
        ("docs/undo.md", "docs/undo.md"),
        ("undo.md", "docs/undo.md"),
        ("howto/move-metadata", "docs/howto/move-metadata.md"),
        ("move-metadata", "docs/howto/move-metadata.md"),
        ("conf/bookwarden.yaml", "conf/bookwarden.yaml"),
        ("bookwarden.yaml", "conf/bookwarden.yaml"),
        ("README", "README.md"),
        ("docs/README.md", "docs/README.md"),
    ],
)
def test_a_page_is_found_by_its_name_and_by_the_path_that_messages_have(name: str, path: str) -> None:
    text = (CHECKOUT / path).read_text(encoding="utf-8")
    assert run("docs", name).stdout == text
    assert json.loads(run("-o", "json", "docs", name).stdout) == {"path": str(CHECKOUT / path), "text": text}


@pytest.mark.parametrize(
    ("name", "near"), [("undoo", "undo"), ("bookie-cluster", "bookie-clusters"), ("rehearse", "metadata-migration-reh")]
)
def test_of_an_unknown_page_the_nearest_are_named(name: str, near: str) -> None:
    done = run("docs", name)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"there is no page '{name}': the nearest: " in done.stderr
    assert near in done.stderr
    assert json.loads(run("-o", "json", "docs", name).stderr)["exit_code"] == 2


def test_names_are_completed() -> None:
    complete = ShellComplete(cli, {}, "bookwarden", "_BOOKWARDEN_COMPLETE")
    found = {item.value for item in complete.get_completions(["docs"], "u")}
    assert found == {"undo"}


def test_a_page_goes_through_the_pager_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    paged: list[str] = []
    monkeypatch.setattr(click, "echo_via_pager", paged.append)
    run("docs", "undo")
    assert paged == []

    class Terminal:
        @staticmethod
        def isatty() -> bool:
            return True

    class System:
        stdout = Terminal

    monkeypatch.setattr(docs, "sys", System)
    run("docs", "undo")
    assert paged == [(CHECKOUT / "docs" / "undo.md").read_text(encoding="utf-8")]


def test_of_a_wheel_they_are_below_the_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lib" / "site-packages" / "bookwarden" / "__init__.py"
    monkeypatch.setattr(bookwarden, "__file__", str(package))
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: type("Files", (), {"files": None}))
    monkeypatch.setattr(docs.sys, "prefix", str(tmp_path / "prefix"))
    done = run("docs", "undo")
    assert (done.exit_code, done.stdout) == (4, "")
    assert "install the wheel again" in done.stderr
    page = tmp_path / "prefix" / "share" / "bookwarden" / "docs" / "cli.md"
    page.parent.mkdir(parents=True)
    page.write_text("# The command line\n", encoding="utf-8")
    assert run("docs", "cli").stdout == "# The command line\n"


def test_help_and_errors_lead_there() -> None:
    assert "bookwarden docs  " in run("--help").stdout
    assert "`bookwarden docs conf/bookwarden.yaml` has them all" in run("--set", "nonsense.x=1", "inflight").stderr
