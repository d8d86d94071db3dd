"""Options and arguments of the commands below `cluster-migration`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from bookwarden.cluster_migration.green_resources import LatePolicy
from bookwarden.cluster_migration.readiness.findings import Override
from bookwarden.cluster_migration.scope import checked_namespace
from bookwarden.errors import NotFoundError
from bookwarden.wiring.cluster_migration import ClusterMigration


def _checked(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> list[str]:
    return [checked_namespace(name) for name in dict.fromkeys(names)]


namespaces_argument: Callable[[Any], Any] = click.argument(
    "namespaces", nargs=-1, metavar="[NAMESPACE]...", callback=_checked
)
required_namespaces_argument: Callable[[Any], Any] = click.argument(
    "namespaces", nargs=-1, required=True, metavar="NAMESPACE...", callback=_checked
)


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


def _policy(_: click.Context, __: click.Parameter, name: str) -> LatePolicy:
    return LatePolicy(name)


late_option: Callable[[Any], Any] = click.option(
    "--late-subscriptions",
    "late_policy",
    type=click.Choice([one.value for one in LatePolicy]),
    default=LatePolicy.REPORT.value,
    show_default=True,
    callback=_policy,
    help="A subscription that its clients made on green first, at the latest message: report it, or reset it to the "
    "earliest, which gives them messages twice.",
)


def named_or_begun(migration: ClusterMigration, namespaces: Sequence[str]) -> list[str]:
    """Return the namespaces given, or all that are flagged or recorded as begun; NotFoundError if there are none."""
    if namespaces:
        return list(namespaces)
    found = sorted({*migration.observer.flagged_namespaces(), *migration.record.begun()})
    if not found:
        raise NotFoundError("no namespace of blue is being migrated: `cluster-migration start` begins one")
    return found
