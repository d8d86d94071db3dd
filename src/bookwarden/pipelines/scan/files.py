"""The folder of one scan: its header, its stages, and each piece that was read, as Parquet files.

    scan.json                          what is scanned, with which settings, and since when
    stages/<stage>.json                the pieces of a stage, in the order of their numbers
    <stage>/piece-00017.parquet        the rows of a piece; its seal is in the key-value metadata
    <table>/piece-00017.parquet        further rows of the piece, if it has any
    named.parquet, absent/             ids that places name, and those of them that were not listed: ids.py
    lock, lock.json                    the process that works here

A piece is finished when the file of its stage exists, which is written last. A killed scan goes on with its unfinished
pieces; only results made from these files alone are made again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bookwarden.errors import FormatError, NotFoundError
from bookwarden.pipelines.folders import Folder

_SEAL = b"bookwarden.piece"
_PIECE = re.compile(r"^piece-(\d{5,})\.parquet$")
_READERS = 16


@dataclass(frozen=True, slots=True)
class Seal:
    """The seal in the file of a finished piece."""

    number: int  #: Of the piece within its stage.
    rows: int  #: Rows of the file.
    names: int  #: Number of names listed.
    digest: str  #: Over these names.
    others: Mapping[str, int]  #: Rows of the piece in other tables, by table.
    notes: Mapping[str, int]  #: Further figures of the piece.


class ScanFolder:
    """The files of a scan at `location`; picklable."""

    def __init__(self, location: str) -> None:
        self.folder = Folder(location)

    def begin(self, header: Mapping[str, Any]) -> None:
        """Write the header of the scan."""
        self.folder.write_json("scan.json", header)

    def header(self) -> dict[str, Any]:
        """Read the header of the scan; NotFoundError if no scan was begun here."""
        try:
            header = self.folder.read_json("scan.json")
        except FileNotFoundError as error:
            raise NotFoundError(
                f"there is no scan in {self.folder.location}: `bookwarden orphans list` names those that there are"
            ) from error
        if not isinstance(header, dict):
            raise FormatError(f"{self.folder.location}/scan.json does not describe a scan")
        return header

    def begin_stage(self, stage: str, pieces: Sequence[Any], others: Iterable[str] = ()) -> None:
        """Write the pieces of a stage, as JSON values, before the first is read."""
        for table in (stage, *others):
            # Spark reads a table without files, but not one without a folder.
            self.folder.make(table)
        self.folder.write_json(f"stages/{stage}.json", list(pieces))

    def restart_stage(self, stage: str, pieces: Sequence[Any], others: Iterable[str] = ()) -> None:
        """Remove the files of a stage, then begin it."""
        self.folder.remove(f"stages/{stage}.json")
        for table in (stage, *others):
            for name in self.folder.files(table):
                self.folder.remove(f"{table}/{name}")
        self.begin_stage(stage, pieces, others)

    def pieces(self, stage: str) -> list[Any] | None:
        """Return the pieces of a stage; None if it was not begun."""
        try:
            pieces: list[Any] = self.folder.read_json(f"stages/{stage}.json")
        except FileNotFoundError:
            return None
        return pieces

    def write(
        self,
        stage: str,
        number: int,
        rows: pa.Table,
        *,
        names: int,
        digest: str,
        others: Mapping[str, pa.Table] | None = None,
        notes: Mapping[str, int] | None = None,
    ) -> Seal:
        """Write the rows of a piece, the ones in other tables first; a second write replaces the first."""
        counts = {}
        for table, more in (others or {}).items():
            if more.num_rows:
                self._write_table(f"{table}/{_file(number)}", more)
            else:
                # An interrupted attempt may have had some.
                self.folder.remove(f"{table}/{_file(number)}")
            counts[table] = more.num_rows
        seal = Seal(number, rows.num_rows, names, digest, counts, dict(notes or {}))
        sealed = rows.replace_schema_metadata({_SEAL: json.dumps(asdict(seal)).encode()})
        self._write_table(f"{stage}/{_file(number)}", sealed)
        return seal

    def finished(self, stage: str) -> set[int]:
        """Number the pieces of a stage that are finished, without opening them."""
        found = (_PIECE.match(name) for name in self.folder.files(stage))
        return {int(match[1]) for match in found if match}

    def seals(self, stage: str) -> dict[int, Seal]:
        """Read the seals of a stage's finished pieces; one whose file is damaged counts as not finished."""
        with ThreadPoolExecutor(_READERS, thread_name_prefix="seals") as pool:
            found = pool.map(lambda number: self.seal(stage, number), sorted(self.finished(stage)))
            return {seal.number: seal for seal in found if seal is not None}

    def seal(self, stage: str, number: int) -> Seal | None:
        """Read the seal of a finished piece; None if its file is damaged."""
        try:
            with self.folder.open(f"{stage}/{_file(number)}") as source:
                metadata = pq.ParquetFile(source).schema_arrow.metadata or {}
            return Seal(**json.loads(metadata[_SEAL]))
        except (pa.ArrowInvalid, KeyError, ValueError, TypeError):
            # Cut off by a loss of power after it was renamed.
            return None

    def read(self, table: str, number: int, columns: Iterable[str] | None = None) -> pa.Table:
        """Read the rows of a piece in a table; FileNotFoundError if the piece has none there."""
        with self.folder.open(f"{table}/{_file(number)}") as source:
            return pq.ParquetFile(source).read(columns=None if columns is None else list(columns))

    def read_all(self, table: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Read columns of all pieces of a table, one piece after another."""
        for number in sorted(self.finished(table)):
            yield self.read(table, number, columns)

    def _write_table(self, name: str, rows: pa.Table) -> None:
        # Repetitions cost zstd less than a dictionary.
        self.folder.write(name, lambda sink: pq.write_table(rows, sink, compression="zstd", use_dictionary=False))


def _file(number: int) -> str:
    return f"piece-{number:05d}.parquet"
