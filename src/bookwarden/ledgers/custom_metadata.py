"""Custom metadata of ledgers as Pulsar writes it, compared with the holder that wants a ledger gone.

Keys and values: LedgerMetadataUtils in Pulsar 4.0. The name written is that of the owner at creation, or of the topic
as which it came back from the trash; so a shadow topic, which lists its source's ledgers, never matches. Keys of our
own tell copies in other bookie clusters, and the Pulsar cluster that made a ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

from bookwarden.errors import FormatError
from bookwarden.ledgers.kinds import KINDS, Holder
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, StoredLedger

#: Key in a ledger's custom metadata; its value names the Pulsar cluster that made the ledger.
OWNER_KEY: Final = "bookwarden.owner"
#: Key in the custom metadata of a copy; its value is ``LAST_ENTRY_ID:LENGTH`` of the ledger that it is to become.
COPY_KEY: Final = "bookwarden.copy"
#: Key in the custom metadata of a ledger that a precheck made to see whether a bookie cluster takes ledgers.
TRIAL_KEY: Final = "bookwarden.trial"
APPLICATION = "application"
COMPONENT = "component"
_NAMES = frozenset([APPLICATION, COMPONENT, *chain.from_iterable(kind.tag_names for kind in KINDS)])
# By the value under COMPONENT; a kind with more names goes before one whose names are a part of them.
_KINDS: defaultdict[str | None, list[tuple[tuple[str, ...], Callable[[Mapping[str, str]], Holder]]]] = defaultdict(list)
for _kind in sorted(KINDS, key=lambda kind: -len(kind.tag_names)):
    _KINDS[_kind.tag].append((_kind.tag_names[::-1], _kind.of_tags))


class HolderChange(NamedTuple):
    """The holder that a ledger's custom metadata names, and the one of the same kind that it is to name."""

    former: Holder
    holder: Holder


def expected_custom_metadata(holder: Holder) -> dict[str, str]:
    """Return the custom metadata that Pulsar writes for a ledger of this holder."""
    return {APPLICATION: "pulsar", COMPONENT: holder.tag, **holder.tags()}


def custom_metadata_mismatch(holder: Holder, custom: Mapping[str, bytes]) -> str | None:
    """Describe how the ledger differs from what the holder's would be; None when it is the holder's.

    A data ledger and a cursor's share their component; only the cursor's name distinguishes them, so a name that
    should not be there counts as a difference too.
    """
    expected = _expected_values(holder)
    if custom == expected or all(custom.get(name, b"") == expected.get(name, b"") for name in _NAMES):
        return None
    wanted = ", ".join(f"{name}={value}" for name, value in expected_custom_metadata(holder).items())
    return f"pending deletion says {wanted}; ledger says {describe_custom_metadata(custom)}"


# A holder's ledgers come together.
@lru_cache(maxsize=8192)
def _expected_values(holder: Holder) -> Mapping[str, bytes]:
    return {name: value.encode() for name, value in expected_custom_metadata(holder).items()}


def describe_custom_metadata(custom: Mapping[str, bytes]) -> str:
    """Render custom metadata as text for people; binary values by their length."""
    if not custom:
        return "nothing (no custom metadata)"
    return ", ".join(f"{name}={_printable(value)}" for name, value in sorted(custom.items()))


def identify_holder(custom: Mapping[str, bytes]) -> Holder | None:
    """Return the holder named in custom metadata; None when it is not Pulsar's or of no known kind."""
    try:
        text = {name: value.decode() for name, value in custom.items() if name in _NAMES}
    except UnicodeDecodeError:
        return None
    if text.get(APPLICATION) != "pulsar":
        return None
    for names, of_tags in _KINDS.get(text.get(COMPONENT), ()):
        for name in names:
            if name not in text:
                break
        else:
            try:
                return of_tags(text)
            except FormatError:
                return None
    return None


def names_no_holder(custom: Mapping[str, bytes]) -> bool:
    """Return whether nothing in custom metadata says whose the ledger is, as brokers wrote them before they had it."""
    return _NAMES.isdisjoint(custom)


def _printable(value: bytes) -> str:
    text = value[:200].decode("utf-8", errors="replace")
    return text if text.isprintable() else f"<{len(value)} bytes>"


def is_unfinished(metadata: LedgerMetadata) -> bool:
    """Return whether this is a copy that is not proven to be whole: closed, with the very end that it is to have."""
    stated = metadata.custom.get(COPY_KEY)
    if stated is None:
        return False
    whole = f"{metadata.last_entry_id}:{metadata.length}".encode()
    return metadata.state is not LedgerState.CLOSED or stated != whole


def why_not_the_same(places: Sequence[StoredLedger]) -> str | None:
    """Return why these, of one id in several bookie clusters, are not one ledger and its copies; None if they are."""
    originals = [each for each in places if COPY_KEY not in each.metadata.custom]
    if len(originals) > 1:
        return f"{_in(originals[0])} and {_in(originals[1])} each have a ledger of this id that is no copy"
    first = places[0]
    for other in places[1:]:
        if _said_of(first.metadata.custom) != _said_of(other.metadata.custom):
            return f"{_in(first)} and {_in(other)} have ledgers of this id with other custom metadata"
    whole = [each for each in places if not is_unfinished(each.metadata)]
    for other in whole[1:]:
        if _end(whole[0]) != _end(other):
            return f"{_in(whole[0])} and {_in(other)} have it with another end"
    return None


def why_not_superseded(former: StoredLedger, kept: StoredLedger | None, active: str) -> str | None:
    """Return why what one bookie cluster has must stay in addition to the active one's; None if it need not.

    Both are places of one ledger, by `why_not_the_same`. Whether the entries are there is not known from metadata.
    """
    if kept is None:
        return f"bookie cluster {active}, which is active, does not have it"
    if is_unfinished(kept.metadata):
        return f"its copy in bookie cluster {active} is not finished"
    # No client reads an unfinished copy, whatever its end; a copier that continues it finds out by compare-and-set.
    same = is_unfinished(former.metadata) or _end(former) == _end(kept)
    if not same or kept.metadata.state is not LedgerState.CLOSED:
        return f"{_in(former)} and {_in(kept)} do not have it closed with the same end"
    return None


def _said_of(custom: Mapping[str, bytes]) -> dict[str, bytes]:
    return {key: value for key, value in custom.items() if key not in (OWNER_KEY, COPY_KEY)}


def _end(ledger: StoredLedger) -> tuple[LedgerState, int | None, int]:
    metadata = ledger.metadata
    return metadata.state, metadata.last_entry_id, metadata.length


def _in(ledger: StoredLedger) -> str:
    return f"bookie cluster {ledger.bookie_cluster}"
