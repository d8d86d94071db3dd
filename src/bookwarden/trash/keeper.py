"""The sweep's part in the trash: what is due is marked and taken out, and brokers get leave to keep what they drop.

A pass does first what is due, and renews the lease only when all of that is done, the sweep keeps up, and bookies have
space: a sweep that does not ends the lease by doing nothing, and brokers keep no more. What lies in the trash then
stays until the sweep is back. Killed anywhere the next pass does the rest: a mark that is sent twice is found done by
the sweep.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from sys import intern
from typing import Final

from bookwarden.clusters.pulsar.broker_marks import MarkingBrokers
from bookwarden.clusters.pulsar.trash import TrashLeaseNode, TrashNodes, restores_in
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.disk_space import DiskSpace
from bookwarden.errors import BookieError, FormatError, NotFoundError, PulsarError, RefusedError, StoreError
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.ledgers.trash import Generation, KeepRule, TrashLease, TrashRecord
from bookwarden.metastore.interface import MetadataStore
from bookwarden.trash.expiry import Brief, brief_of, due_ms, oldest_beyond
from bookwarden.trash.lease import LeaseConditions, judge_backlog, judge_disks
from bookwarden.trash.policy_keeper import PolicyKeeper
from bookwarden.trash.release import release
from bookwarden.wire.broker_marks import DELETION_TOPIC_NODE, decode_deletion_topic
from bookwarden.wire.trash import listed_bytes

logger = logging.getLogger(__name__)
#: Brokers keep what they drop for so long after the last pass: a restart of the sweep takes less.
LEASE_S: Final = 900.0
# A lease that is so much younger is not written again.
_RENEW_S: Final = 60.0
#: After the oldest went for want of space, so long until more of it does: the sweep has to delete it, and bookies to
#: collect garbage, before they tell that they have the space.
SPACE_WAIT_S: Final = 3600.0
_REASON: Final = "its time in the trash is over"


@dataclass(frozen=True, slots=True)
class TrashState:
    """The trash after a pass."""

    records: int = 0  #: Deleted nodes, and ledgers that left a list together.
    size: int = 0  #: Bytes of its ledgers, as topics counted them: one copy.
    oldest_ms: int | None = None  #: When its oldest record was dropped; None where there is none.
    released: int = 0  #: Records that were marked and taken out in this pass.
    lease_until_ms: int = 0  #: Brokers keep what they drop until then; 0 without a lease.
    conditions: LeaseConditions = field(default_factory=LeaseConditions)  #: Those that were observed.

    def oldest_s(self, now_s: float) -> float:
        """Return the age of the oldest record, in seconds; 0 where there is none."""
        return 0.0 if self.oldest_ms is None else max(0.0, now_s - self.oldest_ms / 1000)


@dataclass(frozen=True, slots=True)
class _Digest:
    """A node, as it decides: its records without their values."""

    briefs: tuple[Brief, ...]  #: Of all of its records.
    size: int  #: Bytes of their ledgers.
    oldest_ms: int  #: When the first of them was dropped.
    ends: frozenset[Generation]  #: The generations whose topics' nodes are in it.
    generations: frozenset[Generation]  #: Those of its other records.
    lacks_policies: bool  #: Nobody has looked yet for the policies of a topic of these ends.


@dataclass
class _Due:
    """The time of a node whose first record is due then, as long as no generation of its ends."""

    of: _Digest
    at_ms: int


@dataclass
class TrashKeeper:
    """Expires the trash of one metadata store and renews its lease; one thread at a time."""

    store: MetadataStore  #: That of the brokers.
    marker: Marker  #: Sends to the deletion topic.
    topic: str  #: The deletion topic: only the sweep of the one that brokers send to keeps their trash.
    rules: Sequence[KeepRule]  #: The first that matches holds; without any, for what is there those of the lease.
    max_bytes: int  #: Beyond these the oldest goes first.
    renewed_by: str  #: In the lease, for people.
    conditions: Callable[[], LeaseConditions] = LeaseConditions  #: Asked while there are rules, or records.
    clock: Callable[[], float] = time.time  #: Seconds since the epoch.

    def __post_init__(self) -> None:
        self._nodes = TrashNodes(self.store, _digest)
        self._lease = TrashLeaseNode(self.store)
        self._due: dict[str, _Due] = {}
        self._ended = frozenset[Generation]()
        self._held: tuple[KeepRule, ...] = ()
        self._more_at_s = 0.0
        self._why_not = ""

    def keep_policies(self, policies: PolicyKeeper) -> int:
        """Have policies seen, and added to the records of topics that were deleted; return to how many.

        Raises StoreError and PulsarError: what was done is done.
        """
        if not self._is_brokers_topic():
            return 0
        policies.look()
        lacking = [path for path, digest in self._nodes.look().items() if digest.lacks_policies]
        return policies.keep(self._nodes, lacking)

    def run(self) -> TrashState:
        """Do one pass; raises as `release`: what was done before is done."""
        if not self._is_brokers_topic():
            return TrashState()
        before = self._lease.read()
        rules = tuple(self.rules) or (() if before is None else before.keep)
        if rules != self._held:
            self._held, self._due = rules, {}
        digests = self._nodes.look()
        now_ms = int(self.clock() * 1000)
        ended = frozenset().union(*(digest.ends for digest in digests.values()))
        conditions = self.conditions() if self.rules or digests else LeaseConditions()
        beyond_ms = self._beyond_ms(digests, conditions.missing_bytes)
        candidates = self._candidates(digests, ended, now_ms, beyond_ms)
        done = release(self._nodes, self.marker, self._due_of(candidates, ended, now_ms, beyond_ms), _REASON)
        for path, why in done.kept.items():
            logger.warning("what is due of %s stays in the trash: %s", path, why)
        if done.records:
            digests = self._nodes.look()
            logger.info("%d records of the trash were marked, and are out of it", done.records)
            self._nodes.delete_empty_folders(MarkingBrokers(self.store).folders())
        lease = before if done.kept else self._renewed(before, now_ms, conditions.why_not)
        return TrashState(
            records=sum(len(digest.briefs) for digest in digests.values()),
            size=sum(digest.size for digest in digests.values()),
            oldest_ms=min((digest.oldest_ms for digest in digests.values()), default=None),
            released=done.records,
            lease_until_ms=0 if lease is None else lease.defer_until_ms,
            conditions=conditions,
        )

    def _beyond_ms(self, digests: Mapping[str, _Digest], missing_bytes: int) -> int:
        """Return until when everything has to go for want of room, by the limit or on bookies; -1 where nothing has."""
        size = sum(digest.size for digest in digests.values())
        most, now_s = self.max_bytes, self.clock()
        if missing_bytes and size and now_s >= self._more_at_s:
            self._more_at_s = now_s + SPACE_WAIT_S
            most = min(most, max(0, size - missing_bytes))
            logger.warning("bookies lack %d bytes: as much leaves the trash now, the oldest first", missing_bytes)
        if size <= most:
            return -1
        return oldest_beyond((brief for each in digests.values() for brief in each.briefs), most)

    def _candidates(
        self, digests: Mapping[str, _Digest], ended: frozenset[Generation], now_ms: int, beyond_ms: int
    ) -> list[str]:
        """Return the nodes that have records which are due, those with the oldest first."""
        changed = ended ^ self._ended
        due: dict[str, _Due] = {}
        for path, digest in digests.items():
            before = self._due.get(path)
            if before is None or before.of is not digest or changed & digest.generations:
                first_ms = min((due_ms(brief, self._held, ended) for brief in digest.briefs), default=now_ms)
                before = _Due(digest, first_ms)
            due[path] = before
        self._due, self._ended = due, ended
        return sorted(
            (path for path, of in digests.items() if due[path].at_ms <= now_ms or of.oldest_ms <= beyond_ms),
            key=lambda path: digests[path].oldest_ms,
        )

    def _due_of(
        self, paths: Iterable[str], ended: frozenset[Generation], now_ms: int, beyond_ms: int
    ) -> Iterator[tuple[str, list[TrashRecord]]]:
        """Yield what is due of these nodes."""
        # What is being put back stays, whatever its time: also after a restore that was killed, until it goes on.
        restored = restores_in(self.store)
        for path in paths:
            yield (
                path,
                [
                    record
                    for record in self._nodes.records(path)
                    if record.managed_ledger not in restored
                    and (record.time_ms <= beyond_ms or due_ms(brief_of(record, 0), self._held, ended) <= now_ms)
                ],
            )

    def _is_brokers_topic(self) -> bool:
        node = self.store.get(DELETION_TOPIC_NODE)
        try:
            return node is not None and TopicName.parse(decode_deletion_topic(node.value)) == TopicName.parse(
                self.topic
            )
        except FormatError as error:
            logger.warning("nothing leaves the trash now: %s", error)
            return False

    def _renewed(self, before: TrashLease | None, now_ms: int, why_not: str) -> TrashLease | None:
        """Renew the lease unless something is against it, and return what holds now."""
        if not self.rules:
            return before
        if why_not and not self._why_not:
            logger.warning("brokers will keep nothing more soon: %s", why_not)
        elif self._why_not and not why_not:
            logger.warning("brokers keep again what they drop")
        self._why_not = why_not
        if why_not:
            return before
        lease = TrashLease(now_ms + int(LEASE_S * 1000), self.renewed_by, self.max_bytes, tuple(self.rules))
        if before is not None and (before.keep, before.max_bytes) == (lease.keep, lease.max_bytes):
            age_ms = lease.defer_until_ms - before.defer_until_ms
            if 0 <= age_ms < _RENEW_S * 1000:
                return before
        self._lease.write(lease)
        return lease


def read_state(store: MetadataStore) -> TrashState:
    """Return the state of the trash without a part in it; every record is read. Raises StoreError."""
    digests, lease = TrashNodes(store, _digest).look().values(), TrashLeaseNode(store).read()
    return TrashState(
        records=sum(len(digest.briefs) for digest in digests),
        size=sum(digest.size for digest in digests),
        oldest_ms=min((digest.oldest_ms for digest in digests), default=None),
        lease_until_ms=0 if lease is None else lease.defer_until_ms,
    )


class LeaseWatch:
    """The conditions of the lease, as they are observed from time to time.

    ``why_behind`` says why the sweep does not get on, if it does not; ``firsts`` reads the first mark in flight of each
    partition, none of which may be due for more than ``max_overdue_s``; ``disks`` asks all bookies for their space, of
    which ``min_free_ratio`` has to be free, where that is not 0.
    """

    def __init__(
        self,
        max_overdue_s: float,
        min_free_ratio: float,
        why_behind: Callable[[], str],
        firsts: Callable[[], Iterable[ReceivedMark]],
        disks: Callable[[], Mapping[str, DiskSpace]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._max_overdue_s = max_overdue_s
        self._min_free_ratio = min_free_ratio
        self._why_behind = why_behind
        self._firsts = firsts
        self._disks = disks
        self._clock = clock
        self._observed = LeaseConditions()
        self._again_at_s = 0.0

    def observe(self) -> LeaseConditions:
        """Return what holds now; what has to be asked of servers was asked within the last minute."""
        now_s = self._clock()
        if now_s >= self._again_at_s:
            self._again_at_s = now_s + _RENEW_S
            backlog, disks = self._backlog(now_s), self._space()
            why_not = "; ".join(each.why_not for each in (backlog, disks) if each.why_not)
            self._observed = LeaseConditions(why_not, disks.missing_bytes, backlog.overdue_s)
        return replace(self._observed, why_not=self._why_behind() or self._observed.why_not)

    def _backlog(self, now_s: float) -> LeaseConditions:
        try:
            return judge_backlog(self._firsts(), now_s, self._max_overdue_s)
        except (PulsarError, NotFoundError, FormatError) as error:
            return LeaseConditions(
                f"whether the sweep keeps up is not known: {error}", overdue_s=self._observed.overdue_s
            )

    def _space(self) -> LeaseConditions:
        if not self._min_free_ratio:
            return LeaseConditions()
        try:
            return judge_disks(self._disks(), self._min_free_ratio)
        except (StoreError, BookieError, RefusedError) as error:
            return LeaseConditions(f"the space of bookies is not known: {error}")


@lru_cache(maxsize=100_000)
def _shared(generation: Generation) -> Generation:
    """Return the one object for all records of a generation: there may be millions."""
    return generation


def _digest(records: Sequence[TrashRecord]) -> _Digest:
    briefs = []
    for record in records:
        brief = brief_of(record, listed_bytes(record))
        generation = None if brief.generation is None else _shared(brief.generation)
        briefs.append(brief._replace(namespace=intern(brief.namespace), generation=generation))
    return _Digest(
        tuple(briefs),
        sum(brief.size for brief in briefs),
        min((brief.time_ms for brief in briefs), default=0),
        frozenset(record.generation for record in records if record.deletes_topic and record.generation),
        frozenset(brief.generation for brief in briefs if brief.generation is not None),
        any(record.deletes_topic and record.policies is None for record in records),
    )
