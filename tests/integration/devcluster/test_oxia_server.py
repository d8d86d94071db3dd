"""An Oxia server of its own: built, started, killed, with its data when it is back."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookwarden_dev.devcluster.servers.oxia import OxiaServer, ensure_oxia

# The first start on a machine builds it.
pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(1800)]

SHARDS = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OxiaServer]:
    made = OxiaServer(tmp_path, shards=SHARDS)
    try:
        made.start()
        yield made
    finally:
        made.kill()


def client(server: OxiaServer, *arguments: str) -> str:
    command = [str(ensure_oxia()), "client", "--service-address", server.address, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_keys_of_several_shards_outlive_a_kill_and_lie_in_its_home(server: OxiaServer, tmp_path: Path) -> None:
    keys = [f"/ledgers/L{number:04d}" for number in range(8)]
    for key in keys:
        client(server, "put", key, f"value of {key}")
    killed = server.pid
    server.kill()
    assert not server.is_ready()
    server.start()
    assert server.pid != killed
    # Each shard lists its own in order, and the shards answer in any order.
    assert sorted(client(server, "list", "--key-min", "/ledgers/", "--key-max", "/ledgers//").split()) == keys
    assert f"value of {keys[0]}" in client(server, "get", keys[0])
    # One folder a shard, and none where it was started.
    assert len(list((tmp_path / "oxia/db/default").iterdir())) == SHARDS
    assert {path.name for path in tmp_path.iterdir()} == {"oxia", "logs", "tmp"}


def test_a_server_that_is_stopped_ends_by_itself(server: OxiaServer) -> None:
    server.stop()
    assert not server.is_running()
    assert server.exit_code == 0
