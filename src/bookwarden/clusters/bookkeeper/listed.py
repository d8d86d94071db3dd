"""A ledger's metadata node as a row of a listing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from bookwarden.errors import FormatError
from bookwarden.ledgers.custom_metadata import describe_custom_metadata, identify_holder
from bookwarden.ledgers.kinds import KINDS
from bookwarden.ledgers.listing import ListedLedger
from bookwarden.wire.ledger_metadata import decode_custom_metadata, decode_ledger_metadata

_REMEMBERED: Final = 65_536


# Looking up an enum's name is slow.
_KINDS: Final = {kind: kind.component.name for kind in KINDS}


class Meaning(NamedTuple):
    """The meaning of custom metadata: the last fields but one of a ListedLedger."""

    kind: str | None
    holder: str | None
    custom: str | None


def listed_ledger(ledger_id: int, path: str, value: bytes, version: int, created_ms: int) -> ListedLedger:
    """Make the row of a ledger whose node has this value; ``problem`` says what could not be understood."""
    try:
        metadata = decode_ledger_metadata(value)
    except FormatError as error:
        return ListedLedger(ledger_id, path, version, created_ms, problem=str(error))
    meaning = _meaning(metadata.custom)
    state, length = metadata.state.name, metadata.length
    return ListedLedger(ledger_id, path, version, created_ms, metadata.ctime_ms, state, length, *meaning)


# A holder's ledgers have the same custom metadata.
@lru_cache(maxsize=_REMEMBERED)
def meaning_of(fields: bytes) -> Meaning | None:
    """Return the meaning of the custom metadata among the encoded fields of version 3.

    Returns None for fields that decode_ledger_metadata would refuse.
    """
    try:
        return _meaning(decode_custom_metadata(fields))
    except FormatError:
        return None


def _meaning(custom: Mapping[str, bytes]) -> Meaning:
    holder = identify_holder(custom)
    if holder is None:
        return Meaning(None, None, describe_custom_metadata(custom))
    return Meaning(_KINDS[type(holder)], str(holder), None)
