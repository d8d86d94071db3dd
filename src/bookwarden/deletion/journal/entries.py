"""The journal: records of ledgers, durable before they are deleted, and of those put back.

One record a line: a JSON object, a tab, and the CRC-32 of the JSON in eight hexadecimal digits. A line whose
checksum does not fit, such as the last one of a file that was cut off, is no record. Times are in milliseconds.
A record's ``kind`` says which it is:

- ``header``, the first of each file: JournalHeader;
- none, a ledger that is about to be deleted: JournalEntry, with ``raw`` in base64;
- ``undo``, a step of an undo: UndoRecord;
- ``copy``, an offloaded copy that is about to be deleted: CopyEntry.
"""

from __future__ import annotations

import base64
import enum
import json
import zlib
from binascii import b2a_base64
from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from typing import Any, Protocol

_render = json.JSONEncoder(separators=(",", ":")).encode
_quoted = encode_basestring_ascii

FORMAT = 1
_HEADER = "header"
_UNDO = "undo"
_COPY = "copy"


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """The writer of a file; ``run`` is that of its first record, later records may have others."""

    format: int
    run: str
    host: str
    pid: int
    opened_at: int

    def encode(self) -> bytes:
        """Render the header as one line."""
        return _line(_render({"kind": _HEADER, **_fields(self)}))


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One ledger's metadata as it was right before its delete."""

    ledger_id: int  #: Of the ledger about to be deleted.
    holder: str  #: Text of the holder in the mark.
    path: str  #: The node of its metadata.
    version: int  #: The version of that node.
    created_ms: int  #: By the store's clock, in ms since the epoch.
    raw: bytes  #: The node's value.
    run: str  #: As ``<query>/<batch>``.
    journaled_at: int  #: In ms since the epoch.
    bookie_cluster: str = ""  #: That it is deleted in; empty, and not written, where none is registered.
    #: INSTANCEID of the BookKeeper that it is deleted from; empty, and not written, where that has none. Unknown for
    #: records of 0.1.0.
    instance: str = ""

    def encode(self) -> bytes:
        """Render the entry as one line."""
        # Fast path of _render, must equal it: tests/unit/deletion/test_journal.py
        raw = b2a_base64(self.raw, newline=False).decode()
        return _line(
            f'{{"ledger_id":{self.ledger_id},"holder":{_quoted(self.holder)},"path":{_quoted(self.path)},'
            f'"version":{self.version},"created_ms":{self.created_ms},"raw":"{raw}","run":{_quoted(self.run)},'
            f'"journaled_at":{self.journaled_at}{self._cluster_fields}}}'
        )

    @property
    def _cluster_fields(self) -> str:
        cluster = f',"bookie_cluster":{_quoted(self.bookie_cluster)}' if self.bookie_cluster else ""
        return f'{cluster},"instance":{_quoted(self.instance)}' if self.instance else cluster

    @classmethod
    def decode(cls, line: bytes) -> JournalEntry | None:
        """Parse a line; None when it is cut off, damaged or another record."""
        record = decode_record(line)
        return record if isinstance(record, cls) else None


class UndoStep(enum.Enum):
    """A step in the undo of one ledger; BEGUN is written before its metadata is put back."""

    BEGUN = "begun"
    RESTORED = "restored"
    UNVERIFIED = "unverified"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class UndoRecord:
    """A step of putting a ledger's metadata back."""

    ledger_id: int  #: Of the deleted ledger.
    run: str  #: The one that deleted it.
    undo: str  #: The name of the undo.
    step: UndoStep  #: The one that was done, or begun.
    journaled_at: int  #: In ms since the epoch.
    bookie_cluster: str = ""  #: That of the entry; empty, and not written, where that has none.

    def encode(self) -> bytes:
        """Render the record as one line."""
        fields = {"kind": _UNDO, **_fields(self), "step": self.step.value}
        if not self.bookie_cluster:
            del fields["bookie_cluster"]
        return _line(_render(fields))


@dataclass(frozen=True, slots=True)
class CopyEntry:
    """An offloaded copy right before its delete; it cannot be put back."""

    ledger_id: int  #: The ledger that was offloaded.
    holder: str  #: Text of the holder in the mark.
    uuid: str  #: The copy's own.
    location: str  #: The place in its store, for people.
    run: str  #: As ``<query>/<batch>``.
    journaled_at: int  #: In ms since the epoch.

    def encode(self) -> bytes:
        """Render the entry as one line."""
        return _line(_render({"kind": _COPY, **_fields(self)}))


JournalRecord = JournalEntry | UndoRecord | CopyEntry


class Journal(Protocol):
    """The record that undo needs, durable when `append` returns."""

    def append(self, records: Sequence[JournalRecord]) -> None:
        """Write the records and wait until they are durable; raises StoreUnavailableError when they are not."""


def decode_record(line: bytes) -> JournalHeader | JournalRecord | None:
    """Parse a line; None when it is cut off, damaged, or of a kind that this version does not know."""
    body, tab, checksum = line.rstrip(b"\n").rpartition(b"\t")
    if not tab or not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(body):
        return None
    try:
        return _record(json.loads(body))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _record(fields: dict[str, Any]) -> JournalHeader | JournalRecord:
    kind = fields.pop("kind", None)
    if kind == _HEADER:
        return JournalHeader(**fields)
    if kind == _UNDO:
        return UndoRecord(**{**fields, "step": UndoStep(fields["step"])})
    if kind == _COPY:
        return CopyEntry(**fields)
    if kind is not None:
        raise ValueError(kind)
    return JournalEntry(**{**fields, "raw": base64.b64decode(fields["raw"])})


def _fields(record: JournalHeader | UndoRecord | CopyEntry) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def _line(text: str) -> bytes:
    body = text.encode()
    return b"%s\t%08x\n" % (body, zlib.crc32(body))
