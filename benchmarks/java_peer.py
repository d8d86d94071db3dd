"""A peer in Java: a source file of benchmarks/peer in a process of its own, which waits for orders."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bookwarden.java import find_java
from bookwarden_dev.devcluster.releases.distribution import ensure_distribution
from bookwarden_dev.devcluster.servers.java import java_command


class JavaPeer:
    """A running program: an order is a line, and so is its answer, behind the word "answer"."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        # What it logs between two answers would fill the pipe, and stop the threads that log.
        threading.Thread(target=self._read, name="java-peer", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._child.pid

    def ask(self, order: str) -> str:
        """Give an order and wait for the answer."""
        assert self._child.stdin is not None
        self._child.stdin.write(order + "\n")
        self._child.stdin.flush()
        return self.answer()

    def answer(self) -> str:
        """Wait for the next answer."""
        found = self._answers.get()
        if found is None:
            raise RuntimeError(f"the Java client ended with exit code {self._child.wait()}")
        return found

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "answer":
                self._answers.put(rest)
        self._answers.put(None)


@contextmanager
def java_peer(
    source: str | Path,
    arguments: Sequence[str],
    jars: Sequence[str] = (),
    properties: Sequence[tuple[str, str]] = (),
    *,
    release: Path | None = None,
    heap_mb: int = 1024,
) -> Iterator[JavaPeer]:
    """Compile and run a file of benchmarks/peer, or of elsewhere by its path; it ends with this context.

    It has the jars of a release of Pulsar, that of the benchmarks unless told, and others.
    """
    command = java_command(
        find_java(),
        release or ensure_distribution(),
        str(Path(__file__).parent / "peer" / source),
        arguments,
        heap_mb=heap_mb,
        direct_mb=512,
        properties=[("bookwarden.log.level", "error"), *properties],
        full_compiler=True,
        jars=jars,
    )
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            peer = JavaPeer(child)
            peer.answer()
            yield peer
        finally:
            child.kill()
