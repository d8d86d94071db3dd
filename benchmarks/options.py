"""What may be asked of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """``scale`` shrinks the work for a quick look; ``count`` and ``rounds`` replace the benchmark's own."""

    scale: float = 1.0
    count: int | None = None
    rounds: int | None = None

    def scaled(self, count: int) -> int:
        """Give the amount of work of this run."""
        return max(int(count * self.scale), 1)
