"""A consumer as a process of its own, which can be killed and started again as an application is.

Arguments: the connection as JSON, a topic, a subscription, the pause between two messages in seconds, and the file to
which the number of each message is appended before it is acknowledged.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import pulsar
from pulsar.exceptions import SubscriptionNotFound

from bookwarden.clusters.pulsar.connection import PulsarConnection


class Application:
    """The process; ``received`` is what all of its lives got."""

    def __init__(self, connection: PulsarConnection, topic: str, subscription: str, pause_s: float, file: Path) -> None:
        arguments = [json.dumps(dataclasses.asdict(connection)), topic, subscription, str(pause_s), str(file)]
        self._command = [sys.executable, __file__, *arguments]
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def received(self) -> list[int]:
        """The numbers received so far; a line that is being written is not among them."""
        if not self._file.exists():
            return []
        return [int(line) for line in self._file.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def restart(self) -> None:
        """Kill it if it runs, and start it."""
        self.kill()
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def hurry(self) -> None:
        """Have it receive without pauses from now on."""
        _hurries(self._file).touch()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Application:
        self.restart()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def _hurries(file: Path) -> Path:
    return file.with_suffix(".hurry")


def consume(connection: PulsarConnection, topic: str, subscription: str, pause_s: float, file: Path) -> None:
    """Receive until killed."""
    consumer = subscribe(connection.client(), topic, subscription)
    with file.open("a") as received:
        while True:
            message = consumer.receive()
            received.write(f"{int(message.data())}\n")
            received.flush()
            consumer.acknowledge(message)
            if not _hurries(file).exists():
                time.sleep(pause_s)


def subscribe(client: pulsar.Client, topic: str, subscription: str) -> pulsar.Consumer:
    """Subscribe, as often as it takes where blue has deleted a drained subscription and makes none again."""
    while True:
        try:
            return client.subscribe(
                topic,
                subscription,
                consumer_type=pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=10,
            )
        except SubscriptionNotFound:
            time.sleep(0.2)


if __name__ == "__main__":
    told, name, read_by, pause, path = sys.argv[1:]
    consume(PulsarConnection(**json.loads(told)), name, read_by, float(pause), Path(path))
