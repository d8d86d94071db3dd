"""The namespaces that a command is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from bookwarden.blue_green.scope import checked_namespace
from bookwarden.errors import NotFoundError
from bookwarden.wiring.blue_green import BlueGreenContext

namespaces_argument: Callable[[Any], Any] = click.argument("namespaces", nargs=-1, metavar="[NAMESPACE]...")
required_namespaces_argument: Callable[[Any], Any] = click.argument(
    "namespaces", nargs=-1, required=True, metavar="NAMESPACE..."
)


def named_or_begun(context: BlueGreenContext, namespaces: Sequence[str]) -> list[str]:
    """Return the namespaces given, or all that are flagged or recorded as begun; NotFoundError if there are none."""
    if namespaces:
        return [checked_namespace(name) for name in dict.fromkeys(namespaces)]
    found = sorted({*context.observer.flagged_namespaces(), *context.record.begun()})
    if not found:
        raise NotFoundError("no namespace of blue is being migrated: `cluster-migration start` begins one")
    return found
