"""The confirmation before anything is destroyed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from bookwarden.errors import RefusedError

yes_option: Callable[[Any], Any] = click.option("--yes", is_flag=True, help="Do not ask.")


def confirm(question: str, *, yes: bool, look: str = "--dry-run") -> None:
    """Ask unless `yes`; raise RefusedError, which names how to ``look`` only, unless the answer is yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        instead = f", or {look} to look only" if look else ""
        raise RefusedError(f"{question} Nobody is there to answer: add --yes to do it{instead}")
    if not click.confirm(question, err=True):
        raise RefusedError("not confirmed: nothing was done")


def confirm_unproven(fact: str, *, accepted: bool, option: str, yes: bool) -> None:
    """Ask whether to go on though ``fact`` is not proven, unless it was ``accepted`` by the option.

    RefusedError, which names the option, where nobody is there to answer, or `yes` says not to ask.
    """
    if accepted:
        return
    if yes or not sys.stdin.isatty():
        raise RefusedError(f"{fact}: if you know that all is right, add {option}")
    if not click.confirm(f"{fact}. Do it nevertheless?", err=True):
        raise RefusedError("not confirmed: nothing was done")
