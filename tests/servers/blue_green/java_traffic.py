"""Java clients of many kinds that go on while their topics move, and an account of every message.

Clients in C++ can hang when their topic moves; these do not, and so show what the move itself does.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.java_peer import JavaPeer, java_peer

from bookwarden_dev.devcluster.servers.specs import load_runtime
from servers.waiting import eventually

_PROGRAM: Final = Path(__file__).parents[2] / "java/Traffic.java"
#: Ledgers of green have ids from here on: where a message is follows from its id.
FIRST_OF_GREEN: Final = 1000
_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class JavaFlow:
    """Messages through one topic: who sends them and who receives them."""

    name: str  #: Of its clients, and of its topic unless that is told.
    row: str  #: What it is, for people.
    kind: str = "Exclusive"  #: The subscription's type.
    earliest: bool = False  #: Where a subscription that is not there yet begins; clients' default is the latest.
    consumers: int = 1  #: Of the subscription; 0 for none.
    per_second: int = 20  #: Messages sent.
    pause_ms: int = 0  #: Between two messages of a consumer: a long one makes a backlog.
    batched: bool = False  #: Whether its producer batches.
    keys: int = 0  #: Number of different keys; 0 for messages without.
    delay_ms: int = 0  #: Of delivery.
    restart_ms: int = 0  #: After which a consumer is closed and made anew; 0 for never.
    may_double: bool = False  #: What is received again is told, and no fault.
    partitions: int = 0  #: Of its topic.
    persistent: bool = True  #: Whether its topic is.
    comes_back: bool = False  #: Its consumer leaves before the move, and comes back once blue holds only what it left.
    sends_later: bool = False  #: Its producer is made only after the flag, with blue's URL.
    transactions: bool = False  #: Each message is sent in a transaction of its own.
    reader: bool = False  #: Who receives is a reader from the earliest message on, without a subscription.
    of: str = ""  #: The flow whose topic and messages it has; "" for its own.
    subscription: str = "app"  #: Its name.
    is_late: bool = False  #: Subscribed while messages are sent: it is owed what was sent once it was subscribed.

    def topic(self, namespace: str) -> str:
        """Return the full name of its topic."""
        return f"{'' if self.persistent else 'non-'}persistent://{namespace}/{self.of or self.name}"

    def producing(self, namespace: str, client: str) -> str:
        """Return the order for its producer."""
        options = {
            "rate": self.per_second,
            "batch": self.batched,
            "keys": self.keys,
            "delay": self.delay_ms,
            "transactions": self.transactions,
        }
        return f"produce {self.name} {self.topic(namespace)} client={client} {_words(options)}".rstrip()

    def consuming(self, namespace: str, client: str, who: str) -> str:
        """Return the order for one of its consumers."""
        if self.reader:
            return f"read {who} {self.topic(namespace)} client={client}"
        options = {
            "type": self.kind,
            "from": "Earliest" if self.earliest else "",
            "pause": self.pause_ms,
            "restart": self.restart_ms,
            # What one consumer has fetched, no other can get to.
            "queue": 10 if self.pause_ms else 0,
            "owed": self.of if self.is_late else "",
        }
        return f"consume {who} {self.topic(namespace)} {self.subscription} client={client} {_words(options)}"


def _number(text: str) -> int:
    """Return the number of a message, which its producer counts."""
    return int(text.rpartition(":")[2])


def _words(options: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items() if value)


@dataclass(frozen=True, slots=True)
class JavaAccount:
    """Counts of a flow's messages."""

    flow: JavaFlow
    sent_blue: int  #: Confirmed by blue.
    sent_green: int  #: Confirmed by green.
    received: int  #: Different ones.
    lost: int  #: Confirmed and not received.
    lost_blue: int  #: Those of them that blue confirmed.
    doubled: int  #: Received again.
    disordered: int  #: Received after a later one; of the same key, where there are keys.
    failed: int  #: Errors that clients told, of sends and of consumers that could not subscribe.

    @property
    def sent(self) -> int:
        """Confirmed by either."""
        return self.sent_blue + self.sent_green

    @property
    def is_exact(self) -> bool:
        """True where each confirmed message was received, and once unless its flow may double."""
        return self.sent > 0 and not self.lost and (not self.doubled or self.flow.may_double)


class JavaTraffic:
    """The program; each flow's clients by its name."""

    def __init__(self, peer: JavaPeer, folder: Path, url: str) -> None:
        self._peer = peer
        self._folder = folder
        self._url = url
        self._clients: set[str] = set()
        self._receivers: dict[str, list[str]] = defaultdict(list)

    def client(self, name: str, url: str = "", *, transactions: bool = False) -> str:
        """Return the name of a client, which is made where there is none; with blue's URL unless told."""
        if name not in self._clients:
            self._peer.ask(f"client {name} {url or self._url}{' transactions' if transactions else ''}")
            self._clients.add(name)
        return name

    def send(self, flow: JavaFlow, namespace: str, client: str = "producers") -> None:
        """Begin to send."""
        if flow.transactions:
            client += "-transactions"
        self._peer.ask(flow.producing(namespace, self.client(client, transactions=flow.transactions)))

    def receive(self, flow: JavaFlow, namespace: str, client: str = "consumers") -> None:
        """Begin to receive; consumers of a client of another name come after those that were there before."""
        for _ in range(flow.consumers):
            who = f"{flow.name}-app-{len(self._receivers[flow.name])}"
            self._receivers[flow.name].append(who)
            self._peer.ask(flow.consuming(namespace, self.client(client), who))

    @contextmanager
    def held(self, flow: JavaFlow, receivers: Sequence[JavaFlow]) -> Iterator[None]:
        """Send none of the flow's messages within the block, which begins when these have received all there are."""
        self._peer.ask(f"hold {flow.name}")
        eventually(lambda: not any(map(self.lacks, receivers)), _SECONDS, 0.5)
        yield
        self._peer.ask(f"go {flow.name}")

    def leave(self, flow: JavaFlow) -> None:
        """Close its consumers."""
        for who in self._receivers[flow.name]:
            self._peer.ask(f"close {who}")

    def is_received(self, flow: JavaFlow, count: int) -> bool:
        """Return whether its consumers are connected, and have so many messages together."""
        counts = [self.count(who) for who in self._receivers[flow.name]]
        return min(counts, default=0) >= 0 and sum(counts) >= count

    def count(self, name: str) -> int:
        """Return how many messages a client sent, or received; -1 before it is connected."""
        return int(self._peer.ask(f"count {name}"))

    def wait_for(self, more: int, flows: Sequence[JavaFlow], seconds: float = _SECONDS) -> None:
        """Wait until each flow has so many more confirmed messages."""
        wanted = {flow.name: max(0, self.count(flow.name)) + more for flow in flows}

        def behind() -> list[str]:
            return [f"{name}: {count}" for name, due in wanted.items() if (count := self.count(name)) < due]

        eventually(lambda: not behind(), seconds, 0.2)

    def hurry(self) -> None:
        """Have consumers receive without a pause from now on."""
        self._peer.ask("hurry")

    def end(self) -> None:
        """End all producers, once all that they sent is answered, and have consumers receive without a pause."""
        self._peer.ask("quiet")
        self.hurry()

    def lacking(
        self, flows: Sequence[JavaFlow], seconds: float, lost: Callable[[JavaFlow], int] = lambda _flow: 0
    ) -> list[JavaFlow]:
        """Wait until these have all but what is known to be lost; return those that have not when the time is over."""
        deadline = time.monotonic() + seconds
        while left := [flow for flow in flows if self.lacks(flow) > lost(flow)]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        return left

    def receive_again(self, flow: JavaFlow, namespace: str, url: str) -> None:
        """Close its consumers, and make one with this URL.

        Brokers do not answer a consumer that subscribes while it is redirected. The Java client subscribes again then,
        and forgets what it had queued, which is delivered again once the consumer is closed.
        """
        self.leave(flow)
        self.receive(flow, namespace, self.client("on-green", url))

    def restarts(self, wanted: bool) -> None:
        """Have consumers that are to be restarted be so from now on, as they are at first, or not."""
        self._peer.ask(f"steady {'off' if wanted else 'on'}")

    def lacks(self, flow: JavaFlow) -> int:
        """Count the confirmed messages that nobody received yet."""
        return self.account(flow).lost

    def account(self, flow: JavaFlow) -> JavaAccount:
        """Count what became of a flow's messages."""
        sent = dict(self._lines(f"{flow.of or flow.name}.sent"))
        got = [text for who in self._receivers[flow.name] for text, _ in self._lines(f"{who}.received")]
        counts = Counter(got)
        if flow.is_late:
            owed = self._owed_from(flow)
            sent = {text: ledger for text, ledger in sent.items() if _number(text) >= owed}
        lost = [text for text in sent if text not in counts]
        of_green = sum(ledger >= FIRST_OF_GREEN for ledger in sent.values())
        troubles = [f"{name}.failed" for name in (flow.name, *self._receivers[flow.name])]
        return JavaAccount(
            flow,
            len(sent) - of_green,
            of_green,
            len(counts),
            len(lost),
            sum(sent[text] < FIRST_OF_GREEN for text in lost),
            len(got) - len(counts),
            self._disordered(flow),
            sum(len(self._text(name)) for name in troubles),
        )

    def _owed_from(self, flow: JavaFlow) -> int:
        """Return the number of the first message that was sent once the first consumer was subscribed; 0 until then."""
        files = (self._folder / f"{who}.owed" for who in self._receivers[flow.name])
        return min((int(file.read_text()) for file in files if file.exists()), default=0)

    def troubles(self, flow: JavaFlow) -> list[str]:
        """List what its clients told of errors."""
        return [line for name in (flow.name, *self._receivers[flow.name]) for line in self._text(f"{name}.failed")]

    def _disordered(self, flow: JavaFlow) -> int:
        if flow.kind == "Shared" or flow.partitions:
            return 0
        count = 0
        for who in self._receivers[flow.name]:
            newest: dict[int, int] = defaultdict(lambda: -1)
            for text, _ in self._lines(f"{who}.received"):
                number = _number(text)
                key = (number + 1) % flow.keys if flow.keys else 0
                count += number < newest[key]
                newest[key] = max(newest[key], number)
        return count

    def _lines(self, name: str) -> Iterator[tuple[str, int]]:
        for line in self._text(name):
            ledger, _, text = line.partition(" ")
            yield text, int(ledger)

    def _text(self, name: str) -> list[str]:
        file = self._folder / name
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [line.rstrip("\n") for line in lines if line.endswith("\n")]


@contextmanager
def java_traffic(folder: Path, url: str, version: str) -> Iterator[JavaTraffic]:
    """Run the program for the block, with the client of a version of Pulsar."""
    folder.mkdir(parents=True)
    with java_peer(_PROGRAM, [str(folder)], release=load_runtime(version).release, heap_mb=512) as peer:
        yield JavaTraffic(peer, folder, url)
