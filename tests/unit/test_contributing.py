"""What contributors are told to run is there, and what runs before a commit is what `make lint` runs."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

CHECKOUT = Path(__file__).parents[2]
MAKEFILE = (CHECKOUT / "Makefile").read_text(encoding="utf-8")


def test_a_commit_is_held_to_lint_as_it_is() -> None:
    settings = yaml.safe_load((CHECKOUT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repository in settings["repos"] for hook in repository["hooks"]]
    assert {repository["repo"] for repository in settings["repos"]} == {"local"}
    assert [hook["entry"] for hook in hooks] == ["make lint"]
    # Without these, make would get the names of files as targets, or not run when only a document changed.
    assert all(hook["pass_filenames"] is False and hook["always_run"] for hook in hooks)


def test_every_target_and_test_that_contributors_are_told_of_is_there() -> None:
    text = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"`make ([a-z]+)|^    make ([a-z]+)", text, re.MULTILINE))
    named = {first or second for first, second in targets}
    assert {"unit", "lint", "test"} <= named
    assert [name for name in sorted(named) if not re.search(rf"^{name}:", MAKEFILE, re.MULTILINE)] == []
    paths = re.findall(r"\b(?:tests|src|conf)/[\w/.]*\w", text)
    assert paths
    assert [path for path in paths if not (CHECKOUT / path).exists()] == []
