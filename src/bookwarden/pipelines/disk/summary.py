"""The last account of all ledgers of the live cluster, kept in the folder of the settings for the page of `serve`.

summary.json    the fields of DiskSummary, whole or absent
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bookwarden.errors import FormatError
from bookwarden.ledgers.disk_growth import DayUse, Forecast, Growth
from bookwarden.ledgers.disk_use import BookieUse, DiskUse, Use
from bookwarden.pipelines.folders import Folder
from bookwarden.records import record_fields, record_of

SUMMARY: Final = "summary.json"
#: The page is of the large ones.
MOST_TENANTS: Final = 1_000
MOST_NAMESPACES: Final = 2_000
MOST_TOPICS: Final = 500
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class DiskSummary:
    """An account of the disks of bookies by tenant, namespace, topic and bookie; the largest first."""

    measured_ms: int  #: When the ledgers were listed, in ms since the epoch.
    total: Use  #: Of all together.
    tenants: tuple[Use, ...]  #: MOST_TENANTS at most.
    tenants_left_out: int  #: How many further ones there are.
    namespaces: tuple[Use, ...]  #: MOST_NAMESPACES at most.
    namespaces_left_out: int  #: Likewise.
    topics: tuple[Use, ...]  #: MOST_TOPICS at most, by the names of their managed ledgers.
    topics_left_out: int  #: Likewise.
    bookies: tuple[BookieUse, ...]  #: By id.
    days: tuple[DayUse, ...] = ()  #: Of all together, by day.
    growth: Growth | None = None  #: As in a DiskUse.
    forecast: Forecast | None = None  #: As in a DiskUse.

    def fields(self) -> dict[str, Any]:
        """Return the account as values of JSON, each with its name."""
        found = record_fields(self)
        for name, value in found.items():
            mine = getattr(self, name)
            if isinstance(value, list) and isinstance(mine, tuple):
                named = hasattr(mine, "_fields")
                found[name] = _named(mine, value) if named else list(map(_named, mine, value))
        return found


def summary_of(found: DiskUse, by: Callable[[str], Sequence[Use]], days: Sequence[DayUse]) -> DiskSummary:
    """Make the summary of an account; ``by`` returns all uses by a tenant, namespace or topic."""
    tenants, namespaces, topics = (_largest(by(name)) for name in ("tenant", "namespace", "topic"))
    return DiskSummary(
        measured_ms=found.measured_ms,
        total=found.total,
        tenants=tenants[:MOST_TENANTS],
        tenants_left_out=max(0, len(tenants) - MOST_TENANTS),
        namespaces=namespaces[:MOST_NAMESPACES],
        namespaces_left_out=max(0, len(namespaces) - MOST_NAMESPACES),
        topics=topics[:MOST_TOPICS],
        topics_left_out=max(0, len(topics) - MOST_TOPICS),
        bookies=found.bookies,
        days=tuple(sorted(one for one in days if not one.tenant)),
        growth=found.growth,
        forecast=found.forecast,
    )


def write_summary(folder: Folder, summary: DiskSummary) -> None:
    """Put the summary in place of the former one."""
    folder.write_json(SUMMARY, {"format": _FORMAT, **summary.fields()})


def read_summary(folder: Folder) -> DiskSummary | None:
    """Read the summary; None where there is none yet, FormatError where it is damaged, OSError of the file system."""
    try:
        fields = folder.read_json(SUMMARY)
    except FileNotFoundError:
        return None
    where, instead = f"{folder.location}/{SUMMARY}", "measure again with `bookwarden disk`"
    if not isinstance(fields, dict) or fields.pop("format", None) != _FORMAT:
        raise FormatError(f"{where} is no summary of this version: {instead}")
    try:
        return record_of(DiskSummary, fields)
    except FormatError as error:
        raise FormatError(f"{where} is damaged ({error}): {instead}") from error


def _named(record: Any, values: Sequence[object]) -> dict[str, object]:
    """Return the values of a named tuple, as they are in JSON, by the names of its fields."""
    return dict(zip(record._fields, values, strict=True))


def _largest(uses: Sequence[Use]) -> tuple[Use, ...]:
    return tuple(sorted(uses, key=lambda one: (-one.disk_bytes, -one.offloaded_bytes, one.name)))
