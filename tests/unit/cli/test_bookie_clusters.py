"""What the commands of `bookie-clusters` say of a registry, and what they take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from bookwarden.bookie_clusters.broker_jar import PACKAGED, SUPERSEDED
from bookwarden.bookie_clusters.registry import (
    REGISTRY_PATH,
    BookieCluster,
    Registry,
    parse_registry,
    serialize_registry,
)
from bookwarden.cli.main import cli
from bookwarden.errors import ConfigError, FileError, FormatError, NotFoundError, RefusedError
from bookwarden.metastore.memory import shared_memory_store

SAMPLE = Path(__file__).parents[2] / "data" / "bookie_cluster_registry" / "valid" / "switched.json"


class Site:
    """A Pulsar cluster's own store, made anew for each command, which closes it."""

    def __init__(self, value: bytes | None = None) -> None:
        self.name = uuid4().hex
        self.value = value
        self.ledger: str | None = None

    def run(self, *arguments: str, more: tuple[str, ...] = ()) -> Result:
        store = shared_memory_store(self.name)
        store.create("/ledgers/INSTANCEID", b"instance-a", make_parents=True)
        for root in ("/managed-ledgers", "/schemas"):
            store.create(root, b"")
        if self.ledger is not None:
            store.create(self.ledger, b"garbage", make_parents=True)
        if self.value is not None:
            store.create(REGISTRY_PATH, self.value, make_parents=True)
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
    assert "no bookie cluster is registered" in result.stderr


def test_the_registry_is_that_of_the_first_root(switched: Site) -> None:
    text = " ".join(switched.run("list", more=("memory:other",)).stdout.split())
    assert f"The registry is that of memory:{switched.name}; memory:other in metadata_store.urls" in text
    assert "sweep, scan and undo refuse settings with more than one root" in text


def test_garbage_is_told() -> None:
    result = Site(b"garbage").run("list")
    assert result.exit_code == FormatError.exit_code
    assert "no registry of bookie clusters" in result.stderr


def test_what_was_registered_is_told(site: Site) -> None:
    store = shared_memory_store(site.name)
    store.create("/ledgers/idgen", b"", make_parents=True)
    store.create("/ledgers/00/0000/L0041", b"garbage", make_parents=True)
    arguments = [
        "register",
        "--bootstrap",
        "--name",
        "a",
        "--metadata-service-uri",
        f"metadata-store:memory:{site.name}",
    ]
    asked = site.run(*arguments)
    assert asked.exit_code == RefusedError.exit_code
    assert "Raise the next ledger id from 0 to 42, and register a? Nobody is there to answer: add --yes" in asked.stderr


def test_a_dry_run_says_what_would_be_registered(site: Site) -> None:
    arguments = [
        "register",
        "--bootstrap",
        "--name",
        "a",
        "--metadata-service-uri",
        f"metadata-store:memory:{site.name}",
    ]
    text = " ".join(site.run(*arguments, "--dry-run").stdout.split())
    assert f"would be registered a status ACTIVE metadata /ledgers in Pulsar's own store memory:{site.name}" in text
    assert "It has no bookie yet" in text
    done = json.loads(site.run(*arguments, "-o", "json").stdout)
    assert (done["registered"], done["epoch"], done["idRoot"], done["raisedBy"]) == (True, 1, "/ledgers", 0)
    assert done["cluster"]["status"] == "ACTIVE"


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (["--name", "b", "--status", "ACTIVE"], 2, "all others are STANDBY until a switch"),
        (["--name", "b", "--bootstrap", "--status", "STANDBY"], 2, "the first cluster (--bootstrap) is ACTIVE"),
        (["--name", "b", "--status", "DEPRECATED"], 2, "'DEPRECATED' is not one of"),
        (["--bootstrap"], 2, "--name"),
        (["--name", "b"], RefusedError.exit_code, "register the cluster that brokers use now first"),
    ],
)
def test_a_status_is_not_chosen(site: Site, arguments: list[str], exit_code: int, says: str) -> None:
    result = site.run("register", *arguments, "--metadata-service-uri", f"metadata-store:memory:{site.name}")
    assert result.exit_code == exit_code
    assert says in result.stderr


@pytest.mark.parametrize("uri", ["zk:h:2181", "h:2181/ledgers", "memory:x", "bookwarden://h:2181/ledgers", ""])
def test_only_a_uri_that_bookies_have_is_one(site: Site, uri: str) -> None:
    result = site.run("register", "--bootstrap", "--name", "a", "--metadata-service-uri", uri)
    assert result.exit_code == ConfigError.exit_code
    assert "is no metadataServiceUri" in result.stderr


@pytest.mark.parametrize("manager", ["flat", "LongHierarchical"])
def test_a_uri_of_another_ledger_manager_is_refused(site: Site, manager: str) -> None:
    uri = f"zk+{manager}://h:2181/ledgers"
    result = site.run("register", "--bootstrap", "--name", "a", "--metadata-service-uri", uri)
    assert result.exit_code == RefusedError.exit_code
    assert "has the paths of hierarchical alone" in result.stderr


def test_deprecating_is_idempotent_and_the_active_one_cannot_be(switched: Site) -> None:
    found = json.loads(switched.run("deprecate", "a", "-o", "json").stdout)
    assert [(one["name"], one["status"]) for one in found["clusters"]] == [("b", "ACTIVE"), ("a", "DEPRECATED")]
    assert found["epoch"] == 4
    again = json.loads(switched.run("deprecate", "a", "--undo", "-o", "json").stdout)
    assert again["epoch"] == 3
    refused = switched.run("deprecate", "b")
    assert refused.exit_code == RefusedError.exit_code
    assert "'b' is active: switch to another first" in refused.stderr


@pytest.mark.parametrize("command", ["unregister", "deprecate"])
def test_without_a_registry_nothing_can_leave_it(site: Site, command: str) -> None:
    result = site.run(command, "a")
    assert result.exit_code == RefusedError.exit_code
    assert "begin with `bookwarden bookie-clusters register --bootstrap`" in result.stderr


@pytest.fixture
def made_up_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "package" / "bookwarden-broker.jar"
    path.parent.mkdir()
    path.write_bytes(b"PK made up")
    monkeypatch.setattr("bookwarden.cli.bookie_clusters.listing.PACKAGED", path)
    return path


@pytest.mark.parametrize(
    ("settings", "service_uri", "store_url"),
    [
        (
            {"urls": "['zk:zk1:2181,zk2:2181/pulsar']"},
            "zk1:2181;zk2:2181/pulsar/ledgers",
            "zk:zk1:2181,zk2:2181/pulsar",
        ),
        ({"urls": "['oxia://ox:6648/broker']"}, "ox:6648/ledgers", "oxia://ox:6648/broker"),
        (
            {"urls": "['zk:zk1:2181']", "bookkeeper_url": "zk+hierarchical://bk:2181/ledgers"},
            *("bk:2181/ledgers", "zk:zk1:2181"),
        ),
    ],
)
def test_the_jar_is_written_with_the_lines_for_these_settings(
    made_up_jar: Path, tmp_path: Path, settings: dict[str, str], service_uri: str, store_url: str
) -> None:
    target = tmp_path / "lib" / "broker.jar"
    target.parent.mkdir()
    target.write_bytes(b"of an earlier release")
    chosen = [word for name, value in settings.items() for word in ("--set", f"metadata_store.{name}={value}")]
    command = [*chosen, "bookie-clusters", "jar", "--to", str(target)]
    found = json.loads(CliRunner().invoke(cli, [*command, "-o", "json"]).stdout)
    assert (target.read_bytes(), found["bytes"]) == (made_up_jar.read_bytes(), 10)
    assert [path.name for path in target.parent.iterdir()] == ["broker.jar"]
    assert found["broker.conf"] == [
        f"bookkeeperMetadataServiceUri=bookwarden://{service_uri}",
        f"bookkeeper_bookwardenMetadataStoreUrl={store_url}",
    ]
    pulsar = "org.apache.pulsar.metadata.bookkeeper"
    assert found["environment"] == (
        f'BK_METADATA_OPTIONS="-Dbookkeeper.metadata.bookie.drivers={pulsar}.PulsarMetadataBookieDriver '
        f"-Dbookkeeper.metadata.client.drivers={pulsar}.PulsarMetadataClientDriver:"
        'bookwarden.broker.BookieClustersDriver"'
    )
    text = CliRunner().invoke(cli, command).stdout
    assert all(line in text for line in (*found["broker.conf"], found["environment"]))


def test_an_installation_without_the_jar_says_how_to_get_one(made_up_jar: Path, site: Site, tmp_path: Path) -> None:
    made_up_jar.unlink()
    result = site.run("jar", "--to", str(tmp_path / "x.jar"))
    assert result.exit_code == NotFoundError.exit_code
    assert "this installation has no bookwarden-broker.jar" in result.stderr
    assert "`make broker-jar`" in result.stderr
    assert not (tmp_path / "x.jar").exists()


def test_a_folder_that_is_not_there_is_told(made_up_jar: Path, site: Site, tmp_path: Path) -> None:
    result = site.run("jar", "--to", str(tmp_path / "nothing" / "x.jar"))
    assert result.exit_code == FileError.exit_code
    assert "cannot be written" in result.stderr


def test_the_jar_is_looked_for_where_it_is_built() -> None:
    checkout = Path(__file__).parents[3]
    assert f"BROKER_JAR := {PACKAGED.relative_to(checkout)}" in (checkout / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("operation", ["set-read-mode", "close-client"])
def test_what_is_superseded_says_so_whatever_it_is_given(site: Site, operation: str) -> None:
    result = site.run(operation, "--name", "a", "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"changed": False, "instead": SUPERSEDED[operation]}
    assert " ".join(Site().run(operation).stdout.split()) == SUPERSEDED[operation]


def test_the_registry_is_saved_and_put_back(site: Site, tmp_path: Path) -> None:
    uri = f"metadata-store:memory:{site.name}"
    register = ("register", "--bootstrap", "--name", "a", "--metadata-service-uri", uri)
    site.value = serialize_registry(
        replace(
            parse_registry(json.dumps(json.loads(SAMPLE.read_bytes()) | {"directive": None}).encode()), active="a"
        ).without_cluster("b")
    ).replace(b"0a5e1c53-6b9b-4b5c-a7a5-0d1a6d8d4c11", b"instance-a")
    file = tmp_path / "registry.json"
    saved = site.run("registry", "export", str(file))
    assert saved.exit_code == 0, saved.stderr
    assert f"Saved in {file}" in " ".join(saved.stdout.split())
    assert file.read_bytes() == site.value
    again = site.run("registry", "import", str(file))
    assert again.exit_code == RefusedError.exit_code
    assert "has one, of epoch 4, with a" in again.stderr
    assert site.run(*register).exit_code == RefusedError.exit_code
    site.value = None
    looked = json.loads(site.run("registry", "import", str(file), "-o", "json").stdout)
    assert (looked["imported"], looked["savedEpoch"], looked["epoch"]) == (False, 4, 5)
    asked = site.run("registry", "import", str(file), "--execute")
    assert asked.exit_code == RefusedError.exit_code
    done = json.loads(site.run("registry", "import", str(file), "--execute", "--yes", "-o", "json").stdout)
    assert (done["imported"], done["epoch"], done["active"]) == (True, 5, "a")


@pytest.fixture
def lost() -> Site:
    """With a cluster b whose metadata is gone."""
    fields = json.loads(SAMPLE.read_bytes()) | {"directive": None, "active": "a"}
    fields["clusters"]["a"]["instance"] = "instance-a"
    fields["clusters"]["b"] |= {"storeUrl": None, "shared": False}
    return Site(json.dumps(fields).encode())


def test_a_lost_cluster_goes_when_its_name_is_typed_and_yes_is_not_enough(lost: Site) -> None:
    shown = lost.run("unregister", "b", "--lost", "--dry-run", "-o", "json")
    assert shown.exit_code == 0, shown.stderr
    looked = json.loads(shown.stdout)
    assert (looked["unregistered"], looked["ledgers"], looked["epoch"]) == (False, 0, 3)
    asked = lost.run("unregister", "b", "--lost", "--yes")
    assert asked.exit_code == RefusedError.exit_code
    assert "has no INSTANCEID instead of" in asked.stderr
    assert "add --confirm b to unregister it, or --dry-run to look only; --yes is not enough" in asked.stderr
    other = lost.run("unregister", "b", "--lost", "--confirm", "a")
    assert other.exit_code == RefusedError.exit_code
    assert "'a' was typed to confirm it: nothing was changed" in other.stderr
    done = json.loads(lost.run("unregister", "b", "--lost", "--confirm", "b", "-o", "json").stdout)
    assert (done["unregistered"], done["epoch"], [one["name"] for one in done["clusters"]]) == (True, 4, ["a"])
    assert lost.run("unregister", "b", "--confirm", "b").exit_code == 2


def test_the_address_of_a_cluster_is_changed(lost: Site) -> None:
    refused = lost.run("set-uri", "b", "--metadata-service-uri", f"metadata-store:memory:{lost.name}", "--yes")
    assert refused.exit_code == RefusedError.exit_code
    assert "its ledgers root is /bookies-b, and that of the URI is /ledgers" in refused.stderr
    store = shared_memory_store(lost.name)
    store.create("/ledgers/available/a1:3181", b"", make_parents=True)
    instance = json.loads(SAMPLE.read_bytes())["clusters"]["b"]["instance"].encode()
    store.create("/bookies-b/INSTANCEID", instance, make_parents=True)
    uri = f"metadata-store:memory:{lost.name}"
    result = lost.run("set-uri", "a", "--metadata-service-uri", uri, "--yes", "-o", "json")
    assert result.exit_code == 0, result.stderr
    done = json.loads(result.stdout)
    assert (done["changed"], done["epoch"], done["bookies"]) == (True, 4, ["a1:3181"])
    assert done["cluster"]["metadataServiceUri"] == uri


def test_a_saved_registry_goes_back_and_a_lost_counter_is_raised(site: Site, tmp_path: Path) -> None:
    alone = {"a": BookieCluster("a", "uri", None, "/ledgers", "instance-a", 1, bootstrap=True)}
    file = tmp_path / "registry.json"
    file.write_bytes(serialize_registry(Registry(4, "1badc0de", "/ledgers", "a", alone)))
    looked = site.run("registry", "import", str(file))
    assert looked.exit_code == 0, looked.stderr
    assert "Would be put back: epoch 4" in " ".join(looked.stdout.split())
    assert "raise" not in looked.stdout + looked.stderr
    site.ledger = "/ledgers/00/0000/L0041"
    refused = site.run("registry", "import", str(file), "--execute")
    assert "with a active, and raise the next ledger id from 0 to 42?" in refused.stderr
    done = site.run("registry", "import", str(file), "--execute", "--yes")
    assert done.exit_code == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert f"Put back: epoch 4 of {file} as 5. Raised: the next ledger id from 0 to 42." in text
