"""Green prepared and blue held: planned from what is seen, carried out step by step, and seen again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from bookwarden.blue_green.preparing.journal import BEGUN, DONE, FAILED, TAKEN_BACK, PreparationJournal
from bookwarden.blue_green.preparing.plan import plan
from bookwarden.blue_green.preparing.ports import Making, Reading
from bookwarden.blue_green.preparing.steps import REPLACING, Action, Plan, Side, Step
from bookwarden.blue_green.sides.policies import namespace_settings
from bookwarden.blue_green.sides.values import Observations
from bookwarden.errors import BookwardenError, LostRaceError, NotFoundError, PulsarUnavailableError

Tell = Callable[[Step], None]
_PAUSES_S: Final = (0.1, 0.5, 2.0)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that is written to."""

    name: str
    reading: Reading
    making: Making


@dataclass(frozen=True, slots=True)
class Done:
    """Steps that were carried out, those that failed with the reason, and the plan of those missing behind them."""

    done: tuple[Step, ...]
    failed: tuple[tuple[Step, str], ...] = ()
    left: Plan = field(default_factory=lambda: Plan(()))

    @property
    def is_complete(self) -> bool:
        """True where nothing is missing any more, and nothing is left to an operator."""
        return not self.failed and not self.left.steps and not self.left.told


class Preparation:
    """The preparation of both clusters; may be run any number of times, and killed at any moment."""

    def __init__(
        self,
        observe: Callable[[], Observations],
        clusters: Mapping[Side, Cluster],
        journal: PreparationJournal,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._observe = observe
        self._clusters = clusters
        self._journal = journal
        self._sleep = sleep

    def making(self, side: Side) -> Making:
        """Return what writes to one side."""
        return self._clusters[side].making

    def plan(self) -> Plan:
        """Plan what is missing now; changes nothing but that topics are loaded."""
        return self.plan_from(self._observe())

    def plan_from(self, seen: Observations) -> Plan:
        """Plan what is missing by what was observed just now."""
        return plan(seen, self._journal.originals())

    def execute(self, wanted: Plan, tell: Tell = lambda _step: None) -> Done:
        """Carry the steps out, each noted before it is; then look what is missing still.

        ``tell`` is called with each step before. What fails is in the result, with the rest of its namespace left for
        the next run. Raises StoreUnavailableError where the journal cannot be written, PulsarUnavailableError where a
        cluster does not answer; RefusedError where another process prepares.
        """
        done: list[Step] = []
        failed: list[tuple[Step, str]] = []
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
        return Done(tuple(done), tuple(failed), self.plan())

    def held(self, namespaces: Collection[str] = ()) -> list[Step]:
        """List the policies of these namespaces, or all, that were changed for a migration, by the journal."""
        changed = (step for step in self._journal.changes().values() if _is_hold(step))
        return [step for step in changed if not namespaces or step.namespace in namespaces]

    def take_back(self, steps: Sequence[Step], tell: Tell = lambda _step: None) -> Done:
        """Restore policies to their values from before, unless somebody changed them since; what was created stays."""
        done: list[Step] = []
        failed: list[tuple[Step, str]] = []
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
        return Done(tuple(done), tuple(failed))

    def _take(self, step: Step) -> None:
        # What one broker has just made, another may not know for a moment.
        for pause_s in _PAUSES_S:
            try:
                return self._take_now(step)
            except NotFoundError:
                self._sleep(pause_s)
        return self._take_now(step)

    def _take_now(self, step: Step) -> None:
        self._verify(step)
        _carry_out(self._clusters[step.side].making, step)

    def _give_back(self, step: Step) -> None:
        making = self._clusters[step.side].making
        if step.action is Action.TOPIC_POLICY:
            if step.before is None:
                making.remove_topic_policy(step.target, step.key)
            else:
                making.set_topic_policy(step.target, step.key, step.before)
            return
        current = self._policy(step)
        if current == step.before:
            return
        if current != step.value:
            raise LostRaceError(f"{step} was changed by somebody since: set it as it is to be")
        if step.before is None:
            making.remove_policy(step.target, step.key)
        else:
            making.set_policy(step.target, step.key, step.before)

    def _verify(self, step: Step) -> None:
        if step.action not in REPLACING:
            return
        if step.action is Action.TENANT_CLUSTERS:
            current: Any = dict(self._clusters[step.side].reading.tenant(step.target))
        else:
            current = self._policy(step)
        if current not in (step.before, step.value):
            raise LostRaceError(f"{step} was changed by somebody since it was planned: prepare again")

    def _policy(self, step: Step) -> Any:
        cluster = self._clusters[step.side]
        return namespace_settings(cluster.reading.policies(step.target), cluster.name).get(step.key)


def _is_hold(step: Step) -> bool:
    return step.key in _HOLDS and step.action in (Action.POLICY, Action.TOPIC_POLICY)


_HOLDS: Final = ("inactiveTopicPolicies", "autoTopicCreation")


def _needs(step: Step, other: Step) -> bool:
    """Return whether a step is of no use where the other one failed."""
    if other.action in (Action.TENANT, Action.TENANT_CLUSTERS):
        return step.namespace.partition("/")[0] == other.target
    if other.action is Action.NAMESPACE:
        return step.namespace == other.target
    if other.action is Action.SCHEMA:
        # Versions count in their order.
        return step.action is Action.SCHEMA and step.target == other.target
    return other.action is Action.TOPIC and (
        step.target == other.target or step.target.startswith(f"{other.target}-partition-")
    )


def _carry_out(making: Making, step: Step) -> None:
    value = step.value
    match step.action:
        case Action.TENANT:
            making.create_tenant(step.target, value)
        case Action.TENANT_CLUSTERS:
            making.change_tenant(step.target, value)
        case Action.NAMESPACE:
            making.create_namespace(step.target, value)
        case Action.POLICY:
            making.set_policy(step.target, step.key, value)
        case Action.TOPIC:
            making.create_topic(step.target, value)
        case Action.PARTITIONS:
            making.add_partitions(step.target, value)
        case Action.SCHEMA:
            making.add_schema(step.target, value["type"], value["schema"], value["properties"])
        case Action.TOPIC_POLICY:
            making.set_topic_policy(step.target, step.key, value)
        case Action.SUBSCRIPTION:
            making.subscribe(step.target, step.key, value["properties"], replicated=value["replicated"])
        case Action.GRANT:
            _grant(making, step)


def _grant(making: Making, step: Step) -> None:
    if step.value["kind"] == "subscription":
        making.grant_subscription(step.namespace, step.key, step.value["roles"])
    else:
        making.grant(step.namespace, step.value["kind"], step.target, step.key, step.value["actions"])
