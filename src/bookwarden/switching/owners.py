"""The one rule of which ledgers are ours: by their owner mark, or where they are and by their id.

The jar has the same rule (ClusterView.isOurs of broker/). It tells what brokers read, and so what is copied, counted
and kept from being unregistered. What may be deleted is less: a mark of an owner that the registry does not name is a
doubt then, whatever this rule says.
"""

from __future__ import annotations

from collections.abc import Mapping

from bookwarden.ledgers.custom_metadata import OWNER_KEY, TRIAL_KEY
from bookwarden.switching.registry import BookieCluster, Registry


def is_marked(custom: Mapping[str, bytes] | None, owner: str) -> bool:
    """Return whether a ledger with this custom metadata has the mark of this owner; None is that of a damaged one."""
    return custom is not None and custom.get(OWNER_KEY) == owner.encode()


def is_marked_as_ours(registry: Registry, custom: Mapping[str, bytes] | None) -> bool:
    """Return whether a ledger has the mark of the registry's owner, or of a former one."""
    return any(is_marked(custom, owner) for owner in (registry.owner, *registry.former_owners))


def is_trial(registry: Registry, custom: Mapping[str, bytes] | None) -> bool:
    """Return whether it is a trial ledger that a precheck of ours left, which nothing names."""
    return custom is not None and TRIAL_KEY in custom and is_marked_as_ours(registry, custom)


def owner_in(custom: Mapping[str, bytes] | None) -> str | None:
    """Return the owner mark of a ledger, for people; None for one without any, and for a damaged one."""
    if custom is None or OWNER_KEY not in custom:
        return None
    return custom[OWNER_KEY].decode(errors="backslashreplace")


def unknown_owner(registry: Registry, custom: Mapping[str, bytes]) -> str | None:
    """Return the owner mark of a ledger if the registry does not name it, for people; None for one without any."""
    return None if is_marked_as_ours(registry, custom) else owner_in(custom)


def is_ours(registry: Registry, cluster: BookieCluster, ledger_id: int, custom: Mapping[str, bytes] | None) -> bool:
    """Return whether brokers take a ledger of this cluster for one of this Pulsar cluster.

    One whose metadata cannot be understood, ``custom`` None, may be ours where no other Pulsar cluster writes.
    """
    if is_marked_as_ours(registry, custom):
        return True
    if cluster.shared:
        return False
    below = cluster.unmarked_below
    if custom is None or below is None:
        return True
    return cluster.bootstrap if OWNER_KEY in custom else ledger_id < below


def can_have_others(cluster: BookieCluster) -> bool:
    """Return whether `is_ours` may say no of a ledger there."""
    return cluster.shared or cluster.unmarked_below is not None
