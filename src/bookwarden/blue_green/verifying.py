"""Proof that a migration is done: nothing unread on blue, and every subscription on green."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from bookwarden.blue_green.green_resources import GreenResources
from bookwarden.blue_green.observing import Look, Observer
from bookwarden.blue_green.readiness.findings import Override
from bookwarden.blue_green.record import MigrationRecord
from bookwarden.blue_green.scope import is_subscription
from bookwarden.blue_green.sides.cluster import ClusterSide
from bookwarden.blue_green.states import UNNEEDED, Expected, TopicSeen, entries_of
from bookwarden.errors import BookwardenError
from bookwarden.ledgers.names import TopicName, decode_local_name

_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class TopicVerified:
    """A topic on both sides; ``faults`` are the reasons why it is not done, none where it is."""

    topic: str  #: Full name.
    state: str  #: On blue.
    began_with: int | None  #: Entries on blue when it was marked; None where that is not recorded.
    on_blue: int  #: Entries on blue now.
    unread: int | None  #: Entries that are left on blue; None where somebody could not tell.
    on_green: int | None  #: Entries on green; None where it has no such topic, or its broker does not say.
    missing: tuple[str, ...] = ()  #: Subscriptions that blue has, or had when it began, and green has not.
    faults: tuple[str, ...] = ()  #: Why it is not done.
    bytes_on_blue: int = 0  #: Of its entries on blue now, but those of unsized ledgers.
    unsized: tuple[int, ...] = ()  #: Ledgers on blue whose size its node does not have, as of the one written last.
    late: tuple[str, ...] = ()  #: Subscriptions that came too late to green, unless that was accepted by name.

    @property
    def ok(self) -> bool:
        """True where nothing is left to do for it."""
        return not self.faults and not self.late


@dataclass(frozen=True, slots=True)
class Verified:
    """Every topic of the scope, and what is wrong with the scope itself."""

    topics: tuple[TopicVerified, ...]
    faults: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True where the migration is done."""
        return not self.faults and all(topic.ok for topic in self.topics)

    @property
    def is_only_late(self) -> bool:
        """True where nothing is wrong but subscriptions that came too late."""
        return not self.ok and not self.faults and not any(topic.faults for topic in self.topics)


@dataclass(frozen=True, slots=True)
class OnGreen:
    """A topic on green; ``entries`` is None where its broker does not say."""

    subscriptions: frozenset[str]
    entries: int | None = None


def verify_migration(
    blue: ClusterSide,
    green: ClusterSide,
    observer: Observer,
    record: MigrationRecord,
    namespaces: Sequence[str],
    accepted: Collection[str] = (),
) -> Verified:
    """Look at both sides; ``accepted`` are cases that were accepted by name. Changes nothing.

    Raises StoreError or FormatError where a side cannot be read.
    """
    expected = record.expected(namespaces)
    look = observer.look(namespaces, expected)
    # Some of them may not be recorded yet.
    look = replace(look, late=(*record.late(namespaces), *GreenResources(blue, green, record).late_in(look)))
    found = {
        str(TopicName.of_managed_ledger(one.managed_ledger)): frozenset(map(decode_local_name, one.cursors))
        for name in namespaces
        for one in green.nodes.topics(name)
    }
    wanted = [seen.topic for seen in look.topics if seen.topic in found]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="green") as pool:
        counts = dict(zip(wanted, pool.map(partial(_entries, green), wanted), strict=True))
    return judge(look, {topic: OnGreen(names, counts.get(topic)) for topic, names in found.items()}, expected, accepted)


def _entries(green: ClusterSide, topic: str) -> int | None:
    try:
        return green.admin.entries(topic)
    except BookwardenError:
        return None


def judge(
    look: Look, green: Mapping[str, OnGreen], expected: Mapping[str, Expected], accepted: Collection[str] = ()
) -> Verified:
    """Decide by what was seen; ``green`` has its topics by name, ``accepted`` are cases accepted by name."""
    faults = [f"{name} is not flagged: new clients stay on blue" for name, on in look.flagged.items() if not on]
    faults += look.troubles
    known = {one.rpartition("://")[2].rpartition("/")[0] for one in expected}
    faults += [
        f"no start of {name} is recorded in this folder: topics that blue has deleted by now are not checked"
        for name in look.flagged
        if name not in known and look.flagged[name]
    ]
    bases = {str(TopicName.parse(topic).base) for topic in green if TopicName.parse(topic).partition is not None}
    faults += [
        f"green has {topic} with partitions and without, and clients see one of both: read what is in the one without, "
        "and delete that one"
        for topic in sorted(bases & green.keys())
    ]
    late = () if Override.LATE_SUBSCRIPTIONS.value in accepted else look.late
    topics = [
        _judged(
            seen,
            green.get(seen.topic),
            expected.get(seen.topic),
            accepted,
            tuple(f"{name} (behind {entries} entries)" for topic, name, entries in late if topic == seen.topic),
        )
        for seen in look.topics
    ]
    return Verified(tuple(topics), tuple(faults))


def _judged(
    seen: TopicSeen,
    here: OnGreen | None,
    expected: Expected | None,
    accepted: Collection[str],
    late: tuple[str, ...],
) -> TopicVerified:
    wanted = {cursor.name for cursor in seen.cursors if is_subscription(cursor.name)}
    wanted |= set(expected.subscriptions) if expected is not None else set()
    missing = tuple(sorted(wanted - (here.subscriptions if here is not None else frozenset())))
    faults = []
    if seen.state not in UNNEEDED:
        faults.append(f"{seen.state.value} on blue")
    faults += [
        f"{cursor.name} has {'an unknown number of' if cursor.unread is None else cursor.unread} entries unread"
        for cursor in seen.cursors
        if not cursor.is_read
    ]
    if here is None:
        faults.append("not on green")
    faults += [f"subscription {name} is not on green" for name in missing]
    faults += _unprovable(seen, expected, accepted)
    return TopicVerified(
        seen.topic,
        seen.state.value,
        None if expected is None else expected.entries,
        0 if seen.info is None else entries_of(seen.info),
        seen.unread if all(cursor.unread is not None for cursor in seen.cursors) else None,
        None if here is None else here.entries,
        missing,
        tuple(faults),
        0 if seen.info is None else sum(ledger.size for ledger in seen.info.ledgers),
        () if seen.info is None else tuple(ledger.ledger_id for ledger in seen.info.ledgers if not ledger.size),
        late,
    )


def _unprovable(seen: TopicSeen, expected: Expected | None, accepted: Collection[str]) -> list[str]:
    """Return why nobody can tell from cursors whether all was read."""
    if seen.info is None:
        return []
    found = []
    had_subscription = bool(seen.cursors) or (expected is not None and bool(expected.subscriptions))
    if not had_subscription and entries_of(seen.info) and Override.READERS.value not in accepted:
        found.append("it had no durable subscription: nobody can tell what readers read (--accept readers)")
    if seen.compacted and Override.COMPACTED_TOPICS.value not in accepted:
        found.append("its compacted view is on blue alone (--accept compacted-topics)")
    return found
