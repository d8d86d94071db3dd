"""Output of a ledger's entries: payloads are bytes, and are not converted."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO, Final

from bookwarden.clusters.bookkeeper.bookies.digests import Entry

_ROW: Final = 16


def write_entries(entries: Iterable[Entry], form: str, output: BinaryIO) -> int:
    """Write each entry in a form of ENTRY_FORMS as it arrives; return their number."""
    render, count = ENTRY_FORMS[form], 0
    for entry in entries:
        output.write(render(entry))
        count += 1
    output.flush()
    return count


def _hex(entry: Entry) -> bytes:
    head = (
        f"entry {entry.entry_id}, {len(entry.payload):,} bytes, last add confirmed {entry.last_add_confirmed}, "
        f"length of the ledger so far {entry.length:,}"
    )
    return "".join(f"{line}\n" for line in (head, *_dump(entry.payload))).encode("ascii")


def _dump(payload: bytes) -> Iterator[str]:
    for start in range(0, len(payload), _ROW):
        row = payload[start : start + _ROW]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        yield f"{start:08x}  {row.hex(' '):<{3 * _ROW}} |{text}|"


def _raw(entry: Entry) -> bytes:
    return entry.payload


def _json(entry: Entry) -> bytes:
    fields = {
        "ledger_id": entry.ledger_id,
        "entry_id": entry.entry_id,
        "last_add_confirmed": entry.last_add_confirmed,
        "length": entry.length,
        "payload_base64": base64.b64encode(entry.payload).decode("ascii"),
    }
    return json.dumps(fields).encode("ascii") + b"\n"


ENTRY_FORMS: Final[Mapping[str, Callable[[Entry], bytes]]] = {"hex": _hex, "raw": _raw, "json": _json}
