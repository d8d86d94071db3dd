"""Stages of Spark without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bookwarden.pipelines.scan.files import ScanFolder, Seal
from bookwarden.pipelines.scan.stage import ReadPiece


class OneAfterAnother:
    """Does what a stage of Spark does, in this thread; ``kill_at`` pieces into all stages it ends."""

    def __init__(self, folder: ScanFolder, kill_at: int | None = None) -> None:
        self.folder = folder
        self.left = kill_at
        self.pieces_of: dict[str, int] = {}

    def run(
        self, stage: str, plan: Callable[[], Sequence[Any]], read: ReadPiece, others: Sequence[str] = ()
    ) -> list[Seal]:
        pieces = self.folder.pieces(stage)
        if pieces is None:
            pieces = list(plan())
            self.folder.begin_stage(stage, pieces, others)
        done = self.folder.finished(stage)
        for number, piece in enumerate(pieces):
            if number not in done:
                if self.left is not None:
                    self.left -= 1
                    if self.left < 0:
                        raise KeyboardInterrupt
                read(self.folder, number, piece)
        self.pieces_of[stage] = len(pieces)
        seals = self.folder.seals(stage)
        return [seals[number] for number in range(len(pieces))]
