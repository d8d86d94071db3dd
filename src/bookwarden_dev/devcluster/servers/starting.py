"""First starts on a busy machine: a program that loses its ZooKeeper session is started again, and reported."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

from bookwarden.errors import ServerError
from bookwarden_dev.devcluster.processes.process import ServerProcess
from bookwarden_dev.devcluster.releases.cache import Progress

# Logged by programs of Pulsar, ZooKeeper's client and bookies when ZooKeeper did not answer for too long. Neither
# `zookeeperSessionExpiredPolicy`, which a broker logs at each start, nor `SessionExpiredException`, which a client
# names whenever a socket closes. The last one: a broker looked who leads while the node of a killed one went.
_LOST_ZOOKEEPER = re.compile(
    r"ConnectionLoss|SESSIONEXPIRED|[Ss]ession expired|(?:event|Current status): SessionLost|is expired from"
    r"|NoNode for /loadbalance/leader"
)

_ATTEMPTS: Final = 3


class PatientStart:
    """Runs and awaits programs that need a ZooKeeper, with a few starts each.

    ``pause`` (seconds) lies between two starts. A server that ends within ``at_once`` (seconds) of two starts in a
    row has another reason than a busy machine.
    """

    def __init__(
        self,
        zookeeper_runs: Callable[[], bool],
        progress: Progress,
        *,
        pause: float = 2.0,
        at_once: float = 10.0,
    ) -> None:
        self._zookeeper_runs = zookeeper_runs
        self._progress = progress
        self._pause = pause
        self._at_once = at_once

    def run(self, program: ServerProcess, seconds: float) -> None:
        """Run a program that may be run again to its end; all its runs together take at most these seconds.

        Raises the last run's ServerError if none succeeds.
        """
        deadline = time.monotonic() + seconds
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                program.run(max(0.0, deadline - time.monotonic()))
                return
            except ServerError:
                late = time.monotonic() + self._pause >= deadline
                if attempt == _ATTEMPTS or late or not self._zookeeper_runs():
                    raise
            self._say_again(program, attempt)

    def wait_until_ready(self, server: ServerProcess) -> None:
        """Wait until a started server serves; start it again if it ends because it lost its ZooKeeper session.

        Raises ServerError, with its log, if it ends for any other reason, or too often, or is not ready in time.
        """
        ended_at_once = False
        for attempt in range(1, _ATTEMPTS + 1):
            begin = time.monotonic()
            try:
                server.wait_until_ready()
                return
            except ServerError:
                before, ended_at_once = ended_at_once, time.monotonic() - begin < self._at_once
                if attempt == _ATTEMPTS or (before and ended_at_once) or not self._lost_zookeeper(server):
                    raise
            self._say_again(server, attempt)
            server.start(wait=False)

    def _lost_zookeeper(self, server: ServerProcess) -> bool:
        if server.is_running() or not self._zookeeper_runs():
            return False
        return _LOST_ZOOKEEPER.search(server.log_since_start()) is not None

    def _say_again(self, program: ServerProcess, attempt: int) -> None:
        self._progress(f"{program.name} ended too early; starting it again ({attempt + 1} of {_ATTEMPTS})")
        time.sleep(self._pause)
