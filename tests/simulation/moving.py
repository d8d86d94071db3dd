"""A move of the metadata by PIP-454, phase by phase, which the product comes through with its own migrating store."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from bookwarden.metastore.following.flag import COORDINATOR_PATH
from bookwarden.metastore.following.phases import ParticipantState
from bookwarden.metastore.following.progress import MigrationTimes
from bookwarden.metastore.following.store import MigratingStore
from bookwarden.metastore.interface import MetadataStore
from servers.migration import scripted
from servers.waiting import eventually

from .faults import Nodes
from .model import World
from .violation import Violation

_AT_REST = {
    "PREPARATION": ParticipantState.WAITING,
    "COPYING": ParticipantState.WAITING,
    "FAILED": ParticipantState.READING,
    "COMPLETED": ParticipantState.SERVING_TARGET,
}
# A write fails at once while a migration keeps it back, so that no real time passes.
_TIMES = MigrationTimes(write_wait_s=0.0)
_PATIENCE_S = 60.0


class Move:
    """One move, begun by the first `go_on`; brokers write nothing until it `is_over`.

    The ensemble's nodes stay the truth: up to the copy they are the source, and after it the target, while what the
    source kept can be changed by nobody.
    """

    def __init__(self, world: World, rng: Random) -> None:
        self._world = world
        self._source = scripted.Server()
        self._source.nodes = world.nodes
        # What a watch tells comes by a thread of its own, and late; the process looks for itself.
        self._source.mute = True
        self._source.offer()
        self._phases = ["PREPARATION", "COPYING", "FAILED" if rng.random() < 0.3 else "COMPLETED"]
        self._copied: Nodes | None = None
        self._store = self._open()

    @property
    def is_over(self) -> bool:
        """Whether there is no further phase."""
        return not self._phases

    def go_on(self, rng: Random) -> None:
        """Begin the next phase, and wait until the product's process has done what it does then."""
        if self._phases:
            phase = self._phases.pop(0)
            self._enter(phase)
            self._store.look()
            _await(lambda: self._store.state is _AT_REST[phase], phase)

    def restart(self) -> None:
        """End the product's process, and begin another."""
        self._store.close()
        self._store = self._open()

    def close(self) -> None:
        """End it; nothing of the product may have gone to a source that was copied."""
        self._store.close()
        self._world.nodes.served_by = None
        if self._source.nodes is not self._world.nodes:
            self._require_as_copied()
        self._world.nodes.remove(COORDINATOR_PATH)

    def _enter(self, phase: str) -> None:
        nodes = self._world.nodes
        if phase == "COMPLETED":
            self._require_as_copied()
            self._source.nodes = nodes.snapshot()
            nodes.remove(COORDINATOR_PATH)
            nodes.make_anew()
            self._world.next_id = 1
            self._world.write_counter()
        self._source.set_phase(phase)
        if phase == "COPYING":
            self._copied = nodes.snapshot()

    def _require_as_copied(self) -> None:
        now, then = (_contents(nodes) for nodes in (self._source.nodes, self._copied))
        changed = {path for path in now.keys() | then.keys() if now.get(path) != then.get(path)}
        if changed:
            raise Violation("unsaved", f"{min(changed)} was written to a source that was copied already")

    def _open(self) -> MigratingStore:
        made = MigratingStore(scripted.Session(self._source), open_target=self._open_target, times=_TIMES)
        self._world.nodes.served_by = made
        made.look()
        return made

    def _open_target(self, _url: str) -> MetadataStore:
        return scripted.OpenedTarget(self._world.nodes)


def _contents(nodes: MetadataStore | None) -> dict[str, tuple[bytes, int]]:
    assert isinstance(nodes, Nodes)
    return {path: (node.value, node.version) for path, node in nodes.items() if not path.startswith(COORDINATOR_PATH)}


def _await(reached: Callable[[], bool], phase: str) -> None:
    try:
        eventually(reached, _PATIENCE_S, pause=0.001)
    except AssertionError as error:
        raise Violation("stuck", f"the process does not come to rest in phase {phase}") from error
