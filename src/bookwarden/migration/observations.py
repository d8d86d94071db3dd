"""Observations of a cluster before its metadata is moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bookwarden.metastore.interface import TargetSeen
from bookwarden.migration.survey import Survey


@dataclass(frozen=True, slots=True)
class BrokerSeen:
    """A registered broker; ``settings`` is None, and ``trouble`` says why, where it did not tell them.

    ``other_configuration`` is the URL of its configuration store if that is another one than its metadata store.
    """

    name: str
    version: str | None = None
    settings: Mapping[str, str] | None = None
    trouble: str | None = None
    other_configuration: str | None = None


@dataclass(frozen=True, slots=True)
class Configured:
    """Settings that bear on a move."""

    source_url: str  #: As in the settings, or as the operator gives it.
    chroot: str  #: Of the source; "" if it has none.
    ledgers_root: str  #: BookKeeper's, as the settings name it.
    other_stores: tuple[str, ...]  #: Stores of the settings other than the source.
    session_timeout_s: float  #: Bookwarden's own, in seconds.
    drain_limit_s: float  #: Bookwarden's own, in seconds.


@dataclass(frozen=True, slots=True)
class RegisteredClusters:
    """The bookie clusters that the source's registry names, between which brokers with the jar are switched."""

    names: tuple[str, ...] = ()  #: Empty where none is registered.
    id_root: str = ""  #: Where ledger ids are counted in the source.
    counts_itself: bool = True  #: That is the root of the one cluster, in the source: a stock broker counts on there.
    problem: str = ""  #: Why the registry cannot be read; "" if it can.


@dataclass(frozen=True, slots=True)
class Observations(Configured):
    """The state of source, target and processes before a migration."""

    target_url: str  #: As the operator gives it.
    phase: str | None  #: In the flag; None without a flag.
    flag_target: str | None  #: In the flag; None if it names none.
    participants: Mapping[str, str]  #: By registered node, the process behind it; "" if unknown.
    #: Sessions with ephemeral nodes that have not registered, with some paths of those.
    not_taking_part: Mapping[int | None, tuple[str, ...]]
    survey: Survey  #: Of the source.
    brokers: tuple[BrokerSeen, ...]  #: All that are registered.
    admin_trouble: str | None  #: Why the broker of the settings cannot be asked about migrations; None if it can.
    admin_brokers: tuple[str, ...]  #: The brokers of its cluster, as it lists them.
    has_numbered_ledgers: bool  #: Whether the source's counter has given ids to ledgers.
    bookies: tuple[str, ...]  #: Ids of the bookies registered now.
    bookies_known: tuple[str, ...]  #: Ids of all bookies that have a cookie.
    target: TargetSeen | str  #: A text says why it does not answer.
    registered: RegisteredClusters = RegisteredClusters()  #: By the registry of bookie clusters in the source.
