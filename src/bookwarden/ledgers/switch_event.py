"""The event of a switch of bookie clusters, which follows the change of the registry."""

from __future__ import annotations

from typing import NamedTuple


class SwitchEvent(NamedTuple):
    """The message about a switch (schemas/bookie_cluster_switch.avsc); the registry alone decides."""

    source: str  #: Name of the bookie cluster that was active before.
    target: str  #: Name of the one that is active now.
    origin: str  #: The process that gave the order.
    epoch: int  #: Of the registry that the order made.
    time_ms: int  #: When it was given, by the clock of its origin.
    owner: str  #: `Registry.owner`.
