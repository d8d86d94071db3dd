"""The commands of a move from one bookie cluster to another, as an operator gives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bookwarden.bookie_clusters.moving.build import MORE_LATER
from bookwarden.errors import BookwardenError
from bookwarden.ledgers.custom_metadata import COPY_KEY, is_unfinished
from servers.switching.site import SwitchingSite
from servers.waiting import eventually

_PATIENCE_S: Final = 300
_PASSES: Final = 2
_PER_SECOND: Final = ("--per-second", "50")


class Moving:
    """Commands whose state is in a folder."""

    def __init__(self, site: SwitchingSite, home: Path) -> None:
        self._site, self._home = site, home
        site.run(home, "init")

    def switch(self, target: str) -> None:
        assert self._site.command("switch", "--target", target, "--yes")["phase"] == "DONE"

    def roll_back(self) -> None:
        assert self._site.command("rollback", "--yes")["phase"] == "DONE"

    def roll(self) -> None:
        """Close what topics still write in a former cluster."""
        ended = self._site.ended("unload", *_PER_SECOND, "--yes")
        # A topic that changes meanwhile may not be unloaded: the next pass does it.
        assert ended.exit_code in (0, BookwardenError.exit_code), ended.output

    def build(self) -> list[dict[str, Any]]:
        """Copy all that is closed; return what is still written."""
        found = self._site.run(self._home, "bookie-clusters", "build", "--all", exit_codes=(0, MORE_LATER))
        staying: list[dict[str, Any]] = found["staying"]
        assert [one for one in staying if one["outcome"] != "open"] == []
        return staying

    @contextmanager
    def building(self, *words: str, kill: bool = False) -> Iterator[None]:
        """Build during the block, which begins once some ledgers are through; wait for its end, or kill it then."""
        log, before = self._home / "building.log", self._copies()
        line = self._site.words(self._home, "bookie-clusters", "build", "--all", *words)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "bookwarden.cli", *line],
                stdout=output,
                stderr=output,
                cwd=self._home,
                start_new_session=True,
            )

        # A build tells what is through by the piece, of which each may take many minutes.
        def some_are_through() -> bool:
            assert process.poll() is None, log.read_text()
            return self._copies() > before

        try:
            eventually(some_are_through, _PATIENCE_S)
            yield
            assert process.poll() is None, f"the build was faster than what was to happen meanwhile: {log.read_text()}"
            if not kill:
                process.wait(3 * _PATIENCE_S)
                assert process.returncode in (0, MORE_LATER), log.read_text()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _copies(self) -> int:
        """Count the copies in the active cluster that are whole."""
        ledgers = self._site.ledgers_of(self._site.registry().active).values()
        return sum(COPY_KEY in ledger.custom and not is_unfinished(ledger) for ledger in ledgers)

    def promote(self) -> None:
        assert self._site.command("promote", *_PER_SECOND, "--yes")["failed"] == []

    def mark(self) -> int:
        """Mark what former clusters need no more; return how many ledgers."""
        return int(self._site.command("cleanup", "--execute", "--force", "--yes").get("marked") or 0)

    def sweep(self) -> None:
        self._site.run(self._home, "sweep", "--once")

    def empty(self) -> list[dict[str, Any]]:
        """Bring everything to the active cluster, delete what is promoted from the others; return what is written."""
        for _ in range(_PASSES):
            self.roll()
            written = self.build()
            if not written:
                break
        self.promote()
        self.mark()
        self.sweep()
        return written

    def leave(self, source: str) -> set[int]:
        """Empty a former cluster once brokers were started again, and stop its bookies.

        Return what is still there: copied, and not promoted, since no topic closes it.
        """
        # A log that coordinators of transactions have open is closed by nothing else.
        for broker in self._site.brokers:
            broker.process.stop()
        self._site.servers.start_brokers()
        self._site.wait_until_followed()
        assert self.empty() == []
        for bookie in self._site.servers.clusters[source].processes:
            bookie.kill()
        # Brokers that find everything anew.
        self._site.kill_brokers()
        return set(self._site.ledgers_of(source))
