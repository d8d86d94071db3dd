"""What `metadata-migration verify` says of two stores, and the exit codes it ends with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from bookwarden.cli.main import cli
from bookwarden.errors import ConfigError, FormatError, RefusedError
from bookwarden.exit_codes import NOT_DONE
from bookwarden.metastore.following.flag import MIGRATION_PATH
from bookwarden.metastore.memory import MemoryStore, shared_memory_store

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"
LEDGERS = [f"/ledgers/00/0000/L{number:04d}" for number in range(30)]

Run = Callable[..., Result]


class Site:
    """Two stores with the same nodes; the settings name the first."""

    def __init__(self) -> None:
        name = uuid4().hex
        self.source_url, self.target_url = f"memory:{name}-a", f"memory:{name}-b"
        self.source: MemoryStore = shared_memory_store(f"{name}-a")
        self.target: MemoryStore = shared_memory_store(f"{name}-b")
        for store in (self.source, self.target):
            store.create("/admin", b"")
            for path in LEDGERS:
                store.create(path, path.encode(), make_parents=True)

    def flag(self, phase: str) -> None:
        value = json.dumps({"phase": phase, "targetUrl": self.target_url}).encode()
        self.source.create(MIGRATION_PATH, value, make_parents=True)
        self.target.create("/pulsar", b"")

    def damage(self) -> None:
        """Take a ledger from the target, change one, and add one."""
        self.target.delete_many([(LEDGERS[3], 0)])
        self.target.put(LEDGERS[5], LEDGERS[5].encode() + b"!", 0)
        self.target.create("/ledgers/00/0000/L9999", b"")

    def verify(self, *arguments: str) -> Result:
        urls = json.dumps([self.source_url])
        return CliRunner().invoke(
            cli, ["--set", f"metadata_store.urls={urls}", "metadata-migration", "verify", *arguments]
        )


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_faithful_copy_is_clean_and_ends_with_0(site: Site) -> None:
    site.flag("COMPLETED")
    result = site.verify()
    assert result.exit_code == 0, result.stderr
    assert "The target has every node of the source as it was." in result.stdout
    assert site.target_url in result.stdout
    assert f"comparing {site.source_url} with {site.target_url}" in result.stderr


def test_differences_are_listed_and_end_with_their_own_code(site: Site) -> None:
    site.damage()
    result = site.verify("--target", site.target_url)
    assert result.exit_code == NOT_DONE
    text = " ".join(result.stdout.split())
    assert "missing 1 extra 1 bytes 1 version 0" in text
    assert f"bytes {LEDGERS[5]} 22 and 23 bytes, differ from byte 22" in text
    assert "3 nodes not as in the source." in text


def test_a_comparison_publishes_its_differences(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKWARDEN_METRICS__TEXTFILE_FOLDER", str(tmp_path))
    site.damage()
    assert site.verify("--target", site.target_url).exit_code == NOT_DONE
    assert '"} 22.0\n' in (tmp_path / "bookwarden_run_metadata_migration_verify.prom").read_text()
    found = (tmp_path / "bookwarden_metadata_migration_verify.prom").read_text()
    for difference in ("missing", "extra", "bytes"):
        assert f'bookwarden_metadata_verify_nodes{{difference="{difference}"}} 1.0\n' in found
    assert 'difference="version"} 0.0\n' in found


def test_programs_are_told_in_json(site: Site, tmp_path: Path) -> None:
    site.damage()
    file = tmp_path / "differences.jsonl"
    result = site.verify("--target", site.target_url, "-o", "json", "--show", "1", "--differences", str(file))
    found = json.loads(result.stdout)
    assert result.stderr == ""
    assert result.exit_code == NOT_DONE
    assert found.pop("seconds") >= 0
    assert {one["class"]: one["path"] for one in found.pop("first")} == {
        "missing": LEDGERS[3],
        "bytes": LEDGERS[5],
        "extra": "/ledgers/00/0000/L9999",
    }
    assert found == {
        "source": site.source_url,
        "target": site.target_url,
        "phase": None,
        "switched_ms": None,
        "clean": False,
        "compared": 35,
        "equal": 32,
        "ephemeral": 0,
        "versions_kept": True,
        "other_versions": 0,
        "counts": {
            "missing": 1,
            "extra": 1,
            "bytes": 1,
            "version": 0,
            "written to the source after the switch": 0,
            "changed after the switch": 0,
        },
        "differences_file": str(file),
    }


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_all_differences_are_in_the_file_however_few_are_shown(site: Site, tmp_path: Path, suffix: str) -> None:
    site.damage()
    file = tmp_path / f"differences.{suffix}"
    file.write_bytes(b"of an earlier run")
    result = site.verify("--target", site.target_url, "--show", "0", "--differences", str(file))
    assert result.exit_code == NOT_DONE
    assert LEDGERS[5] not in result.stdout
    if suffix == "parquet":
        rows = pq.read_table(file).to_pylist()
    else:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert sorted((row["class"], row["path"]) for row in rows) == [
        ("bytes", LEDGERS[5]),
        ("extra", "/ledgers/00/0000/L9999"),
        ("missing", LEDGERS[3]),
    ]
    (of_bytes,) = (row for row in rows if row["class"] == "bytes")
    assert (of_bytes["first_byte"], of_bytes["source_size"], of_bytes["target_size"]) == (22, 22, 23)
    assert (of_bytes["source_version"], of_bytes["target_version"], of_bytes["target_modifications"]) == (0, 1, 1)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_clean_store_makes_a_file_without_rows(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "none.parquet"
    assert site.verify("--target", site.target_url, "--differences", str(file)).exit_code == 0
    assert pq.read_table(file).num_rows == 0


def test_a_comparison_that_fails_leaves_no_file_and_the_one_of_before(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "differences.parquet"
    file.write_bytes(b"of an earlier run")
    site.source.create(MIGRATION_PATH, b"not JSON", make_parents=True)
    result = site.verify("--target", site.target_url, "--differences", str(file))
    assert result.exit_code == FormatError.exit_code
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(file.name, b"of an earlier run")]


def test_a_file_of_another_kind_is_refused(site: Site, tmp_path: Path) -> None:
    result = site.verify("--target", site.target_url, "--differences", str(tmp_path / "differences.csv"))
    assert result.exit_code == ConfigError.exit_code
    assert ".parquet or .jsonl" in result.stderr


@pytest.mark.parametrize("phase", ["PREPARATION", "COPYING", "FAILED", "NOT_STARTED"])
def test_a_target_that_is_not_complete_is_compared_only_if_it_is_named(site: Site, phase: str) -> None:
    site.flag(phase)
    assert site.verify("--target", site.target_url).exit_code == 0
    refused = Site()
    refused.flag(phase)
    result = refused.verify()
    assert result.exit_code == RefusedError.exit_code
    assert f"is {phase}, not COMPLETED" in result.stderr


def test_without_a_flag_the_target_has_to_be_named(site: Site) -> None:
    result = site.verify()
    assert result.exit_code == ConfigError.exit_code
    assert "name one with --target" in result.stderr


def test_a_store_is_not_compared_with_itself(site: Site) -> None:
    result = site.verify("--target", site.source_url)
    assert result.exit_code == ConfigError.exit_code
    assert "compared with itself" in result.stderr


@pytest.mark.parametrize(
    ("urls", "hint"),
    [('["oxia://o:1/n"]', "before the migration with --source"), ('["memory:1", "memory:2"]', "2 stores")],
)
def test_the_source_has_to_be_named_where_the_settings_do_not_tell_it(urls: str, hint: str) -> None:
    result = CliRunner().invoke(cli, ["--set", f"metadata_store.urls={urls}", "metadata-migration", "verify"])
    assert result.exit_code == ConfigError.exit_code
    assert hint in result.stderr


def test_what_the_target_was_written_after_the_switch_is_no_fault(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.flag("COMPLETED")
    flag = site.source.get(MIGRATION_PATH)
    assert flag is not None
    monkeypatch.setattr(site.target, "_clock", lambda: flag.modified_ms / 1000 + 1)
    site.target.put(LEDGERS[0], b"other", 0)
    site.target.create("/new", b"")
    result = site.verify()
    assert result.exit_code == 0, result.stdout
    assert "changed after the switch 2" in " ".join(result.stdout.split())


def test_a_source_that_is_still_written_to_is_a_fault(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.flag("COMPLETED")
    flag = site.source.get(MIGRATION_PATH)
    assert flag is not None
    monkeypatch.setattr(site.source, "_clock", lambda: flag.modified_ms / 1000 + 1)
    site.source.put(LEDGERS[0], b"other", 0)
    result = site.verify()
    assert result.exit_code == NOT_DONE
    assert "has not followed to the target" in result.stdout


def test_versions_of_the_targets_own_are_told_once(site: Site) -> None:
    for path in LEDGERS:
        site.target.put(path, path.encode(), 0)
    result = site.verify("--target", site.target_url)
    assert result.exit_code == 0
    assert "The target has versions of its own (30 nodes with another one than the source)" in result.stdout
    again = Site()
    for path in LEDGERS:
        again.target.put(path, path.encode(), 0)
    assert again.verify("--target", again.target_url, "--versions", "required").exit_code == NOT_DONE


def test_nothing_is_written_to_either_store(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.damage()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a store was written to")

    for name in ("create", "put", "delete_many", "ephemeral_sequential"):
        monkeypatch.setattr(MemoryStore, name, refuse)
    result = site.verify("--target", site.target_url, "--max-reads-per-second", "100000")
    assert result.exit_code == NOT_DONE


def test_the_exit_code_is_documented() -> None:
    told = DOCUMENT.read_text(encoding="utf-8").partition("## Exit codes of `metadata-migration verify`")[2]
    assert f"| {NOT_DONE} | " in told.partition("\n## ")[0]
