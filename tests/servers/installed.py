"""The wheel, built once, and environments of its own that it is installed in."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookwarden.errors import MissingExtraError
from servers.help_pages import EVERY_HELP, assert_every_command_helps

CHECKOUT = Path(__file__).parents[2]
# Neither sources nor what goes with them.
LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "tests", "benchmarks", "__pycache__", "*.egg-info")
# Those of this interpreter's Spark, and what would let an installed program see this checkout.
FOREIGN = ("PYSPARK_", "PYTHON", "VIRTUAL_ENV", "BOOKWARDEN_")


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel in it."""

    folder: Path

    def install(self, requirement: str) -> None:
        """Let pip of this interpreter install into it."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.folder / "bin" / "python"), "install"]
        done = subprocess.run(
            [*pip, "-q", "--no-compile", "--disable-pip-version-check", requirement],
            capture_output=True,
            text=True,
            check=False,
            env=_environment(),
        )
        assert done.returncode == 0, done.stderr

    def python(self, program: str) -> str:
        """Run a program, which must end well; give what it prints."""
        return self._run("python", "-c", program, expect=0).stdout

    def starts(self) -> None:
        """Check that the program starts, and that each of its commands does."""
        assert self.bookwarden("--version").startswith("bookwarden, version ")
        assert self.bookwarden("--help").startswith("Usage: bookwarden ")
        assert_every_command_helps(json.loads(self.python(EVERY_HELP)))

    def bookwarden(self, *arguments: str, expect: int = 0) -> str:
        """Run a command as a user does; give what it prints, or where it fails as expected its one line."""
        done = self._run("bookwarden", *arguments, expect=expect)
        if expect == 0:
            return done.stdout
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
        return done.stderr

    def lacks(self, extra: str, *arguments: str) -> str:
        """Run a command that needs an extra that is not there; give the requirement that it says to install."""
        line = self.bookwarden(*arguments, expect=MissingExtraError.exit_code)
        command = shlex.split(line[line.index("pip install") :])
        assert command == ["pip", "install", f"bookwarden[{extra}]"]
        return command[-1]

    def _run(self, program: str, *arguments: str, expect: int) -> subprocess.CompletedProcess[str]:
        environment = _environment()
        environment["PYSPARK_SUBMIT_ARGS"] = "--driver-java-options -XX:TieredStopAtLevel=1 pyspark-shell"
        # Archives of classes too go with it.
        environment["XDG_CACHE_HOME"] = str(self.folder / "cache")
        command = [str(self.folder / "bin" / program), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=self.folder, env=environment, timeout=600, check=False
        )
        assert done.returncode == expect, (arguments, done.stdout, done.stderr)
        return done


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheel` builds, from a copy, since a build leaves folders behind; the wheel is made from the sdist."""
    copy, dist = tmp_path_factory.mktemp("copy") / "checkout", tmp_path_factory.mktemp("dist")
    shutil.copytree(CHECKOUT, copy, ignore=LEFT_OUT)
    command = [sys.executable, "-m", "build", "--outdir", str(dist), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return dist


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def environment_of(folder: Path, requirement: str) -> Installed:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    made = Installed(folder)
    made.install(requirement)
    return made


@pytest.fixture(scope="session")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """No extra; it grows to [oxia] in the last test that uses it."""
    return environment_of(tmp_path_factory.mktemp("base") / "venv", str(wheel))


@pytest.fixture(scope="session")
def with_spark(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """The extra of the README's first line; it grows to [all] in the last test that uses it."""
    folder = tmp_path_factory.mktemp("spark")
    yield environment_of(folder / "venv", f"{wheel}[spark]")
    shutil.rmtree(folder)
