"""Each way in which a topic loses something comes back by the command, while a sweep and follow run as processes."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pulsar
from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.clusters.pulsar.trash import TrashLeaseNode
from bookwarden.errors import RefusedError
from bookwarden.ledgers.outcomes import Outcome
from bookwarden_dev.demo.trash_story import keeps_dropped
from bookwarden_dev.devcluster import DevCluster
from servers.follow.site import FollowingSite
from servers.marked_load import sweep_process
from servers.pulsar_topics import unload
from servers.topic_contents import compact, listed, managed_ledger_of, send_keyed
from servers.trash_soak.ground import HALF, HOLES, IDLE, Ground, Topic
from servers.waiting import eventually

_PATIENCE_S: Final = 300.0
_PARTITIONS: Final = 3
_TRIMS: Final = 10
#: How long what namespace "short" drops is kept.
_SHORT_S: Final = 20
_SHORT_TOPICS: Final = 30
_NOT_FOUND: Final = 4
_DIFFERS: Final = 27


def restore_each_row(
    cluster: DevCluster, home: Path, rounds: int, seed: int, say: Callable[[str], None]
) -> Counter[str]:
    """Lose and restore everything so many times; return the counts."""
    counts, wrong = Counter[str](), list[str]()
    with closing(Ground(cluster, "rows", home)) as ground:
        rows = _Rows(ground, random.Random(seed), counts)
        with rows.sweeping():
            for number in range(rounds):
                for row in (
                    rows.deleted,
                    rows.deleted_unloaded,
                    rows.made_anew,
                    rows.under_a_consumer,
                    rows.partitioned,
                    rows.trimmed,
                    rows.truncated,
                    rows.subscription,
                    rows.compacted,
                    rows.namespace,
                    rows.expiring,
                ):
                    before, begin = Counter(counts), time.monotonic()
                    bad = row(number)
                    wrong += bad
                    name = row.__name__.replace("_", " ")
                    say(f"{name}: {dict(counts - before)}, {time.monotonic() - begin:.0f} s {bad}")
            rows.settle()
    assert not wrong, "\n".join(wrong)
    assert counts["expired and left"] == counts["marked by follow"] == 0, counts
    return counts


class _Rows:
    def __init__(self, ground: Ground, chance: random.Random, counts: Counter[str]) -> None:
        self._ground = ground
        self._chance = chance
        self._counts = counts
        self._tenant = ground.namespace.partition("/")[0]
        self._expired: set[int] = set()
        site = ground.site
        rules = [
            {"namespaces": f"{self._tenant}/short", "keep_deleted_hours": _SHORT_S / 3600},
            {"namespaces": f"{self._tenant}/*", "keep_deleted_hours": 1, "keep_trimmed_hours": 1},
        ]
        site.overrides = {
            **site.overrides,
            "trash.rules": json.dumps(rules),
            "trash.min_free_disk_ratio": "0",
            "spark.master": "local[2]",
        }
        for namespace in ("short", "doomed"):
            ground.admin.put(f"/namespaces/{self._tenant}/{namespace}")
            ground.prepare(f"{self._tenant}/{namespace}")
        self._following = FollowingSite(site)
        self._file = ground.settings_file()

    @contextmanager
    def sweeping(self) -> Iterator[None]:
        """Run the sweep and follow, and wait until the broker keeps what it drops."""
        ground = self._ground
        sweep = sweep_process(ground.site, ground.folder)
        with ExitStack() as stack:
            stack.callback(sweep.kill)
            stack.callback(self._following.process.kill)
            sweep.start()
            self._following.start()
            eventually(lambda: TrashLeaseNode(ground.opened.store).read() is not None, _PATIENCE_S, 1)
            eventually(keeps_dropped(ground.opened, f"persistent://{ground.namespace}/probe"), _PATIENCE_S, 1)
            yield

    def settle(self) -> None:
        """Wait until nothing is in flight, and count what is left of what expired, and what follow marked."""
        ground = self._ground
        eventually(lambda: not self._left(), _PATIENCE_S, 2)
        self._counts["expired"] += len(self._expired)
        self._counts["expired and left"] += len(self._left())
        self._counts["marked by follow"] += len(self._following.marked())
        self._counts["deleted by the sweep"] += ground.site.counts()[Outcome.DELETED.value]

    def _left(self) -> set[int]:
        return self._expired - self._ground.missing(self._expired)

    def _run(self, *arguments: str, codes: Collection[int] = (0,)) -> Any:
        """Run a command of `trash`; return its code and what it writes for programs."""
        ended = CliRunner().invoke(cli, ["-o", "json", "--config", str(self._file), "trash", *arguments])
        assert ended.exit_code in codes, ended.output
        return ended.exit_code, json.loads(ended.stdout or ended.stderr)

    def _restore(self, *arguments: str) -> None:
        _, data = self._run("restore", *arguments, "--execute")
        for one in data["topics"]:
            assert not one.get("lost"), one

    def _filled(self, name: str) -> Topic:
        topic = self._ground.topic(name)
        self._ground.fill_all([topic])
        return topic

    def _more(self, topic: Topic) -> list[str]:
        """Count what it has, then send and count some more."""
        wrong = self._ground.count(topic, self._counts)
        for name in topic.acknowledged:
            topic.acknowledged[name] = set(topic.sent)
        self._ground.send(topic, 10, pulsar.schema.StringSchema())
        return wrong + self._ground.count(topic, self._counts)

    def deleted(self, number: int) -> list[str]:
        topic = self._filled(f"deleted-{number}")
        self._ground.delete([topic])
        self._restore(topic.name)
        return self._more(topic)

    def deleted_unloaded(self, number: int) -> list[str]:
        topic = self._filled(f"unloaded-{number}")
        unload(self._ground.admin, topic.name)
        self._ground.delete([topic])
        self._restore(topic.name)
        return self._more(topic)

    def made_anew(self, number: int) -> list[str]:
        topic = self._filled(f"anew-{number}")
        self._ground.delete([topic])
        self._ground.send(topic, 10, pulsar.schema.StringSchema())
        self._restore(topic.name, "--under-live")
        return self._more(topic)

    def under_a_consumer(self, number: int) -> list[str]:
        """Delete it while a consumer acknowledges: what it had in the last second may be given again."""
        ground, topic = self._ground, self._ground.topic(f"consumed-{number}")
        ground.admin.put(topic_path(topic.name))
        automatic = f"/namespaces/{ground.namespace}/autoTopicCreation"
        ground.admin.post(automatic, {"allowAutoTopicCreation": False})
        acknowledged, again, ended = set[int](), Counter[int](), threading.Event()
        topic.acknowledged = {}
        ground.client.subscribe(topic.name, "s", consumer_type=pulsar.ConsumerType.Shared).close()
        ground.send(topic, 300)

        def consume() -> None:
            with closing(ground.client.subscribe(topic.name, "s", consumer_type=pulsar.ConsumerType.Shared)) as one:
                while not ended.is_set():
                    try:
                        message = one.receive(timeout_millis=200)
                    except pulsar.Timeout:
                        continue
                    each = int(message.data())
                    again[each] += each in acknowledged
                    one.acknowledge(message)
                    acknowledged.add(each)
                    time.sleep(0.01)

        thread = threading.Thread(target=consume)
        thread.start()
        try:
            eventually(lambda: len(acknowledged) > 100, _PATIENCE_S)
            ground.delete([topic])
            at_delete = len(acknowledged)
            self._restore(topic.name)
            eventually(lambda: acknowledged == set(topic.sent), _PATIENCE_S)
        finally:
            ended.set()
            thread.join(60)
            ground.admin.delete(automatic)
        self._counts["under a consumer: acknowledged before the delete"] += at_delete
        self._counts["under a consumer: given again"] += sum(again.values())
        return ground.count(topic, self._counts)

    def partitioned(self, number: int) -> list[str]:
        ground, base = self._ground, f"persistent://{self._ground.namespace}/parts-{number}"
        ground.admin.put(f"{topic_path(base)}/partitions", _PARTITIONS)
        topics = [Topic(f"{base}-partition-{part}") for part in range(_PARTITIONS)]
        ground.fill_all(topics)
        ground.admin.delete(f"{topic_path(base)}/partitions?force=true")
        store = ground.opened.store
        paths = [managed_ledger_path(managed_ledger_of(topic.name)) for topic in topics]
        eventually(lambda: not any(map(store.get, paths)), _PATIENCE_S)
        ground.wait_until_kept()
        self._restore(base)
        return [bad for topic in topics for bad in self._more(topic)]

    def trimmed(self, number: int) -> list[str]:
        """Trim and restore it again and again under a producer."""
        ground, topic = self._ground, self._ground.topic(f"trimmed-{number}")
        topic.acknowledged = {}
        ground.send(topic, 25)
        for _ in range(_TRIMS):
            self._truncate(topic)
            producing = threading.Thread(target=ground.send, args=(topic, 15))
            producing.start()
            self._restore(topic.name, "--under-live")
            producing.join(60)
        return ground.count(topic, self._counts)

    def _truncate(self, topic: Topic) -> None:
        ground = self._ground
        before = set(listed(ground.swept, topic.name))
        ground.admin.delete(f"{topic_path(topic.name)}/truncate")
        # But for the ledger that is written.
        eventually(lambda: len(before & set(listed(ground.swept, topic.name))) <= 1, _PATIENCE_S)
        ground.wait_until_kept()

    def truncated(self, number: int) -> list[str]:
        topic = self._filled(f"truncated-{number}")
        self._truncate(topic)
        self._restore(topic.name, "--under-live")
        # Subscriptions stay where that put them.
        for name in topic.acknowledged:
            topic.acknowledged[name] = set(topic.sent)
        return self._more(topic)

    def subscription(self, number: int) -> list[str]:
        ground, topic = self._ground, self._filled(f"subscription-{number}")
        for name in (HALF, HOLES, IDLE):
            ground.admin.delete(f"{topic_path(topic.name)}/subscription/{name}?force=true")
        eventually(lambda: len(ground.trashed().get(topic.name, [])) > 0, _PATIENCE_S)
        ground.wait_until_kept()
        for name in (HALF, HOLES, IDLE):
            self._restore(topic.name, "--subscription", name)
        return self._more(topic)

    def compacted(self, number: int) -> list[str]:
        ground, topic = self._ground, f"persistent://{self._ground.namespace}/compacted-{number}"
        ground.admin.put(topic_path(topic))
        send_keyed(ground.client, topic, 60)
        compact(ground.admin, topic)
        # Behind what is compacted.
        send_keyed(ground.client, topic, 8)
        before = self._compacted_view(topic)
        ground.delete([Topic(topic)])
        self._restore(topic)
        after = self._compacted_view(topic)
        self._counts["read of compacted topics"] += len(after)
        return [] if before == after else [f"{topic}: compacted {before}, and now {after}"]

    def _compacted_view(self, topic: str) -> list[tuple[str, bytes]]:
        reader = self._ground.client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
        found = []
        while reader.has_message_available():
            message = reader.read_next(timeout_millis=60_000)
            found.append((message.partition_key(), message.data()))
        reader.close()
        return found

    def namespace(self, number: int) -> list[str]:
        ground, namespace = self._ground, f"{self._tenant}/doomed"
        topics = [Topic(f"persistent://{namespace}/t-{number}-{one}") for one in range(5)]
        ground.fill_all(topics)
        # The sweep's driver looks at policies every 15 s.
        eventually(lambda: self._knows(namespace), _PATIENCE_S, 1)
        ground.admin.delete(f"/namespaces/{namespace}", params={"force": True})
        ground.wait_until_kept()
        eventually(lambda: namespace in self._run("list", namespace)[1]["namespaces"], _PATIENCE_S, 1)
        self._restore("--namespace", namespace)
        return [bad for topic in topics for bad in self._more(topic)]

    def _knows(self, namespace: str) -> bool:
        nodes = self._ground.opened.store.children_of("/bookwarden/trash/namespaces")
        return any(namespace.replace("/", "%2F") in node for node in nodes)

    def expiring(self, number: int) -> list[str]:
        """Restore topics around the moment in which their time is over, and the sweep marks and deletes them."""
        ground, wrong = self._ground, list[str]()
        topics = [Topic(f"persistent://{self._tenant}/short/t-{number}-{one}") for one in range(_SHORT_TOPICS)]
        ground.fill_all(topics)
        ids = {topic.name: {one for each in ground.named(topic).values() for one in each} for topic in topics}
        ground.delete(topics)
        begin = time.monotonic()
        for topic in topics:
            at = begin + self._chance.uniform(_SHORT_S - 5, _SHORT_S + 20)
            time.sleep(max(0.0, at - time.monotonic()) / 4)
            code, data = self._run(
                "restore", topic.name, "--execute", codes=(0, _DIFFERS, _NOT_FOUND, RefusedError.exit_code)
            )
            if code in (_NOT_FOUND, RefusedError.exit_code):
                self._counts["expiring: not in the trash any more"] += 1
                self._expired |= ids[topic.name]
                continue
            (one,) = data["topics"]
            lost = one.get("lost", [])
            gone = {int(each[0].split()[1]) for each in lost if each[0].startswith("ledger ")} | set(one["gone"])
            changed = {name for name in topic.acknowledged if any(repr(name) in str(each) for each in lost)}
            changed |= {name for name in topic.acknowledged if one["problems"] and repr(name) in str(one["problems"])}
            self._counts["expiring: restored whole" if not lost and not gone else "expiring: restored in part"] += 1
            wrong += ground.count(topic, self._counts, gone=gone, without=changed)
        return wrong
