"""What the settings name is asked within a limit; where the settings come from, and what is never shown of them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bookwarden.cli.main import cli
from bookwarden.config import OffloadStoreSettings, load_settings, values_with_origins
from bookwarden.config_check import CheckTarget, _look_at_folder, _offload_targets, _own_node, ask_all, check_settings
from bookwarden.errors import ConfigError, StoreAccessError, StoreUnavailableError
from bookwarden.findings import Found, Verdict, ok
from bookwarden.metastore.following.flag import MIGRATION_PATH
from bookwarden.metastore.memory import MemoryStore


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOOKWARDEN_CONFIG", raising=False)


def test_targets_are_asked_at_the_same_time_and_one_that_does_not_answer_is_left() -> None:
    both, never = threading.Barrier(2, timeout=20), threading.Event()

    def meets() -> Iterator[Found]:
        both.wait()
        yield ok("met the other")

    def hangs() -> Iterator[Found]:
        never.wait()
        yield ok("too late")

    targets = [
        CheckTarget("a", meets, ""),
        CheckTarget("silent", hangs, "look at its log"),
        CheckTarget("b", meets, ""),
    ]
    began = time.monotonic()
    found = ask_all(targets, 0.5)
    assert time.monotonic() - began < 10
    never.set()
    assert [(one.check, one.verdict.value, one.seen) for one in found] == [
        ("a", "ok", "met the other"),
        ("silent", "would fail", "no answer within 0.5 s"),
        ("b", "ok", "met the other"),
    ]
    assert found[1].advice == "look at its log"


def test_an_error_is_a_finding_behind_what_was_found_before_it_and_a_fault_of_ours_is_raised() -> None:
    def breaks() -> Iterator[Found]:
        yield ok("answers")
        raise StoreUnavailableError("then it went away")

    found = ask_all([CheckTarget("store", breaks, "start it")], 20)
    assert [(one.verdict, one.seen) for one in found] == [
        (Verdict.OK, "answers"),
        (Verdict.FAILS, "then it went away"),
    ]

    def is_wrong() -> Iterable[Found]:
        raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        ask_all([CheckTarget("wrong", is_wrong, "")], 20)


def test_a_node_of_our_own_is_removed_with_what_had_to_be_made_for_it() -> None:
    store = MemoryStore()
    verdict, seen, _ = _own_node(store)
    assert (verdict, "made, changed and removed" in seen) == (Verdict.OK, True)
    assert store.list_children("/") == []
    store.create("/bookwarden", b"")
    assert _own_node(store)[0] is Verdict.OK
    assert (store.list_children("/"), store.list_children("/bookwarden")) == (["bookwarden"], [])


def test_a_store_that_is_being_moved_is_not_written_to() -> None:
    store = MemoryStore()
    store.create(MIGRATION_PATH, b"{}", make_parents=True)
    verdict, seen, advice = _own_node(store)
    assert (verdict, "not tried" in seen, "status" in advice) == (Verdict.WARNING, True, True)
    assert store.get("/bookwarden") is None


def test_a_right_that_is_missing_is_named_and_leaves_nothing() -> None:
    class ReadOnly(MemoryStore):
        def ephemeral_sequential(self, prefix: str, value: bytes) -> str:
            raise StoreAccessError("ACL")

    store = ReadOnly()
    verdict, seen, advice = _own_node(store)
    assert (verdict, seen.endswith("below /bookwarden: ACL"), "ACL" in advice) == (Verdict.FAILS, True, True)
    assert store.list_children("/") == []


def test_a_folder_is_tried_where_it_would_be_made_and_not_made(tmp_path: Path) -> None:
    ((verdict, seen, _),) = _look_at_folder(str(tmp_path / "a" / "b"), is_there=False)
    assert (verdict, seen.startswith(f"{tmp_path}/a/b will be made; ")) == (Verdict.OK, True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    ((verdict, seen, _),) = _look_at_folder(str(tmp_path / "file" / "b"), is_there=False)
    assert (verdict, seen) == (Verdict.FAILS, f"{tmp_path}/file cannot be written: Not a directory")
    ((verdict, seen, _),) = _look_at_folder(str(tmp_path / "no"), is_there=True)
    assert (verdict, seen) == (Verdict.FAILS, f"{tmp_path}/no is not there")
    ((verdict, seen, _),) = _look_at_folder("hdfs://name/x", is_there=False)
    assert (verdict, "not tried" in seen) == (Verdict.WARNING, True)


def test_each_bucket_of_an_offload_store_is_asked(tmp_path: Path) -> None:
    # A server that refuses connections, by the library itself.
    store = OffloadStoreSettings.model_validate(
        {
            "driver": "S3",
            "endpoint": "http://127.0.0.1:1",
            "buckets": ["a", "b"],
            "access_key": "key",
            "secret_key": "sesame",
            "region": "eu-west-1",
        }
    )
    found = ask_all(list(_offload_targets("offload.stores[0]", store, load_settings())), 20)
    assert [(one.check, one.verdict) for one in found] == [
        ("offload.stores[0] a", Verdict.FAILS),
        ("offload.stores[0] b", Verdict.FAILS),
    ]
    assert "sesame" not in str(found)


def test_everything_that_the_settings_name_has_a_line() -> None:
    settings = load_settings(
        overrides={
            "metadata_store.urls": "['zk:127.0.0.1:1', 'zk:127.0.0.1:2']",
            "metadata_store.bookkeeper_url": "zk:127.0.0.1:3",
            "orphans.inventories": "['/no/inventory']",
            "cluster_migration.green.pulsar": "{service_url: 'pulsar://127.0.0.1:4', admin_url: 'http://127.0.0.1:4'}",
            "cluster_migration.green.metadata_store": "{urls: ['zk:127.0.0.1:4']}",
            "cluster_migration.blue.metadata_store": "{urls: ['zk:127.0.0.1:5']}",
        }
    )
    found = check_settings(settings, limit_s=0.01)
    assert {one.check.partition(" ")[0] for one in found} == {
        "metadata_store.urls[0]",
        "metadata_store.urls[1]",
        "metadata_store.bookkeeper_url",
        "bookies",
        "pulsar.admin_url",
        "pulsar.service_url",
        "sweep.journal",
        "sweep.checkpoint",
        "sweep.outcomes",
        "follow.checkpoint",
        "follow.outcomes",
        "orphans.folder",
        "orphans.inventories[0]",
        "cluster_migration.journal",
        "cluster_migration.green",
        "cluster_migration.green.metadata_store.urls[0]",
        "cluster_migration.green.pulsar.admin_url",
        "cluster_migration.green.pulsar.service_url",
        "cluster_migration.blue.metadata_store.urls[0]",
        "roots",
    }


def origins(settings: list[Any]) -> dict[str, str]:
    return {one.name: one.origin for one in settings}


def test_each_value_says_where_it_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("sweep: {max_failures: 1, stall_seconds: 1, backoff_seconds: 1}\nspark: {conf: {a: '1'}}")
    monkeypatch.setenv("BOOKWARDEN_SWEEP__STALL_SECONDS", "2")
    monkeypatch.setenv("bookwarden_sweep__backoff_seconds", "2")
    monkeypatch.setenv("BOOKWARDEN_PULSAR__OAUTH2__SCOPE", "x")
    flags = {"sweep.backoff_seconds": "3"}
    found = origins(values_with_origins(load_settings(file, flags), file, flags))
    assert found["sweep.max_failures"] == found["spark.conf.a"] == f"file {file}"
    assert found["sweep.stall_seconds"] == "environment BOOKWARDEN_SWEEP__STALL_SECONDS"
    assert found["sweep.backoff_seconds"] == "--set"
    assert found["pulsar.oauth2.scope"] == "environment BOOKWARDEN_PULSAR__OAUTH2__SCOPE"
    assert found["pulsar.oauth2.audience"] == found["sweep.dry_run"] == "default"


def test_no_form_of_the_settings_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKWARDEN_PULSAR__TOKEN", "sesame-1")
    options = {
        "spark.conf": "{spark.hadoop.fs.s3a.secret.key: sesame-2, x: '-Dstore.password=sesame-3', plain: shown}",
        "offload.stores": "[{driver: S3, endpoint: 'http://u:sesame-4@h', buckets: [b],"
        " access_key: k, secret_key: sesame-5}]",
        "metadata_store.digest_user": "me",
        "metadata_store.digest_password": "sesame-6",
    }
    line = [part for name, value in options.items() for part in ("--set", f"{name}={value}")]
    for arguments in (["config", "show"], ["-o", "json", "config", "show"], ["config", "show", "--changed"]):
        ended = CliRunner().invoke(cli, [*line, *arguments])
        assert ended.exit_code == 0, ended.output
        assert "sesame" not in ended.output
        assert "shown" in ended.output
    found = json.loads(CliRunner().invoke(cli, [*line, "-o", "json", "config", "show"]).stdout)
    assert found["settings"]["pulsar.token"] == {
        "name": "pulsar.token",
        "value": "**********",
        "origin": "environment BOOKWARDEN_PULSAR__TOKEN",
    }


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("sweep.dryrun", "sweep.dry_run"), ("pulsar.oauth2.isuer_url", "pulsar.oauth2.issuer_url")],
)
def test_a_misspelt_setting_is_told_in_the_same_words_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, meant: str
) -> None:
    words = f"there is no setting '{wrong}'; did you mean {meant}?"
    file = tmp_path / "settings.yaml"
    *sections, name = wrong.split(".")
    text = f"{{{name}: true}}"
    for section in reversed(sections):
        text = f"{{{section}: {text}}}"
    file.write_text(text)
    with pytest.raises(ConfigError) as of_file:
        load_settings(file)
    with pytest.raises(ConfigError) as of_flag:
        load_settings(None, {wrong: "true"})
    monkeypatch.setenv(f"BOOKWARDEN_{wrong.replace('.', '__').upper()}", "true")
    with pytest.raises(ConfigError) as of_variable:
        load_settings()
    assert all(words in str(caught.value) for caught in (of_file, of_flag, of_variable))


def test_a_section_is_told_from_a_setting() -> None:
    with pytest.raises(ConfigError, match="'sweep': it is a section; name one of its settings"):
        load_settings(None, {"sweep": "1"})


@pytest.mark.parametrize(("mode", "warned"), [(0o600, ""), (0o640, ""), (0o644, "read"), (0o777, "change")])
def test_a_token_file_that_others_may_use_is_warned_of(tmp_path: Path, mode: int, warned: str) -> None:
    file = tmp_path / "token"
    file.write_text("sesame")
    file.chmod(mode)
    options = ["--set", "pulsar.auth=token", "--set", f"pulsar.token_file={file}"]
    ended = CliRunner().invoke(cli, [*options, "--set", f"orphans.folder={tmp_path}", "orphans", "list"])
    assert ended.exit_code == 0
    assert bool(ended.stderr) == bool(warned)
    if warned:
        assert f"pulsar.token_file {file} has mode {mode:o}: other users may {warned} the token in it" in ended.stderr
        assert ended.stderr.count("\n") == 1
    assert "sesame" not in ended.output
    in_json = CliRunner().invoke(
        cli, ["-o", "json", *options, "--set", f"orphans.folder={tmp_path}", "orphans", "list"]
    )
    assert in_json.stderr == ""


ENDS = """
import atexit, sys, time
from bookwarden.background import run_unawaited
from bookwarden.cli.main import main
class TornDown:
    def __del__(self):
        print("Python was torn down")
kept = TornDown()
atexit.register(print, "what was registered is done")
import pulsar
if sys.argv.pop(1) == "hanging":
    run_unawaited(lambda: time.sleep(600), "silent")
main()
"""


@pytest.mark.parametrize("what", ["hanging", "idle"])
def test_a_library_that_hangs_or_aborts_at_the_end_changes_neither_the_end_nor_its_code(what: str) -> None:
    arguments = [what, "config", "show", "--changed"]
    done = subprocess.run([sys.executable, "-c", ENDS, *arguments], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "There is no settings file" in done.stdout
    assert "what was registered is done" in done.stdout
    # In that the native Pulsar client aborts the process, with another code.
    assert "Python was torn down" not in done.stdout
