"""Marks of a topic are swept in the very moment in which it is restored."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from queue import Queue
from typing import Final

from bookwarden.errors import BookwardenError
from bookwarden.ledgers.names import decode_local_name
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.trash.generations import TrashedGeneration
from bookwarden.trash.plan import RestoreRequest
from bookwarden.trash.restore import RestoreResult, RestoreStep, why_gone
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.trash import TrashOperations
from bookwarden_dev.devcluster import DevCluster
from servers.sweeping_site import SweepingSite
from servers.trash_soak.ground import HANDS, SUBSCRIPTIONS, Ground, Topic

_AT_ONCE: Final = 40
#: A restore of a small topic takes about as long.
_SPREAD_S: Final = 0.25


def sweep_at_restores(
    cluster: DevCluster, home: Path, rounds: int, seed: int, say: Callable[[str], None]
) -> Counter[str]:
    """Restore so many topics, each while a sweep is at some of its ledgers; return the counts."""
    chance, counts = random.Random(seed), Counter[str]()
    wrong: list[str] = []
    with ExitStack() as stack:
        ground = stack.enter_context(closing(Ground(cluster, "sweep", home)))
        pool = stack.enter_context(ThreadPoolExecutor(HANDS))
        # Each round has clients of its own.
        free: Queue[_Operator] = Queue()
        for _ in range(HANDS):
            free.put(_Operator(stack.enter_context(Cluster(ground.site.settings)), stack.enter_context(ground.sweep())))
        keeper = ground.keep()
        done = 0

        def play(topic: Topic, trashed: TrashedGeneration, chance: random.Random) -> tuple[Counter[str], list[str]]:
            operator = free.get()
            try:
                played = _Round(ground, operator, topic, trashed, chance)
                return played.counts, played.play()
            finally:
                free.put(operator)

        while done < rounds:
            keeper.run()
            topics = [ground.topic(f"t-{done + number}") for number in range(min(_AT_ONCE, rounds - done))]
            ground.fill_all(topics)
            ground.delete(topics)
            trashed = ground.trashed()
            each = [(topic, *trashed[topic.name], random.Random(chance.random())) for topic in topics]
            for counted, bad in pool.map(lambda one: play(*one), each):
                counts += counted
                wrong += bad
            ground.sweep_out(topics, counts)
            done += len(topics)
            if done % 100 < _AT_ONCE:
                say(f"{done} rounds: {dict(counts)}")
    assert not wrong, "\n".join(wrong)
    assert counts["expired and left"] == 0, counts
    return counts


class _Operator:
    """Somebody who restores, and a sweep that is at it."""

    def __init__(self, opened: Cluster, swept: SweepingSite) -> None:
        self.restore = TrashOperations(opened, operator="soak").restore
        self.swept = swept


class _Round:
    def __init__(
        self, ground: Ground, operator: _Operator, topic: Topic, trashed: TrashedGeneration, chance: random.Random
    ) -> None:
        self._ground = ground
        self._restore = operator.restore
        self._swept = operator.swept
        self._topic = topic
        self._trashed = trashed
        self._chance = chance
        self.counts = Counter[str]()

    def play(self) -> list[str]:
        marks = self._marks()
        begin = threading.Event()
        # A third within the write, where a sweep can come between the list and the touch; else anywhere.
        at_step = self._chance.choice((None, None, RestoreStep.WRITING, RestoreStep.WRITTEN))
        pause = self._chance.uniform(0, _SPREAD_S if at_step is None else _SPREAD_S / 8)

        def on_step(step: RestoreStep) -> None:
            if step is at_step:
                begin.set()

        self._restore.on_step = on_step
        with ThreadPoolExecutor(1) as pool:
            swept = pool.submit(self._sweep, marks, begin, pause)
            if at_step is None:
                begin.set()
                time.sleep(self._chance.uniform(0, _SPREAD_S))
            try:
                result = self._restore.run(self._trashed, RestoreRequest())
            except BookwardenError as error:
                return [f"{self._topic.name} was not restored: {error!r}"]
            finally:
                begin.set()
            for outcome in swept.result():
                self.counts[f"mark: {outcome}"] += 1
        self.counts["rounds"] += 1
        return self._judge(result)

    def _marks(self) -> Sequence[PendingDeletion]:
        """Choose which marks are in flight: of everything, of one kind, or of some."""
        marks = [mark for one in self._trashed.found for mark in one.record.marks("soak")]
        kind = self._chance.choice(("all", "some", "kind"))
        if kind == "some":
            return self._chance.sample(marks, self._chance.randint(1, len(marks)))
        if kind == "kind":
            wanted = self._chance.choice(sorted({mark.ledger_type for mark in marks}, key=lambda each: each.value))
            return [mark for mark in marks if mark.ledger_type is wanted]
        return marks

    def _sweep(self, marks: Sequence[PendingDeletion], begin: threading.Event, pause: float) -> list[str]:
        begin.wait(120)
        time.sleep(pause)
        return [row.outcome.value for row in self._swept.sweep(*marks)]

    def _judge(self, result: RestoreResult) -> list[str]:
        topic, counts, wrong = self._topic, self.counts, list[str]()
        lost = [] if result.plan is None else result.plan.lost
        told = [*(f"{one.what}: {one.why}" for one in lost), *result.problems, *result.left]
        told += [why_gone(self._trashed, one) for one in result.gone]
        gone = {int(one.what.split()[1]) for one in lost if one.what.startswith("ledger ")} | set(result.gone)
        # Named in the end, by what is not there.
        changed = {name for name in SUBSCRIPTIONS if any(repr(name) in each for each in told)}
        named = self._ground.named(topic)
        missing = self._ground.missing(one for ids in named.values() for one in ids)
        for what, ids in named.items():
            if bad := ids & missing:
                is_told = what == "schema" and any("schema" in each for each in told)
                is_told |= decode_local_name(what) in changed
                counts[f"{'told' if is_told else 'silent'}: {'cursor' if what in SUBSCRIPTIONS else what}"] += 1
                if not is_told:
                    wrong.append(f"{topic.name}: {what} names {sorted(bad)}, which are gone; told: {told}")
        counts["restored whole"] += not told and not result.gone
        counts["with ledgers gone before"] += bool(gone - set(result.gone))
        counts["with ledgers gone within"] += bool(result.gone)
        counts["with problems"] += bool(result.problems)
        absent = {name for name in SUBSCRIPTIONS if name in changed}
        return wrong + self._ground.count(topic, counts, gone=gone, without=absent)
