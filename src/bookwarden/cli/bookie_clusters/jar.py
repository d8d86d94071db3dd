"""`bookwarden bookie-clusters jar`: the jar for brokers, and the lines that make a broker use it."""

from __future__ import annotations

from pathlib import Path

import click

from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.cli.shell.output import Document, Facts, Note, Part
from bookwarden.errors import ConfigError
from bookwarden.switching.broker_jar import PACKAGED, broker_lines, write_jar
from bookwarden.wiring.switching import bookkeeper_authority

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
@output_option
@pass_invocation
def jar(invocation: Invocation, target: Path) -> None:
    """Write the jar for brokers to a file.

    Shows the lines that broker.conf and the environment of bin/pulsar need then, for the metadata store in the
    settings. Ends with 4 where this installation has no jar.
    """
    store = invocation.settings.metadata_store
    lines = broker_lines(store.urls[0], bookkeeper_authority(store))
    try:
        size = write_jar(target, PACKAGED)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error}") from error
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
