"""The command that prepares a cluster for two-phase deletion."""

from __future__ import annotations

from dataclasses import replace

import click

from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Note, Part, Table
from bookwarden.clusters.pulsar.rest.deletion_topics import Provision, ProvisionReport
from bookwarden.errors import StoreError
from bookwarden.wiring.cluster import Cluster

_EPILOG = """\b
Examples:
  bookwarden init --dry-run    say what is missing
  bookwarden init              create it"""


@click.command(epilog=_EPILOG)
@click.option("--dry-run", is_flag=True, help="Only say what would be created.")
@pass_invocation
def init(invocation: Invocation, dry_run: bool) -> None:
    """Create and check the deletion topics.

    Makes the deletion topic, its retry topic, the DLQ, their subscriptions and their schema, and changes nothing
    that is there already. Writes a node that names the deletion topic to brokers that mark. Refuses to go on where a
    policy, such as a message TTL, could drop pending deletions.
    """
    with Cluster(invocation.settings) as cluster:
        topics = cluster.deletion_topics
        report = topics.setup(dry_run=dry_run).run()
        try:
            node = topics.publish(dry_run=dry_run)
            report = replace(report, provisions=(*report.provisions, node))
        except StoreError as error:
            text = f"brokers that mark cannot know the deletion topic, since its node was not written: {error}"
            report = replace(report, warnings=(*report.warnings, text))
        invocation.write(_describe(report))


def _what_and_where(found: Provision) -> tuple[str, str]:
    if found.kind in ("subscription", "schema"):
        return found.kind, found.topic.removeprefix("persistent://")
    what = f"{found.kind}, {found.detail}" if found.detail else found.kind
    return what, found.name.removeprefix("persistent://")


def _describe(report: ProvisionReport) -> Document:
    columns = (Column("state"), Column("what"), Column("where", whole=False))
    parts: list[Part] = [Table(columns, tuple((found.state, *_what_and_where(found)) for found in report.provisions))]
    parts += [Note(f"Warning: {warning}.") for warning in report.warnings]
    if report.dry_run:
        parts.append(Note("Dry run: nothing was created."))
    return Document(report, tuple(parts))
