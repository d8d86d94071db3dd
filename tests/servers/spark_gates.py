"""The side of a test of servers.executor_gates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from servers.executor_gates import FOLDER
from servers.spark_cluster import share


class Gates:
    """The gates of the executors: see servers.executor_gates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        share(folder)

    @property
    def conf(self) -> dict[str, str]:
        """The properties that let executors look at them."""
        return {f"spark.executorEnv.{FOLDER}": str(self.folder)}

    def set(self, point: str, action: str, passages: int = 0) -> None:
        """Let the next process act that reaches the point after so many passages of its own."""
        partial = self.folder / f".{point}"
        partial.write_text(f"{action} {passages}")
        partial.rename(self.folder / point)

    def taken(self) -> list[dict[str, Any]]:
        """List what was taken so far, oldest first."""
        texts = [file.read_text() for file in sorted(self.folder.glob("[0-9]*.*"))]
        return [json.loads(text) for text in texts if text.startswith("{")]
