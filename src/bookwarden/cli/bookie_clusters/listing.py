"""`bookwarden bookie-clusters list`, `get` and `jar`, and the commands of PIP-470 that nothing is left to do for."""

from __future__ import annotations

from pathlib import Path

import click

from bookwarden.bookie_clusters.broker_jar import PACKAGED, SUPERSEDED, broker_lines, write_jar
from bookwarden.cli.bookie_clusters.output import describe_cluster, describe_registry
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Document, Facts, Note, Part
from bookwarden.clusters.bookkeeper.service_uris import authority_of
from bookwarden.errors import FileError
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.stores import bookkeeper_place_of


@click.command("list")
@pass_invocation
def list_clusters(invocation: Invocation) -> None:
    """List the registered bookie clusters.

    Shows which of them is ACTIVE, and the newest order to switch. Changes nothing.
    """
    with Cluster(invocation.settings) as cluster:
        found = cluster.registry.read()
        invocation.write(describe_registry(cluster, None if found is None else found.registry))


@click.command("get")
@click.argument("name")
@pass_invocation
def get_cluster(invocation: Invocation, name: str) -> None:
    """Show one bookie cluster.

    Ends with 4 if none is registered by this name. Changes nothing.
    """
    with Cluster(invocation.settings) as cluster:
        invocation.write(describe_cluster(cluster.registry.require_cluster(name), name))


_EPILOG = """\b
Which broker needs it, and in what order: docs/bookie-clusters.md."""


@click.command(epilog=_EPILOG)
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to write it; in a broker it goes into lib.",
)
@pass_invocation
def jar(invocation: Invocation, target: Path) -> None:
    """Write the jar for brokers to a file.

    Shows the lines that broker.conf and the environment of bin/pulsar need then, for the metadata store in the
    settings. Ends with 4 where this installation has no jar.
    """
    store = invocation.settings.metadata_store
    lines = broker_lines(store.urls[0], authority_of(bookkeeper_place_of(store)))
    try:
        size = write_jar(target, PACKAGED)
    except OSError as error:
        raise FileError(f"{target} cannot be written: {error.strerror}") from error
    data = {
        "jar": target,
        "bytes": size,
        "broker.conf": list(lines.broker_conf),
        "environment": lines.environment,
    }
    parts: list[Part] = [
        Facts((("jar", str(target)), ("bytes", f"{size:,}"))),
        Note("broker.conf, each in the place of the line with this name:"),
        *(Note(f"    {line}") for line in lines.broker_conf),
        Note("The environment of bin/pulsar, as in conf/pulsar_env.sh:"),
        Note(f"    {lines.environment}"),
        Note("Put the jar into lib of each broker. Without a registered bookie cluster no broker starts with it."),
    ]
    invocation.write(Document(data, tuple(parts)))


def superseded(operation: str) -> click.Command:
    """Make the command that says what takes the place of this operation, whatever it is given."""

    @click.command(
        operation,
        short_help="Change nothing; say what takes its place.",
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("_given", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENT]...")
    @pass_invocation
    def say(invocation: Invocation, _given: tuple[str, ...]) -> None:
        invocation.write(Document({"changed": False, "instead": SUPERSEDED[operation]}, (Note(SUPERSEDED[operation]),)))

    say.help = f"Change nothing.\n\n{SUPERSEDED[operation]}."
    return say


set_read_mode, close_client = map(superseded, SUPERSEDED)
