"""A migration under way, as seen by an operator who waits for its end; and the phases of the stores, by their flags."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from bookwarden.errors import FormatError, StoreError
from bookwarden.metastore.following.flag import read_flag
from bookwarden.metastore.interface import MetadataStore

# The speed that PIP-454 promises, and its coordinator's wait for participants, after which it copies anyway.
PROPOSED_SECONDS: Final = 30.0
PROPOSED_BYTES: Final = 500_000_000
PARTICIPANTS_LIMIT_SECONDS: Final = 60.0
# A coordinator that is alive makes progress sooner.
_STALL_SECONDS: Final = 30.0


class MigrationOutcome(Enum):
    """The end of a migration."""

    COMPLETED = "completed"
    FAILED = "failed"
    REMOVED = "flag removed"


def ending_of(phase: str | None) -> MigrationOutcome | None:
    """Return the ending that a phase is; None for other phases."""
    return {"COMPLETED": MigrationOutcome.COMPLETED, "FAILED": MigrationOutcome.FAILED}.get(phase or "")


@dataclass(frozen=True, slots=True)
class NodeCopyProgress:
    """The number of the source's nodes that are in the target: counted, or estimated from a sample."""

    nodes: int
    of: int
    estimated: bool


@dataclass(frozen=True, slots=True)
class PhaseSnapshot:
    """A migration as seen at one moment."""

    at_ms: int  #: By our clock, in ms since the epoch.
    phase: str | None = None  #: In the flag; None without a flag.
    target_url: str | None = None  #: In the flag; None if it names none.
    began_ms: int = 0  #: When the flag was created, by the clock of the source's server; 0 without one.
    changed_ms: int = 0  #: When the phase began, by the clock of the source's server; 0 without one.
    #: By registered node, the process behind it; "" if unknown.
    participants: Mapping[str, str] = field(default_factory=dict)
    copied: NodeCopyProgress | None = None  #: None if unknown.
    error: str | None = None  #: Why the source could not be read; all else is then of the last snapshot.

    @property
    def blocked_seconds(self) -> float:
        """How long writes were stopped; until the end by our clock and the source's, which may differ."""
        if self.phase is None or not self.began_ms:
            return 0.0
        end = self.changed_ms if ending_of(self.phase) else self.at_ms
        return max(0.0, (end - self.began_ms) / 1000)

    @property
    def phase_seconds(self) -> float:
        """How long the phase has lasted, by both clocks."""
        return max(0.0, (self.at_ms - self.changed_ms) / 1000) if self.changed_ms else 0.0


@dataclass(frozen=True, slots=True)
class PhaseStep:
    """A snapshot, its warnings, and the migration's ending if it was the last snapshot."""

    snapshot: PhaseSnapshot
    warnings: tuple[str, ...] = ()
    ending: MigrationOutcome | None = None

    @property
    def differs_from(self) -> tuple[object, ...]:
        """The values whose change makes a step worth reporting: all but times."""
        snapshot = self.snapshot
        return snapshot.phase, tuple(snapshot.participants), snapshot.copied, snapshot.error, self.warnings


def follow(
    snapshot: Callable[[], PhaseSnapshot],
    *,
    every_s: float = 0.5,
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[PhaseStep]:
    """Look until the migration is over; the last step has its ending."""
    course = _Watch(clock)
    while True:
        step = course.step(snapshot())
        yield step
        if step.ending is not None:
            return
        pause(every_s)


def warnings_of_copy(snapshot: PhaseSnapshot) -> Iterator[str]:
    """Yield what is wrong where the copy begins while participants are left."""
    if snapshot.phase == "COPYING" and snapshot.participants:
        yield (
            f"the copy began without {_named(snapshot.participants)}: what they write to the source now "
            "may be lost; find them, and verify the copy"
        )


def warnings_of_preparation(snapshot: PhaseSnapshot, idle_s: float) -> Iterator[str]:
    """Yield what is wrong where PREPARATION has lasted for this long."""
    if snapshot.phase == "PREPARATION" and idle_s > 2 * PARTICIPANTS_LIMIT_SECONDS + _STALL_SECONDS:
        yield (
            # It looks for the last time before its 60 s are over, and then pauses for as long again.
            "PREPARATION lasts longer than its broker waits: that broker has ended, or cannot write the flag; see "
            "'A migration that stalls' in docs/howto/move-metadata.md"
        )


class _Watch:
    """The snapshots so far; each warning is given once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: PhaseSnapshot | None = None
        self._moved_at = clock()
        self._warned: set[str] = set()

    def step(self, snapshot: PhaseSnapshot) -> PhaseStep:
        before = self._last
        if before is None or (snapshot.phase, snapshot.copied, snapshot.error) != (
            before.phase,
            before.copied,
            before.error,
        ):
            self._moved_at = self._clock()
        warnings = tuple(text for text in self._warnings(snapshot, before) if text not in self._warned)
        self._warned.update(warnings)
        self._last = snapshot
        return PhaseStep(snapshot, warnings, _ending(snapshot, before))

    def _warnings(self, snapshot: PhaseSnapshot, before: PhaseSnapshot | None) -> Iterator[str]:
        if snapshot.error is not None:
            return
        if before is not None and before.phase == "PREPARATION":
            yield from warnings_of_copy(snapshot)
        idle = self._clock() - self._moved_at
        yield from warnings_of_preparation(snapshot, idle)
        if snapshot.phase == "COPYING" and snapshot.copied is not None and idle > _STALL_SECONDS:
            yield (
                f"nothing was copied for {_STALL_SECONDS:.0f} s: the broker that copies may have ended; see "
                "'A migration that stalls' in docs/howto/move-metadata.md"
            )


def _ending(snapshot: PhaseSnapshot, before: PhaseSnapshot | None) -> MigrationOutcome | None:
    if snapshot.error is not None:
        return None
    if snapshot.phase is None:
        return None if before is None or before.phase is None else MigrationOutcome.REMOVED
    return ending_of(snapshot.phase)


def _named(participants: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({whose})" if whose else name for name, whose in sorted(participants.items()))


@dataclass(frozen=True, slots=True)
class StorePhase:
    """Phase of one metadata store, by its flag; ``problem`` is the reason if it is not known."""

    store: str
    phase: str
    target: str | None = None
    problem: str = ""


def read_phases(stores: Mapping[str, Callable[[], MetadataStore]]) -> tuple[StorePhase, ...]:
    """Read the flag of each store by URL; they are opened for that."""
    return tuple(_phase_of(url, opened) for url, opened in stores.items())


def _phase_of(url: str, opened: Callable[[], MetadataStore]) -> StorePhase:
    try:
        with closing(opened()) as store:
            flag = read_flag(store)
    except (StoreError, FormatError) as error:
        return StorePhase(url, "unknown", problem=str(error))
    return StorePhase(url, "NOT_STARTED") if flag is None else StorePhase(url, flag.phase, flag.target_url)
