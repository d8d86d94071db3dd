"""A topic, its subscriptions or its ledgers put back from the trash.

The order is that of a journal, a node for each topic, which is also the lock. Every step may be killed and run again:

1. Each ledger is there, and the end of each is known that goes into the middle of a list. The journal says WRITING.
2. A topic that lives is unloaded, and read. Where it changed before the next step, again from here. Of one that is not
   there permissions and policies are written now, since a broker that loads it without them trims it.
3. Cursors, schema and list are written together, by the versions that were read. In a store without transactions
   (Oxia) the list comes last: a cursor without its topic is nothing to a broker, and one whose ledgers the list does
   not name yet stands before the first that it names. The journal says WRITTEN.
4. Each ledger's node is written once more as it is. A sweep that had read it before the list named it fails to delete
   it by that version; one that reads it later sees it named.
5. What a sweep deleted before that is reported, and taken off the list again. The journal says TOUCHED.
6. A broker loads the topic, and is compared with what was written. The journal says PROVEN.
7. The trash lets go of the records. What they have and the restore did not name is marked before, as empty ledgers.
   The ledger in which the delete moved a cursor is left to the scan: its position is behind that of the node, which
   looks damaged to the sweep for so long as the subscription is not there again.

A restore that was killed after 3 is told by the list: it names ledgers that only the trash had.

Under another name ledgers are given to it before 3 (`OtherName`), and both names are locked.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, Protocol
from urllib.parse import unquote

from bookwarden.bookie_clusters.bookie_clusters import MultiClusterCatalog
from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.metadata.paths import (
    cursor_path,
    managed_ledger_path,
    partitioned_topic_path,
    schema_path,
)
from bookwarden.clusters.pulsar.rest.topic_positions import parse_positions
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.errors import (
    LostRaceError,
    NotFoundError,
    OutcomeUnknownError,
    PulsarConflictError,
    PulsarUnavailableError,
    RefusedError,
    StoreError,
)
from bookwarden.leases import LeaseTimes
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading, StoredLedger
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.record_lease import FoundRecord as FoundJournal
from bookwarden.metastore.record_lease import LeaseMessages, RecordLease, find_record
from bookwarden.trash.former_ledgers import FormerLedgers
from bookwarden.trash.generations import FROM_LEDGERS, FoundRecord, TrashedGeneration, is_log
from bookwarden.trash.other_name import OtherName
from bookwarden.trash.plan import (
    NodesNow,
    RestorePlan,
    RestoreRequest,
    cursor_ledgers,
    cursor_value,
    former_entries,
    former_position,
    former_value,
    is_moved,
    plan_restore,
    wanted_cursors,
)
from bookwarden.trash.policy_restore import PolicyRestore
from bookwarden.trash.records import TrashRecords, by_node
from bookwarden.trash.release import release
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.managed_ledger import decode_ledger_entry, ledger_entries
from bookwarden.wire.schema_locator import decode_schema_locator
from bookwarden.wire.trash import TRASH_RESTORES, restore_node

logger = logging.getLogger(__name__)
#: Under a topic whose clients load it again at once, a try takes some milliseconds between its unload and the write.
_TRIES: Final = 50
_LOAD_WAIT_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.5
#: Entries of a cursor's ledger in which a delete that was repeated moved it to the end.
_CLEARED_AT_MOST: Final = 10
_FORMAT: Final = 1
_REASON: Final = "not restored with its topic"
#: Fields of a journal: only the same restore goes on with it.
_IDENTITY: Final = ("managedLedger", "generation", "subscription", "as")
#: The topic of a namespace in which brokers say which transactions of its topics were aborted.
_SNAPSHOTS: Final = "__transaction_buffer_snapshot"


class RestoreStep(enum.Enum):
    """A step of a restore, as its journal has it."""

    BEGUN = "begun"
    WRITING = "writing"
    WRITTEN = "written"
    TOUCHED = "touched"
    PROVEN = "proven"


class LoadedTopics(Protocol):
    """The brokers, as far as a restore asks them."""

    def unload(self, topic: str) -> None:
        """Have the owner close the topic."""

    def internal_stats(self, topic: str) -> Mapping[str, Any]:
        """Return ManagedLedgerInternalStats; this loads the topic."""


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The end of a restore."""

    plan: RestorePlan | None  #: None where an earlier one had written the nodes.
    gone: tuple[int, ...]  #: Ledgers that were deleted meanwhile; those of the topic are off the list again.
    problems: tuple[str, ...]  #: Differences of the loaded topic; the trash keeps the records then.
    left: tuple[str, ...]  #: Nodes of the trash that still have records of it, and why.


class Restore:
    """Restores what the trash has of one topic at a time.

    ``recover`` closes a ledger at its true end. ``on_step`` is called with each step when it is in the journal.
    """

    def __init__(
        self,
        store: MetadataStore,
        records: TrashRecords,
        catalog: MultiClusterCatalog | BookKeeperCatalog,
        last_entries: DecodedEntries,
        topics: LoadedTopics,
        recover: Callable[[int], object],
        *,
        operator: str = "",
        times: LeaseTimes | None = None,
        say: Callable[[str], object] = lambda _: None,
        on_step: Callable[[RestoreStep], object] = lambda _: None,
        load_wait_s: float = _LOAD_WAIT_S,
        policies: PolicyRestore,
        copies: Callable[[], OffloadStores],
        marker: Callable[[], Marker],
    ) -> None:
        self._store = store
        self._records = records
        self._last_entries = last_entries
        self._topics = topics
        self._recover = recover
        self._operator = operator
        self._times = times
        self._say = say
        self.on_step = on_step
        self._load_wait_s = load_wait_s
        self._policies = policies
        self._marker = marker
        self._ledgers = FormerLedgers(store, catalog, last_entries, copies, self._unload)
        self._name = OtherName(store, catalog, last_entries, self._unload)

    def plan(self, trashed: TrashedGeneration, request: RestoreRequest) -> RestorePlan:
        """Plan a restore now; errors as of `plan_restore`, and BookieError where a position cannot be read."""
        former = self._ledgers.read(trashed)
        self._require_name(trashed, request, former)
        return plan_restore(trashed, request, self._read(trashed, request, former))

    def run(self, trashed: TrashedGeneration, request: RestoreRequest) -> RestoreResult:
        """Restore it, or go on with a restore that was killed.

        Raises RefusedError, which names the other operator, while another restores the topic, or has begun to restore
        something else of it; errors as of `plan`; PulsarError where no broker loads the topic. Run it again then.
        """
        return self._run(trashed, request, None)

    def run_partitions(
        self, trashed: Sequence[TrashedGeneration], request: RestoreRequest, node: bytes
    ) -> list[RestoreResult]:
        """Restore partitions, as `run` does each, of a topic whose own node gets this value if it is not there.

        It is a partitioned topic again when all of them are written, since clients make those that are not there; and
        before any is loaded, since brokers from 4.2 on load none of a topic that is not partitioned.
        """
        written = [self._run(one, request, None, until=RestoreStep.TOUCHED) for one in trashed]
        name = TopicName.of_managed_ledger(trashed[0].managed_ledger).base.managed_ledger
        if trashed[0].origin is not None and self._store.get(managed_ledger_path(name)) is not None:
            raise RefusedError(
                f"a client made {_topic(name)} meanwhile, without partitions: delete it, and run the same command again"
            )
        with suppress(LostRaceError):
            self._store.create(partitioned_topic_path(name), node, make_parents=True)
        return [self._run(one, request, before) for one, before in zip(trashed, written, strict=True)]

    def _run(
        self,
        trashed: TrashedGeneration,
        request: RestoreRequest,
        before: RestoreResult | None,
        until: RestoreStep = RestoreStep.PROVEN,
    ) -> RestoreResult:
        """Restore it up to a step; ``before`` is the result of an earlier call that did a part."""
        managed_ledger, former = trashed.managed_ledger, _former(trashed)
        lease = self._lease(former)
        second = None if trashed.origin is None else self._lease(managed_ledger)
        with lease, second or nullcontext():
            journal = _Journal(self._store, lease, second, self._fields(trashed, request), self.on_step)
            journal.take(self._find(lease, former), None if second is None else self._find(second, managed_ledger))
            plan, gone = (None, ()) if before is None else (before.plan, before.gone)
            if journal.step in (RestoreStep.BEGUN, RestoreStep.WRITING):
                try:
                    plan = self._write(trashed, request, journal)
                finally:
                    if journal.step is RestoreStep.BEGUN:
                        # It wrote nothing, and leaves nothing to finish.
                        with suppress(StoreError, RefusedError):
                            journal.remove()
                journal.reach(RestoreStep.WRITTEN)
            if journal.step is RestoreStep.WRITTEN:
                # Also of a copy that was made from former metadata meanwhile.
                self._name.take(trashed, request)
                gone = self._ledgers.touch(trashed, _written(trashed, request) if plan is None else plan.named)
                journal.reach(RestoreStep.TOUCHED)
            problems: tuple[str, ...] = ()
            if journal.step is RestoreStep.TOUCHED and is_log(managed_ledger):
                # Brokers read it with its topic, and serve it to no client.
                journal.reach(RestoreStep.PROVEN)
            if journal.step is RestoreStep.TOUCHED and until is RestoreStep.PROVEN:
                if trashed.generation.created_ms == FROM_LEDGERS:
                    # A broker may have it loaded still, by its former node; unloaded before the write, clients make it.
                    self._unload(managed_ledger)
                problems = tuple(self._compare(trashed, request, plan, gone))
                if problems:
                    # One that was loaded in the moment of its delete stays loaded, without subscriptions.
                    self._unload(managed_ledger)
                    problems = tuple(self._compare(trashed, request, plan, gone))
                # One that lives is put nothing under without being asked for, but a subscription.
                if not plan.is_live if plan is not None else not (request.under_live or request.subscription):
                    problems += tuple(self._policies.problems(trashed))
                if not problems:
                    journal.reach(RestoreStep.PROVEN)
            left: list[str] = []
            if journal.step is RestoreStep.PROVEN and until is RestoreStep.PROVEN:
                left = self._let_go(trashed, request, plan)
                if not left:
                    journal.remove()
        return RestoreResult(plan, gone, problems, tuple(left))

    def _let_go(self, trashed: TrashedGeneration, request: RestoreRequest, plan: RestorePlan | None) -> list[str]:
        """Mark what the restore did not name, and take the records out; return nodes that still have some, and why."""
        # Not by the nodes as they are now: what the broker dropped of it since has its own record.
        named = _written(trashed, request) - self._empty(trashed) if plan is None else plan.named
        wanted = wanted_cursors(trashed, request).items()
        moved = {one for cursor, record in wanted if is_moved(trashed, cursor, record) for one in record.cursors}
        kept: dict[str, str] = {}
        for _, some in groupby(_done_with(trashed, request), lambda found: found.record.generation is not None):
            if not kept:
                due = by_node(some).items()
                kept = release(self._records.nodes, self._marker(), due, _REASON, named=named | moved).kept
        return [f"{path}: {why}" for path, why in kept.items()]

    def _empty(self, trashed: TrashedGeneration) -> set[int]:
        """Return the former ledgers that have no entry, and are not on the list."""
        node = self._store.get(managed_ledger_path(trashed.managed_ledger))
        listed = set() if node is None else ledger_entries(node.value).keys()
        readings = self._ledgers.read(trashed).ledgers
        return {
            ledger_id
            for ledger_id in former_entries(trashed).keys() - listed
            if isinstance(reading := readings[ledger_id], StoredLedger) and reading.metadata.last_entry_id == -1
        }

    def under_way(self) -> dict[str, str]:
        """Return how far each restore is that is under way or was killed, and whose, by managed ledger."""
        found: dict[str, str] = {}
        for name in self._store.children_of(TRASH_RESTORES):
            journal = find_record(self._store, f"{TRASH_RESTORES}/{name}", "a restore")
            if journal is not None:
                of = journal.fields.get("step") or f"as {_topic(unquote(name))}"
                found[unquote(name)] = f"{of}, by {journal.fields.get('by')}"
        return found

    def finish(self, is_asked: Callable[[str], bool]) -> list[str]:
        """Remove the journals of restores that were killed when all else was done; return their managed ledgers.

        ``is_asked`` says of a managed ledger whether its journal may be such a one.
        """
        finished: list[str] = []
        for name in self._store.children_of(TRASH_RESTORES):
            path, managed_ledger = f"{TRASH_RESTORES}/{name}", unquote(name)
            found = find_record(self._store, path, "a restore") if is_asked(managed_ledger) else None
            if found is not None and found.fields.get("step") == RestoreStep.PROVEN.value:
                _free_name(self._store, found.fields)
                self._store.delete_many([(path, found.version)])
                finished.append(managed_ledger)
        return finished

    def _lease(self, managed_ledger: str) -> RecordLease:
        words = LeaseMessages(
            work=f"the restore of {_topic(managed_ledger)}",
            verb="restores this topic",
            go_on="run the same command again",
            look="look at `bookwarden trash list`",
        )
        return RecordLease(self._store, restore_node(managed_ledger), words, self._times)

    def _find(self, lease: RecordLease, managed_ledger: str) -> FoundJournal | None:
        def find() -> FoundJournal | None:
            return find_record(self._store, restore_node(managed_ledger), "a restore")

        found = find()
        if found is None or found.is_free:
            return found
        by = found.fields.get("by") or "another operator"
        refusal = f"{by} restores {_topic(managed_ledger)} now, on {found.holder}: leave it to that one"
        return lease.wait_until_given_up(found, find, refusal, self._say)

    def _fields(self, trashed: TrashedGeneration, request: RestoreRequest) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "managedLedger": _former(trashed),
            "as": None if trashed.origin is None else trashed.managed_ledger,
            "generation": trashed.generation.created_ms,
            "subscription": request.subscription,
            "underLive": request.under_live,
            "by": self._operator,
        }

    def _read(self, trashed: TrashedGeneration, request: RestoreRequest, former: NodesNow) -> NodesNow:
        now = self._nodes(trashed, former)
        wanted = cursor_ledgers(trashed, request, now.cursors)
        entries = {one: self._last_entry(one, former.ledgers) for one in sorted(wanted)}
        for cursor, record in wanted_cursors(trashed, request).items():
            own = decode_cursor(cursor_value(record)).cursors_ledger_id
            if own is not None and is_moved(trashed, cursor, record):
                # One that is gone is named as such.
                with suppress(NotFoundError):
                    entries[own] = former_position(trashed, record, self._last_entries.newest(own, _CLEARED_AT_MOST))
        name = _former(trashed)
        snapshots = replace(TopicName.of_managed_ledger(name), local_name=_SNAPSHOTS).managed_ledger
        return replace(
            now,
            last_entries=entries,
            has_transactions=not is_log(name) and self._store.get(managed_ledger_path(snapshots)) is not None,
        )

    def _nodes(self, trashed: TrashedGeneration, former: NodesNow) -> NodesNow:
        self._store.sync()
        name, schema = trashed.managed_ledger, trashed.schema
        cursors = _cursor_names(self._store.children_of(managed_ledger_path(name)), trashed)
        paths = [managed_ledger_path(name), *(cursor_path(name, cursor) for cursor in cursors)]
        paths += [] if schema is None or schema.schema_id is None else [schema_path(schema.schema_id)]
        topic, *others = self._store.get_many(paths)
        live: dict[str, Versioned] = {
            cursor: node for cursor, node in zip(cursors, others, strict=False) if node is not None
        }
        schema_node = others[-1] if schema is not None else None
        return replace(former, topic=topic, cursors=live, schema=schema_node)

    def _last_entry(self, ledger_id: int, ledgers: Mapping[int, LedgerReading]) -> bytes | None:
        if isinstance(ledgers.get(ledger_id), AbsentLedger):
            return None
        try:
            return self._last_entries.last_entry(ledger_id)
        except NotFoundError:
            return None

    def _write(self, trashed: TrashedGeneration, request: RestoreRequest, journal: _Journal) -> RestorePlan | None:
        """Write the nodes; return how, None where an earlier try had done it."""
        if journal.step is RestoreStep.WRITING:
            # Of a ledger in several bookie clusters an earlier try may have changed one place, and not another.
            self._name.take(trashed, request)
        former = self._ledgers.read(trashed)
        if journal.step is RestoreStep.BEGUN:
            self._require_name(trashed, request, former)
        lost: LostRaceError | OutcomeUnknownError | None = None
        for _ in range(_TRIES):
            now = self._read(trashed, request, former)
            if journal.step is RestoreStep.WRITING and _is_written(trashed, request, now):
                return None
            refusal = self._name.leave_if_taken(trashed, request, now) if journal.step is RestoreStep.WRITING else None
            if refusal is not None:
                journal.reach(RestoreStep.BEGUN)
                raise refusal
            plan = plan_restore(trashed, request, now)
            if plan.to_close:
                for ledger_id in plan.to_close:
                    with suppress(NotFoundError):
                        self._recover(ledger_id)
                former = self._ledgers.read(trashed)
                continue
            journal.reach(RestoreStep.WRITING)
            self._name.take(trashed, request)
            if plan.is_live:
                self._unload(trashed.managed_ledger)
                plan = plan_restore(trashed, request, self._read(trashed, request, former))
            if not plan.is_live:
                self._policies.write(trashed)
            try:
                self._store.write_together(plan.writes)
                return plan
            except (LostRaceError, OutcomeUnknownError) as error:
                logger.info("%s", error)
                lost = error
        raise RefusedError(
            f"{_topic(trashed.managed_ledger)} was changed in each of {_TRIES} tries between its unload and the write: "
            "stop its clients for a moment, and run it again"
        ) from lost

    def _require_name(self, trashed: TrashedGeneration, request: RestoreRequest, former: NodesNow) -> None:
        if trashed.origin is not None:
            self._policies.require_namespace(trashed)
            self._name.require(trashed, request, self._nodes(trashed.origin, former))

    def _unload(self, managed_ledger: str) -> None:
        try:
            self._topics.unload(_topic(managed_ledger))
        except NotFoundError:
            # No broker knows it: it was deleted meanwhile, or made a moment ago.
            logger.info("%s is not there for brokers", managed_ledger)

    def _compare(
        self,
        trashed: TrashedGeneration,
        request: RestoreRequest,
        plan: RestorePlan | None,
        gone: Collection[int],
    ) -> Iterator[str]:
        """Have a broker load the topic, and yield in what it differs from what was written."""
        topic = _topic(trashed.managed_ledger)
        seen = parse_positions(topic, self._loaded(topic))
        slowest = min(seen.cursors.values(), default=None)
        ledgers = {span.ledger_id for span in seen.ledgers}
        former = former_entries(trashed)
        for ledger_id in () if plan is None else plan.ledgers:
            entries = decode_ledger_entry(former[ledger_id]).entries
            # What all subscriptions have consumed may be trimmed, and an empty ledger leaves the list.
            if entries == 0 or ledger_id in ledgers or ledger_id in gone or slowest is None:
                continue
            if (slowest.ledger_id, slowest.entry_id) < (ledger_id, entries - 1):
                yield f"the broker does not have ledger {ledger_id} on its list"
        if plan is None:
            for cursor in wanted_cursors(trashed, request):
                if decode_local_name(cursor) not in seen.cursors:
                    yield f"the broker has no subscription {decode_local_name(cursor)!r}"
            return
        for cursor, position, _ in plan.cursors:
            found = seen.cursors.get(decode_local_name(cursor))
            if found is None:
                yield f"the broker has no subscription {decode_local_name(cursor)!r}"
            elif position is not None and (found.ledger_id, found.entry_id) < position:
                yield (
                    f"subscription {decode_local_name(cursor)!r} is at {found}, before "
                    f"{position.ledger_id}:{position.entry_id}"
                )

    def _loaded(self, topic: str) -> Mapping[str, Any]:
        until = time.monotonic() + self._load_wait_s
        while True:
            try:
                return self._topics.internal_stats(topic)
            except (PulsarUnavailableError, PulsarConflictError, NotFoundError) as error:
                # Brokers remember for a moment that there was no such topic.
                if time.monotonic() >= until:
                    raise PulsarUnavailableError(
                        f"{topic} was written, and no broker has loaded it in {self._load_wait_s:.0f} s: {error}; run "
                        "the same command again, which compares it then"
                    ) from error
            time.sleep(_LOOK_EVERY_S)


class _Journal:
    """The journal of one restore, and the lock of the other name under which it comes back; ``fields`` are of both."""

    def __init__(
        self,
        store: MetadataStore,
        lease: RecordLease,
        name: RecordLease | None,
        fields: Mapping[str, Any],
        reached: Callable[[RestoreStep], object],
    ) -> None:
        self._store = store
        self._lease = lease
        self._name = name
        self._fields = fields
        self._reached = reached
        self.step = RestoreStep.BEGUN

    def take(self, found: FoundJournal | None, found_name: FoundJournal | None) -> None:
        """Go on from what an earlier one wrote; RefusedError where that is about something else."""
        begun = self._begun(found)
        self._begun(found_name)
        if begun is not None:
            self.step = RestoreStep(begun["step"])
        elif found is not None and "step" in found.fields and found.fields.get("as") != self._fields["as"]:
            # Of one that was killed before it did anything.
            _free_name(self._store, found.fields)
        self._lease.hold(self._value(), None if found is None else found.version)
        if self._name is not None:
            # Without a step: that of the journal counts.
            self._name.hold(self._fields, None if found_name is None else found_name.version)
        self._reached(self.step)

    def _begun(self, found: FoundJournal | None) -> Mapping[str, Any] | None:
        """Return this restore's journal if it has done anything; RefusedError if that is another restore's."""
        fields = None if found is None else found.fields
        if fields is not None and "step" not in fields:
            journal = find_record(self._store, restore_node(str(fields["managedLedger"])), "a restore")
            is_its_own = journal is not None and journal.fields.get("as") == fields["as"]
            fields = journal.fields if journal is not None and is_its_own else None
        if fields is None or RestoreStep(fields["step"]) is RestoreStep.BEGUN:
            return None
        if any(self._fields[name] != fields.get(name) for name in _IDENTITY):
            topic = _topic(str(fields["managedLedger"]))
            raise RefusedError(f"a restore of {topic} is not finished: run `{_command_of(fields)}` first")
        return fields

    def reach(self, step: RestoreStep) -> None:
        """Write that it is at this step."""
        if step is self.step:
            return
        if self._name is not None:
            self._name.require()
        self.step = step
        self._lease.write(self._value())
        self._reached(step)

    def remove(self) -> None:
        """End it, and leave both names to others."""
        if self._name is not None:
            self._name.remove()
        self._lease.remove()

    def _value(self) -> dict[str, Any]:
        return {**self._fields, "step": self.step.value}


def _free_name(store: MetadataStore, fields: Mapping[str, Any]) -> None:
    """Remove the lock of the other name under which the restore of this journal was to come back."""
    if fields.get("as") is None:
        return
    path = restore_node(str(fields["as"]))
    lock = find_record(store, path, "a restore")
    if lock is not None and "step" not in lock.fields and lock.fields["managedLedger"] == fields["managedLedger"]:
        store.delete_many([(path, lock.version)])


def _command_of(fields: Mapping[str, Any]) -> str:
    name = TopicName.of_managed_ledger(str(fields["managedLedger"]))
    options = [_life(fields.get("generation"))]
    if fields.get("as") is not None and name.partition is not None:
        # All partitions together.
        name, options = name.base, []
    if fields.get("subscription") is not None:
        options.append(f"--subscription {decode_local_name(str(fields['subscription']))}")
    if fields.get("as") is not None:
        options.append(f"--as {TopicName.of_managed_ledger(str(fields['as'])).base}")
    if fields.get("underLive"):
        options.append("--under-live")
    return " ".join(["bookwarden trash restore", str(name), *options, "--execute"])


def _is_written(trashed: TrashedGeneration, request: RestoreRequest, now: NodesNow) -> bool:
    """Return whether the topic's node names what only the trash had: then everything before it is written too.

    What is put under a live topic may be written twice; some of it may have been on the list before.
    """
    if now.topic is None:
        return False
    there = [one for one in former_entries(trashed) if isinstance(now.ledgers[one], StoredLedger)]
    if there and _with_ledgers(trashed, request):
        listed = ledger_entries(now.topic.value).keys()
        return listed >= set(there) if request.under_live else not listed.isdisjoint(there)
    return all(cursor in now.cursors for cursor in wanted_cursors(trashed, request))


def _with_ledgers(trashed: TrashedGeneration, request: RestoreRequest) -> bool:
    return request.subscription is None or request.under_live or trashed.topic is not None


def _written(trashed: TrashedGeneration, request: RestoreRequest) -> set[int]:
    """Return the ledgers that an earlier try named, or would have if they had been there, without empty ones."""
    found = set().union(
        *(decode_cursor(cursor_value(one)).ledger_ids for one in wanted_cursors(trashed, request).values())
    )
    if _with_ledgers(trashed, request):
        infos = map(decode_ledger_entry, former_entries(trashed).values())
        found |= {info.ledger_id for info in infos if info.entries or not info.timestamp_ms}
        found |= set() if trashed.schema is None else decode_schema_locator(former_value(trashed.schema)).ledger_ids
    return found


def why_gone(trashed: TrashedGeneration, ledger_id: int) -> str:
    """Return what a ledger had that was deleted within a restore, for people."""
    deleted = "a sweep deleted it meanwhile"
    cursors = {name: decode_cursor(cursor_value(one)) for name, one in {**trashed.removed, **trashed.cursors}.items()}
    for name, info in cursors.items():
        if ledger_id == info.cursors_ledger_id:
            return f"{deleted}: it had the position of {decode_local_name(name)!r}, which goes on from an earlier one"
        if ledger_id in info.ledger_ids:
            return f"{deleted}: it had an index of {decode_local_name(name)!r}"
    if trashed.schema is not None and ledger_id in decode_schema_locator(former_value(trashed.schema)).ledger_ids:
        return f"{deleted}: it had a version of the schema, which brokers cannot read now: delete the schema by force"
    return f"{deleted}: it is off the list"


def _done_with(trashed: TrashedGeneration, request: RestoreRequest) -> list[FoundRecord]:
    """Return the records that a restore is done with, those last that tell which life the others are of."""
    cursors = wanted_cursors(trashed, request)
    done = [
        found
        for found in trashed.found
        # Of a compaction the trash does not tell whether its ledger was in use.
        if not (trashed.origin is not None and found.record.compacted)
        and (found.record.cursor in cursors if found.record.cursor is not None else _with_ledgers(trashed, request))
    ]
    return sorted(done, key=lambda found: found.record.generation is not None)


def _cursor_names(names: Sequence[str], trashed: TrashedGeneration) -> list[str]:
    """Return the live cursors that the trash has too."""
    return [name for name in names if name in trashed.cursors or name in trashed.removed]


def _former(trashed: TrashedGeneration) -> str:
    return (trashed.origin or trashed).managed_ledger


def _life(created_ms: object) -> str:
    return "--from-ledgers" if created_ms == FROM_LEDGERS else f"--generation {created_ms}"


def _topic(managed_ledger: str) -> str:
    return str(TopicName.of_managed_ledger(managed_ledger))
