"""Output of commands that compare metadata stores: their differences, and the exit code where there are some."""

from __future__ import annotations

from typing import Final

from bookwarden.cli.shell.output import moment
from bookwarden.migration.comparison import Difference

# Above the exit codes of errors, and those of scans.
DIFFERENCES_FOUND: Final = 22


def describe_difference(one: Difference) -> str:
    """Describe in a few words how a node differs."""
    source, target = one.source, one.target
    if source is None or target is None:
        side = source or target
        return f"{side.size:,} bytes, written {moment(side.modified_ms)}" if side else ""
    if one.first_byte is not None:
        return f"{source.size:,} and {target.size:,} bytes, differ from byte {one.first_byte:,}"
    return (
        f"version {source.version} and {target.version}, "
        f"written again {source.modifications:,} and {target.modifications:,} times"
    )
