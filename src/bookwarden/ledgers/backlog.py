"""The backlog of a partition, counted in messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionBacklog:
    """The backlog of one partition; an entry holds one message or a batch of them.

    When not ``exact``, messages were counted in only part of the entries, and the rest taken to be like those.
    """

    topic: str
    entries: int
    messages: int
    exact: bool
    first: str = ""  #: Ledger and entry of the first; "" if there is none.
