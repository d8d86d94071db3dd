"""Reader of one topic for the page: its list, where each ledger is, its cursors, and what the newest plan has of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.config import Settings
from bookwarden.errors import FileError, FormatError, NotFoundError
from bookwarden.ledgers.managed_ledger import SHADOW_SOURCE_PROPERTY, LedgerInfo
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading, StoredLedger
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pins import TopicState
from bookwarden.pipelines.columns.tables import rows_in
from bookwarden.pipelines.scan.folder import plans_of
from bookwarden.server.page.values import LedgerPlace, Topic, TopicLedger, TopicPart
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.topic_pins import pin_search_of

_PARTITIONS: Final = 8
_OTHERS: Final = 500
_LEDGERS: Final = 5_000
_UNLISTED: Final = 2_000
#: A plan with more orphans is not looked through for one topic.
_CANDIDATES: Final = 200_000
_LONGEST_NAME: Final = 1_000


def topic_named(text: str) -> TopicName:
    """Return the topic that a client names; FormatError with a sentence for people where it is none with ledgers."""
    if len(text) > _LONGEST_NAME:
        raise FormatError(f"a name of {len(text):,} characters is that of no topic")
    name = TopicName.parse(text.strip())
    if name.domain != "persistent":
        raise FormatError(f"{name}: topics that are not persistent have no ledgers")
    return name


def read_topic(cluster: Cluster, text: str) -> Topic:
    """Read a topic; its first partitions where it has many. Raises the errors of stores."""
    name = topic_named(text)
    search, notes = pin_search_of(cluster), list[str]()
    states, others = list[tuple[TopicName, TopicState]](), list[str]()
    for part in search.parts_of(name):
        if len(states) == _PARTITIONS:
            others.append(str(part))
            continue
        try:
            state = search.state_of(part)
        except FormatError as error:
            notes.append(f"{part}: {error}")
            continue
        if state is not None:
            states.append((part, state))
    if not (states or notes):
        why = f"{name} has no ledgers: there is no such topic, or no message was ever sent to it"
        return Topic(str(name), absent=why)
    plan = _newest_plan(cluster.settings, [part.managed_ledger for part, _ in states], notes)
    parts = []
    for part, state in states:
        ledgers = [
            *_listed(cluster, part, state),
            *_unlisted(cluster, part.managed_ledger, state.info.ledger_ids, plan),
        ]
        ledgers.sort(key=lambda one: one.ledger_id)
        parts.append(TopicPart(search.pins_in(state), tuple(ledgers), tuple(state.cursors)))
    return Topic(str(name), tuple(parts), tuple(others[:_OTHERS]), plan.plan_id, plan.created_ms, tuple(notes))


def _listed(cluster: Cluster, name: TopicName, state: TopicState) -> list[TopicLedger]:
    ids = [one.ledger_id for one in state.info.ledgers]
    if len(ids) > _LEDGERS:
        ids = [*ids[: _LEDGERS // 2], *ids[-_LEDGERS // 2 :]]
    found = dict(zip(ids, cluster.bookkeeper.catalog.read_many(ids), strict=True))
    active = cluster.bookkeeper.clusters.active()
    is_shadow = SHADOW_SOURCE_PROPERTY in state.info.properties
    ledgers = [
        TopicLedger(
            info.ledger_id,
            info.entries,
            info.size,
            _begun_ms(found.get(info.ledger_id)),
            info.timestamp_ms,
            place_of(info, found.get(info.ledger_id), "" if active is None else active.name, is_shadow=is_shadow),
            _clusters(found.get(info.ledger_id)),
        )
        for info in state.info.ledgers
    ]
    if all(one.place is not LedgerPlace.MISSING for one in ledgers):
        return ledgers
    # It may have been trimmed between both reads.
    now = ManagedLedgers(cluster.store).read(name.managed_ledger)
    still = frozenset[int]() if now is None else now.info.ledger_ids
    return [one for one in ledgers if one.place is not LedgerPlace.MISSING or one.ledger_id in still]


def place_of(info: LedgerInfo, found: LedgerReading | None, active: str, *, is_shadow: bool = False) -> LedgerPlace:
    """Return the place of a listed ledger; ``active`` is the bookie cluster of new ledgers, "" where there is one."""
    if found is None:
        return LedgerPlace.UNSEEN
    is_offloaded = info.offload is not None and info.offload.complete
    if isinstance(found, StoredLedger):
        if active and active not in _clusters(found):
            return LedgerPlace.FORMER
        return LedgerPlace.BOTH if is_offloaded else LedgerPlace.BOOKIES
    if not isinstance(found, AbsentLedger):
        return LedgerPlace.UNREADABLE
    if is_offloaded:
        return LedgerPlace.OFFLOADED
    return LedgerPlace.TRIMMED if is_shadow else LedgerPlace.MISSING


def _begun_ms(found: LedgerReading | None) -> int:
    return (found.metadata.ctime_ms or found.created_ms) if isinstance(found, StoredLedger) else 0


def _clusters(found: LedgerReading | None) -> tuple[str, ...]:
    places = found.places if isinstance(found, StoredLedger) else ()
    return tuple(one.bookie_cluster for one in places if one.bookie_cluster)


@dataclass(frozen=True, slots=True)
class _NewestPlan:
    """The ledgers of some topics that no list has, by the newest plan."""

    plan_id: str = ""
    created_ms: int = 0
    orphans: Mapping[str, list[int]] = field(default_factory=dict)  #: Their ids, by managed ledger.
    gaps: Mapping[str, list[int]] = field(default_factory=dict)  #: Likewise of those that lists lost.


def _newest_plan(settings: Settings, names: Sequence[str], notes: list[str]) -> _NewestPlan:
    """Read what the newest plan has of these managed ledgers."""
    plans, orphans, gaps = plans_of(settings), defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    try:
        plan_id = next(reversed(plans.plan_ids()), None)
        if plan_id is None:
            notes.append("orphans and gaps: there is no plan of a scan")
            return _NewestPlan()
        manifest = plans.manifest(plan_id)
        for lost in plans.summary(manifest).inside_lists:
            gaps[lost.topic].append(lost.ledger_id)
        if manifest.counts.candidates > _CANDIDATES:
            notes.append(f"orphans: the plan {plan_id} has {manifest.counts.candidates:,}, too many to look through")
        else:
            for table in plans.candidate_tables(manifest):
                own = table.filter(pc.is_in(table.column("holder"), pa.array(names, pa.string())))
                for ledger_id, holder in rows_in(own.select(["ledger_id", "holder"])):
                    orphans[holder].append(ledger_id)
    except (FileError, FormatError, NotFoundError) as error:
        notes.append(f"orphans and gaps: {error}")
        return _NewestPlan()
    return _NewestPlan(plan_id, manifest.created_ms, orphans, gaps)


def _unlisted(cluster: Cluster, managed_ledger: str, listed: Collection[int], plan: _NewestPlan) -> list[TopicLedger]:
    """Return what of it is still there, and on no list by now."""
    places = {
        **dict.fromkeys(plan.orphans.get(managed_ledger, ()), LedgerPlace.ORPHAN),
        **dict.fromkeys(plan.gaps.get(managed_ledger, ()), LedgerPlace.GAP),
    }
    ids = [ledger_id for ledger_id in places if ledger_id not in listed][:_UNLISTED]
    return [
        TopicLedger(
            found.ledger_id,
            0 if found.metadata.last_entry_id is None else found.metadata.last_entry_id + 1,
            found.metadata.length,
            _begun_ms(found),
            0,
            places[found.ledger_id],
            _clusters(found),
        )
        for found in cluster.bookkeeper.catalog.read_many(ids)
        if isinstance(found, StoredLedger)
    ]
