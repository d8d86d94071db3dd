"""Observations of a cluster before its metadata is moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
class TargetSeen:
    """A target that answers: the nodes of its first level, whether its keys are sorted as Pulsar needs it, its age.

    ``hierarchical`` is None where that cannot be seen. ``is_0_15`` says Oxia 0.15 or newer.
    """

    names: tuple[str, ...]
    hierarchical: bool | None
    is_0_15: bool


@dataclass(frozen=True, slots=True)
class Observations:
    """Source, target and processes.

    ``phase`` is what the flag says, None without one. ``participants`` says of each registered node whose it is, empty
    where that is not told. ``not_taking_part`` has the sessions that keep ephemeral nodes and have not registered, with
    the paths of some of those. ``has_numbered_ledgers``: ids were given to ledgers from the source's counter.
    ``bookies`` are registered now, ``bookies_known`` have a cookie. ``target`` is a text where there is no answer.
    ``admin_trouble`` is why the broker of the settings cannot be asked for migrations, ``admin_brokers`` are those of
    its cluster as it says. ``other_stores`` are those of
    the settings that are not the source. Times are bookwarden's own, in seconds.
    """

    source_url: str
    target_url: str
    chroot: str
    ledgers_root: str
    phase: str | None
    flag_target: str | None
    participants: Mapping[str, str]
    not_taking_part: Mapping[int | None, tuple[str, ...]]
    survey: Survey
    brokers: tuple[BrokerSeen, ...]
    admin_trouble: str | None
    admin_brokers: tuple[str, ...]
    has_numbered_ledgers: bool
    bookies: tuple[str, ...]
    bookies_known: tuple[str, ...]
    target: TargetSeen | str
    other_stores: tuple[str, ...]
    session_timeout_s: float
    drain_limit_s: float
