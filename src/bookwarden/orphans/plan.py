"""The plan: the orphans that a scan found, and the manifest without which it cannot be applied.

A plan is a folder with its candidates and its summary; the manifest is written last, and has the digest of each file.
Without a manifest that fits its files, there is no plan.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import ConfigDict

from bookwarden.errors import FormatError
from bookwarden.orphans.copy_plan import COPIES, StoreCopies
from bookwarden.orphans.documents import decode_document, encode_document

# Plans of format 1 were made by scans that took ledgers inside their topics' lists for orphans.
FORMAT = 2
_DOCUMENT = "plan of an orphan scan"
_INSTEAD = "nothing of this plan can be applied, make another one with `bookwarden orphans scan`"
# Ids are names of folders.
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_FILE = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")


class Candidate(NamedTuple):
    """An orphan of a plan; what is not explained here is as in ListedLedger."""

    ledger_id: int  #: Candidates are in this order.
    kind: str  #: The name of a LedgerComponent.
    holder: str  #: Text of the holder that its custom metadata names.
    cause: str  #: The value of a Cause.
    path: str  #: The node of its metadata.
    version: int  #: The version of that node.
    created_ms: int  #: By the store's clock, in ms since the epoch.
    ctime_ms: int | None  #: By its creator's clock, in ms since the epoch; None where the metadata has none.
    length: int  #: In bytes.
    state: str | None  #: The name of a LedgerState.
    first_seen_ms: int  #: Creation of the first plan in the unbroken series with this orphan, in ms since the epoch.

    @property
    def order(self) -> int:
        """Its place in the plan: candidates are by growing ledger id."""
        return self.ledger_id


@dataclass(frozen=True, slots=True)
class ScannedCluster:
    """The BookKeeper that was scanned, by its INSTANCEID and place, and the URLs of all metadata roots in the settings.

    It is more than the identity of a cluster (`ledgers.cluster_identity`): a plan is of exactly what was read, and is
    made again where that is read elsewhere. A scan of a snapshot has the URLs of the live roots, in which its plan is
    to be applied.
    """

    instance_id: str
    bookkeeper_url: str
    ledgers_root: str
    roots: tuple[str, ...]

    @classmethod
    def of(cls, instance_id: str, bookkeeper_url: str, ledgers_root: str, roots: Iterable[str]) -> ScannedCluster:
        """Make it; the order of the roots does not matter, and a root named twice counts once."""
        return cls(instance_id.strip(), bookkeeper_url, ledgers_root, tuple(sorted(set(roots))))


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """The totals of a scan."""

    ledgers: int  #: All in BookKeeper.
    logical_bytes: int  #: Of all ledgers.
    references: int  #: Places that name a ledger.
    candidates: int  #: Ledgers of the plan.
    candidate_bytes: int  #: Logical bytes of the candidates.
    missing: int = 0  #: Ledgers that are named and that BookKeeper does not have.
    doubts: int = 0  #: Places that could not be read.


@dataclass(frozen=True, slots=True)
class EmptiedScope:
    """A topic or namespace that exists and would be left without a ledger; ``candidates`` counts those planned.

    ``name`` is that of a managed ledger or of a namespace, ``scope`` says which.
    """

    scope: str
    name: str
    candidates: int


@dataclass(frozen=True, slots=True)
class FileDigest:
    """A file of the plan: the SHA-256 of its bytes, in hexadecimal, and its rows (0 for one that has none)."""

    name: str
    sha256: str
    rows: int


@dataclass(frozen=True, slots=True)
class PlanManifest:
    """The scan, cluster, figures and files of a plan."""

    # For the values in it too.
    __pydantic_config__ = ConfigDict(extra="forbid")

    plan_id: str  #: Also the name of its folder; ids sort by time.
    scan_id: str  #: The scan that made it.
    tool_version: str  #: Bookwarden's version when the plan was made.
    begun_ms: int  #: Start of the listing of ledgers, or the latest time in the snapshot, in ms since the epoch.
    created_ms: int  #: When the plan was made, in ms since the epoch.
    cutoff_ms: int  #: Every candidate was created at this time or before, in ms since the epoch.
    cluster: ScannedCluster  #: It can be applied to this cluster only.
    counts: PlanCounts  #: The figures that guards check.
    candidates: tuple[FileDigest, ...]  #: Files of candidates, by growing ledger id through all of them.
    files: tuple[FileDigest, ...] = ()  #: All other files.
    emptied: tuple[EmptiedScope, ...] = ()  #: Refused unless ``allow_emptied`` names them.
    #: For each store that was listed; the copies of the plan are in the file COPIES.
    copies: tuple[StoreCopies, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)  #: Digests of what was read, by stage of the scan.
    #: The section ``orphans`` that the scan ran with.
    settings: Mapping[str, str | int | float | bool | list[str] | None] = field(default_factory=dict)

    @property
    def copy_candidates(self) -> int:
        """How many offloaded copies the plan has."""
        return sum(store.candidates for store in self.copies)

    def encode(self) -> bytes:
        """Render the manifest as JSON with a checksum over itself."""
        return encode_document(self, _DOCUMENT, FORMAT)

    @classmethod
    def decode(cls, data: bytes) -> PlanManifest:
        """Parse a manifest; FormatError if anything in it is unknown, missing or altered."""
        manifest = decode_document(data, cls, _DOCUMENT, FORMAT, _INSTEAD)
        check_id(manifest.plan_id)
        for file in (*manifest.candidates, *manifest.files):
            if not _FILE.fullmatch(file.name):
                raise FormatError(f"plan {manifest.plan_id} cannot have a file {file.name!r}: {_INSTEAD}")
        rows = sum(file.rows for file in manifest.candidates)
        if rows != manifest.counts.candidates:
            raise FormatError(
                f"plan {manifest.plan_id} counts {manifest.counts.candidates:,} candidates, and its files {rows:,}: "
                + _INSTEAD
            )
        copies = sum(file.rows for file in manifest.files if file.name == COPIES)
        if copies != manifest.copy_candidates:
            raise FormatError(
                f"plan {manifest.plan_id} counts {manifest.copy_candidates:,} offloaded copies, and its files "
                f"{copies:,}: {_INSTEAD}"
            )
        return manifest


def new_id(now_ms: int) -> str:
    """Make the id of a scan or plan: ids sort by time, and no two are equal."""
    return time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime(now_ms / 1000)) + secrets.token_hex(4)


def check_id(plan_id: str) -> str:
    """Return the id; FormatError for one that cannot be the name of a folder."""
    if not _ID.fullmatch(plan_id):
        raise FormatError(f"{plan_id!r} cannot be the id of a plan: `bookwarden orphans list` shows them")
    return plan_id
