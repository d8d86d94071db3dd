"""The rows of topics' references, read from the values of their nodes in whole columns.

Only topics with ledgers and nothing else are read here: no properties, no end, no offloaded copies, no compression.
All others are left to the reader of single nodes, which gives the same rows for these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from bookwarden.clusters.pulsar.references.nodes import ManagedLedgerNode
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.pipelines.columns.messages import BYTES, NUMBER, Buffer, Flags, Numbers
from bookwarden.pipelines.columns.tables import REFERENCES

# ManagedLedgerInfo of managed_ledger.proto, and its LedgerInfo.
_LEDGER, _TERMINATED, _PROPERTIES = 1, 2, 3
_KINDS: Final = dict.fromkeys((_LEDGER, _TERMINATED, _PROPERTIES), BYTES)
_ID, _ENTRIES, _SIZE, _TIMESTAMP, _OFFLOAD, _LEDGER_PROPERTIES = 1, 2, 3, 4, 5, 6
_LEDGER_KINDS: Final = {
    **dict.fromkeys((_ID, _ENTRIES, _SIZE, _TIMESTAMP), NUMBER),
    **dict.fromkeys((_OFFLOAD, _LEDGER_PROPERTIES), BYTES),
}
# A larger value has many ledgers, and would keep all others waiting.
_MAX_BYTES: Final = 8192


class PlainLists(NamedTuple):
    """The lists of the topics that can be read here; the ledgers of one topic after another, each by growing id."""

    taken: Flags  #: For each topic, whether it was.
    owners: Numbers  #: For each ledger, the place of its topic.
    ids: Numbers
    sizes: Numbers  #: In bytes.


def plain_lists(values: Sequence[bytes]) -> PlainLists:
    """Read the lists of topics from the values of their nodes."""
    buffer = Buffer.of(values)
    small = buffer.ends - buffer.starts <= _MAX_BYTES
    fields, plain = buffer.fields(buffer.starts, np.where(small, buffer.ends, buffer.starts), _KINDS)
    ledgers = fields.of(_LEDGER)
    parts, fine = buffer.fields(ledgers.content, ledgers.end, _LEDGER_KINDS)
    ids = parts.last(_ID, len(fine), -1)
    fine &= ids >= 0
    fine[parts.message[parts.number >= _OFFLOAD]] = False
    taken = small & plain & (np.bincount(ledgers.message, minlength=len(values)) > 0)
    taken[fields.message[fields.number != _LEDGER]] = False
    taken[ledgers.message[~fine]] = False
    owners = ledgers.message
    rows = np.flatnonzero(taken[owners])
    rows = rows[np.lexsort((ids[rows], owners[rows]))]
    return PlainLists(taken, owners[rows], ids[rows], parts.last(_SIZE, len(fine), 0)[rows])


# Fast path of ManagedLedgerNode.read, must equal it: tests/unit/clusters/test_reference_rows.py
class TopicRows:
    """Collects the rows of a root's topics; a call returns for each topic whether its rows were taken."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.tables = [REFERENCES.arrow.empty_table()]

    def __call__(self, topics: Sequence[ManagedLedgerNode], values: Sequence[bytes]) -> list[bool]:
        """Take the rows of the topics that can be read here."""
        lists = plain_lists(values)
        self._add(topics, lists)
        found: list[bool] = lists.taken.tolist()
        return found

    def _add(self, topics: Sequence[ManagedLedgerNode], lists: PlainLists) -> None:
        """Add the rows of the taken topics, one topic after another, each by growing id."""
        owner, count = pa.array(lists.owners), len(lists.ids)
        names = pa.array([topic.name for topic in topics], pa.string()).take(owner)
        columns = {
            "ledger_id": pa.array(lists.ids),
            "place": pa.repeat(PlaceKind.MANAGED_LEDGER.value, count),
            "holder": names,
            "managed_ledger": names,
            "path": pa.array([topic.path for topic in topics], pa.string()).take(owner),
            "root": pa.repeat(self._root, count),
            "length": pa.array(lists.sizes),
            "gone": pa.repeat(False, count),
        }
        self.tables.append(pa.table(columns, schema=REFERENCES.arrow))
