"""A Java client whose transactions are open over what is done to the brokers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bookwarden.java import find_java
from bookwarden_dev.devcluster.releases.distribution import ensure_jars
from bookwarden_dev.devcluster.servers.java import java_command
from servers.waiting import eventually

_PROGRAM: Final = Path(__file__).parents[2] / "java/OpenTransactions.java"
_PATIENCE_S: Final = 180


class OpenTransactions:
    """The client, phase by phase; what a phase does stands in the program."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    def wait_for(self, phase: int) -> None:
        def ended() -> bool:
            text = self._log.read_text(encoding="utf-8", errors="replace")
            assert f"phase {phase} ended" in text or self._process.poll() is None, text[-3000:]
            return f"phase {phase} ended" in text

        eventually(ended, _PATIENCE_S, pause=0.1)

    def go_on(self, phase: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        self.wait_for(phase)


@contextmanager
def open_transactions(url: str, topics: Sequence[str], log: Path) -> Iterator[OpenTransactions]:
    """Run the client for the block, with its first phase begun."""
    command = java_command(find_java(), ensure_jars(), str(_PROGRAM), [url, "s", *topics], heap_mb=256)
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
    try:
        yield OpenTransactions(process, log)
    finally:
        process.kill()
        process.communicate()
