"""The folder of one scan: what it was asked to read, and each piece of it that was read, as Parquet files.

    scan.json                          what is scanned, with which settings, and since when
    stages/<stage>.json                the pieces of a stage, in the order of their numbers
    <stage>/piece-00017.parquet        the rows of a piece; its seal is in the key-value metadata
    <table>/piece-00017.parquet        further rows of the piece, if it has any
    named.parquet, absent/             ids that places name, and those of them that were not listed: ids.py
    lock, lock.json                    who is at work here

A piece is finished when the file of its stage is there; that one is written last. A scan that was killed goes on with
the pieces that are not finished; only what is made of these files, and of nothing else, is made anew.
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
    """What the file of a finished piece says of the piece.

    ``names`` is how many names were listed, ``digest`` is over them, ``rows`` is how many rows the file has, and
    ``others`` counts the rows of the piece in other tables. ``notes`` are further figures about the piece.
    """

    number: int
    rows: int
    names: int
    digest: str
    others: Mapping[str, int]
    notes: Mapping[str, int]


class ScanFolder:
    """The files of a scan at `location`; picklable."""

    def __init__(self, location: str) -> None:
        self.folder = Folder(location)

    def begin(self, header: Mapping[str, Any]) -> None:
        """Write what the scan is about."""
        self.folder.write_json("scan.json", header)

    def header(self) -> dict[str, Any]:
        """Read what the scan is about; NotFoundError if no scan was begun here."""
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
        """Write down the pieces of a stage, as values that JSON knows, before the first is read."""
        for table in (stage, *others):
            # Spark reads a table without files, but not one without a folder.
            self.folder.make(table)
        self.folder.write_json(f"stages/{stage}.json", list(pieces))

    def begin_stage_anew(self, stage: str, pieces: Sequence[Any], others: Iterable[str] = ()) -> None:
        """Remove what there is of a stage, then begin it."""
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
        """Write the rows of a piece, those of other tables first; a second write replaces the first."""
        counts = {}
        for table, more in (others or {}).items():
            if more.num_rows:
                self._write_table(f"{table}/{_file(number)}", more)
            else:
                # An attempt that was cut short may have had some.
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
            # Cut off by a loss of power, after it had got its name.
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
        # What repeats costs zstd less than making a dictionary of it.
        self.folder.write(name, lambda sink: pq.write_table(rows, sink, compression="zstd", use_dictionary=False))


def _file(number: int) -> str:
    return f"piece-{number:05d}.parquet"
