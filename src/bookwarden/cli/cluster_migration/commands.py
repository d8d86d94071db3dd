"""`bookwarden cluster-migration`: clients moved from one cluster to another, blue to green, and no message lost."""

from __future__ import annotations

import click

from bookwarden.cli.cluster_migration.preflight import preflight
from bookwarden.cli.cluster_migration.prepare import prepare


@click.group("cluster-migration")
def cluster_migration() -> None:
    """Move clients to another cluster (PIP-188).

    Brokers redirect the clients of a namespace from blue, the cluster in use, to green, another one; by themselves they
    lose messages while they do. These commands check what would be lost, prepare green, begin, follow and prove.
    """


_COMMANDS: tuple[click.Command, ...] = (preflight, prepare)
for _command in _COMMANDS:
    cluster_migration.add_command(_command)
