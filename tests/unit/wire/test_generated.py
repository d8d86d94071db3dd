"""The generated protobuf code is what proto/ generates, and keeps what it does not know."""

from __future__ import annotations

from pathlib import Path

import grpc_tools
from grpc_tools import protoc

from bookwarden.wire.pb import managed_ledger_pb2 as pb

_ROOT = Path(__file__).parents[3]
_WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"


def test_the_generated_code_is_up_to_date(tmp_path: Path) -> None:
    sources = sorted((_ROOT / "proto").glob("*.proto"))
    names = [f"bookwarden/wire/pb/{source.name}" for source in sources]
    search = [f"-Ibookwarden/wire/pb={_ROOT / 'proto'}", f"-I{_WELL_KNOWN}"]
    assert protoc.main(["protoc", *search, f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *names]) == 0
    committed = _ROOT / "src/bookwarden/wire/pb"
    generated = sorted((tmp_path / "bookwarden/wire/pb").iterdir())
    assert [path.name for path in generated] == sorted(path.name for path in committed.glob("*_pb2.py*"))
    for path in generated:
        assert path.read_bytes() == (committed / path.name).read_bytes(), f"generate {path.name} again"


def test_unknown_fields_survive_being_parsed_and_written() -> None:
    known = pb.NestedPositionInfo(ledgerId=1, entryId=2).SerializeToString()
    unknown = b"\x7a\x03new"  # field 15, three bytes
    assert pb.NestedPositionInfo.FromString(known + unknown).SerializeToString() == known + unknown
