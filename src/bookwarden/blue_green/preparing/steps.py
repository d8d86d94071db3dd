"""Steps by which green gets what it lacks, and blue keeps what its clients leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final


class Side(Enum):
    """The cluster that a step changes."""

    BLUE = "blue"
    GREEN = "green"


class Action(Enum):
    """The kind of a step; each is without effect where it is done already."""

    TENANT = "tenant"
    TENANT_CLUSTERS = "clusters of tenant"
    NAMESPACE = "namespace"
    POLICY = "policy"
    TOPIC = "topic"
    PARTITIONS = "partitions"
    SCHEMA = "schema"
    TOPIC_POLICY = "policy of topic"
    GRANT = "rights"
    SUBSCRIPTION = "subscription"


#: Replace what is there, and are compared with it again right before.
REPLACING: Final = frozenset({Action.TENANT_CLUSTERS, Action.POLICY})


@dataclass(frozen=True, slots=True)
class Step:
    """A change of one thing on one side; ``before`` is its value until then, None where there was none."""

    side: Side  #: The cluster that is changed.
    action: Action  #: The kind.
    target: str  #: A tenant, a namespace, a topic or a partition.
    key: str = ""  #: Which policy, subscription, role or version.
    value: Any = None  #: To be there afterwards.
    before: Any = None  #: There until then.
    namespace: str = ""  #: "" for a tenant.

    @property
    def name(self) -> tuple[str, str, str, str]:
        """The thing that it changes; a later step of the same name changes the same thing."""
        return self.side.value, self.action.value, self.target, self.key

    def __str__(self) -> str:
        what = f"{self.action.value} {self.key} of {self.target}" if self.key else f"{self.action.value} {self.target}"
        return f"{self.side.value}: {what}"

    def as_json(self) -> dict[str, Any]:
        """Return it as programs and the journal have it."""
        return {
            "side": self.side.value,
            "action": self.action.value,
            "target": self.target,
            "key": self.key,
            "value": self.value,
            "before": self.before,
            "namespace": self.namespace,
        }

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Step:
        """Read it; raise KeyError or ValueError for anything else."""
        return cls(
            Side(told["side"]),
            Action(told["action"]),
            str(told["target"]),
            str(told["key"]),
            told["value"],
            told["before"],
            str(told["namespace"]),
        )


@dataclass(frozen=True, slots=True)
class Told:
    """Something that no step does: an operator has to."""

    seen: str
    advice: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """All steps in their order, and what is left to an operator."""

    steps: tuple[Step, ...]
    told: tuple[Told, ...] = ()
