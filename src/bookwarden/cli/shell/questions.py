"""The options that say whether a command acts, and the confirmation before anything is destroyed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from bookwarden.errors import RefusedError

yes_option: Callable[[Any], Any] = click.option("--yes", is_flag=True, help="Do not ask.")


class _ExecuteOption(click.Option):
    """`--execute`; the help leaves out the flags of 0.1.0, which are accepted for one more release."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return None if record is None else (self.opts[0], record[1])


def execute_option(text: str, *, former: str) -> Callable[[Any], Any]:
    """Add --execute to a command that plans without it; ``former`` are the flags that it replaces."""
    return click.option("--execute", "execute", former, cls=_ExecuteOption, is_flag=True, default=False, help=text)


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

    RefusedError, which names the option, where there is no terminal to ask on, or `yes` says not to ask.
    """
    if accepted:
        return
    if yes or not sys.stdin.isatty():
        raise RefusedError(f"{fact}: if you know that all is right, add {option}")
    if not click.confirm(f"{fact}. Do it nevertheless?", err=True):
        raise RefusedError("not confirmed: nothing was done")
