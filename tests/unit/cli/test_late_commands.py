"""The program starts without any extra, each command is imported when it is called, and a missing extra is named."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bookwarden.cli.bookie_clusters.commands import bookie_clusters
from bookwarden.cli.disk.commands import disk
from bookwarden.cli.main import COMMANDS
from bookwarden.cli.shell.failures import EXTRA_OF, TranslatingGroup, missing_extra
from bookwarden.cli.shell.late import LateCommand
from bookwarden.errors import MissingExtraError, PulsarError
from servers.help_pages import EVERY_HELP, assert_every_command_helps

SETUP = Path(__file__).parents[3] / "setup.cfg"
# Those for operators. `all` and `dev` hold these.
EXTRAS = ("executor", "spark", "oxia", "s3", "gcs", "azure", "demo")

# What a call is made in: an interpreter in which nothing can be imported that only an extra brings.
BLOCKING = """
import json, sys

class AllBut:
    def __init__(self, blocked, finders):
        self.blocked, self.finders = blocked, finders

    def find_spec(self, name, path=None, target=None):
        if any(f"{name}.".startswith(f"{package}.") for package in self.blocked):
            return None
        return next(filter(None, (finder.find_spec(name, path, target) for finder in self.finders)), None)

    def find_distributions(self, context=None):
        for finder in self.finders:
            if hasattr(finder, "find_distributions"):
                yield from finder.find_distributions(context)

sys.meta_path[:] = [AllBut(json.loads(sys.argv.pop(1)), list(sys.meta_path))]
"""

CALL = """
from bookwarden.cli.main import cli
try:
    cli(sys.argv[1:], prog_name="bookwarden")
finally:
    print("imported", *sorted(sys.modules), file=sys.stderr)
"""


def run(program: str, arguments: Iterable[str] = (), blocked: Iterable[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKING + program, json.dumps(list(blocked)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def imported(arguments: Iterable[str], blocked: Iterable[str] = ()) -> set[str]:
    done = run(CALL, arguments, blocked)
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("imported "))
    return set(line.split()[1:])


def extra_requirements() -> Iterator[tuple[str, str]]:
    """Each distribution that an extra for operators names, with the extra."""
    setup = configparser.ConfigParser()
    setup.read(SETUP)
    for extra in EXTRAS:
        for requirement in setup["options.extras_require"][extra].split("\n"):
            name = re.match(r"[\w-]*", requirement)
            if name and name.group() not in ("", "bookwarden"):
                yield normal(name.group()), "spark" if extra == "executor" else extra


def normal(distribution: str) -> str:
    """The name by which a distribution is compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_every_command_shows_its_help_where_no_extra_is_installed() -> None:
    done = run(EVERY_HELP, blocked=EXTRA_OF)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert {path.partition(" ")[0] for path in shown} == {"", *(command.name for command in COMMANDS)}
    assert_every_command_helps(shown)


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["orphans", "list"], "spark"),
        (["orphans", "apply", "--plan", "P"], "spark"),
        (["--set", "metadata_store.urls=['oxia://127.0.0.1:1/n']", "ledger", "show", "1"], "oxia"),
        # Before anything is asked of the source, which would take seconds to fail.
        (["metadata-migration", "preflight", "--target", "oxia://127.0.0.1:1/n"], "oxia"),
        (["metadata-migration", "start", "--target", "oxia://127.0.0.1:1/n", "--yes"], "oxia"),
        (["metadata-migration", "rehearse", "--target", "oxia://127.0.0.1:1/n"], "oxia"),
        (["--set", "sweep.journal=s3://bucket/journal", "undo", "--list"], "s3"),
        (["demo"], "demo"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_a_command_whose_extra_is_absent_names_it_in_one_line(arguments: list[str], extra: str) -> None:
    done = run("from bookwarden.cli.main import main; main()", arguments, EXTRA_OF)
    assert done.returncode == MissingExtraError.exit_code
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert done.stderr.startswith("bookwarden: ")
    assert f"pip install 'bookwarden[{extra}]'" in done.stderr


def test_a_module_that_no_extra_brings_is_a_fault_of_ours() -> None:
    @click.group(cls=TranslatingGroup)
    def root() -> None:
        pass

    @root.command()
    def fail() -> None:
        raise ModuleNotFoundError("No module named 'bookwarden.nothing'", name="bookwarden.nothing")

    assert isinstance(CliRunner().invoke(root, ["fail"]).exception, ModuleNotFoundError)


@pytest.mark.parametrize("extra", sorted(set(dict(extra_requirements()).values())))
def test_the_modules_of_each_extra_are_known(extra: str) -> None:
    wanted = {name for name, of in extra_requirements() if of == extra}
    assert wanted
    modules = tuple(module.replace(".", "/") for module, of in EXTRA_OF.items() if of == extra)
    for name in wanted:
        files = {str(file) for file in distribution(name).files or ()}
        assert any(f"{module}/__init__.py" in files for module in modules), (
            f"cli/shell/extras.py knows no module of {name}"
        )


def test_only_an_extra_that_exists_is_recommended() -> None:
    setup = configparser.ConfigParser()
    setup.read(SETUP)
    offered = set(setup["options.extras_require"])
    assert set(EXTRA_OF.values()) <= offered
    sources = (SETUP.parent / "src").rglob("*.py")
    named = {extra for source in sources for extra in re.findall(r"'bookwarden\[(\w+)\]'", source.read_text())}
    assert {"spark", "oxia", "s3", "demo"} <= named <= offered


@pytest.mark.parametrize("name", ["google.cloud", "google.cloud.storage.retry", "azure", "grpc"])
def test_a_package_that_is_absent_as_a_whole_or_in_part_has_its_extra(name: str) -> None:
    assert missing_extra(ModuleNotFoundError(name=name)) is not None


@pytest.mark.parametrize(
    "late", [*COMMANDS, *bookie_clusters.commands.values(), *disk.commands.values()], ids=lambda command: command.name
)
def test_the_listed_summary_is_the_first_sentence_of_the_command(late: LateCommand) -> None:
    found = late.load()
    assert (found.name, found.get_short_help_str(limit=300)) == (late.name, late.short_help)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_program_itself_loads_no_library_but_click(option: str) -> None:
    heavy = {"pulsar", "kazoo", "pydantic", "yaml", "rich", "urllib3", "fastavro", "google.protobuf", "jinja2"}
    seen = imported([option])
    assert not seen & heavy
    assert not {name for name in seen if name.startswith(("bookwarden.config", "bookwarden.wiring"))}


def test_counting_what_is_in_flight_loads_neither_servers_nor_demo_nor_spark() -> None:
    # It ends where nobody listens; all that it needs has been loaded by then.
    settings = ["--set", "pulsar.admin_url=http://127.0.0.1:1", "--set", "pulsar.service_url=pulsar://127.0.0.1:1"]
    seen = imported([*settings, "inflight"])
    assert "bookwarden.clusters.pulsar.rest.topics" in seen
    others = ("bookwarden_dev.devcluster", "bookwarden_dev.demo", "bookwarden.pipelines", *EXTRA_OF)
    assert not {name for name in seen for other in others if f"{name}.".startswith(f"{other}.")}


def test_a_list_of_bookie_clusters_loads_little_of_the_program() -> None:
    seen = imported(["--set", "metadata_store.urls=['memory:one']", "bookie-clusters", "list"])
    ours = {name for name in seen if name.startswith("bookwarden")}
    assert "bookwarden.bookie_clusters.registry_node" in ours
    assert len(ours) <= 120


def test_counting_what_is_in_flight_gets_to_the_broker_without_extras() -> None:
    done = run(
        "from bookwarden.cli.main import main; main()",
        ["--set", "pulsar.admin_url=http://127.0.0.1:1", "inflight"],
        EXTRA_OF,
    )
    assert done.returncode == PulsarError.exit_code, done.stderr
