"""Plans and summaries: read back as they were written or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookwarden.config import OrphanSettings
from bookwarden.errors import FormatError
from bookwarden.ledgers.references import Doubt
from bookwarden.orphans import documents
from bookwarden.orphans import summary as summaries
from bookwarden.orphans.classes import Cause, LedgerClass
from bookwarden.orphans.documents import encode_document
from bookwarden.orphans.plan import (
    EmptiedScope,
    FileDigest,
    PlanCounts,
    PlanManifest,
    ScannedCluster,
    check_id,
    new_id,
)
from bookwarden.orphans.progress import ApplyProgress
from bookwarden.orphans.summary import (
    AGE_BUCKETS,
    NO_NAMESPACE,
    OTHER_KIND,
    REST,
    Cell,
    ClassCount,
    ForeignOwner,
    GrowthPoint,
    MissingLedger,
    ScanFindings,
    Summary,
    age_bucket,
    summarize,
)

DAY_MS = 86_400_000
PLAN = PlanManifest(
    plan_id="20261121T180000Z-0f1e2d3c",
    scan_id="20261121T170000Z-0f1e2d3c",
    tool_version="0.1.0",
    begun_ms=1_000,
    created_ms=2_000,
    cutoff_ms=500,
    cluster=ScannedCluster.of("0f1e", "zk:a", "/ledgers", ["zk:a", "zk:b"]),
    counts=PlanCounts(ledgers=10, logical_bytes=100, references=7, candidates=2, candidate_bytes=30),
    candidates=(FileDigest("candidates-00000.parquet", "ab" * 32, 2),),
    files=(FileDigest("summary.json", "cd" * 32, 0),),
    emptied=(EmptiedScope("topic", "t/n/persistent/ü", 2),),
    inputs={"ledgers": "ef" * 32},
    settings={"max_share": 0.2, "min_age_days": 3, "folder": "var/orphans", "dry": True, "reads": None},
)


def test_a_manifest_is_read_back_as_it_was_written() -> None:
    assert PlanManifest.decode(PLAN.encode()) == PLAN


def test_a_manifest_holds_whatever_can_be_set() -> None:
    kept = OrphanSettings(inventories=("s3://bucket/inventory",)).model_dump(mode="json")
    plan = replace(PLAN, settings=kept)
    assert PlanManifest.decode(plan.encode()) == plan


@settings(max_examples=400)
@given(st.data())
def test_a_manifest_with_any_byte_changed_is_refused(data: st.DataObject) -> None:
    written = PLAN.encode()
    index = data.draw(st.integers(0, len(written) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != written[index]))
    changed = written[:index] + bytes([byte]) + written[index + 1 :]
    with pytest.raises(FormatError, match="bookwarden orphans scan"):
        PlanManifest.decode(changed)


def test_a_manifest_that_was_edited_is_told_from_one_of_another_make() -> None:
    with pytest.raises(FormatError, match="its checksum does not fit"):
        PlanManifest.decode(PLAN.encode().replace(b'"cutoff_ms":500', b'"cutoff_ms":501'))


@pytest.mark.parametrize("cut", [0, 1, 10, -1])
def test_a_manifest_that_was_cut_off_or_padded_is_refused(cut: int) -> None:
    written = PLAN.encode()
    for changed in (written[:cut], written + b"\n", b" " + written, written + written):
        with pytest.raises(FormatError, match="bookwarden orphans scan"):
            PlanManifest.decode(changed)


def sealed(fields: dict[str, Any]) -> bytes:
    """Render fields as a manifest whose checksum fits."""
    fields = {**fields, "document": "plan of an orphan scan", "format": fields.get("format", 2)}
    return documents._render({**fields, "checksum": documents._checksum(fields)})


def fields_of_plan() -> dict[str, Any]:
    fields = json.loads(PLAN.encode())
    for name in ("checksum", "document", "format"):
        del fields[name]
    return dict(fields)


def test_the_manifests_made_by_hand_below_are_whole_but_for_the_change() -> None:
    assert PlanManifest.decode(sealed(fields_of_plan())) == PLAN


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 1}, "has format 1, and this bookwarden knows format 2"),
        ({"of_tomorrow": 1}, "of_tomorrow"),
        ({"cutoff_ms": None}, "cutoff_ms"),
        ({"cutoff_ms": "500"}, "cutoff_ms"),
        ({"cutoff_ms": 500.0}, "cutoff_ms"),
        ({"cutoff_ms": True}, "cutoff_ms"),
        ({"counts": {"ledgers": 1}}, "counts"),
        ({"cluster": {}}, "cluster"),
        ({"candidates": []}, "counts 2 candidates, and its files 0"),
        ({"plan_id": "../elsewhere"}, "cannot be the id of a plan"),
        ({"files": [{"name": "../x", "sha256": "", "rows": 0}]}, "cannot have a file"),
        ({"files": [{"name": "x", "sha256": "", "rows": 0, "more": 1}]}, "files.0.more"),
        ({"settings": {"a": [1]}}, "settings"),
    ],
)
def test_a_manifest_of_another_make_is_refused_although_its_checksum_fits(change: dict[str, Any], says: str) -> None:
    with pytest.raises(FormatError) as caught:
        PlanManifest.decode(sealed({**fields_of_plan(), **change}))
    assert says in str(caught.value)


def test_a_manifest_that_lacks_a_field_is_refused() -> None:
    # Even one that has a default: what was written names them all.
    for name in fields_of_plan():
        fields = fields_of_plan()
        del fields[name]
        with pytest.raises(FormatError):
            PlanManifest.decode(sealed(fields))


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b"\xff", encode_document(PLAN, "something else", 1)])
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        PlanManifest.decode(data)


def test_a_name_given_twice_is_refused() -> None:
    written = PLAN.encode()
    doubled = written.replace(b'{"begun_ms":', b'{"begun_ms":1,"begun_ms":', 1)
    with pytest.raises(FormatError, match="not as bookwarden writes it"):
        PlanManifest.decode(doubled)


def test_ids_sort_by_time_and_are_names_of_folders() -> None:
    first, second, third = new_id(1_000), new_id(1_000), new_id(2_000)
    assert first[:16] == "19700101T000001Z"
    assert first != second
    assert third > max(first, second)
    assert check_id(first) == first


@pytest.mark.parametrize("bad", ["", "..", "a/b", "a b", "a\n", "x" * 65, ".hidden", "_a"])
def test_an_id_that_cannot_be_a_folder_is_refused(bad: str) -> None:
    with pytest.raises(FormatError):
        check_id(bad)


def test_progress_is_read_back_and_only_of_its_plan() -> None:
    progress = ApplyProgress("p", 7, (3, 5), 4, 40, 1, 9, 11)
    assert ApplyProgress.decode(progress.encode(), "p") == progress
    with pytest.raises(FormatError, match="is of plan p and not of q"):
        ApplyProgress.decode(progress.encode(), "q")
    with pytest.raises(FormatError, match="delete the file"):
        ApplyProgress.decode(progress.encode().replace(b"7", b"8"), "p")


ORPHAN, TRIM = LedgerClass.ORPHAN.value, Cause.TRIM.value
CELLS = [
    Cell(ORPHAN, "MANAGED_LEDGER", "t/n", TRIM, "<7d", 2, 200),
    Cell(ORPHAN, "MANAGED_LEDGER", "t/n", TRIM, "<7d", 1, 50),
    Cell(ORPHAN, "SCHEMA_STORAGE", "t/m", Cause.SCHEMA_DELETED.value, "older", 1, 1),
    Cell("referenced", "MANAGED_LEDGER", "t/m", "", "<3d", 10, 1_000),
    Cell("foreign", OTHER_KIND, NO_NAMESPACE, "", "<1y", 4, 7),
]


def summed(cells: list[Cell] = CELLS, findings: ScanFindings | None = None, **fields: Any) -> Summary:
    about = {"plan_id": "p2", "scan_id": "s2", "created_ms": 20, "cutoff_ms": 10, "cluster": "c", **fields}
    return summarize(cells, findings or ScanFindings(), **about)


def test_a_summary_counts_ledgers_and_bytes_under_each_heading() -> None:
    found = summed()
    assert (found.ledgers, found.logical_bytes) == (18, 1_258)
    assert found.by_class == (
        ClassCount("foreign", "", 4, 7),
        ClassCount(ORPHAN, "", 4, 251),
        ClassCount("referenced", "", 10, 1_000),
    )
    assert found.by_cause == (ClassCount(ORPHAN, TRIM, 3, 250), ClassCount(ORPHAN, "schema deleted", 1, 1))
    assert [one for one in found.by_age if one.ledger_class == ORPHAN] == [
        ClassCount(ORPHAN, "<7d", 3, 250),
        ClassCount(ORPHAN, "older", 1, 1),
    ]
    assert ClassCount("referenced", "t/m", 10, 1_000) in found.by_namespace
    assert ClassCount("foreign", OTHER_KIND, 4, 7) in found.by_kind
    assert found.total(LedgerClass.ORPHAN) == (4, 251)
    assert found.total(LedgerClass.UNPARSABLE) == (0, 0)


def test_each_heading_has_every_ledger() -> None:
    found = summed()
    for counts in (found.by_class, found.by_kind, found.by_namespace, found.by_age):
        assert sum(count.ledgers for count in counts) == found.ledgers
        assert sum(count.logical_bytes for count in counts) == found.logical_bytes


def test_beyond_the_shown_namespaces_the_rest_is_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "SHOWN_NAMESPACES", 1)
    found = summed()
    assert {count.key for count in found.by_namespace} == {"t/n", REST}
    assert ClassCount(ORPHAN, REST, 1, 1) in found.by_namespace
    assert sum(count.ledgers for count in found.by_namespace) == 18


def test_what_was_found_beside_is_named_up_to_a_limit_and_all_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("SHOWN_MISSING", "SHOWN_OWNERS", "SHOWN_IDS", "SHOWN_DOUBTS"):
        monkeypatch.setattr(summaries, limit, 2)
    found = summed(
        findings=ScanFindings(
            missing=[MissingLedger(number, ("/a",)) for number in (3, 2, 1)],
            foreign=[ForeignOwner(f"o{number}", number, 1, tuple(range(number))) for number in (1, 2, 3)],
            doubts=[Doubt("/p", "zk", "no") for _ in range(3)],
        )
    )
    assert ([one.ledger_id for one in found.missing], found.missing_total) == ([1, 2], 3)
    assert found.total(LedgerClass.MISSING) == (3, 0)
    assert ([(one.owner, one.ledger_ids) for one in found.foreign], found.foreign_total) == (
        [("o3", (0, 1)), ("o2", (0, 1))],
        3,
    )
    assert (len(found.doubts), found.doubts_total) == (2, 3)


def test_growth_is_by_time_and_ends_with_this_plan() -> None:
    old = GrowthPoint("p1", 10, 17, 1_000, 2, 100)
    stale = GrowthPoint("p2", 20, 0, 0, 0, 0)
    found = summed(earlier=[stale, old])
    assert found.growth == (old, GrowthPoint("p2", 20, 18, 1_258, 4, 251))


def test_a_summary_is_read_back_and_a_damaged_one_is_refused() -> None:
    found = summed(
        findings=ScanFindings(missing=[MissingLedger(3, ("/a", "/b"))], objects=[ClassCount("orphan", "s3", 1, 2)]),
        earlier=[GrowthPoint("p1", 10, 17, 1_000, 2, 100)],
    )
    assert Summary.decode(found.encode()) == found
    with pytest.raises(FormatError, match="changed or damaged"):
        Summary.decode(found.encode().replace(b"1258", b"1259"))
    with pytest.raises(FormatError, match="this is no summary"):
        Summary.decode(PLAN.encode())


@pytest.mark.parametrize(
    ("age_ms", "bucket"),
    [
        (-5, "<3d"),
        (3 * DAY_MS - 1, "<3d"),
        (3 * DAY_MS, "<7d"),
        (29 * DAY_MS, "<30d"),
        (89 * DAY_MS, "<90d"),
        (364 * DAY_MS, "<1y"),
        (365 * DAY_MS, "older"),
    ],
)
def test_ages_are_put_into_buckets(age_ms: int, bucket: str) -> None:
    assert age_bucket(age_ms) == bucket
    assert bucket in AGE_BUCKETS
