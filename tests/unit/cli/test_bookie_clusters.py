"""What `bookie-clusters list` and `get` say of a registry."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from bookwarden.cli.main import cli
from bookwarden.errors import FormatError, NotFoundError
from bookwarden.metastore.memory import shared_memory_store
from bookwarden.switching.registry import REGISTRY_PATH, parse_registry, serialize_registry

SAMPLE = Path(__file__).parents[2] / "data" / "bookie_cluster_registry" / "valid" / "switched.json"


class Site:
    """A Pulsar cluster's own store, made anew for each command, which closes it."""

    def __init__(self, value: bytes | None = None) -> None:
        self.name = uuid4().hex
        self.value = value

    def run(self, *arguments: str, more: tuple[str, ...] = ()) -> Result:
        if self.value is not None:
            shared_memory_store(self.name).create(REGISTRY_PATH, self.value, make_parents=True)
        urls = json.dumps([f"memory:{self.name}", *more])
        return CliRunner().invoke(cli, ["--set", f"metadata_store.urls={urls}", "bookie-clusters", *arguments])


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def switched() -> Site:
    return Site(SAMPLE.read_bytes())


def test_without_a_registry_nothing_is_registered(site: Site) -> None:
    result = site.run("list")
    assert result.exit_code == 0, result.stderr
    assert "No bookie cluster is registered" in result.stdout
    found = json.loads(site.run("list", "-o", "json").stdout)
    assert (found["epoch"], found["active"], found["clusters"], found["switchTarget"]) == (0, None, [], None)


def test_clusters_are_listed_in_the_words_of_the_proposal(switched: Site) -> None:
    found = json.loads(switched.run("list", "-o", "json").stdout)
    assert (found["registry"], found["epoch"], found["active"], found["idRoot"]) == (
        f"memory:{switched.name}",
        *(3, "b", "/ledgers"),
    )
    assert [(one["name"], one["status"], one["bootstrap"], one["shared"]) for one in found["clusters"]] == [
        ("b", "ACTIVE", False, True),
        ("a", "STANDBY", True, False),
    ]
    assert found["clusters"][0]["metadataServiceUri"] == "zk+hierarchical://10.0.0.7:2181/bookies-b"
    assert found["switchTarget"] == {
        "source": "a",
        "target": "b",
        "origin": "host-1:4711",
        "epoch": 3,
        "time": 1716256800000,
    }
    text = " ".join(switched.run("list").stdout.split())
    assert "b ACTIVE zk+hierarchical://10.0.0.7:2181/bookies-b no yes 2" in text
    assert "switch target b (from a, epoch 3, by host-1:4711 at 2024-05-21 02:00:00Z)" in text
    assert "other Pulsar clusters" not in text


def test_a_deprecated_cluster_is_shown_as_such() -> None:
    site = Site(serialize_registry(parse_registry(SAMPLE.read_bytes()).with_deprecated("a", True)))
    assert json.loads(site.run("get", "a", "-o", "json").stdout)["status"] == "DEPRECATED"


def test_one_cluster_is_shown(switched: Site) -> None:
    found = json.loads(switched.run("get", "b", "-o", "json").stdout)
    assert found["status"] == "ACTIVE"
    assert found["instance"] == "1b5e1c53-6b9b-4b5c-a7a5-0d1a6d8d4c12"
    text = " ".join(switched.run("get", "a").stdout.split())
    assert "status STANDBY" in text
    assert "storeUrl Pulsar's own" in text
    for name, there in (("c", "there are a, b"), ("", "there are a, b")):
        result = switched.run("get", name)
        assert result.exit_code == NotFoundError.exit_code
        assert there in result.stderr


def test_one_of_no_registry_is_not_found(site: Site) -> None:
    result = site.run("get", "a")
    assert result.exit_code == NotFoundError.exit_code
    assert "none is" in result.stderr


def test_the_registry_is_that_of_the_first_root(switched: Site) -> None:
    text = " ".join(switched.run("list", more=("memory:other",)).stdout.split())
    assert f"The registry is that of memory:{switched.name}; memory:other in metadata_store.urls" in text


def test_garbage_is_told() -> None:
    result = Site(b"garbage").run("list")
    assert result.exit_code == FormatError.exit_code
    assert "no registry of bookie clusters" in result.stderr
