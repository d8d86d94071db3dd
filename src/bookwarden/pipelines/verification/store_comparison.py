"""Two metadata stores compared by the tasks of Spark, in rounds, with the code that compares them in one process.

A piece is a part of the tree still to be compared. A task compares so many nodes of it and writes down the differences
and the rest, which is split into the pieces of the next round, until nothing is left. So the shape of the tree need not
be known beforehand, and nobody holds more than a piece. The folder is that of a scan (scan/files.py), with

    left-0001/                 for each piece of the round: its figures as the seal, the rest of it as rows
    differences/0001/          the differences that the pieces of the round have

A killed comparison goes on with its unfinished pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final

from bookwarden.config import Settings
from bookwarden.migration.comparison.differences import Difference, DifferenceClass
from bookwarden.migration.comparison.findings import Report, VersionRule
from bookwarden.migration.comparison.rows import difference_of
from bookwarden.migration.walking import WHOLE_TREE, Unvisited
from bookwarden.pipelines.per_process import PerProcess
from bookwarden.pipelines.scan.files import ScanFolder, Seal
from bookwarden.pipelines.scan.stage import Stages
from bookwarden.pipelines.verification.difference_tables import difference_table, unvisited_in, unvisited_table
from bookwarden.wiring.migration import VerificationContext

DIFFERENCES_FOLDER: Final = "differences"

# Nodes of a piece: few in the first round, so that all tasks have some soon; later some ten seconds' worth.
_FIRST_NODES: Final = 2_000
_NODES: Final = 50_000
_MOST_ROWS_IN_PIECE: Final = 20_000
_PIECES_PER_TASK: Final = 16
_FIGURES: Final = ("compared", "equal", "ephemeral", "other_versions")

_contexts: PerProcess[VerificationContext] = PerProcess()


@dataclass(frozen=True)
class ComparedStores:
    """The stores to compare, and rules of it; picklable."""

    settings: Settings  #: Of credentials and limits.
    source: str  #: URL.
    target: str  #: URL.
    switched_ms: int | None  #: When the target took over, in ms since the epoch; None if it has not.
    versions: VersionRule  #: REQUIRED or IGNORED: AUTO is decided before.
    max_reads_per_second: float | None  #: For each of both stores, in each of the tasks that run at once.

    def shared(self) -> VerificationContext:
        """Return the stores of this worker process."""
        return _contexts.get(
            (self.source, self.target, self.max_reads_per_second, self.settings.model_dump_json()),
            lambda: VerificationContext(
                self.settings.metadata_store,
                source=self.source,
                target=self.target,
                max_reads_per_second=self.max_reads_per_second,
            ),
        )


@dataclass(frozen=True)
class ComparePiece:
    """Compares nodes of a piece, ``most`` of them or some more."""

    stores: ComparedStores
    round: int
    most: int

    def __call__(self, folder: ScanFolder, number: int, piece: Any) -> None:
        differences: list[Difference] = []
        comparison = self.stores.shared().comparison(
            versions=self.stores.versions, switched_ms=self.stores.switched_ms, sink=differences.extend
        )
        report, left = comparison.run_part(_place_of(folder, piece), self.most)
        folder.write(
            _stage(self.round),
            number,
            unvisited_table(left),
            names=report.compared,
            digest="",
            others={_differences(self.round): difference_table(differences)},
            notes={
                **{name: getattr(report, name) for name in _FIGURES},
                **{kind.value: found for kind, found in report.counts.items()},
            },
        )


class StoreComparison:
    """Compares both stores in a folder, also a resumed one; ``told`` is called with the nodes compared so far."""

    def __init__(
        self,
        stages: Stages,
        folder: ScanFolder,
        stores: ComparedStores,
        tasks: int,
        told: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._stages = stages
        self._folder = folder
        self._stores = stores
        self._tasks = tasks
        self._told = told

    def run(self, keep: int) -> Report:
        """Compare everything, with ``keep`` differences of each class in the report."""
        figures: Counter[str] = Counter()
        sealed: list[tuple[int, Seal]] = []
        pieces: Sequence[Any] = [None]
        for number in count(1):
            most = _FIRST_NODES if number == 1 else _NODES
            compare = ComparePiece(self._stores, number, most)
            seals = self._stages.run(_stage(number), partial(list, pieces), compare, [_differences(number)])
            for seal in seals:
                figures.update(seal.notes)
                if seal.others[_differences(number)]:
                    sealed.append((number, seal))
            self._told(figures["compared"])
            pieces = _pieces_of(number, seals, self._tasks)
            if not pieces:
                break
        counts = {kind: figures[kind.value] for kind in DifferenceClass}
        return Report(
            figures["compared"],
            figures["equal"],
            figures["ephemeral"],
            counts,
            self._first(sealed, counts, keep),
            figures["other_versions"],
            self._stores.versions is VersionRule.REQUIRED,
        )

    def _first(
        self, sealed: Sequence[tuple[int, Seal]], counts: Mapping[DifferenceClass, int], keep: int
    ) -> dict[DifferenceClass, tuple[Difference, ...]]:
        found: dict[DifferenceClass, list[Difference]] = {kind: [] for kind in DifferenceClass}
        for number, seal in sealed:
            wanted = {kind for kind in DifferenceClass if len(found[kind]) < min(keep, counts[kind])}
            if any(seal.notes[kind.value] for kind in wanted):
                for one in _rows_of(self._folder, number, seal.number):
                    if one.kind in wanted and len(found[one.kind]) < keep:
                        found[one.kind].append(one)
        return {kind: tuple(sorted(some, key=lambda one: one.path)) for kind, some in found.items()}


def _rows_of(folder: ScanFolder, round_number: int, piece: int) -> Iterator[Difference]:
    for batch in folder.read(_differences(round_number), piece).to_batches():
        yield from map(difference_of, batch.to_pylist())


def _place_of(folder: ScanFolder, piece: Any) -> Unvisited:
    """Read where a piece is: rows of what a piece of an earlier round left, or everything."""
    if piece is None:
        return WHOLE_TREE
    rows = folder.read(_stage(piece["round"]), piece["piece"])
    return unvisited_in(rows.slice(piece["begin"], piece["rows"]))


def _pieces_of(round_number: int, seals: Sequence[Seal], tasks: int) -> list[dict[str, int]]:
    """Part what a round left into pieces, so that there are some for each task."""
    left = sum(seal.rows for seal in seals)
    rows = max(1, min(_MOST_ROWS_IN_PIECE, left // (_PIECES_PER_TASK * tasks)))
    return [
        {"round": round_number, "piece": seal.number, "begin": begin, "rows": rows}
        for seal in seals
        for begin in range(0, seal.rows, rows)
    ]


def _stage(round_number: int) -> str:
    return f"left-{round_number:04d}"


def _differences(round_number: int) -> str:
    return f"{DIFFERENCES_FOLDER}/{round_number:04d}"
