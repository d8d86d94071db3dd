"""What goes into wheel and image, and that documents and examples name what there is."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from pathlib import Path

import click

from bookwarden.bookie_clusters.broker_jar import JAR_NAME
from bookwarden.cli.main import cli
from bookwarden.cli.shell.late import LateCommand

CHECKOUT = Path(__file__).parents[2]
DOCKERFILE = CHECKOUT / "conf" / "deploy" / "kubernetes" / "Dockerfile"
UNIT = CHECKOUT / "conf" / "deploy" / "systemd" / "bookwarden-sweep.service"
# Where the image, and the example of a virtual environment, have bookwarden.
HOME = "/opt/bookwarden"
SCRIPTS = sorted(
    str(path.relative_to(CHECKOUT)) for name in ("jobs", "streaming") for path in (CHECKOUT / name).glob("*")
)
SCRIPTS = [name for name in SCRIPTS if name.endswith(".py")]
TEXTS = [
    CHECKOUT / "README.md",
    *sorted((CHECKOUT / "docs").rglob("*.md")),
    *sorted(path for path in (CHECKOUT / "conf").rglob("*") if path.is_file() and path.suffix != ".json"),
    *sorted((CHECKOUT / "src").rglob("*.py")),
]


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(CHECKOUT / "setup.cfg")
    return parser


def extras_in(extra: str) -> set[str]:
    """The extras that an extra has in it."""
    return set(re.findall(r"^bookwarden\[(\w+)\]$", setup()["options.extras_require"][extra], re.MULTILINE))


def instructions(keyword: str) -> list[str]:
    text = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.removeprefix(keyword).strip() for line in text.splitlines() if line.startswith(f"{keyword} ")]


def copied(context: str) -> dict[str, str]:
    """What the image takes from the checkout, by where it goes."""
    found = {}
    for instruction in instructions("COPY"):
        *names, target = instruction.split()
        if not instruction.startswith("--from") and target.startswith(context):
            found.update({f"{target}{name}" if target.endswith("/") else target: name for name in names})
    return found


def commands_in(path: Path) -> Iterator[str]:
    """Each command line of ours in a text: in backquotes, or at the begin of a line of code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        # Backquotes around a placeholder of an f-string name no command.
        text = re.sub(r"\{[^{}]*\}", "X", text)
    yield from re.findall(r"`(bookwarden [^`\n]+)`", text)
    yield from re.findall(r"^(?: {2,}|ExecStart=/opt/bookwarden/bin/)(bookwarden (?![^a-z-]).+)$", text, re.MULTILINE)


def named_commands() -> Iterator[tuple[str, str]]:
    for path in TEXTS:
        for line in commands_in(path):
            yield str(path.relative_to(CHECKOUT)), line


def walk(words: list[str]) -> tuple[click.Command, list[str]]:
    """Follow the words of a command line to its command; what is left are its arguments."""
    command: click.Command = cli
    while words and isinstance(command, click.Group):
        if words[0].startswith("-"):
            takes_value = not is_flag(command, words[0])
            words = words[2 if takes_value else 1 :]
        elif words[0] not in command.commands:
            raise LookupError(f"{command.name} has no command {words[0]}")
        else:
            found = command.commands[words[0]]
            command = found.load() if isinstance(found, LateCommand) else found
            words = words[1:]
    return command, words


def is_flag(command: click.Command, option: str) -> bool:
    (found,) = (one for one in command.params if option in one.opts) if option != "--help" else (None,)
    return found is None or bool(getattr(found, "is_flag", False))


def options_of(command: click.Command) -> set[str]:
    return {"--help", *(name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts))}


def test_each_package_of_the_sources_is_in_the_wheel() -> None:
    source = CHECKOUT / "src"
    found = {".".join(path.parent.relative_to(source).parts) for path in source.rglob("__init__.py")}
    assert set(setup()["options"]["packages"].split()) == found | {"bookwarden.schemas"}


def test_the_jar_for_brokers_is_of_the_release_of_the_wheel_that_brings_it() -> None:
    project = (CHECKOUT / "broker" / "pom.xml").read_text(encoding="utf-8")
    (version,) = re.findall(r"<artifactId>bookwarden-broker</artifactId>\s*<version>(.+)</version>", project)
    assert version == setup()["metadata"]["version"]
    (pattern,) = setup()["options.package_data"]["bookwarden.bookie_clusters"].split()
    assert (Path("jar") / JAR_NAME).match(pattern)


def test_all_has_every_extra_for_a_cluster() -> None:
    offered = set(setup()["options.extras_require"])
    assert extras_in("all") | extras_in("spark") == offered - {"all", "demo", "dev"}


def test_the_image_has_every_extra_and_the_sources_of_the_wheel() -> None:
    (install,) = (line for line in instructions("RUN") if "pip install" in line)
    (extras,) = re.findall(r"/source\[([\w,]+)\]", install)
    # Spark's image has PySpark.
    assert set(extras.split(",")) == extras_in("all") - {"spark"} | extras_in("spark")
    given = setup()
    files = {given["metadata"]["long_description"].removeprefix("file: "), *given["metadata"]["license_files"].split()}
    folders = {value.strip() for value in re.findall(r"=\s*(\w+)$", given["options"]["package_dir"], re.MULTILINE)}
    assert {*files, *folders, "setup.cfg", "pyproject.toml"} == set(copied("/source").values())


def test_the_image_has_every_script_where_documents_and_examples_start_it() -> None:
    targets = copied(HOME)
    assert {f"{HOME}/{Path(name).parent}" for name in SCRIPTS} == set(targets)
    assert all(target == f"{HOME}/{source}" for target, source in targets.items())
    examples = [CHECKOUT / "docs" / "deploy.md", *DOCKERFILE.parent.glob("*.yaml")]
    started = {name for path in examples for name in re.findall(rf"local://{HOME}/([\w/.]+)", path.read_text())}
    assert "streaming/ledger_deletion.py" in started
    assert started <= set(SCRIPTS)


def test_the_image_has_the_command_on_its_path() -> None:
    environment = dict(line.split("=", 1) for line in instructions("ENV"))
    assert f"--target {HOME}/env " in " ".join(instructions("RUN"))
    assert environment["PATH"].split(":")[0] == f"{HOME}/env/bin"
    assert f"{HOME}/env" in environment["PYTHONPATH"].split(":")
    assert any(line.startswith("--from=build") and line.endswith(f"{HOME} {HOME}") for line in instructions("COPY"))


def test_documents_name_every_script() -> None:
    deploy = (CHECKOUT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert [name for name in SCRIPTS if name not in deploy] == []
    texts = "".join(path.read_text(encoding="utf-8") for path in TEXTS if path.suffix == ".md")
    named = set(re.findall(r"\b((?:jobs|streaming)/\w+\.py)\b", texts))
    assert named == set(SCRIPTS)


def test_the_unit_names_a_document_that_the_wheel_installs() -> None:
    (document,) = re.findall(rf"^Documentation=file:{HOME}/share/bookwarden/(.+)$", UNIT.read_text(), re.MULTILINE)
    assert (CHECKOUT / document).is_file()
    folder, _, name = document.rpartition("/")
    assert any(
        Path(document).match(glob)
        for glob in re.split(r"[,\s]+", setup()["options.data_files"][f"share/bookwarden/{folder}"])
    )
    assert name


def test_some_command_lines_are_found_in_every_kind_of_text() -> None:
    found = {(where.partition("/")[0], Path(where).suffix) for where, _ in named_commands()}
    assert {("README.md", ".md"), ("docs", ".md"), ("conf", ".service"), ("src", ".py")} <= found


def test_each_command_line_in_documents_examples_and_errors_exists() -> None:
    faults = [f"{where}: {line}: {fault}" for where, line in sorted(set(named_commands())) if (fault := fault_of(line))]
    assert faults == []


def fault_of(line: str) -> str | None:
    """What is wrong with a command line as a text has it, with its remarks, choices and placeholders."""
    text = re.split(r"\s+#|\s{3,}|[|;…\"]|\.\.\.", line.replace("\\|", "|"))[0].replace("'", "")
    words = [word.strip("[],") for word in text.split() if word.strip("[],")][1:]
    if words[0] == "COMMAND":
        return None
    try:
        command, rest = walk(words)
    except LookupError as error:
        return str(error)
    unknown = {word.partition("=")[0] for word in rest if word.startswith("--")} - options_of(command)
    return f"no option {', '.join(sorted(unknown))}" if unknown else None
