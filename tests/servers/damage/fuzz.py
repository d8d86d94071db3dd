"""The act that damages nodes of a real cluster, one variant at a time, and sweeps marks of all that they name.

Damage is transient, repaired before the first retry, or lasting, until the last retry of each mark. Whatever goes is
reported and put back, so that each look begins with a whole cluster.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from unittest.mock import patch

from bookwarden.clusters.pulsar.references import unnamed_use
from bookwarden.config import Settings
from bookwarden.errors import StoreError, StoreWedgedError
from bookwarden.ledgers.outcomes import Outcome, OutcomeRow
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.ledgers.received import FIRST_READ, RECONSUME_TIMES, ReceivedMark
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.store_clock import StoreClock
from bookwarden.wiring import deletion
from bookwarden.wiring.deletion import cluster_to_sweep, sweep_of
from servers.damage.filling import DELETIONS, DamagedCluster
from servers.damage.nodes import NodeKind
from servers.damage.truth import LiveMark, Truth
from servers.damage.variants import Damage, Exemption, Variant, exemption_of, make_variants
from servers.deletion_site import DeletionSite
from servers.object_store import OFFLOAD_BUCKET
from servers.waiting import eventually

_RETRIES: Final = 2
_HANGS_S: Final = 120
# What was made a moment ago is as old as in a cluster that has run for long.
_AHEAD_S: Final = 7200
_GOES_ON: Final = (Outcome.RETRY, Outcome.WAITING, Outcome.DELAYED)
_SETTLED: Final = (
    *(Outcome.DELETED, Outcome.ALREADY_GONE, Outcome.STILL_REFERENCED),
    *(Outcome.UNDONE, Outcome.MISMATCH, Outcome.WOULD_DELETE, Outcome.DIRECTIVE),
)
#: The settings that differ from the defaults, by the name of the sweep.
SWEEPS: Final[Mapping[str, Mapping[str, str]]] = {
    "by default": {},
    # As a sweep that has just been started, and a cluster whose ledgers are listed at once.
    "unlisted_grace 60 s, shadows read each time": {
        "deletion.unlisted_grace_seconds": "60",
        "deletion.shadow_refresh_seconds": "0.001",
    },
}


class HungError(Exception):
    """A sweep did not end in time."""


@dataclass(frozen=True, slots=True)
class Swept:
    """A mark, the retries before it, and what became of it."""

    mark: PendingDeletion
    attempts: int
    row: OutcomeRow

    @property
    def goes_on(self) -> bool:
        return self.row.outcome in _GOES_ON

    @property
    def given_up(self) -> bool:
        return not self.goes_on and self.row.outcome not in _SETTLED


class OldSweep:
    """A sweep in this process, for which all ledgers are hours old; closed by the caller."""

    _looks = 0

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        with patch.object(deletion, "StoreClock", _ClockAhead):
            self._cluster = cluster_to_sweep(settings)
            self._sweep = sweep_of(self._cluster)

    def sweep(self, marks: Sequence[tuple[PendingDeletion, int]]) -> list[Swept]:
        """Sweep marks as if they came from the retry topic for so many times; HungError if that does not end."""
        OldSweep._looks += 1
        received = [
            ReceivedMark(
                *(self._settings.deletion.retry_topic, f"1:{number}:0", str(mark.holder()), b""),
                {FIRST_READ: "1", RECONSUME_TIMES: str(attempts)},
                published_at=1,
                mark=mark,
            )
            for number, (mark, attempts) in enumerate(marks)
        ]
        with _ending_within(_HANGS_S), patch.object(unnamed_use, "CLOCK_SKEW_MS", 0):
            # Each look is a batch of its own: a batch that is tried again sends nothing twice.
            batches = self._sweep.process(received, f"damage/{OldSweep._looks}")
            rows = {row.message: row for batch in batches for row in batch}
        return [
            Swept(mark, attempts, rows[one.message_id]) for one, (mark, attempts) in zip(received, marks, strict=True)
        ]

    def sweep_to_the_end(self, marks: Sequence[PendingDeletion], retries: int = _RETRIES) -> list[Swept]:
        """Sweep marks until each is settled or has had its last retry; return what became of each."""
        ended: dict[int, Swept] = {}
        left = dict(enumerate(marks))
        for attempts in range(retries + 1):
            swept = self.sweep([(mark, attempts) for mark in left.values()])
            ended |= dict(zip(left, swept, strict=True))
            left = {number: mark for number, mark in left.items() if ended[number].goes_on}
            if not left:
                break
        return [ended[number] for number in range(len(marks))]

    def close(self) -> None:
        self._cluster.close()


class _ClockAhead(StoreClock):
    """The store's clock, hours ahead."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)

    def __call__(self) -> float:
        return super().__call__() + _AHEAD_S


@contextmanager
def _ending_within(seconds: int) -> Iterator[None]:
    def hung(*_: object) -> None:
        raise HungError(f"the sweep did not end within {seconds} s")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def settings_of(site: DamagedCluster, folder: Path, **overrides: str) -> DeletionSite:
    """Return the place from which marks are swept; its topics are of a namespace that is never damaged."""
    return DeletionSite.of(
        site.cluster,
        DELETIONS,
        folder,
        {
            "offload.stores": json.dumps([site.objects.sweep_settings(OFFLOAD_BUCKET)]),
            "deletion.still_referenced_grace_seconds": "0",
            "deletion.unlisted_grace_seconds": "600",
            "deletion.two_phase_deletion_reconsume_later_in_seconds": "1",
            "deletion.two_phase_deletion_max_retry_delete_count": str(_RETRIES),
            # Else a batch waits, as it should, for a doubt about more marks than that.
            "sweep.max_waiting_marks": "10000000",
            **overrides,
        },
    )


@dataclass
class Losses:
    """What a run found."""

    variants: Counter[tuple[Damage, NodeKind]] = field(default_factory=Counter)
    losing: Counter[tuple[Damage, NodeKind]] = field(default_factory=Counter)
    by_sweep: Counter[str] = field(default_factory=Counter)
    ledgers: int = 0
    copies: int = 0
    exempt: Counter[Exemption] = field(default_factory=Counter)
    crashed: int = 0
    hung: int = 0
    given_up: Counter[tuple[str, str]] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    written_by_others: int = 0
    wedged: int = 0
    longest_s: float = 0.0

    @property
    def failed(self) -> bool:
        return bool(self.ledgers or self.copies or self.crashed or self.hung)

    def lines(self) -> Iterator[str]:
        """Say it all, as a table and the counts below it."""
        yield f"{'variants that lost, of all':<28}" + "".join(f"{kind.value:>18}" for kind in NodeKind)
        for damage in Damage:
            cells = [
                f"{self.losing[damage, kind]} of {self.variants[damage, kind]}" if self.variants[damage, kind] else "-"
                for kind in NodeKind
            ]
            yield f"{damage.value:<28}" + "".join(f"{cell:>18}" for cell in cells)
        yield f"live ledgers lost: {self.ledgers}"
        yield f"live copies lost: {self.copies}"
        for name in SWEEPS:
            yield f"  variants that lost, swept {name}: {self.by_sweep[name]}"
        for exemption in Exemption:
            yield f"  not counted: {self.exempt[exemption]} lost by {exemption.value}"
        yield f"crashed {self.crashed}, hung {self.hung}, longest sweep {self.longest_s:.1f} s"
        yield f"nodes that a broker wrote while they were damaged: {self.written_by_others}"
        yield f"restarts of an Oxia that took no more writes: {self.wedged}"
        yield "outcomes: " + ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.most_common())
        for (how_long, outcome), count in sorted(self.given_up.items()):
            yield f"given up though all is live, {how_long}: {count} {outcome}"


class Fuzz:
    """Damages the nodes of a filled cluster, variant by variant."""

    def __init__(self, site: DamagedCluster, truth: Truth, seed: int) -> None:
        self._site, self.truth, self._seed = site, truth, seed
        self.losses = Losses()
        self._sweeps: dict[str, OldSweep] = {}

    def run(self, count: int) -> None:
        """Play so many variants."""
        nodes = [node for node in self.truth.nodes.values() if self.truth.live_marks(node.path)]
        variants = [
            variant
            for variant in make_variants(nodes, count, self._seed)
            if any(self.truth.live_marks(path) for path, _ in variant.writes)
        ]
        self._site.say(f"{len(variants)} variants of {len(nodes)} nodes")
        self._open_sweeps()
        try:
            self._control("before the damage")
            begun = time.monotonic()
            for number, variant in enumerate(variants, 1):
                self._play_in_spite_of_oxia(variant)
                if number % 100 == 0 or number == len(variants):
                    self._progress(number, len(variants), begun)
            self._control("after the damage")
        finally:
            for sweep in self._sweeps.values():
                sweep.close()

    def _play_in_spite_of_oxia(self, variant: Variant) -> None:
        """Play a variant; where an Oxia takes no more writes (docs/oxia.md), restart it and leave the variant out."""
        try:
            self.play(variant)
        except StoreWedgedError as error:
            self.losses.wedged += 1
            self._site.say(f"Oxia is restarted, and a variant left out: {error}")
            self._site.cluster.oxia.restart()
            healthy = {path: self.truth.nodes[path].value for path, _ in variant.writes}
            eventually(lambda: self._is_written(healthy), _HANGS_S, pause=1.0)
            marks = self.truth.live_marks(*healthy)
            gone = self._gone(marks)
            if gone:
                told = [f"{marks[number]}, found gone after the restart" for number in gone]
                self._add(variant, marks, {name: set(gone) for name in self._sweeps}, told)
            self._open_sweeps()

    def _is_written(self, values: Mapping[str, bytes]) -> bool:
        try:
            self._write(list(values.items()))
        except StoreError:
            return False
        return True

    def play(self, variant: Variant) -> None:
        """Write the damaged values, sweep, repair, and tell what went."""
        healthy = {path: self.truth.nodes[path].value for path, _ in variant.writes}
        if self._site.tree.get(list(healthy)) != list(healthy.values()):
            self._take_as_it_is(variant)
            return
        marks = self.truth.live_marks(*healthy)
        lasting = random.Random(f"{variant.seed}{variant}").random() < 0.5
        self.losses.variants[variant.damage, variant.kind] += 1
        lost: defaultdict[str, set[int]] = defaultdict(set)
        told: list[str] = []
        left = {name: list(range(len(marks))) for name in self._sweeps}
        self._write(variant.writes)
        damaged = True
        try:
            for look in range(_RETRIES + 1):
                for name, numbers in left.items():
                    swept = self._sweep(name, [(marks[number].mark, look) for number in numbers], variant)
                    for number in self._gone(marks):
                        lost[name].add(number)
                        rows = [
                            described(found.row) for found, each in zip(swept, numbers, strict=False) if each == number
                        ]
                        told.append(f"{marks[number]}, swept {name}, retry {look}: {'; '.join(rows) or 'no outcome'}")
                    self._count(swept, "lasting damage" if lasting else "transient damage")
                    left[name] = [number for number, found in zip(numbers, swept, strict=False) if found.goes_on]
                if damaged and not lasting:
                    self._repair(variant, healthy)
                    damaged = False
                if not any(left.values()):
                    break
        finally:
            if damaged:
                self._repair(variant, healthy)
        if lost:
            self._add(variant, marks, lost, told)

    def _sweep(self, name: str, marks: Sequence[tuple[PendingDeletion, int]], variant: Variant | None) -> list[Swept]:
        if not marks:
            return []
        begun = time.monotonic()
        try:
            return self._sweeps[name].sweep(marks)
        except StoreWedgedError:
            raise
        except HungError as error:
            self.losses.hung += 1
            self._site.say(f"HUNG, swept {name}: {error}; {variant}")
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a finding, and the others go on
            self.losses.crashed += 1
            self._site.say(f"CRASHED, swept {name}: {type(error).__name__}: {error}; {variant}")
        finally:
            self.losses.longest_s = max(self.losses.longest_s, time.monotonic() - begun)
        self._open_sweeps()
        return []

    def _open_sweeps(self) -> None:
        """Open the sweeps, and let them read a healthy cluster."""
        for sweep in self._sweeps.values():
            sweep.close()
        self._sweeps = {
            name: OldSweep(settings_of(self._site, self._site.home / f"sweep-{number}", **overrides).settings)
            for number, (name, overrides) in enumerate(SWEEPS.items())
        }

    def _control(self, when: str) -> None:
        """Sweep the marks of everything while it is healthy."""
        marks = self.truth.live_marks(*self.truth.nodes)
        changed = [
            path
            for path, value in zip(self.truth.nodes, self._site.tree.get(list(self.truth.nodes)), strict=True)
            if value != self.truth.nodes[path].value
        ]
        for path in changed:
            self._site.say(f"{when}, {path} is not as it was")
        for name in self._sweeps:
            swept = self._sweep(name, [(mark.mark, 0) for mark in marks], None)
            outcomes = Counter(found.row.outcome.value for found in swept)
            self._site.say(f"{when}, swept {name}: {len(marks)} marks of a healthy cluster: {dict(outcomes)}")
            for found in swept:
                if found.goes_on or found.given_up:
                    self._site.say(f"  not settled though healthy: {described(found.row)}")
            for number in self._gone(marks):
                self._site.say(f"  LOST in a healthy cluster: {marks[number]}")
                self.losses.copies += bool(marks[number].keys)
                self.losses.ledgers += not marks[number].keys

    def _gone(self, marks: Sequence[LiveMark]) -> list[int]:
        """Return the numbers of the marks whose ledger or copy is gone, and put all back."""
        ledgers = self._site.tree.ledgers()
        keys = self._site.bucket.keys() if any(mark.keys for mark in marks) else set()
        gone = [number for number, mark in enumerate(marks) if not mark.is_there(ledgers, keys)]
        for number in gone:
            if marks[number].keys:
                self._site.bucket.put_back(marks[number].keys - keys)
            elif marks[number].ledger_id not in ledgers:
                self._site.tree.create(*self.truth.ledgers[marks[number].ledger_id])
                ledgers[marks[number].ledger_id] = ""
        return gone

    def _write(self, values: Sequence[tuple[str, bytes]]) -> None:
        for path, value in values:
            self._site.tree.set(path, value)

    def _repair(self, variant: Variant, healthy: Mapping[str, bytes]) -> None:
        found = self._site.tree.get([path for path, _ in variant.writes])
        for (path, value), now in zip(variant.writes, found, strict=True):
            if now != value:
                self.losses.written_by_others += 1
                self._site.say(f"{path} was written by another meanwhile: {None if now is None else now.hex()}")
        self._write(list(healthy.items()))

    def _take_as_it_is(self, variant: Variant) -> None:
        """Read the healthy values again where a broker has written them since."""
        for path, _ in variant.writes:
            (value,) = self._site.tree.get([path])
            if value is not None and value != self.truth.nodes[path].value:
                self._site.say(f"a broker wrote {path}: it is left out once")
                nodes = {**self.truth.nodes, path: replace(self.truth.nodes[path], value=value)}
                self.truth = replace(self.truth, nodes=nodes)

    def _count(self, swept: Sequence[Swept], how_long: str) -> None:
        for found in swept:
            self.losses.outcomes[found.row.outcome.value] += 1
            if found.given_up:
                self.losses.given_up[how_long, found.row.outcome.value] += 1

    def _add(
        self, variant: Variant, marks: Sequence[LiveMark], lost: Mapping[str, set[int]], told: Sequence[str]
    ) -> None:
        """Count what a variant lost, and tell all that it takes to see it again."""
        numbers = set[int]().union(*lost.values())
        exemption = exemption_of(variant, self.truth.nodes[variant.path])
        if exemption is not None:
            self.losses.exempt[exemption] += len(numbers)
        else:
            copies = sum(bool(marks[number].keys) for number in numbers)
            self.losses.copies += copies
            self.losses.ledgers += len(numbers) - copies
            self.losses.losing[variant.damage, variant.kind] += 1
            self.losses.by_sweep.update(lost.keys())
        self._site.say(f"not counted, {exemption.value}: {variant}" if exemption else f"LOST: {variant}")
        for path, _ in variant.writes:
            self._site.say(f"  healthy: {path}={self.truth.nodes[path].value.hex()}")
        for line in told:
            self._site.say(f"  gone: {line}")

    def _progress(self, number: int, count: int, begun: float) -> None:
        lost = f"{self.losses.ledgers} live ledgers and {self.losses.copies} live copies lost"
        self._site.say(f"{number} of {count} variants, {time.monotonic() - begun:.0f} s: {lost}")
        # Nothing reads what was sent on.
        for topic in ("deletion-RETRY", "deletion-DLQ"):
            subscription = f"/persistent/{DELETIONS}/{topic}/subscription/ledger-deletion-worker"
            self._site.admin.post(f"{subscription}/skip_all")


def described(row: OutcomeRow) -> str:
    """Say what became of a mark, and why."""
    return f"{row.outcome.value} {row.holder} {row.ledger_id} ({row.reason})"
