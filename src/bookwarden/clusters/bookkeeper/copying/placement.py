"""The bookies that a ledger's copy goes to: as many as it has, spread over all that are writable, racks and groups.

Groups are followed as IsolatedBookieEnsemblePlacementPolicy of Pulsar 4.0 does: bookies of the primary groups; where
they are fewer than the ensemble, also those of the secondary groups; where these are fewer too, also bookies that are
in no group at all; never those of other groups.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final, NamedTuple

from bookwarden.errors import BookieUnavailableError
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.metadata import LedgerMetadata, StoredLedger

# Pulsar's, of a bookie without a rack: all of them share it.
_DEFAULT_RACK: Final = "/default-rack"
# The golden ratio of 2**64: multiples of it are far from each other, whatever the step between ids.
_SCATTER: Final = 0x9E3779B97F4A7C15
_MOST_REMEMBERED: Final = 10_000
_MAX_AGE_S: Final = 5.0

_Names = frozenset[str]


class BookieTopology(NamedTuple):
    """The bookies to choose from, and what is known of them."""

    writable: frozenset[str]
    groups: Mapping[str, frozenset[str]]  #: The bookies of each group that Pulsar has.
    racks: Mapping[str, str]  #: By bookie; those without one share a rack.


class Affinity(NamedTuple):
    """The groups of bookies that a namespace asks for; it takes any bookie if it asks for none."""

    groups: frozenset[str] = frozenset()
    spare_groups: frozenset[str] = frozenset()


class CopyPlacement:
    """Chooses the bookies of copies; for one thread.

    What ``read``, and ``affinity_of`` of a namespace, returned is read again after some seconds. Both may
    raise StoreError, or FormatError where it is not known what a namespace asks for.
    """

    def __init__(
        self,
        read: Callable[[], BookieTopology],
        affinity_of: Callable[[str], Affinity],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._affinity_of = affinity_of
        self._now = now
        self._read_at = float("-inf")
        self._choices = _Choices(BookieTopology(frozenset(), {}, {}))
        self._affinities: dict[str, Affinity] = {}

    def choose(self, source: StoredLedger, holder: Holder | None, avoid: Set[str] = frozenset()) -> tuple[str, ...]:
        """Return the ensemble of a copy of this ledger, without the bookies to ``avoid``.

        It has fewer bookies than the source's where there are not enough, but never fewer than the write quorum.
        Raises BookieUnavailableError, which names what is missing.
        """
        self._renew()
        affinity = self._asked_by(holder)
        found = self._choices.ensemble(source.ledger_id, source.metadata, affinity, avoid)
        if found is None:
            raise BookieUnavailableError(_missing(self._choices.ground, source, affinity, avoid))
        return found

    def _renew(self) -> None:
        now = self._now()
        if now - self._read_at < _MAX_AGE_S:
            return
        ground = self._read()
        self._read_at = now
        self._affinities.clear()
        if ground != self._choices.ground:
            self._choices = _Choices(ground)

    def _asked_by(self, holder: Holder | None) -> Affinity:
        namespace = "" if holder is None else _namespace_of(holder)
        if not namespace:
            return Affinity()
        found = self._affinities.get(namespace)
        if found is None:
            found = self._affinities[namespace] = self._affinity_of(namespace)
        return found


def candidates(ground: BookieTopology, affinity: Affinity, ensemble_size: int, avoid: Set[str]) -> frozenset[str]:
    """Return the bookies that an ensemble of this size may be chosen from."""
    writable = ground.writable - avoid if avoid else ground.writable
    if not affinity.groups:
        return writable
    chosen = _members(ground, affinity.groups) & writable
    if len(chosen) < ensemble_size:
        chosen |= _members(ground, affinity.spare_groups) & writable
    if len(chosen) < ensemble_size:
        chosen |= writable - _members(ground, ground.groups.keys())
    return chosen


def ring_of(bookies: Set[str], racks: Mapping[str, str]) -> tuple[str, ...]:
    """Order bookies so that those of each rack are evenly spread over the ring."""
    by_rack: dict[str, list[str]] = {}
    for bookie in sorted(bookies):
        by_rack.setdefault(_rack(racks, bookie), []).append(bookie)
    placed = [
        ((index + 0.5) / len(members), rack, bookie)
        for rack, members in by_rack.items()
        for index, bookie in enumerate(members)
    ]
    return tuple(bookie for _, _, bookie in sorted(placed))


def ensemble_from(
    ring: Sequence[str], start: int, size: int, write_quorum: int, racks: Mapping[str, str]
) -> tuple[str, ...]:
    """Choose ``size`` bookies from this place of the ring on; no two replicas of an entry share a rack if avoidable.

    An entry's replicas are ``write_quorum`` neighbours in the ensemble, behind whose last the first one stands again.
    """
    order = [*ring[start:], *ring[:start]]
    chosen: list[str] = []
    used: Counter[str] = Counter()
    most = 1
    while len(chosen) < size:
        for bookie in order:
            if used[_rack(racks, bookie)] < most and bookie not in chosen:
                used[_rack(racks, bookie)] += 1
                chosen.append(bookie)
                if len(chosen) == size:
                    break
        most += 1
    return _spread(chosen, write_quorum, racks) if max(used.values()) > 1 and len(used) > 1 else tuple(chosen)


def shared_racks(ensemble: Sequence[str], write_quorum: int, racks: Mapping[str, str]) -> int:
    """Count the pairs of bookies in one rack that have replicas of the same entry."""
    size = len(ensemble)
    return sum(
        _rack(racks, ensemble[one]) == _rack(racks, ensemble[other])
        for one, other in combinations(range(size), 2)
        if min(other - one, size - other + one) < write_quorum
    )


@dataclass
class _Choices:
    """The ensembles of one ground, remembered, since many ledgers have the same."""

    ground: BookieTopology
    _rings: dict[_Names, tuple[str, ...]] = field(default_factory=dict)
    _ensembles: dict[tuple[_Names, int, int, int], tuple[str, ...]] = field(default_factory=dict)

    def ensemble(
        self, ledger_id: int, metadata: LedgerMetadata, affinity: Affinity, avoid: Set[str]
    ) -> tuple[str, ...] | None:
        bookies = candidates(self.ground, affinity, metadata.ensemble_size, avoid)
        size, quorum = min(metadata.ensemble_size, len(bookies)), metadata.write_quorum
        if size < quorum:
            return None
        start = (ledger_id * _SCATTER % 2**64) * len(bookies) >> 64
        key = bookies, size, quorum, start
        found = self._ensembles.get(key)
        if found is None:
            if len(self._ensembles) >= _MOST_REMEMBERED:
                self._ensembles.clear()
                self._rings.clear()
            ring = self._rings.get(bookies)
            if ring is None:
                ring = self._rings[bookies] = ring_of(bookies, self.ground.racks)
            found = self._ensembles[key] = ensemble_from(ring, start, size, quorum, self.ground.racks)
        return found


def _spread(chosen: list[str], write_quorum: int, racks: Mapping[str, str]) -> tuple[str, ...]:
    """Exchange bookies of an ensemble as long as that parts two of one rack."""
    fewest = shared_racks(chosen, write_quorum, racks)
    improved = True
    while fewest and improved:
        improved = False
        for one, other in combinations(range(len(chosen)), 2):
            chosen[one], chosen[other] = chosen[other], chosen[one]
            count = shared_racks(chosen, write_quorum, racks)
            if count < fewest:
                fewest, improved = count, True
            else:
                chosen[one], chosen[other] = chosen[other], chosen[one]
    return tuple(chosen)


def _missing(ground: BookieTopology, source: StoredLedger, affinity: Affinity, avoid: Set[str]) -> str:
    quorum = source.metadata.write_quorum
    bookies = candidates(ground, affinity, source.metadata.ensemble_size, avoid)
    asked = ", ".join(sorted(affinity.groups | affinity.spare_groups))
    where = f" in the groups {asked}, which its namespace asks for, or in none" if asked else ""
    aside = avoid & ground.writable
    text = f"each entry of ledger {source.ledger_id} goes to {quorum} bookies, and of those that are writable{where}"
    text += f" there are {len(bookies)}: {quorum - len(bookies)} missing"
    text += f" ({', '.join(sorted(aside))} cannot be used now)" if aside else ""
    return text + (
        "; start bookies of the target, or add some to these groups: `pulsar-admin bookies set-bookie-rack --group`"
        if asked
        else "; start bookies of the target"
    )


def _namespace_of(holder: Holder) -> str:
    """Return the namespace; "" for a managed ledger that is no topic's."""
    names = holder.topic.split("/")
    return "/".join(names[:-2]) if len(names) >= 4 else ""


def _members(ground: BookieTopology, groups: Set[str]) -> frozenset[str]:
    return frozenset().union(*(ground.groups.get(group, frozenset()) for group in groups))


def _rack(racks: Mapping[str, str], bookie: str) -> str:
    return racks.get(bookie, _DEFAULT_RACK)
