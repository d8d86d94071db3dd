"""Deletion compared: bookwarden and peers in Java take turns on one store, each on ledgers made for its turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.deleter import Deleter, Deletion, deleter
from benchmarks.doomed import FIRST_ID, NAME_PREFIX, ROOT, DoomedLedgers
from benchmarks.java_peer import JavaPeer, java_peer
from benchmarks.lone_store import LoneStore
from benchmarks.options import Options
from benchmarks.processes import Usage, measured
from benchmarks.results import Result, compared, say

COUNT = 50_000
ROUNDS = 3
# So many times as many ledgers show whether each still costs the same.
_GROWTH = 20
_WARM_UP_ROUNDS = 3
_MIB = 1 << 20
# What BookKeeper's clients ask for before anything else.
_LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"


@dataclass
class Side:
    """One that deletes: of each round its ledgers a second, and what it and the server took."""

    rates: list[float] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    server_usages: list[Usage] = field(default_factory=list)

    @property
    def peak_bytes(self) -> int:
        """The most memory that it held."""
        return max(usage.peak_bytes for usage in self.usages)


class Contest:
    """Deletes ledgers of one store in turns, and sees that each turn leaves none."""

    def __init__(self, store: LoneStore, ours: Deleter, options: Options) -> None:
        self._store = store
        self._ours = ours
        self.count = options.scaled(options.count or COUNT)
        self._rounds = options.rounds or ROUNDS
        self._next_id = FIRST_ID

    @property
    def address(self) -> str:
        """Where the store's clients connect."""
        return self._store.address

    @property
    def url(self) -> str:
        """The store's URL, as Pulsar writes it."""
        return self._store.url

    def hold(self, peers: Mapping[str, JavaPeer]) -> tuple[Side, dict[str, Side]]:
        """Let the peers warm up, and all take turns; return what came of ours and of each peer."""
        for name, peer in peers.items():
            warming = Side()
            for _ in range(_WARM_UP_ROUNDS):
                self._by_peer(peer, warming, self.count)
            say(f"warming up: {name} {', '.join(f'{rate:,.0f}' for rate in warming.rates)} ledgers/s")
        self._by_ours(self.count, Side())
        ours, sides = Side(), {name: Side() for name in peers}
        for number in range(1, self._rounds + 1):
            # Whatever grows in the server is shared.
            for name in sorted(peers, reverse=number % 2 == 0):
                self._by_peer(peers[name], sides[name], self.count)
            deletion = self._by_ours(self.count, ours)
            rates = ", ".join(f"{name} {side.rates[-1]:,.0f}" for name, side in sides.items())
            say(f"round {number} of {self._rounds}: {rates}, ours {ours.rates[-1]:,.0f} ledgers/s, {_told(deletion)}")
        return ours, sides

    def as_read(self) -> tuple[Side, Side]:
        """Let ours delete in turns with the holders' nodes in each transaction, and without; the first with."""
        self._store.create(DoomedLedgers(0, self.count).holder_nodes())
        sides = Side(), Side()
        for number in range(1, self._rounds + 1):
            for with_nodes in (True, False) if number % 2 else (False, True):
                self._by_ours(self.count, sides[0 if with_nodes else 1], as_read=with_nodes)
            told = ", ".join(f"{side.rates[-1]:,.0f}" for side in sides)
            say(f"round {number} of {self._rounds}: with and without the holders' nodes {told} ledgers/s")
        return sides

    def grown(self, name: str, usual: Side, peers: Mapping[str, JavaPeer] | None = None) -> list[Result]:
        """Let ours delete many more at once; compare with its usual rounds, and with peers that delete as many."""
        count, grown = self.count * _GROWTH, Side()
        say(f"creating {count:,} ledgers")
        deletion = self._by_ours(count, grown)
        say(f"ours {grown.rates[0]:,.0f} ledgers/s, {_told(deletion)}, {_costs(grown, count)}")
        peer = statistics.median(usual.rates)
        results = [
            Result(
                f"{name} of {count:,}", "ledgers/s", grown.rates[0], peer, count, "ratio 1", f"beside {self.count:,}"
            ),
            Result(f"{name} of {count:,}, memory", "MiB", grown.peak_bytes / _MIB, usual.peak_bytes / _MIB, count),
        ]
        for peer_name, client in (peers or {}).items():
            side = Side()
            self._by_peer(client, side, count)
            say(f"{peer_name} {side.rates[0]:,.0f} ledgers/s, {_costs(side, count)}")
            results.append(versus(f"{name} of {count:,}, {peer_name}", grown, side, count))
        return results

    def processor(self, name: str, ours: Side, peer: Side) -> list[Result]:
        """Compare the processor time for a ledger, of the client and of the server."""
        return [
            self._processor(name, ours.usages, peer.usages, "the client's; best rounds"),
            self._processor(f"{name}, server's", ours.server_usages, peer.server_usages, "best rounds"),
        ]

    def _processor(self, name: str, ours: list[Usage], peer: list[Usage], note: str) -> Result:
        took = [min(usage.cpu_seconds for usage in usages) / self.count * 1e6 for usages in (ours, peer)]
        return Result(name, "us/ledger", took[0], took[1], self.count, "", note)

    def _by_ours(self, count: int, side: Side, *, as_read: bool = False) -> Deletion:
        deletions: list[Deletion] = []

        def delete(doomed: DoomedLedgers) -> float:
            deletions.append(self._ours.delete(doomed, as_read=as_read))
            return deletions[0].seconds

        self._turn(count, side, self._ours.pid, delete)
        return deletions[0]

    def _by_peer(self, peer: JavaPeer, side: Side, count: int) -> None:
        def delete(doomed: DoomedLedgers) -> float:
            seconds, deleted = peer.ask(f"{doomed.first} {doomed.count} {doomed.topics}").split()
            if int(deleted) != doomed.count:
                raise RuntimeError(f"the Java client deleted {deleted} of {doomed.count} ledgers")
            return float(seconds)

        self._turn(count, side, peer.pid, delete)

    def _turn(self, count: int, side: Side, pid: int, delete: Callable[[DoomedLedgers], float]) -> None:
        doomed = DoomedLedgers(self._next_id, count)
        self._next_id += count
        self._store.create(doomed.nodes())
        with measured(pid, side.usages), measured(self._store.pid, side.server_usages):
            seconds = delete(doomed)
        self._ours.require_gone(doomed)
        side.rates.append(count / seconds)


@contextmanager
def contest(store: LoneStore, options: Options) -> Iterator[Contest]:
    """Prepare the store for BookKeeper's clients, and start the process of ours."""
    store.create([(f"{ROOT}/LAYOUT", _LAYOUT), (f"{ROOT}/available/readonly", b"")])
    with deleter(store.settings_file) as ours:
        yield Contest(store, ours, options)


@contextmanager
def delete_peer(kind: str, address: str) -> Iterator[JavaPeer]:
    """Start a peer of the kind that DeletePeer.java knows."""
    with java_peer("DeletePeer.java", [kind, address, NAME_PREFIX]) as peer:
        yield peer


def versus(name: str, ours: Side, peer: Side, count: int, target: str = "") -> Result:
    """Compare the rates."""
    return compared(name, "ledgers/s", ours.rates, peer.rates, count, target)


def _costs(side: Side, count: int) -> str:
    client, server = (usages[-1].cpu_seconds / count * 1e6 for usages in (side.usages, side.server_usages))
    return f"processor time a ledger: {client:.0f} us, the server's {server:.0f} us"


def _told(deletion: Deletion) -> str:
    read, delete = deletion.read_seconds / deletion.seconds, deletion.delete_seconds / deletion.seconds
    return f"of it reading and parsing {read:.0%}, checking {1 - read - delete:.0%}, deleting {delete:.0%}"
