"""Options of the commands below `metadata-migration`."""

from __future__ import annotations

import click

from bookwarden.cli.shell.invocation import max_reads_option

source_option = click.option("--source", metavar="URL", help="The store that is moved. Default: metadata_store.urls.")
reads_option = max_reads_option("from the source in a second. Default: no limit but that of the settings.")
