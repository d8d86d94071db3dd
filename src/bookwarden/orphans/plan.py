"""The plan: which ledgers a scan found to be orphans, and the manifest that makes it one that can be applied.

A plan is a folder with its candidates and its summary; the manifest is written last, and names the digest of each
file. Without a manifest, or with one that does not fit, there is no plan.
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
_STRICT = ConfigDict(extra="forbid")
# They are names of folders.
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_FILE = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")


class Candidate(NamedTuple):
    """An orphan of a plan, as ListedLedger tells of it.

    ``cause`` is the value of a Cause. ``first_seen_ms`` is when the first plan was made of the unbroken series of
    plans, up to this one, in which the ledger was an orphan. All times are in milliseconds since the epoch.
    """

    ledger_id: int
    kind: str
    holder: str
    cause: str
    path: str
    version: int
    created_ms: int
    ctime_ms: int | None
    length: int
    state: str | None
    first_seen_ms: int

    @property
    def order(self) -> int:
        """Its place in the plan: candidates are by growing ledger id."""
        return self.ledger_id


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """Which cluster was scanned: BookKeeper's INSTANCEID, and the URLs of all metadata roots as the settings name them.

    A scan of a snapshot has the URLs of the live roots, in which its plan is to be applied.
    """

    __pydantic_config__ = _STRICT

    instance_id: str
    bookkeeper_url: str
    ledgers_root: str
    roots: tuple[str, ...]

    @classmethod
    def of(cls, instance_id: str, bookkeeper_url: str, ledgers_root: str, roots: Iterable[str]) -> ClusterIdentity:
        """Make the identity; the order of the roots does not matter, nor does a root that is named twice."""
        return cls(instance_id.strip(), bookkeeper_url, ledgers_root, tuple(sorted(set(roots))))


@dataclass(frozen=True, slots=True)
class PlanCounts:
    """What was read and found: numbers of ledgers, references (places that name a ledger), and logical bytes."""

    __pydantic_config__ = _STRICT

    ledgers: int
    logical_bytes: int
    references: int
    candidates: int
    candidate_bytes: int
    missing: int = 0
    doubts: int = 0


@dataclass(frozen=True, slots=True)
class Emptied:
    """A topic or namespace that exists, and of whose ledgers none would be left; ``candidates`` counts those planned.

    ``name`` is that of a managed ledger or of a namespace, ``scope`` says which.
    """

    __pydantic_config__ = _STRICT

    scope: str
    name: str
    candidates: int


@dataclass(frozen=True, slots=True)
class FileDigest:
    """A file of the plan: the SHA-256 of its bytes, in hexadecimal, and its rows (0 for one that has none)."""

    __pydantic_config__ = _STRICT

    name: str
    sha256: str
    rows: int


@dataclass(frozen=True, slots=True)
class PlanManifest:
    """What a plan is about; times in milliseconds since the epoch.

    ``begun_ms`` is when the listing of the ledgers began; for a snapshot the latest time in it. ``created_ms`` is when
    the plan was made. Every candidate was created at ``cutoff_ms`` or before. ``inputs`` are the digests of what was
    read, by name. ``settings`` are those that the scan ran with. ``candidates`` are the files of candidates in order,
    by growing ledger id through all of them; ``files`` are the others. ``copies`` counts the offloaded copies of each
    store that was listed; those of the plan are in the file COPIES.
    """

    __pydantic_config__ = _STRICT

    plan_id: str
    scan_id: str
    tool_version: str
    begun_ms: int
    created_ms: int
    cutoff_ms: int
    cluster: ClusterIdentity
    counts: PlanCounts
    candidates: tuple[FileDigest, ...]
    files: tuple[FileDigest, ...] = ()
    emptied: tuple[Emptied, ...] = ()
    copies: tuple[StoreCopies, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
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
        """Read a manifest back; FormatError for one with anything unknown, missing or altered."""
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
        raise FormatError(f"{plan_id!r} cannot be the id of a plan: `bookwarden orphans plan list` names them")
    return plan_id
