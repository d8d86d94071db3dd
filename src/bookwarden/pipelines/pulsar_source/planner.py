"""The driver's side: the ends of partitions, and the contents of batches.

Positions come from the admin REST. Entries are read for estimates and delivery times alone, with little time for each,
so that none can block or fail a query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial

from bookwarden.clusters.pulsar.entries import TopicEntries
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import (
    TopicPositions,
    create_subscription,
    find_position_before,
    move_subscription,
)
from bookwarden.errors import ConfigError, DataGoneError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.pipelines.pulsar_source.acknowledging import Acknowledger
from bookwarden.pipelines.pulsar_source.delays import DelayWatch, Moment
from bookwarden.pipelines.pulsar_source.limits import Cap, EntrySizes, capped_ends, shares_of_tasks
from bookwarden.pipelines.pulsar_source.offsets import EARLIEST, LATEST, SUBSCRIPTION, Boundary, Offsets
from bookwarden.pipelines.pulsar_source.options import SourceOptions
from bookwarden.pipelines.pulsar_source.polling import Discovery, PositionPolls
from bookwarden.pipelines.pulsar_source.ranges import (
    EntryRange,
    advance,
    check_end,
    check_start,
    count_between,
    place_to_read_again,
    ranges_between,
)

_LOG = logging.getLogger(__name__)

_ADMIN_TIMEOUT_S = 5.0
_CONFIRMATION_S = 10.0
# Fewer are read and swept in less time than a task of their own takes to start.
_ROWS_WORTH_A_TASK = 100
_CONFIRMATION_POLL_S = 0.05


class BatchPlanner:
    """Plans the batches of one query; it lives as long as the query's planning process."""

    def __init__(
        self, options: SourceOptions, admin: PulsarAdmin | None = None, delays: DelayWatch | None = None
    ) -> None:
        self._options = options
        self._admin = admin or PulsarAdmin(options.connection, timeout_s=_ADMIN_TIMEOUT_S)
        self._discovery = Discovery(options, self._admin)
        self._polls = PositionPolls(options, self._admin, self._discovery)
        self._starter = Starter(options, self._admin)
        entries = partial(TopicEntries, options.connection)
        self._sizes = EntrySizes(entries())
        self._delays = delays or DelayWatch(entries, options.max_unreachable_s, options.max_delay_s or 0)
        self._acknowledger = (
            Acknowledger(options.connection, options.subscription)
            if options.subscription is not None and options.acknowledge
            else None
        )
        self._snapshot: dict[str, TopicPositions] = {}
        self._targets: Offsets | None = None
        self._frozen_at: Moment | None = None
        self._idle_since: float | None = None
        self._turn = 0
        self._control_was_last = False
        self._starts: dict[str, tuple[Position, Position]] = {}
        self._warned: set[tuple[str, Position]] = set()
        # Where this run began, of the partitions that were not yet compared with their subscription.
        self._began: Offsets | None = None

    def initial(self) -> Offsets:
        """Find where a query without a checkpoint starts, and create the subscription where it is absent."""
        positions = self._polls.poll_all(self._discovery.partitions())
        self._began = {}
        return self._starter.start_all(positions, self._options.starting_stream)

    def freeze(self) -> None:
        """Fix the ends of a query that stops when it has read everything present."""
        positions = self._polls.poll_all(self._discovery.partitions())
        self._targets = {topic: found.latest for topic, found in positions.items()}
        self._frozen_at = self._delays.now()

    def latest(self, start: Offsets, cap: Cap) -> Offsets:
        """Acknowledge finished batches, and find the end of the next one; `start` itself if there is nothing new."""
        self._pace()
        topics = set(self._targets if self._targets is not None else self._discovery.partitions())
        asked = topics | {topic for topic in start if self._discovery.asks_for(topic)}
        # A query that stops at its targets must not take an unreachable partition for a finished one.
        poll = self._polls.poll if self._targets is None else self._polls.poll_all
        previous, self._snapshot = self._snapshot, poll(sorted(asked))
        positions = self._snapshot
        known = {topic: found for topic, found in positions.items() if topic in start}
        sound = {
            topic: self._check_start(found, start[topic], self._options.subscription, previous.get(topic))
            for topic, found in known.items()
        }
        # A batch without entries that puts the checkpoint back, so that what is read again is planned as anything else.
        again = self._places_to_read_again(start, known)
        # A control topic that was deleted and created again is read from its subscription.
        again |= {
            topic: self._starter.start_new(known[topic])
            for topic, is_sound in sound.items()
            if not is_sound and self._options.is_control(topic)
        }
        self._acknowledge({topic: at for topic, at in start.items() if topic not in again}, positions)
        ends: Offsets = {**start, **again}
        known = {topic: found for topic, found in known.items() if topic not in again}
        self._turn += 1
        ends.update(self._ends(known, start, cap))
        for topic in positions.keys() - start.keys():
            # Its start goes into the checkpoint before any of it is read, so that a replay is exact.
            ends[topic] = self._starter.start_new(positions[topic])
        self._idle_since = time.monotonic() if ends == start else None
        if self._targets is not None and ends == start:
            self._await_confirmation(start)
        return ends

    def partitions(self, start: Offsets, end: Offsets) -> dict[str, tuple[EntryRange, ...]]:
        """Turn a batch into the entries to read of each partition."""
        self._began = dict(start) if self._began is None else self._began
        changed = {topic for topic, position in end.items() if topic in start and start[topic] != position}
        known = {topic: found for topic, found in self._snapshot.items() if topic in changed}
        # The snapshot that the end was taken from does; a replayed batch needs one first, and must find its end.
        if any(found.latest < end[topic] for topic, found in known.items()):
            known = {}
        positions = known | self._polls.poll_all(changed - known.keys())
        plan = {}
        for topic in sorted(changed & positions.keys()):
            if topic not in self._starts or self._starts[topic][0] != start[topic]:
                self._check_start(positions[topic], start[topic], self._options.subscription)
            self._check_end(positions[topic], end[topic])
            ranges = ranges_between(positions[topic], start[topic], end[topic])
            if ranges:
                plan[topic] = tuple(ranges)
        return plan

    def together(self, plan: Mapping[str, tuple[EntryRange, ...]]) -> list[list[str]]:
        """Group the partitions of a batch by the task that reads them; the number of their rows is estimated."""
        rows = {
            topic: sum(entries.count for entries in ranges) * self._sizes.last_known(topic)
            for topic, ranges in plan.items()
        }
        return shares_of_tasks(rows, _ROWS_WORTH_A_TASK)

    def plan_batch(self) -> dict[str, tuple[EntryRange, ...]]:
        """Plan a batch query: the entries between its two boundaries."""
        positions = self._polls.poll_all(self._discovery.partitions())
        first, last = self._options.starting_batch, self._options.ending
        check_named(first, positions, "startingOffsets")
        check_named(last, positions, "endingOffsets")
        plan = {}
        for topic, found in sorted(positions.items()):
            start = resolve(self._admin, found, first, self._options.subscription)
            end = resolve(self._admin, found, last, absent=LATEST)
            if first.positions:
                self._check_start(found, start, None)
            if last.positions:
                self._check_end(found, end)
            if self._options.is_delayed(topic):
                end = self._delays.due_end(found, start, end, self._delays.now())
            ranges = ranges_between(found, start, end)
            if ranges:
                plan[topic] = tuple(ranges)
        return plan

    def _pace(self) -> None:
        if self._idle_since is not None:
            time.sleep(max(0.0, self._idle_since + self._options.min_poll_s - time.monotonic()))

    def _ends(self, positions: Mapping[str, TopicPositions], start: Offsets, cap: Cap) -> Offsets:
        """Return the ends of a batch: of one entry of a control topic, or of other topics, by turns."""
        ends = self._open_ends(positions, start)
        control = {topic: found for topic, found in positions.items() if self._options.is_control(topic)}
        others = {topic: found for topic, found in positions.items() if topic not in control}
        waiting = [topic for topic in sorted(control) if count_between(control[topic], start[topic], ends[topic])]
        # So neither a flood of control entries nor one of others keeps the rest waiting.
        is_turn_of_others = self._control_was_last and any(
            count_between(found, start[topic], ends[topic]) for topic, found in others.items()
        )
        self._control_was_last = bool(waiting) and not is_turn_of_others
        if self._control_was_last:
            first = waiting[0]
            return {first: advance(control[first], start[first], ends[first], 1)}
        return capped_ends(others, start, {topic: ends[topic] for topic in others}, cap, self._sizes, self._turn)

    def _open_ends(self, positions: Mapping[str, TopicPositions], start: Offsets) -> Offsets:
        ends = {}
        for topic, found in positions.items():
            end = self._targets.get(topic, start[topic]) if self._targets is not None else found.latest
            if self._options.is_delayed(topic):
                end = self._delays.due_end(found, start[topic], end, self._frozen_at)
            ends[topic] = max(end, start[topic])
        return ends

    def _places_to_read_again(self, start: Offsets, positions: Mapping[str, TopicPositions]) -> Offsets:
        """Return where to go back to in partitions whose subscription is behind the start of this run.

        Each is compared once: later a cursor is behind because a broker was killed, and what this run read is known.
        """
        if self._began is None:
            self._began = dict(start)
        again: Offsets = {}
        if self._acknowledger is None or self._options.subscription is None:
            return again
        for topic in sorted(positions.keys() & self._began.keys()):
            # The first batch of this run may be one that went back.
            began = min(self._began.pop(topic), start[topic])
            place = place_to_read_again(positions[topic], began, self._options.subscription)
            if place is not None:
                again[topic] = place
                _LOG.warning(
                    "%s: the checkpoint is at %s and subscription %s, which a killed broker puts back, at %s; reading "
                    "again from there",
                    *(topic, began, self._options.subscription, place),
                )
        return again

    def _acknowledge(self, finished: Mapping[str, Position], positions: Mapping[str, TopicPositions]) -> None:
        subscription = self._options.subscription
        if self._acknowledger is None or subscription is None:
            return
        marked = {}
        for topic, found in positions.items():
            if subscription in found.cursors:
                marked[topic] = found.cursors[subscription]
            elif topic in finished:
                self._starter.restore(found, finished[topic])
        self._acknowledger.want({topic: finished[topic] for topic in marked if topic in finished}, marked)

    def _await_confirmation(self, finished: Offsets) -> None:
        if self._acknowledger is None:
            return
        deadline = time.monotonic() + _CONFIRMATION_S
        while unconfirmed := self._acknowledger.unconfirmed:
            if time.monotonic() > deadline:
                _LOG.warning("acknowledgements not confirmed: %s; the next run sends them", sorted(unconfirmed))
                return
            time.sleep(_CONFIRMATION_POLL_S)
            self._acknowledge(finished, self._polls.poll(sorted(unconfirmed)))

    def _check_start(
        self,
        positions: TopicPositions,
        start: Position,
        subscription: str | None,
        previous: TopicPositions | None = None,
    ) -> bool:
        """Return whether `start` is of this topic, and nothing behind it is gone; DataGoneError unless that may be."""
        topic = positions.topic
        asked, placed = self._starts.get(topic, (start, start))
        if asked != start:
            placed = start
        is_sound = True
        try:
            check_start(positions, placed, subscription, previous)
        except DataGoneError as error:
            self._tolerate(topic, start, error)
            is_sound = False
        # From here on the trimmed ledgers are known to be read; the entries behind them are still watched.
        self._starts[topic] = (start, max(placed, positions.earliest))
        return is_sound

    def _check_end(self, positions: TopicPositions, end: Position) -> None:
        try:
            check_end(positions, end)
        except DataGoneError as error:
            self._tolerate(positions.topic, end, error)

    def _tolerate(self, topic: str, position: Position, error: DataGoneError) -> None:
        if self._options.fail_on_data_loss and not self._options.is_control(topic):
            raise error
        if (topic, position) not in self._warned:
            self._warned.add((topic, position))
            _LOG.warning("%s; going on with what is left", error)


def resolve(
    admin: PulsarAdmin,
    positions: TopicPositions,
    boundary: Boundary,
    subscription: str | None = None,
    absent: str = EARLIEST,
) -> Position:
    """Turn a boundary into a position of one partition; `absent` is for a partition that it does not name."""
    if boundary.timestamp_ms is not None:
        return max(find_position_before(admin, positions.topic, boundary.timestamp_ms), positions.earliest)
    place = boundary.positions.get(positions.topic, absent) if boundary.positions else boundary.name
    if isinstance(place, Position):
        return place
    if place == SUBSCRIPTION and subscription is not None:
        return positions.cursors.get(subscription, positions.earliest)
    return positions.latest if place == LATEST else positions.earliest


def check_named(boundary: Boundary, partitions: Mapping[str, object], option: str) -> None:
    """Raise ConfigError if a boundary names a partition that is not read."""
    for topic in boundary.positions:
        if topic not in partitions:
            raise ConfigError(f"option {option} names {topic}, which is not read; read are {', '.join(partitions)}")


class Starter:
    """Finds where partitions start, and keeps a durable subscription there if the query has one."""

    def __init__(self, options: SourceOptions, admin: PulsarAdmin) -> None:
        self._options = options
        self._admin = admin

    def start_all(self, positions: Mapping[str, TopicPositions], boundary: Boundary) -> Offsets:
        """Find where a query without a checkpoint starts."""
        check_named(boundary, positions, "startingOffsets")
        return {topic: self._start(found, boundary) for topic, found in sorted(positions.items())}

    def start_new(self, positions: TopicPositions) -> Position:
        """Find the start of a partition that appeared while the query ran: none of its entries may be missed."""
        name = SUBSCRIPTION if self._options.subscription is not None else EARLIEST
        return self._start(positions, Boundary(name=name))

    def restore(self, positions: TopicPositions, finished: Position) -> None:
        """Restore a subscription that was removed; raise DataGoneError if entries may be trimmed by then."""
        subscription = self._options.subscription
        if subscription is None:
            return
        text = f"{positions.topic}: subscription {subscription} was removed while it was read"
        may_be_lost = not self._options.fail_on_data_loss or self._options.is_control(positions.topic)
        if finished < positions.earliest and not may_be_lost:
            raise DataGoneError(f"{text}, and entries behind {finished} were trimmed; start with a new checkpoint")
        _LOG.warning("%s; creating it again behind %s", text, finished)
        create_subscription(self._admin, positions.topic, subscription, max(finished, positions.earliest))

    def _start(self, positions: TopicPositions, boundary: Boundary) -> Position:
        subscription = self._options.subscription
        position = resolve(self._admin, positions, boundary, subscription)
        if subscription is None:
            return position
        marked = positions.cursors.get(subscription)
        if marked is None:
            create_subscription(self._admin, positions.topic, subscription, position)
        elif position < marked and count_between(positions, position, marked) > 0:
            # Before its position a subscription protects nothing from trimming.
            _LOG.warning(
                "%s: moving subscription %s from %s back to %s", positions.topic, subscription, marked, position
            )
            move_subscription(self._admin, positions.topic, subscription, position)
        elif skipped := count_between(positions, marked, position):
            _LOG.warning(
                "%s: startingOffsets passes over %d entries that subscription %s has not acknowledged",
                positions.topic,
                skipped,
                subscription,
            )
        return position
