"""Bookies that namespaces ask for, and Pulsar's own map of bookies.

Formats, all JSON: ``/admin/policies`` (Policies.persistence, PersistencePolicies), ``/admin/local-policies``
(LocalPolicies.bookieAffinityGroup, BookieAffinityGroupData), ``/bookies`` (BookiesRackConfiguration: groups of bookies
by id, each with its rack) of Pulsar 4.0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bookwarden.clusters.pulsar.metadata.namespaces import known_namespaces
from bookwarden.errors import FormatError
from bookwarden.metastore.interface import MetadataStore, Versioned

_POLICIES: Final = "/admin/policies"
_LOCAL_POLICIES: Final = "/admin/local-policies"
_BOOKIES: Final = "/bookies"


class Placement(NamedTuple):
    """A namespace that asks for something; ``quorums`` are ensemble, write and acknowledgement, None for defaults."""

    name: str
    quorums: tuple[int, int, int] | None
    groups: frozenset[str]
    spare_groups: frozenset[str]


class Map(NamedTuple):
    """The bookies of each group, and the rack of each bookie."""

    groups: dict[str, frozenset[str]]
    racks: dict[str, str]


def read_placements(store: MetadataStore) -> list[Placement] | None:
    """Read what namespaces ask for, those that ask for anything; None where the store has no policies.

    Raises FormatError for a node that cannot be read: what its namespace asks for is unknown then.
    """
    names = known_namespaces(store)
    if names is None:
        return None
    ordered = sorted(names)
    policies = store.get_many([f"{_POLICIES}/{name}" for name in ordered])
    local = store.get_many([f"{_LOCAL_POLICIES}/{name}" for name in ordered])
    found = [_placement(*each) for each in zip(ordered, policies, local, strict=True)]
    return [one for one in found if one.quorums is not None or one.groups]


def read_affinity(store: MetadataStore, namespace: str) -> tuple[frozenset[str], frozenset[str]]:
    """Read which groups of bookies one namespace asks for, and which it spares; empty if for none.

    Raises FormatError as `read_placements` does.
    """
    found = _placement(namespace, None, store.get(f"{_LOCAL_POLICIES}/{namespace}"))
    return found.groups, found.spare_groups


def read_bookie_map(store: MetadataStore) -> Map:
    """Read the groups and racks of bookies; empty if none were set."""
    groups = _object(store.get(_BOOKIES), _BOOKIES)
    racks: dict[str, str] = {}
    members: dict[str, frozenset[str]] = {}
    for group, bookies in groups.items():
        if not isinstance(bookies, dict):
            raise FormatError(f"{_BOOKIES}: group {group!r} is no JSON object")
        members[group] = frozenset(bookies)
        racks.update((bookie, str(info["rack"])) for bookie, info in bookies.items() if _has(info, "rack"))
    return Map(members, racks)


def _placement(name: str, policies: Versioned | None, local: Versioned | None) -> Placement:
    persistence = _object(policies, f"{_POLICIES}/{name}").get("persistence")
    affinity = _object(local, f"{_LOCAL_POLICIES}/{name}").get("bookieAffinityGroup") or {}
    try:
        quorums = None
        if persistence:
            sizes = [int(persistence[f"bookkeeper{part}"]) for part in ("Ensemble", "WriteQuorum", "AckQuorum")]
            quorums = (sizes[0], sizes[1], sizes[2])
        groups, spare = (_names(affinity.get(f"bookkeeperAffinityGroup{part}")) for part in ("Primary", "Secondary"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"the policies of {name} are not as Pulsar writes them: {error}") from error
    return Placement(name, quorums, groups, spare)


def _names(text: str | None) -> frozenset[str]:
    return frozenset(name.strip() for name in (text or "").split(",") if name.strip())


def _has(info: object, name: str) -> bool:
    return isinstance(info, Mapping) and bool(info.get(name))


def _object(node: Versioned | None, path: str) -> Mapping[str, Any]:
    if node is None or not node.value:
        return {}
    try:
        found = json.loads(node.value)
    except ValueError as error:
        raise FormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise FormatError(f"{path} is no JSON object")
    return found
