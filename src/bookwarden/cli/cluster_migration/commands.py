"""`bookwarden cluster-migration`: clients moved from one cluster to another, blue to green, and no message lost."""

from __future__ import annotations

import click

from bookwarden.cli.cluster_migration.abort import abort, reopen
from bookwarden.cli.cluster_migration.finish import finish, verify
from bookwarden.cli.cluster_migration.prepare import preflight, prepare
from bookwarden.cli.cluster_migration.start import start
from bookwarden.cli.cluster_migration.watch import release, watch


@click.group("cluster-migration")
def cluster_migration() -> None:
    """Move clients to another cluster (PIP-188).

    Brokers redirect the clients of a namespace from blue, the cluster in use, to green, another one; by themselves they
    lose messages while they do. These commands check what would be lost, prepare green, begin, follow and prove.
    """


for _command in (preflight, prepare, start, watch, verify, release, abort, reopen, finish):
    cluster_migration.add_command(_command)
