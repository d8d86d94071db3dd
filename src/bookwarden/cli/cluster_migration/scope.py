"""Options and arguments by which the commands below `cluster-migration` choose namespaces, and accept cases by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from bookwarden.blue_green.readiness.findings import Override

namespaces_argument: Callable[[Any], Any] = click.argument("namespaces", nargs=-1, metavar="[NAMESPACE]...")


def _overrides(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> frozenset[Override]:
    return frozenset(Override(name) for name in names)


accept_option: Callable[[Any], Any] = click.option(
    "--accept",
    "accepted",
    multiple=True,
    type=click.Choice([one.value for one in Override]),
    callback=_overrides,
    help="Accept a case that cannot be made safe; may be repeated. What each one means: docs/cluster-migration.md.",
)
