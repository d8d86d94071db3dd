"""The commands about a move of Pulsar's metadata to another store."""

from __future__ import annotations

import click

from bookwarden.cli.metadata_migration.counters import counters
from bookwarden.cli.metadata_migration.rehearse import rehearse
from bookwarden.cli.metadata_migration.start import preflight, start
from bookwarden.cli.metadata_migration.verify import verify
from bookwarden.cli.metadata_migration.watch import status, watch


@click.group("metadata-migration")
def metadata_migration() -> None:
    """Prepare, follow and verify a move of metadata (PIP-454).

    What would let a move of Pulsar's metadata to another store fail, how long it will take, its start and its progress,
    and whether the other store has every node.
    """


for _command in (preflight, rehearse, start, status, watch, verify, counters):
    metadata_migration.add_command(_command)
