"""Green prepared and blue held: planned from what is seen, carried out step by step, and seen again.

The journal has what is about to be changed, with its value before, durable before it is changed. It is a file of JSON
lines on this machine. A line without an end was never acted on: it is cut off when the next is written.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bookwarden.cluster_migration.preparing.plan import (
    REPLACING,
    PreparationAction,
    PreparationPlan,
    PreparationStep,
    Side,
    plan,
)
from bookwarden.cluster_migration.sides.cluster import ClusterSide
from bookwarden.cluster_migration.sides.observing import PreflightObserver
from bookwarden.cluster_migration.sides.policies import namespace_settings
from bookwarden.cluster_migration.sides.values import Observations
from bookwarden.clusters.pulsar.rest.cluster_contents import ClusterWriter
from bookwarden.durable import sync
from bookwarden.errors import (
    BookwardenError,
    FormatError,
    LostRaceError,
    NotFoundError,
    PulsarUnavailableError,
    RefusedError,
    StoreUnavailableError,
)
from bookwarden.records import record_fields, record_of

_FORMAT: Final = 1
_NAME: Final = "prepare.jsonl"
BEGUN: Final = "begun"
DONE: Final = "done"
FAILED: Final = "failed"
TAKEN_BACK: Final = "taken back"
_POLICIES: Final = (PreparationAction.POLICY, PreparationAction.TOPIC_POLICY)


class PreparationJournal:
    """The journal in a folder; one process at a time writes."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self.path = folder / _NAME
        self._clock = clock

    def changes(self) -> dict[tuple[str, str, str, str], PreparationStep]:
        """Return by name each step that was begun, the newest, and was not taken back; FormatError if damaged."""
        found: dict[tuple[str, str, str, str], PreparationStep] = {}
        for state, step in self._entries():
            if state == BEGUN:
                found[step.name] = step
            elif state == TAKEN_BACK:
                found.pop(step.name, None)
        return found

    def originals(self) -> dict[tuple[str, str], Any]:
        """Return by target and key the policies of blue that were changed, as they were before."""
        return {
            (step.target, step.key): step.before
            for step in self.changes().values()
            if step.side is Side.BLUE and step.action in _POLICIES
        }

    @contextmanager
    def writing(self) -> Iterator[Callable[[str, PreparationStep], None]]:
        """Hold the journal, and return what notes a step in a state; RefusedError while another process has it.

        A note is on disk when that returns; StoreUnavailableError where it is not: then nothing may be changed.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            opened = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o640)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._lock(opened)
            self._end_last_line(opened)
            sync(self._folder)
            yield lambda state, step: self._note(opened, state, step)
        finally:
            os.close(opened)

    def _lock(self, opened: int) -> None:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RefusedError(f"another process prepares with {self.path}: wait for it") from error

    def _end_last_line(self, opened: int) -> None:
        size = os.fstat(opened).st_size
        data = os.pread(opened, size, 0)
        whole = data.rfind(b"\n") + 1
        if whole != size:
            os.ftruncate(opened, whole)
        os.lseek(opened, whole, os.SEEK_SET)

    def _note(self, opened: int, state: str, step: PreparationStep) -> None:
        entry = {"format": _FORMAT, "at_ms": int(self._clock() * 1000), "state": state, **record_fields(step)}
        data = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        try:
            while data:
                data = data[os.write(opened, data) :]
            os.fdatasync(opened)
        except OSError as error:
            raise self._unwritable(error) from error

    def _entries(self) -> Iterator[tuple[str, PreparationStep]]:
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreUnavailableError(f"journal {self.path} cannot be read ({error.strerror})") from error
        # Behind the last end of a line is nothing, or what was cut short.
        for number, line in enumerate(lines[:-1], 1):
            try:
                fields = json.loads(line)
                if fields["format"] != _FORMAT:
                    raise ValueError(f"format {fields['format']}")
                yield str(fields["state"]), record_of(PreparationStep, fields)
            except (ValueError, KeyError, TypeError, FormatError) as error:
                raise FormatError(
                    f"line {number} of journal {self.path} cannot be read ({error}): what was changed before is not "
                    "known; mend the line, or move the file away and check the policies of blue by hand"
                ) from error

    def _unwritable(self, error: OSError) -> StoreUnavailableError:
        return StoreUnavailableError(f"journal {self.path} cannot be written ({error.strerror}): nothing is changed")


Tell = Callable[[PreparationStep], None]
_PAUSES_S: Final = (0.1, 0.5, 2.0)


@dataclass(frozen=True, slots=True)
class PreparationResult:
    """Steps that were carried out, those that failed with the reason, and the plan of those missing behind them."""

    done: tuple[PreparationStep, ...]
    failed: tuple[tuple[PreparationStep, str], ...] = ()
    left: PreparationPlan = field(default_factory=lambda: PreparationPlan(()))

    @property
    def is_complete(self) -> bool:
        """True where nothing is missing any more, and nothing is left to an operator."""
        return not self.failed and not self.left.steps and not self.left.manual


class Preparation:
    """The preparation of both clusters for the move of these namespaces; may be run again, and killed at any moment."""

    def __init__(
        self,
        observer: PreflightObserver,
        namespaces: Sequence[str],
        journal: PreparationJournal,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._observer = observer
        self._namespaces = namespaces
        self._journal = journal
        self._sleep = sleep

    def plan(self) -> PreparationPlan:
        """Plan what is missing now; changes nothing but that topics are loaded."""
        return self.plan_from(self._observer.observe(self._namespaces))

    def plan_from(self, seen: Observations) -> PreparationPlan:
        """Plan what is missing by what was observed just now."""
        return plan(seen, self._journal.originals())

    def execute(self, wanted: PreparationPlan, tell: Tell = lambda _step: None) -> PreparationResult:
        """Carry the steps out, each noted before it is; then look at what is still missing.

        ``tell`` is called with each step before. What fails is in the result, with the rest of its namespace left for
        the next run. Raises StoreUnavailableError where the journal cannot be written, PulsarUnavailableError where a
        cluster does not answer; RefusedError where another process prepares.
        """
        done: list[PreparationStep] = []
        failed: list[tuple[PreparationStep, str]] = []
        with self._journal.writing() as note:
            for step in wanted.steps:
                if any(_needs(step, other) for other, _ in failed):
                    continue
                tell(step)
                note(BEGUN, step)
                try:
                    self._take(step)
                except PulsarUnavailableError:
                    note(FAILED, step)
                    raise
                except BookwardenError as error:
                    note(FAILED, step)
                    failed.append((step, str(error)))
                    continue
                note(DONE, step)
                done.append(step)
        return PreparationResult(tuple(done), tuple(failed), self.plan())

    def held(self, namespaces: Collection[str] = ()) -> list[PreparationStep]:
        """List the policies of these namespaces, or all, that were changed for a migration, by the journal."""
        changed = (step for step in self._journal.changes().values() if _is_hold(step))
        return [step for step in changed if not namespaces or step.namespace in namespaces]

    def take_back(self, steps: Sequence[PreparationStep], tell: Tell = lambda _step: None) -> PreparationResult:
        """Restore policies to their values from before, unless they were changed since; what was created stays."""
        done: list[PreparationStep] = []
        failed: list[tuple[PreparationStep, str]] = []
        with self._journal.writing() as note:
            for step in steps:
                tell(step)
                try:
                    # Of what is gone by now there is nothing to be given back.
                    with suppress(NotFoundError):
                        self._give_back(step)
                except BookwardenError as error:
                    failed.append((step, str(error)))
                    continue
                note(TAKEN_BACK, step)
                done.append(step)
        return PreparationResult(tuple(done), tuple(failed))

    def _take(self, step: PreparationStep) -> None:
        # What one broker has just made, another may not know for a moment.
        for pause_s in _PAUSES_S:
            try:
                return self._take_now(step)
            except NotFoundError:
                self._sleep(pause_s)
        return self._take_now(step)

    def _take_now(self, step: PreparationStep) -> None:
        self._verify(step)
        _carry_out(self._side_of(step).writer, step)

    def _give_back(self, step: PreparationStep) -> None:
        writer = self._side_of(step).writer
        if step.action is PreparationAction.TOPIC_POLICY:
            if step.before is None:
                writer.remove_topic_policy(step.target, step.key)
            else:
                writer.set_topic_policy(step.target, step.key, step.before)
            return
        current = self._policy(step)
        if current == step.before:
            return
        if current != step.value:
            raise LostRaceError(f"{step} was changed by another client since: set it as it is to be")
        if step.before is None:
            writer.remove_policy(step.target, step.key)
        else:
            writer.set_policy(step.target, step.key, step.before)

    def _verify(self, step: PreparationStep) -> None:
        if step.action not in REPLACING:
            return
        if step.action is PreparationAction.TENANT_CLUSTERS:
            current: Any = dict(self._side_of(step).admin.tenant(step.target))
        else:
            current = self._policy(step)
        if current not in (step.before, step.value):
            raise LostRaceError(f"{step} was changed by another client since it was planned: prepare again")

    def _policy(self, step: PreparationStep) -> Any:
        side = self._side_of(step)
        return namespace_settings(side.admin.policies(step.target), side.cluster).get(step.key)

    def _side_of(self, step: PreparationStep) -> ClusterSide:
        return self._observer.blue if step.side is Side.BLUE else self._observer.green


def _is_hold(step: PreparationStep) -> bool:
    return step.key in _HOLDS and step.action in (PreparationAction.POLICY, PreparationAction.TOPIC_POLICY)


_HOLDS: Final = ("inactiveTopicPolicies", "autoTopicCreation")


def _needs(step: PreparationStep, other: PreparationStep) -> bool:
    """Return whether a step is of no use where the other one failed."""
    if other.action in (PreparationAction.TENANT, PreparationAction.TENANT_CLUSTERS):
        return step.namespace.partition("/")[0] == other.target
    if other.action is PreparationAction.NAMESPACE:
        return step.namespace == other.target
    if other.action is PreparationAction.SCHEMA:
        # Versions count in their order.
        return step.action is PreparationAction.SCHEMA and step.target == other.target
    return other.action is PreparationAction.TOPIC and (
        step.target == other.target or step.target.startswith(f"{other.target}-partition-")
    )


def _carry_out(writer: ClusterWriter, step: PreparationStep) -> None:
    value = step.value
    match step.action:
        case PreparationAction.TENANT:
            writer.create_tenant(step.target, value)
        case PreparationAction.TENANT_CLUSTERS:
            writer.change_tenant(step.target, value)
        case PreparationAction.NAMESPACE:
            writer.create_namespace(step.target, value)
        case PreparationAction.POLICY:
            writer.set_policy(step.target, step.key, value)
        case PreparationAction.TOPIC:
            writer.create_topic(step.target, value)
        case PreparationAction.PARTITIONS:
            writer.add_partitions(step.target, value)
        case PreparationAction.SCHEMA:
            writer.add_schema(step.target, value["type"], value["schema"], value["properties"])
        case PreparationAction.TOPIC_POLICY:
            writer.set_topic_policy(step.target, step.key, value)
        case PreparationAction.SUBSCRIPTION:
            writer.subscribe(step.target, step.key, value["properties"], replicated=value["replicated"])
        case PreparationAction.GRANT:
            _grant(writer, step)


def _grant(writer: ClusterWriter, step: PreparationStep) -> None:
    if step.value["kind"] == "subscription":
        writer.grant_subscription(step.namespace, step.key, step.value["roles"])
    else:
        writer.grant(step.namespace, step.value["kind"], step.target, step.key, step.value["actions"])
