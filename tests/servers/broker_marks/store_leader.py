"""ZooKeeper's leader is killed when a drop is in the outbox, and the node that it leaves is not written yet."""

from __future__ import annotations

import dataclasses
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pulsar
from benchmarks.publishing import PER_SECOND, latencies, quantile

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.errors import ServerError
from bookwarden.wire.broker_marks import OUTBOX_ROOT
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from bookwarden_dev.devcluster.ports import LOOPBACK
from servers.broker_marks.drops_in_log import read_zookeeper_log
from servers.broker_marks.publishing import acknowledge
from servers.broker_marks.site import MarkingSite
from servers.lone_zookeeper import LoneZooKeeper
from servers.lossy_proxy import LossyProxy
from servers.short_lived import running_until_killed
from servers.waiting import eventually
from servers.zookeeper_ensemble import ZooKeeperEnsemble

# The path, and the value with its length: a delete has none.
_PUT: Final = re.compile(rf"{OUTBOX_ROOT}/[^/]+/\d+/\d+\0.{{3}}\{{".encode(), re.DOTALL)
_LENGTH: Final = 4
_MESSAGES: Final = 2_000
_OF_STOCK: Final = 2
_TOPIC: Final = "persistent://public/published/topic"
_FIRED_S: Final = 60.0

#: Whether the answer is passed on.
OnPut = Callable[[], bool]


class OutboxProxy(LossyProxy):
    """Passes frames between a broker and a ZooKeeper; ``on_put`` is called when a put into the outbox was answered."""

    def __init__(self, on_put: OnPut) -> None:
        super().__init__()
        self._on_put = on_put
        self._rest: dict[tuple[socket.socket, bool], bytes] = {}
        self._puts: dict[socket.socket, set[int]] = {}

    def _passed(self, block: bytes, client: socket.socket, is_answer: bool) -> bytes:
        rest, passed = self._rest.get((client, is_answer), b"") + block, b""
        while len(rest) >= _LENGTH and len(rest) >= (end := _LENGTH + int.from_bytes(rest[:_LENGTH], "big")):
            frame, rest = rest[:end], rest[end:]
            if not (is_answer and self._is_answer_to_put(frame, client)) or self._on_put():
                passed += frame
            if not is_answer:
                self._note(frame, client)
        self._rest[client, is_answer] = rest
        return passed

    def _note(self, frame: bytes, client: socket.socket) -> None:
        """Note a request that creates a node of the outbox, alone or as one of several."""
        if _PUT.search(frame):
            self._puts.setdefault(client, set()).add(_request_of(frame))

    def _is_answer_to_put(self, frame: bytes, client: socket.socket) -> bool:
        # One that failed does not name the node.
        puts = self._puts.get(client, set())
        if _request_of(frame) not in puts:
            return False
        puts.remove(_request_of(frame))
        return OUTBOX_ROOT.encode() in frame


def _request_of(frame: bytes) -> int:
    """Return the number of a request, which its answer has too."""
    return int.from_bytes(frame[_LENGTH : 2 * _LENGTH], "big")


class _LeaderKiller:
    """Kills the leader at the next put into the outbox, once it is armed; by turns with and without its answer."""

    def __init__(self) -> None:
        self.ensemble: ZooKeeperEnsemble | None = None
        self.armed = False
        self.killed: list[LoneZooKeeper] = []

    def on_put(self) -> bool:
        if not self.armed:
            return True
        self.armed = False
        self.kill()
        return len(self.killed) % 2 == 1

    def kill(self) -> None:
        """Kill the leader now."""
        assert self.ensemble is not None
        leader = self.ensemble.leader()
        leader.kill()
        self.killed.append(leader)


@contextmanager
def _running(home: Path, options: ClusterOptions) -> Iterator[tuple[DevCluster, ZooKeeperEnsemble, _LeaderKiller]]:
    """Run a cluster on an ensemble, of which the broker has the voters behind proxies, and all else the observer."""
    killer = _LeaderKiller()
    with ExitStack() as stack:
        proxies = [stack.enter_context(closing(OutboxProxy(killer.on_put))) for _ in range(3)]
        url = f"zk:{','.join(f'{LOOPBACK}:{proxy.port}' for proxy in proxies)}"
        lines = {"metadataStoreUrl": url, "configurationMetadataStoreUrl": url}
        options = dataclasses.replace(options, broker_settings={**options.broker_settings, **lines})
        cluster = DevCluster(home / "pulsar", options)
        ensemble = ZooKeeperEnsemble(home / "ensemble", observer_port=cluster.ports.zookeeper)
        stack.callback(ensemble.kill)
        for proxy, voter in zip(proxies, ensemble.voters, strict=True):
            proxy.server_port = voter.port
        killer.ensemble = ensemble
        cluster.zookeeper.spec = ensemble.observer.spec
        ensemble.start()
        yield stack.enter_context(running_until_killed(cluster)), ensemble, killer


def kill_leaders(
    home: Path,
    marking: ClusterOptions,
    stock: ClusterOptions,
    kills: int,
    seed: int,
    delay_s: int,
    say: Callable[[str], None],
) -> None:
    """Kill the leader so often; AssertionError if a drop is not marked, or is left.

    ServerError if a client sees it, and none of a stock broker did.
    """
    seen_of_stock = False
    with _running(home / "stock", stock) as (cluster, ensemble, killer), _publisher(cluster) as producer:
        for _ in range(_OF_STOCK):
            timer = threading.Timer(_MESSAGES / PER_SECOND / 2, killer.kill)
            timer.start()
            told, seen = _published(producer)
            seen_of_stock |= seen is not None
            timer.join()
            ensemble.start()
            say(f"the leader of a stock broker's ZooKeeper killed: {told}")
    with _running(home / "marking", marking) as (cluster, ensemble, killer):
        log = partial(read_zookeeper_log, ensemble.observer.log_folder)
        site = MarkingSite(cluster, "leader", home / "site", delay_s, log=log)
        with _publisher(cluster) as producer, site.played(seed, say) as done:
            for number in range(1, kills + 1):
                killer.armed = True
                told, seen = _published(producer)
                if seen is not None and not seen_of_stock:
                    raise seen
                eventually(lambda number=number: len(killer.killed) == number, _FIRED_S)
                ensemble.start()
                say(f"leader {number} of {kills} killed: {told}; {dict(done)}")


@contextmanager
def _publisher(cluster: DevCluster) -> Iterator[pulsar.Producer]:
    """Make a producer on a topic whose messages are acknowledged as they come."""
    with closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin:
        admin.put("/namespaces/public/published")
    with (
        closing(cluster.connection().client(operation_timeout_seconds=60)) as client,
        closing(client.subscribe(_TOPIC, "reader", message_listener=acknowledge)),
        closing(client.create_producer(_TOPIC, batching_enabled=False, block_if_queue_full=True)) as producer,
    ):
        yield producer


def _published(producer: pulsar.Producer) -> tuple[str, ServerError | None]:
    """Publish; return what became of it, and the error that the client saw, if any."""
    try:
        took = latencies(producer, _MESSAGES)
    except ServerError as error:
        return str(error), error
    p99 = quantile(took, 99) * 1000
    return f"{len(took)} messages confirmed, p99 {p99:.0f} ms, the last within {max(took):.1f} s", None
