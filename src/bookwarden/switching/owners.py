"""Ledgers of this Pulsar cluster, told by their owner mark."""

from __future__ import annotations

from collections.abc import Mapping

from bookwarden.ledgers.custom_metadata import OWNER_KEY


def is_marked(custom: Mapping[str, bytes] | None, owner: str) -> bool:
    """Return whether a ledger with this custom metadata has the mark of this owner; None is that of a damaged one."""
    return custom is not None and custom.get(OWNER_KEY) == owner.encode()


def may_be_ours(custom: Mapping[str, bytes] | None, owner: str, *, shared: bool) -> bool:
    """Return whether a ledger may be of the Pulsar cluster with this owner mark.

    One without any mark is where nobody else writes: it is older than the registry. A damaged one may be anybody's.
    """
    if custom is None or is_marked(custom, owner):
        return True
    return OWNER_KEY not in custom and not shared
