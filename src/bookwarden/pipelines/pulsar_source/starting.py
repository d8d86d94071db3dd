"""Start of reading: boundaries turned into positions, and the durable subscription put there."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import (
    Position,
    TopicPositions,
    create_subscription,
    find_position_before,
    move_subscription,
)
from bookwarden.errors import ConfigError, DataGoneError
from bookwarden.pipelines.pulsar_source.offsets import EARLIEST, LATEST, SUBSCRIPTION, Boundary, Offsets
from bookwarden.pipelines.pulsar_source.options import SourceOptions
from bookwarden.pipelines.pulsar_source.ranges import count_between

_LOG = logging.getLogger(__name__)


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
