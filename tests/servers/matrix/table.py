"""The table of the matrix: what became of each cell, kept as a file each, and rendered as docs/compatibility.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from servers.matrix.cells import LIBRARIES, NOT_SERVED, PLAYED, REFUSED, Cell, Machine, absence_of, parts_of

#: What a part that ended as it should is called, by what the cell was to do with it.
PASSED: Final = {PLAYED: "yes", REFUSED: "refused"}
_HEADING: Final = """# Compatibility: what was run with what

Written by `make matrix`, which runs one short scenario with each row's versions on real servers:
one axis at a time from a base, the oldest of everything and the newest of everything.
*Leaks* makes a leak of each kind (on Oxia one), finds them by `follow` and a scan, marks, sweeps,
undoes, and reads a topic back.
*Deletion* is `make demo`: marks, a sweep, `follow`, an undo, every ledger and message counted;
with a broker that marks where the version can, and an offload where its offloader is had.
*Switch* is `make demo STORY=switch`: to another bookie cluster and back under load.
*refused* means that the version cannot, and that the error names it.
"""


@dataclass(frozen=True, slots=True)
class CellResult:
    """What became of a cell."""

    cell: str
    commit: str  #: The last that changed what was run.
    date: str
    minutes: float
    versions: Mapping[str, str]  #: Of Python and the libraries, as they were installed.
    parts: Mapping[str, str]  #: By part, what became of it; an error has its text.

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return bool(self.parts) and set(self.parts.values()) <= set(PASSED.values())


def write_result(folder: Path, result: CellResult) -> None:
    """Keep a result, in place of an earlier one of its cell."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(result), indent=2, sort_keys=True)
    (folder / f"{result.cell}.json").write_text(f"{text}\n", encoding="utf-8")


def read_results(folder: Path) -> dict[str, CellResult]:
    """Read the results that a folder has, by cell."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    found = [CellResult(**json.loads(file.read_text(encoding="utf-8"))) for file in files]
    return {result.cell: result for result in found}


def due(cells: Sequence[Cell], results: Mapping[str, CellResult], machine: Machine, commit: str) -> list[Cell]:
    """Return the cells that this machine can run and that did not pass on this commit yet."""
    return [
        cell
        for cell in cells
        if absence_of(cell, machine) is None
        and not ((found := results.get(cell.name)) and found.passed and found.commit == commit)
    ]


def render(cells: Sequence[Cell], results: Mapping[str, CellResult], machine: Machine) -> str:
    """Return the document: a row for each cell that was run, and one with its reason for each that was not."""
    parts = list(parts_of(cells[0]))
    heads = ["cell", "Pulsar", "metadata", "Python", *LIBRARIES, *parts, "minutes", "date", "commit"]
    rows = [_row(cell, results[cell.name]) for cell in cells if cell.name in results]
    missing = [[cell.name, absence_of(cell, machine) or "not run yet"] for cell in cells if cell.name not in results]
    missing += [[what, f"*not served here*: {why}"] for what, why in NOT_SERVED.items()]
    return "\n".join((_HEADING, *_table(heads, rows), "", "## Not run", "", *_table(["what", "why"], missing), ""))


def _row(cell: Cell, result: CellResult) -> list[str]:
    versions = [result.versions.get(name, "?") for name in ("python", *LIBRARIES)]
    shown = [
        result.parts.get(part, "*not run*") if play in PASSED else f"- ({play})"
        for part, play in parts_of(cell).items()
    ]
    return [
        *(cell.name, cell.pulsar, cell.store, *versions, *(_one_line(text) for text in shown)),
        *(f"{result.minutes:.1f}", result.date, result.commit),
    ]


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
