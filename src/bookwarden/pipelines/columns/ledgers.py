"""The table of listed ledgers, made of the values of their nodes on whole columns.

At a million ledgers each microsecond a ledger is a second. What BookKeeper 4.9 and later write is read here, all of a
piece at once; whatever is in the least unusual goes through `listed_ledger`, so the table says the same as that would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from bookwarden.clusters.bookkeeper.listing import Meaning, PieceOfLedgers, listed_ledger, meaning_of
from bookwarden.ledgers.custom_metadata import expected_custom_metadata
from bookwarden.ledgers.disk_use import ENTRY_OVERHEAD, MOST_BYTES
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.pipelines.columns.messages import BYTES, NUMBER, Buffer, Fields, Flags, Numbers
from bookwarden.pipelines.columns.tables import LEDGERS

_VERSION_3: Final = b"BookieMetadataFormatVersion\t3\n"
# LedgerMetadataFormat of ledger_metadata.proto, and the segments in it.
_QUORUM, _ENSEMBLE, _LENGTH, _LAST_ENTRY, _STATE, _SEGMENT, _PASSWORD, _ACK_QUORUM = 1, 2, 3, 4, 5, 6, 8, 9
_CTIME, _CUSTOM = 10, 11
_KINDS: Final = {**dict.fromkeys(range(1, 11), NUMBER), **dict.fromkeys((_SEGMENT, _PASSWORD, _CUSTOM), BYTES)}
_MEMBER, _FIRST_ENTRY = 1, 2
_SEGMENT_KINDS: Final = {_MEMBER: BYTES, _FIRST_ENTRY: NUMBER}
_CLOSED: Final = LedgerState.CLOSED.value
_STATES: Final = pa.array([None, *(LedgerState(number).name for number in range(1, 4))], pa.string())
_INT32: Final = 2**31
_MOST_QUORUM: Final = 2**10
# A larger value is rare, and with its many fields it would keep all others waiting.
_MAX_BYTES: Final = 2048
_NOTHING: Final = Meaning(None, None, None)
_DATA: Final = ManagedLedgerHolder.component.name
# What the custom metadata of a topic's data ledgers says of them all, and what it says before the topic's name.
*_SAID, _NAMED = [
    bytes([0x0A, len(key), *key.encode(), 0x12, *([len(value), *value.encode()] if value else [])])
    for key, value in expected_custom_metadata(ManagedLedgerHolder("")).items()
]


class ListedTable(NamedTuple):
    """The table of a piece's ledgers; ``names``, ``digest`` and ``unparsable`` are those of PieceOfLedgers."""

    table: pa.Table
    names: int
    digest: str
    unparsable: Sequence[str]


class LedgerNodes(NamedTuple):
    """The nodes of ledgers, whose values are those of the buffer; ``created_ms`` is in milliseconds since the epoch."""

    ids: Sequence[int] | Numbers
    paths: Sequence[str] | pa.Array
    versions: Sequence[int] | Numbers
    created_ms: Sequence[int] | Numbers
    buffer: Buffer


def ledger_table(found: PieceOfLedgers) -> pa.Table:
    """Make the table with a row for each ledger, in their order."""
    if not found.nodes:
        return LEDGERS.arrow.empty_table()
    values, versions, created = list(zip(*found.nodes, strict=True))[:3]
    return table_of(LedgerNodes(found.ids, found.paths, versions, created, Buffer.of(values)))


# Fast path of listed_ledger, must equal it: tests/unit/clusters/test_listed_ledger.py
def table_of(nodes: LedgerNodes) -> pa.Table:
    """Make it of one ledger or more."""
    buffer = nodes.buffer
    columns = _columns(buffer)
    segments = (columns.segments_from.tolist(), columns.segments_to.tolist())
    texts = (columns.is_named.tolist(), columns.text_from.tolist(), columns.text_to.tolist())
    meanings = [
        (_DATA, buffer.raw[start:end].decode(), None) if named else meaning_of(buffer.raw[start:end])
        for named, start, end in zip(*texts, strict=True)
    ]
    kinds, holders, customs = zip(*[meaning or _NOTHING for meaning in meanings], strict=True)
    arrays = [
        pa.array(nodes.ids, pa.int64()),
        pa.array(nodes.paths, pa.string()),
        pa.array(nodes.versions, pa.int64()),
        pa.array(nodes.created_ms, pa.int64()),
        pa.array(columns.ctime_ms, mask=~columns.has_ctime),
        _STATES.take(pa.array(columns.state)),
        pa.array(columns.length),
        *(pa.array(column, pa.string()) for column in (kinds, holders, customs)),
        pa.nulls(len(meanings), pa.string()),
        pa.array(columns.entries),
        pa.array(columns.disk_bytes),
        pa.array([buffer.raw[start:end] for start, end in zip(*segments, strict=True)], pa.binary()),
    ]
    understood = np.array([meaning is not None for meaning in meanings])
    unusual = np.flatnonzero(~(columns.usual & understood))
    return _with_unusual(pa.Table.from_arrays(arrays, schema=LEDGERS.arrow), buffer, unusual)


def _with_unusual(table: pa.Table, buffer: Buffer, unusual: Numbers) -> pa.Table:
    """Put the rows of those ledgers into their places that are not to be read on columns."""
    if not len(unusual):
        return table
    known = table.select(["ledger_id", "path", "version", "created_ms"]).take(pa.array(unusual)).to_pylist()
    spans = zip(buffer.starts[unusual].tolist(), buffer.ends[unusual].tolist(), strict=True)
    rows = [
        listed_ledger(value=buffer.raw[start:end], **fields) for fields, (start, end) in zip(known, spans, strict=True)
    ]
    places = np.arange(len(table))
    places[unusual] = len(table) + np.arange(len(rows))
    return pa.concat_tables([table, LEDGERS.table(rows)]).take(pa.array(places)).combine_chunks()


class _Columns(NamedTuple):
    """Columns of the ledgers' values, meaningless where not ``usual``."""

    usual: Flags  #: Understood here; the others are read one by one.
    state: Numbers  #: As in DataFormats.proto.
    length: Numbers  #: In bytes.
    ctime_ms: Numbers  #: By the creator's clock, in ms since the epoch.
    has_ctime: Flags  #: Whether the value has a ``ctime_ms``.
    is_named: Flags  #: A topic's data ledger; only its name is kept.
    text_from: Numbers  #: Place in the buffer of the name, else of the first field of custom metadata.
    text_to: Numbers  #: End of the name, else of the last field; other fields may be between.
    entries: Numbers  #: Their number; 0 while it is open.
    disk_bytes: Numbers  #: As in a ListedLedger.
    segments_from: Numbers  #: Place in the buffer of the segments, as they are encoded.
    segments_to: Numbers  #: End of the segments.


def _columns(buffer: Buffer) -> _Columns:
    count = len(buffer.starts)
    bodies, whole = _bodies(buffer)
    fields, plain = buffer.fields(bodies, np.where(whole, buffer.ends, bodies), _KINDS)

    def last(number: int, default: int) -> Numbers:
        return fields.last(number, count, default)

    state, length, ensemble, quorum, ack_quorum = (
        last(_STATE, 0),
        last(_LENGTH, -1),
        last(_ENSEMBLE, 0),
        last(_QUORUM, 0),
        last(_ACK_QUORUM, -1),
    )
    possible = (state >= 1) & (state <= _CLOSED) & (length >= 0) & ((state != _CLOSED) | (last(_LAST_ENTRY, -2) >= -1))
    possible &= (ack_quorum >= 0) & (ack_quorum <= quorum) & (quorum <= ensemble) & (quorum > 0) & (ensemble < _INT32)
    segments = fields.of(_SEGMENT)
    usual = whole & plain & possible & _has_segments(buffer, segments, ensemble)
    segments_from, segments_to = _spans(segments, count)
    usual &= segments_to - segments_from == np.bincount(segments.message, segments.end - segments.start, count)
    entries = np.where(state == _CLOSED, last(_LAST_ENTRY, -1), -1) + 1
    # Where larger ones are multiplied they could overflow.
    usual &= (length < MOST_BYTES) & (entries >= 0) & (entries < MOST_BYTES // ENTRY_OVERHEAD) & (quorum < _MOST_QUORUM)
    on_disk = np.minimum(quorum * (length + ENTRY_OVERHEAD * entries), MOST_BYTES)
    has_ctime = np.zeros(count, np.bool_)
    has_ctime[fields.of(_CTIME).message] = True
    customs = fields.of(_CUSTOM)
    starts, ends = _spans(customs, count)
    names, names_at = _names(buffer, customs, count)
    starts[names.message], ends[names.message] = names_at, names.end
    is_named = np.zeros(count, np.bool_)
    is_named[names.message] = True
    return _Columns(
        usual,
        np.where(usual, state, 0),
        length,
        last(_CTIME, 0),
        has_ctime,
        is_named,
        starts,
        ends,
        entries,
        on_disk,
        segments_from,
        segments_to,
    )


def _spans(fields: Fields, count: int) -> tuple[Numbers, Numbers]:
    """Find where the first of the fields of each message begins, and the last ends; both are 0 without any."""
    starts, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
    # Of what is assigned to one place the last counts, so backwards it is the first.
    starts[fields.message[::-1]] = fields.start[::-1]
    ends[fields.message] = fields.end
    return starts, ends


def _names(buffer: Buffer, customs: Fields, count: int) -> tuple[Fields, Numbers]:
    """Find the custom metadata that names a topic and says nothing else but what is said of every data ledger.

    Returns the entry with the name for each of these ledgers, and where in it the name begins.
    """
    named = customs.at(buffer.begin_with(_NAMED, customs.content, customs.end))
    lengths, sizes = buffer.varints(named.content + len(_NAMED))
    starts = named.content + len(_NAMED) + sizes
    fine = (sizes > 0) & (lengths >= 0) & (starts + lengths == named.end) & buffer.are_ascii(starts, named.end)
    alone = np.bincount(customs.message, minlength=count) == len(_SAID) + 1
    for entry in _SAID:
        said = (customs.value == len(entry)) & buffer.begin_with(entry, customs.content, customs.end)
        alone &= np.bincount(customs.message[said], minlength=count) == 1
    fine &= alone[named.message]
    return named.at(fine), starts[fine]


def _bodies(buffer: Buffer) -> tuple[Numbers, Flags]:
    """Find the message of version 3 in each value, and say whether it is there, and all of the value."""
    lengths_at = buffer.starts + len(_VERSION_3)
    whole = buffer.begin_with(_VERSION_3, buffer.starts, buffer.ends) & (buffer.ends - buffer.starts <= _MAX_BYTES)
    lengths, sizes = buffer.varints(np.where(whole, lengths_at, 0))
    bodies = lengths_at + sizes
    return bodies, whole & (sizes > 0) & (bodies + lengths == buffer.ends)


def _has_segments(buffer: Buffer, segments: Fields, ensemble: Numbers) -> Flags:
    """Return for each ledger whether it has segments, each of that number of bookies and behind the one before."""
    order = np.argsort(segments.message, kind="stable")
    ledger, starts, ends = segments.message[order], segments.content[order], segments.end[order]
    fields, fine = buffer.fields(starts, ends, _SEGMENT_KINDS)
    members = fields.of(_MEMBER)
    fine &= np.bincount(members.message, minlength=len(ledger)) == ensemble[ledger]
    fine[members.message[~buffer.are_ascii(members.content, members.end)]] = False
    first = fields.last(_FIRST_ENTRY, len(ledger), 0)
    before = np.where(np.diff(ledger, prepend=-1) == 0, np.roll(first, 1), -1)
    fine &= first > before
    found = np.bincount(ledger, minlength=len(ensemble)) > 0
    found[ledger[~fine]] = False
    return found
