"""Everything that is known of switches and moves between bookie clusters, read from the records of both."""

from __future__ import annotations

from typing import NamedTuple

from bookwarden.metastore.interface import MetadataStore
from bookwarden.switching.moving.build import FoundBuild, find_build
from bookwarden.switching.offline.record import MoveNode, MoveRecord
from bookwarden.switching.operation import State, Switch
from bookwarden.switching.promoted import Promotion, promotion_that_counts, read_promotion


class Overview(NamedTuple):
    """The state of the newest switch, and of each move of ledgers."""

    state: State
    promotion: Promotion | None  #: The newest, if it counts.
    build: FoundBuild | None  #: None if there was none yet.
    move: MoveRecord | None  #: The newest without the jar.


def read_overview(store: MetadataStore, switch: Switch) -> Overview:
    """Read everything from Pulsar's own store; changes nothing."""
    state = switch.state()
    move = MoveNode(store).read()
    promotion = promotion_that_counts(state.registry, read_promotion(store))
    return Overview(state, promotion, find_build(store), None if move is None else move.record)
