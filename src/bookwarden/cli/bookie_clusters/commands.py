"""The commands about the bookie clusters of a Pulsar cluster, between which it is switched while brokers run."""

from __future__ import annotations

import click

from bookwarden.cli.bookie_clusters.build import build
from bookwarden.cli.bookie_clusters.cleanup import cleanup, list_cleanup_targets
from bookwarden.cli.bookie_clusters.drain import drain
from bookwarden.cli.bookie_clusters.listing import get_cluster, jar, list_clusters, superseded
from bookwarden.cli.bookie_clusters.move import move
from bookwarden.cli.bookie_clusters.promote import promote
from bookwarden.cli.bookie_clusters.register import register
from bookwarden.cli.bookie_clusters.repair import raise_ids, registry, set_uri, upgrade
from bookwarden.cli.bookie_clusters.status import status
from bookwarden.cli.bookie_clusters.switch import precheck, rollback, switch
from bookwarden.cli.bookie_clusters.unload import unload
from bookwarden.cli.bookie_clusters.unregister import deprecate, unregister
from bookwarden.switching.documents import SUPERSEDED

_EPILOG = """\b
Set-up, runbook and what each refusal means: docs/bookie-clusters.md."""


@click.group("bookie-clusters", epilog=_EPILOG)
def bookie_clusters() -> None:
    """Register bookie clusters, and switch between them.

    A Pulsar cluster whose brokers have bookwarden's jar can have several bookie clusters: new ledgers go to the active
    one, and all are read. A switch makes another one active while brokers run (PIP-470, PIP-477).
    """


for _command in (
    *(list_clusters, get_cluster, register, unregister, deprecate, upgrade, set_uri, registry, raise_ids, jar),
    *(precheck, switch, status, unload, rollback, build, promote, list_cleanup_targets, cleanup, drain, move),
):
    bookie_clusters.add_command(_command)
for _operation in SUPERSEDED:
    bookie_clusters.add_command(superseded(_operation))
