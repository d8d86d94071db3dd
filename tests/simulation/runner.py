"""Runs lives one after another, and tells of the first that fails: its seed, how to replay it, a small script."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from .script import FEATURES, Operation, Script, play, script_of, shrunk
from .violation import Violation

STEPS_OF_A_LIFE = 200


class Failure(NamedTuple):
    """A life that failed, and the smallest script found that fails in the same way."""

    seed: int
    steps: int
    features: frozenset[str]
    often: frozenset[str]
    violation: Violation
    small: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed} fails: {self.violation}",
            f"replay: PYTHONPATH=tests .venv/bin/python -m simulation --seed {self.seed} --steps {self.steps}"
            + "".join(f" --without {name!r}" for name in sorted(FEATURES - self.features))
            + "".join(f" --often {name!r}" for name in sorted(self.often)),
            f"smallest script, {len(self.small)} operations:",
            *(f"    Operation({operation.name!r}, {operation.seed})," for operation in self.small),
        ]
        return "\n".join(lines)


def violation_of(script: Script, features: frozenset[str]) -> Violation | None:
    """Play a script; give what it violates, None for a life in which all went well."""
    try:
        play(script, features)
    except Violation as violation:
        return violation
    return None


def run(
    seed: int, steps: int, features: frozenset[str], *, often: Collection[str] = (), shrink: bool = True
) -> Failure | None:
    """Play one life."""
    script = script_of(seed, steps, features, often)
    violation = violation_of(script, features)
    if violation is None:
        return None

    def fails(smaller: Script) -> bool:
        found = violation_of(smaller, features)
        return found is not None and found.kind == violation.kind

    small = shrunk(script, fails).operations if shrink else script.operations
    found = violation_of(Script(seed, small), features) if shrink else None
    return Failure(seed, steps, features, frozenset(often), found or violation, small)


def hunt(
    steps: int,
    features: frozenset[str],
    *,
    often: Collection[str] = (),
    first_seed: int = 0,
    of_a_life: int = STEPS_OF_A_LIFE,
    shrink: bool = True,
) -> Failure | None:
    """Play lives until so many steps are done; give the first failure."""
    for number in range(max(1, steps // of_a_life)):
        failure = run(first_seed + number, of_a_life, features, often=often, shrink=shrink)
        if failure is not None:
            return failure
    return None
