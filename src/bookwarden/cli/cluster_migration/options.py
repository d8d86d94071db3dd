"""Options, arguments and exit codes of the commands below `cluster-migration`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from bookwarden.cluster_migration.green_resources import LatePolicy
from bookwarden.cluster_migration.readiness.findings import Override
from bookwarden.cluster_migration.scope import checked_namespace
from bookwarden.errors import DeadlockedBrokerError, NotFoundError
from bookwarden.wiring.cluster_migration import ClusterMigration

# Above the exit codes of errors.
NOT_DONE: Final = 22  #: `verify`: something is not as it has to be.
WOULD_FAIL: Final = 23  #: A check blocks it, and nothing was begun.
FLAG_OFF: Final = 24  #: The flag was taken off.
UNDER_WAY: Final = 25  #: It goes on.
LEFT: Final = 27  #: Something did not succeed, and an operator has to look.
DEADLOCKED: Final = DeadlockedBrokerError.exit_code  #: A broker of blue has to be killed.
LATE: Final = 29  #: Subscriptions came too late to green, and may have lost messages; nothing else is wrong.


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
