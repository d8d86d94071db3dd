"""Two operators at once: two restores of a topic, and a restore next to a purge."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from bookwarden.errors import RefusedError
from bookwarden.trash.generations import TrashedGeneration
from bookwarden.trash.plan import RestoreRequest
from bookwarden.trash.restore import RestoreResult
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.trash import TrashOperations
from bookwarden_dev.devcluster import DevCluster
from servers.trash_soak.ground import Ground, Topic

_AT_ONCE: Final = 20
_SPREAD_S: Final = 0.15


def operate_at_once(
    cluster: DevCluster, home: Path, rounds: int, seed: int, say: Callable[[str], None]
) -> Counter[str]:
    """Have two operators at each of so many topics; return the counts."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    with ExitStack() as stack:
        ground = stack.enter_context(closing(Ground(cluster, "operators", home)))
        others = [stack.enter_context(Cluster(ground.site.settings)) for _ in range(2)]
        pool = stack.enter_context(ThreadPoolExecutor(2))
        keeper = ground.keep()
        for first in range(0, rounds, _AT_ONCE):
            keeper.run()
            topics = [ground.topic(f"t-{number}") for number in range(first, min(rounds, first + _AT_ONCE))]
            ground.fill_all(topics)
            ground.delete(topics)
            trashed = ground.trashed()
            for number, topic in enumerate(topics):
                (one,) = trashed[topic.name]
                pauses = [chance.choice((0, chance.uniform(0, _SPREAD_S))) for _ in others]
                request = RestoreRequest(under_live=number % 4 == 1)

                def restore(
                    opened: Cluster, pause: float, one: TrashedGeneration = one, request: RestoreRequest = request
                ) -> RestoreResult | str:
                    time.sleep(pause)
                    try:
                        return TrashOperations(opened, operator="soak").restore.run(one, request)
                    except RefusedError as error:
                        return str(error)

                def purge(opened: Cluster, pause: float, one: TrashedGeneration = one) -> int:
                    time.sleep(pause)
                    return ground.purge(one.found, opened)

                if number % 2:
                    ends = [*pool.map(restore, others, pauses)]
                    kind = "two restores under a live topic" if request.under_live else "two restores"
                else:
                    purged = pool.submit(purge, others[1], pauses[1])
                    ends = [restore(others[0], pauses[0])]
                    kept = "kept some" if purged.result() else "let go of all it found"
                    kind = f"restore and purge, which {kept}"
                results = [end for end in ends if not isinstance(end, str)]
                refused = Counter(_kind_of(end) for end in ends if isinstance(end, str))
                counts[f"{kind}: {len(results)} restored, {', '.join(sorted(refused)) or 'none'} refused"] += 1
                wrong += _judge(ground, topic, one, results, counts)
            ground.sweep_out(topics, counts)
            say(f"{first + len(topics)} rounds: {dict(counts)}")
    assert not wrong, "\n".join(wrong)
    assert counts["expired and left"] == 0, counts
    return counts


def _kind_of(refusal: str) -> str:
    return (
        "by the journal" if "restores" in refusal else "since the topic is there" if "is there" in refusal else refusal
    )


def _judge(
    ground: Ground, topic: Topic, trashed: TrashedGeneration, results: list[RestoreResult], counts: Counter[str]
) -> list[str]:
    wrong: list[str] = []
    if not results:
        return [f"{topic.name} was not restored"]
    # What a purge had sent is swept now: the topic names it.
    marks = [mark for one in trashed.found for mark in one.record.marks("soak")]
    for row in ground.swept.sweep(*marks):
        counts[f"mark afterwards: {row.outcome.value}"] += 1
    for result in results:
        lost = [] if result.plan is None else result.plan.lost
        if lost or result.gone or result.problems or result.left:
            wrong.append(f"{topic.name}: {lost} {result.gone} {result.problems} {result.left}")
    named = ground.named(topic)
    if missing := ground.missing(one for ids in named.values() for one in ids):
        wrong.append(f"{topic.name} names {missing}, which are gone")
    if ground.trashed().get(topic.name):
        wrong.append(f"the trash still has records of {topic.name}")
    return wrong + ground.count(topic, counts)
