"""How entries are written: whatever their bytes, they can be had back."""

from __future__ import annotations

import base64
import io
import json
import re

from hypothesis import given
from hypothesis import strategies as st

from bookwarden.cli.ledger import ENTRY_FORMS, write_entries
from bookwarden.clusters.bookkeeper.bookies.digests import Entry


def written(form: str, *payloads: bytes) -> bytes:
    output = io.BytesIO()
    entries = [Entry(7, number, number - 1, 100, payload) for number, payload in enumerate(payloads)]
    assert write_entries(iter(entries), form, output) == len(payloads)
    return output.getvalue()


@given(st.lists(st.binary(max_size=70), max_size=4))
def test_every_form_keeps_every_byte(payloads: list[bytes]) -> None:
    assert written("raw", *payloads) == b"".join(payloads)
    lines = [json.loads(line) for line in written("json", *payloads).splitlines()]
    assert [base64.b64decode(line["payload_base64"]) for line in lines] == payloads
    dump = written("hex", *payloads).decode("ascii")
    dumped = re.findall(r"^[0-9a-f]{8}  ((?:[0-9a-f]{2} ){1,16})", dump, re.MULTILINE)
    assert bytes.fromhex("".join(dumped)) == b"".join(payloads)
    assert len(re.findall("^entry ", dump, re.MULTILINE)) == len(payloads)


def test_a_dump_shows_where_bytes_lie_and_what_can_be_printed_of_them() -> None:
    assert written("hex", b"\x1b[31mred" + bytes(10)).decode("ascii").splitlines() == [
        "entry 0, 18 bytes, last add confirmed -1, length of the ledger so far 100",
        "00000000  1b 5b 33 31 6d 72 65 64 00 00 00 00 00 00 00 00  |.[31mred........|",
        "00000010  00 00                                            |..|",
    ]


def test_json_has_the_numbers_of_the_entry() -> None:
    expected = {"ledger_id": 7, "entry_id": 0, "last_add_confirmed": -1, "length": 100, "payload_base64": "eA=="}
    assert json.loads(written("json", b"x")) == expected
    assert list(ENTRY_FORMS) == ["hex", "raw", "json"]
