"""Brokers are killed within their deletes, at each step, and restores within their writes."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import pulsar

from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path, schema_path
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import NotFoundError, PulsarError
from bookwarden.ledgers.names import TopicName
from bookwarden.metastore.record_lease import find_record
from bookwarden.trash.plan import RestoreRequest
from bookwarden.wire.managed_ledger import decode_managed_ledger
from bookwarden.wire.trash import restore_node
from bookwarden_dev.devcluster import DevCluster
from servers.topic_contents import managed_ledger_of
from servers.trash_soak.ground import SUBSCRIPTIONS, Ground, Topic
from servers.waiting import eventually

#: Further subscriptions, so that a delete of the cursors takes its time.
_MORE: Final = 12
_STEPS: Final = ("asked", "schema", "a cursor", "half of the cursors", "all cursors", "list", "topic")
_DONE: Final = "all was done"
_KILLS_OF_ONE: Final = 3
_PATIENCE_S: Final = 120.0
#: A restore of a small topic takes about as long.
_SPREAD_S: Final = 0.1


def kill_brokers_and_restores(
    cluster: DevCluster, home: Path, rounds: int, seed: int, say: Callable[[str], None]
) -> Counter[str]:
    """Kill the broker in so many deletes, and as many restores up to three times each; return the counts."""
    chance, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    with closing(Ground(cluster, "kills", home)) as ground:
        keeper = ground.keep()
        for number in range(rounds):
            topic = ground.topic(f"deleted-{number}")
            ground.fill(topic)
            for more in range(_MORE):
                ground.client.subscribe(topic.name, f"more-{more}", consumer_type=pulsar.ConsumerType.Shared).close()
            ground.wait_until_written(topic)
            step = _STEPS[number % len(_STEPS)]
            state = _kill_within_delete(ground, topic, step, chance)
            counts[f"broker killed: {state}"] += 1
            eventually(lambda topic=topic: _is_deleted(ground, topic), _PATIENCE_S, 0.2)
            ground.wait_until_kept()
            keeper.run()
            (one, *_) = ground.trashed()[topic.name]
            if missing := set(_all_names()) - set(one.cursors):
                wrong.append(f"{topic.name}, {state}: the trash lacks {sorted(missing)}, has {sorted(one.removed)} too")
            result = ground.operations.restore.run(one, RestoreRequest())
            lost = [] if result.plan is None else result.plan.lost
            if lost or result.gone or result.problems:
                wrong.append(f"{topic.name}, {state}: {lost} {result.gone} {result.problems}")
            wrong += ground.count(topic, counts)
            counts["schemas"] += _has_schema(ground, topic)
            say(f"broker killed within delete {number + 1}: {state}")
        topics = [ground.topic(f"restored-{number}") for number in range(rounds)]
        ground.fill_all(topics)
        ground.delete(topics)
        keeper.run()
        with _Restorer(ground) as restorer:
            for topic in topics:
                wrong += restorer.restore(topic, chance, counts)
                wrong += ground.count(topic, counts)
                counts["schemas"] += _has_schema(ground, topic)
        names = {topic.name for topic in topics}
        left = [name for name, found in ground.trashed().items() if name in names and any(one.topic for one in found)]
        counts["records left of what was restored"] += len(left)
        ground.sweep_out(topics, counts)
    assert not wrong, "\n".join(wrong)
    assert counts["schemas"] == 2 * rounds, counts
    assert counts["expired and left"] == 0 == counts["records left of what was restored"], counts
    return counts


def _all_names() -> list[str]:
    return [*SUBSCRIPTIONS, *(f"more-{number}" for number in range(_MORE))]


def _has_schema(ground: Ground, topic: Topic) -> bool:
    return ground.opened.store.get(schema_path(TopicName.parse(topic.name).schema_id)) is not None


def _kill_within_delete(ground: Ground, topic: Topic, step: str, chance: random.Random) -> str:
    """Delete the topic, kill the broker when that is at a step, start it again; return where it was in the end."""
    store, path = ground.opened.store, managed_ledger_path(managed_ledger_of(topic.name))
    cursors = len(store.children_of(path))

    def ledgers() -> int:
        node = store.get(path)
        return -1 if node is None else len(decode_managed_ledger(node.value).ledgers)

    before = ledgers()
    reached: dict[str, Callable[[], bool]] = {
        "schema": lambda: not _has_schema(ground, topic),
        "a cursor": lambda: len(store.children_of(path)) < cursors,
        "half of the cursors": lambda: len(store.children_of(path)) <= cursors // 2,
        "all cursors": lambda: not store.children_of(path),
        "list": lambda: ledgers() < before,
        "topic": lambda: store.get(path) is None,
    }

    def delete() -> None:
        with suppress(PulsarError, NotFoundError):
            ground.admin.delete(topic_path(topic.name), params={"force": True})

    deleting = threading.Thread(target=delete)
    deleting.start()
    if step == "asked":
        time.sleep(chance.uniform(0, 0.05))
    else:
        until = time.monotonic() + _PATIENCE_S
        while not reached[step]() and time.monotonic() < until:
            pass
    ground.cluster.broker.kill()
    deleting.join(_PATIENCE_S)
    found = ledgers()
    schema = "with its schema" if _has_schema(ground, topic) else "without its schema"
    left = len(store.children_of(path)) if found >= 0 else 0
    where = "nothing" if left == cursors and found == before and schema == "with its schema" else "all"
    if found >= 0 and where == "all":
        some = "all" if left == cursors else "no" if not left else "some"
        where = f"{schema}, {some} cursors, list {'whole' if found == before else 'shortened'}"
    ground.cluster.broker.start()
    return f"{where} of the delete was done" if where in ("nothing", "all") else where


def _is_deleted(ground: Ground, topic: Topic) -> bool:
    if ground.opened.store.get(managed_ledger_path(managed_ledger_of(topic.name))) is None:
        return True
    with suppress(PulsarError, NotFoundError):
        ground.admin.delete(topic_path(topic.name), params={"force": True})
    return False


class _Restorer:
    """A process that restores, started anew whenever it was killed."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._file = ground.settings_file()
        self._child = self._start()

    def __enter__(self) -> _Restorer:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()

    def restore(self, topic: Topic, chance: random.Random, counts: Counter[str]) -> list[str]:
        """Restore a topic, and kill that up to three times at any moment; return what is wrong."""
        for _ in range(_KILLS_OF_ONE):
            self._ask(topic)
            time.sleep(chance.uniform(0, _SPREAD_S))
            self._child.kill()
            self._child.wait()
            step = self._step(topic)
            counts[f"restore killed: {step}"] += 1
            self._child = self._start()
            if step == _DONE:
                break
        self._ask(topic)
        end = self._line()
        counts["restores finished"] += 1
        whole = ("ended, finished before", "ended, gone (), problems (), left ()")
        return [] if end in whole else [f"{topic.name}: {end}"]

    def _step(self, topic: Topic) -> str:
        name = managed_ledger_of(topic.name)
        journal = find_record(self._ground.opened.store, restore_node(name), "a restore")
        if journal is not None:
            return str(journal.fields["step"])
        is_there = self._ground.opened.store.get(managed_ledger_path(name)) is not None
        return _DONE if is_there else "nothing was done"

    def _ask(self, topic: Topic) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{topic.name}\n")
        self._child.stdin.flush()
        assert self._line() == "begun"

    def _line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "servers.trash_soak.restoring", str(self._file)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "ready"
        return child
