"""Custom metadata of ledgers as Pulsar writes it, compared with the holder that wants a ledger gone.

Keys and values: LedgerMetadataUtils in Pulsar 4.0. The name written is that of the owner at creation, so a shadow
topic, which lists its source's ledgers, never matches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import chain

from bookwarden.errors import FormatError
from bookwarden.ledgers.kinds import KINDS, Holder

APPLICATION = "application"
COMPONENT = "component"
_NAMES = frozenset([APPLICATION, COMPONENT, *chain.from_iterable(kind.tag_names for kind in KINDS)])
# By the value under COMPONENT; a kind with more names goes before one whose names are a part of them.
_KINDS: defaultdict[str | None, list[tuple[tuple[str, ...], Callable[[Mapping[str, str]], Holder]]]] = defaultdict(list)
for _kind in sorted(KINDS, key=lambda kind: -len(kind.tag_names)):
    _KINDS[_kind.tag].append((_kind.tag_names[::-1], _kind.of_tags))


def expected_custom_metadata(holder: Holder) -> dict[str, str]:
    """Return the custom metadata that Pulsar writes for a ledger of this holder."""
    return {APPLICATION: "pulsar", COMPONENT: holder.tag, **holder.tags()}


def custom_metadata_mismatch(holder: Holder, custom: Mapping[str, bytes]) -> str | None:
    """Describe how the ledger differs from what the holder's would be; None when it is the holder's.

    A data ledger and a cursor's share their component; only the cursor's name tells them apart, so a name that
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


def _printable(value: bytes) -> str:
    text = value[:200].decode("utf-8", errors="replace")
    return text if text.isprintable() else f"<{len(value)} bytes>"
