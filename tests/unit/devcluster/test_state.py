"""The state file, process identity, settings files and Java's version: what the development cluster parses."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path

import pytest

from bookwarden.errors import ConfigError, ServerError
from bookwarden.java import parse_version
from bookwarden.processes import ProcessIdentity, identify, parse_stat
from bookwarden_dev.devcluster.servers.settings import ClusterOptions, ClusterPorts, read_settings, write_settings
from bookwarden_dev.devcluster.state import ClusterState, StartedServer, read_state, write_state

STATE = ClusterState(
    ports=ClusterPorts(1, 2, 3, 4),
    options=ClusterOptions(pulsar="4.2.4", max_entries_per_ledger=7, broker_settings={"a": "b"}),
    initialised=True,
    servers={"broker": StartedServer(ProcessIdentity(42, "boot:99"), 1.5)},
)


def test_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_state(tmp_path, STATE)
    assert read_state(tmp_path) == STATE


def test_no_state_file_is_no_state(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None


def test_a_cluster_of_before_versions_were_kept_is_of_the_first(tmp_path: Path) -> None:
    write_state(tmp_path, STATE)
    file = tmp_path / "cluster.json"
    document = json.loads(file.read_text())
    del document["options"]["pulsar"]
    file.write_text(json.dumps(document))
    found = read_state(tmp_path)
    assert found is not None
    assert found.options.pulsar == "4.0.8"


def test_what_a_version_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no Pulsar '4\.1\.0'; expected .*4\.0\.8, 4\.2\.4"):
        ClusterOptions(pulsar="4.1.0")
    with pytest.raises(ConfigError, match=r"4\.2\.4 cannot offload"):
        ClusterOptions(pulsar="4.2.4", offload=True)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 1}', '{"version": 1, "ports": {"x": 1}}'])
def test_a_broken_state_file_is_an_error_that_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ServerError, match="start again"):
        read_state(tmp_path)


def test_a_state_file_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"version": 99}')
    with pytest.raises(ServerError, match="is of version 99"):
        read_state(tmp_path)


def test_a_process_line_is_read_even_if_its_name_has_brackets() -> None:
    rest = "S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 8812 0 0"
    assert parse_stat(f"7 (a ) (b) {rest}", "boot") == "boot:8812"


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_process_that_waits_to_be_reaped_has_ended(state: str) -> None:
    assert parse_stat(f"7 (java) {state} 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 8812 0 0", "boot") is None


def test_a_reused_process_id_is_another_process_and_gets_no_signal() -> None:
    ourselves = identify(os.getpid())
    assert ourselves is not None
    assert ourselves.is_alive()
    earlier = ProcessIdentity(os.getpid(), "an earlier boot")
    assert not earlier.is_alive()
    assert not earlier.signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_412"', 8),
        ('openjdk version "22-ea"', 22),
        ("no such thing", None),
    ],
)
def test_java_version(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def test_settings_files_keep_equal_signs_and_are_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "conf" / "broker.conf"
    write_settings(path, {"a": "x=y", "empty": ""})
    assert read_settings(path) == {"a": "x=y", "empty": ""}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
