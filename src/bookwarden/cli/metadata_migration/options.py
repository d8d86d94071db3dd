"""Options and exit codes of the commands below `metadata-migration`."""

from __future__ import annotations

from typing import Final

import click

from bookwarden.cli.shell.invocation import max_reads_option

# Above the exit codes of errors, and those of scans.
DIFFERENCES_FOUND: Final = 22
WOULD_FAIL: Final = 23
MIGRATION_FAILED: Final = 24
UNDER_WAY: Final = 25
COUNTERS_BEHIND: Final = 26

source_option = click.option("--source", metavar="URL", help="The store that is moved. Default: metadata_store.urls.")
reads_option = max_reads_option("from the source in a second. Default: no limit but that of the settings.")
