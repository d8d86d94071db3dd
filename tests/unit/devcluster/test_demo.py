"""The demo's verdict: what it takes for good, and that it takes nothing else."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import urllib3
from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.cli.shell.output import Table
from bookwarden.config import load_settings
from bookwarden.errors import MissingExtraError
from bookwarden_dev.commands.demos.deletion import describe_deletion
from bookwarden_dev.demo import fates
from bookwarden_dev.demo.census import CountedLedger, Whereabouts, offloaded_ledger_ids
from bookwarden_dev.demo.fates import Fate, Finale, LedgerRow, Records, endings
from bookwarden_dev.demo.page import served_page

PAGE = r"the web page of this cluster, until the demo ends: (http://127\.0\.0\.1:\d+/)"
UUID = "3baeab2f-44c2-4884-b018-4b0d7cf7206b"
LEDGER = CountedLedger(7, "demo/shop/persistent/orders", "data", on_bookie=True, in_bucket=False)
OFFLOADED = replace(LEDGER, in_bucket=True)
NOWHERE: dict[str, Any] = {"in_metadata": False, "on_bookie": False, "in_bucket": False}
KEPT: dict[str, Any] = {"in_metadata": True, "on_bookie": True, "in_bucket": False}


def ending(
    fate: Fate,
    *outcomes: str,
    ledger: CountedLedger = LEDGER,
    copy: tuple[str, ...] = (),
    undone: str = "",
    **where: bool,
) -> LedgerRow:
    return LedgerRow(ledger, fate, outcomes, copy, undone, **where)


TRIMMED = ending(fates.TRIMMED, "retry", "deleted", **NOWHERE)
DELAYED = ending(fates.DELAYED, "retry", "deleted", **NOWHERE)
ARCHIVED = ending(fates.ARCHIVED, ledger=OFFLOADED, **{**KEPT, "in_bucket": True})
ARCHIVE_TRIMMED = ending(fates.ARCHIVE_TRIMMED, "deleted", ledger=OFFLOADED, copy=("deleted",), **NOWHERE)
UNDONE = ending(fates.UNDONE, "deleted", undone="restored", **KEPT)
FINALE = Finale((UNDONE,), 0, ((9, "after 2 retries"),), (9,), {"archive": (30, 30)}, {7: (20, 20)}, "ZooKeeper")


@pytest.mark.parametrize(
    "good",
    [
        ending(fates.KEPT, **KEPT),
        TRIMMED,
        DELAYED,
        ARCHIVED,
        ARCHIVE_TRIMMED,
        UNDONE,
        ending(fates.FORGED, "mismatch", **KEPT),
        ending(fates.TOPIC_DELETED, "already gone", **NOWHERE),
        ending(
            fates.DAMAGED, "retry", "gave up", ledger=replace(LEDGER, on_bookie=False), **{**KEPT, "on_bookie": False}
        ),
    ],
    ids=lambda good: good.fate.story,
)
def test_an_ending_that_its_fate_asks_for_is_good(good: LedgerRow) -> None:
    assert good.as_it_should


@pytest.mark.parametrize(
    "wrong",
    [
        replace(TRIMMED, outcomes=()),
        replace(TRIMMED, outcomes=("deleted", "retry")),
        replace(TRIMMED, outcomes=("mismatch", "deleted")),
        replace(TRIMMED, in_metadata=True),
        replace(TRIMMED, on_bookie=True),
        replace(TRIMMED, undone="restored"),
        replace(DELAYED, outcomes=("deleted",)),
        replace(ARCHIVED, ledger=LEDGER, in_bucket=False),
        replace(ARCHIVED, in_bucket=False),
        replace(ARCHIVED, outcomes=("deleted",)),
        replace(ARCHIVED, copy_outcomes=("deleted",)),
        replace(ARCHIVE_TRIMMED, in_bucket=True),
        replace(ARCHIVE_TRIMMED, copy_outcomes=()),
        replace(ARCHIVE_TRIMMED, copy_outcomes=("already gone",)),
        replace(ARCHIVE_TRIMMED, ledger=LEDGER),
        replace(UNDONE, undone="lost"),
        replace(UNDONE, undone=""),
        replace(UNDONE, outcomes=()),
        replace(UNDONE, in_metadata=False),
        replace(UNDONE, on_bookie=False),
    ],
)
def test_an_ending_of_another_kind_is_not(wrong: LedgerRow) -> None:
    assert not wrong.as_it_should


@pytest.mark.parametrize(
    "wrong",
    [
        replace(FINALE, endings=(replace(UNDONE, on_bookie=False),)),
        replace(FINALE, in_flight=1),
        replace(FINALE, dead_letters=()),
        replace(FINALE, dead_letters=((7, "after 2 retries"),)),
        replace(FINALE, readable={"archive": (10, 30)}),
        replace(FINALE, restored={7: (19, 20)}),
    ],
)
def test_all_must_be_well_for_a_good_end(wrong: Finale) -> None:
    assert FINALE.as_it_should
    assert not wrong.as_it_should


def test_endings_are_put_together_by_ledger() -> None:
    other = replace(LEDGER, ledger_id=8)
    records = Records({7: ["retry", "deleted"]}, {7: ["deleted"]}, {8: "restored"})
    after = Whereabouts(frozenset({8}), frozenset({7}), frozenset({7}))
    first, second = endings([LEDGER, other], {7: fates.TRIMMED}, records, after)
    assert (first.fate, first.outcomes, first.copy_outcomes, first.undone) == (
        fates.TRIMMED,
        ("retry", "deleted"),
        ("deleted",),
        "",
    )
    assert (first.in_metadata, first.on_bookie, first.in_bucket) == (False, True, True)
    assert (second.fate, second.outcomes, second.copy_outcomes, second.undone) == (fates.KEPT, (), (), "restored")
    assert (second.in_metadata, second.on_bookie, second.in_bucket) == (True, False, False)


def test_a_ledger_is_in_the_bucket_as_long_as_anything_of_it_is() -> None:
    names = [f"{UUID}-ledger-49", f"{UUID}-ledger-49-index", f"{UUID}-ledger-51-index", UUID, "ledger-52", "readme"]
    assert offloaded_ledger_ids(names) == {49, 51}


def test_the_table_names_each_place_and_each_outcome() -> None:
    finale = replace(FINALE, endings=(ARCHIVE_TRIMMED, ARCHIVED, UNDONE, replace(UNDONE, undone="lost")))
    table, facts, note = describe_deletion(finale, 61.7).parts
    assert isinstance(table, Table)
    assert [(row[4], row[5], row[6], row[7]) for row in table.rows] == [
        ("ZooKeeper + bookie + bucket", "deleted, copy deleted", "gone", "yes"),
        ("ZooKeeper + bookie + bucket", "-", "ZooKeeper + bookie + bucket", "yes"),
        ("ZooKeeper + bookie", "deleted, restored", "ZooKeeper + bookie", "yes"),
        ("ZooKeeper + bookie", "deleted, lost", "ZooKeeper + bookie", "NO"),
    ]
    assert ("undone", "ledger 7: 20 of 20 entries read from the bookie") in getattr(facts, "pairs", ())
    assert getattr(note, "text", "") == "NOT every ledger ended as it should; 62 s."


def test_the_table_names_the_store_that_the_metadata_is_in() -> None:
    table = describe_deletion(replace(FINALE, store="Oxia"), 1).parts[0]
    assert isinstance(table, Table)
    assert (table.rows[0][4], table.rows[0][6]) == ("Oxia + bookie", "Oxia + bookie")


def test_without_moto_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    # The demo forgets variables of other clusters.
    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(cli, ["demo"])
    assert result.exit_code == MissingExtraError.exit_code
    assert "pip install 'bookwarden[demo]'" in result.output


def test_the_page_is_served_for_the_block_at_the_address_that_was_said(tmp_path: Path) -> None:
    # Nothing listens there: the page says so.
    settings = load_settings(
        overrides={
            "pulsar.admin_url": "http://127.0.0.1:9",
            "metadata_store.urls": "['zk:127.0.0.1:9']",
            **{f"{name}.outcomes": str(tmp_path / name) for name in ("sweep", "follow")},
            **{f"{name}.folder": str(tmp_path / name) for name in ("disk", "orphans")},
        }
    )
    said: list[str] = []
    with urllib3.PoolManager(retries=False, timeout=30.0) as http:
        with served_page(settings, said.append):
            (address,) = re.findall(PAGE, said[0])
            answer = http.request("GET", address)
            assert (answer.status, b"Deletions and leaks" in answer.data) == (200, True)
        with pytest.raises(urllib3.exceptions.HTTPError):
            http.request("GET", address)


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn"])
def test_without_the_extra_of_the_page_there_is_none(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr("bookwarden_dev.demo.page.find_spec", lambda name: None if name == missing else find_spec(name))
    said: list[str] = []
    with served_page(load_settings(overrides={}), said.append):
        pass
    assert said == []
