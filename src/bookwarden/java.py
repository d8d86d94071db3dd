"""The Java that runs Spark and servers: find it, and check its version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bookwarden.errors import ServerError

OLDEST_JAVA: Final = 17


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that is new enough."""

    executable: str  #: Its path.
    version: int  #: The major one, such as 17.


def java_executable() -> str | None:
    """Return the path of JAVA_HOME's Java, which may not be there, else of PATH's; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def find_java() -> Java:
    """Return the Java of JAVA_HOME, else of PATH; raise ServerError if there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    executable = java_executable()
    if executable is None or not os.access(executable, os.X_OK):
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on PATH"
        raise ServerError(f"Java {OLDEST_JAVA} or newer is needed, and {where}: install it (package openjdk-17-jre)")
    answer = subprocess.run([executable, "-version"], capture_output=True, text=True, check=False)
    version = parse_version(answer.stderr + answer.stdout)
    if version is None or answer.returncode != 0:
        raise ServerError(f"{executable} -version does not run: install Java {OLDEST_JAVA}, or set JAVA_HOME to one")
    if version < OLDEST_JAVA:
        raise ServerError(
            f"{executable} is Java {version}, needed is {OLDEST_JAVA} or newer: install it, or set JAVA_HOME to one"
        )
    return Java(executable, version)


def parse_version(text: str) -> int | None:
    """Read the major version from what `java -version` prints: "17.0.15" is 17, "1.8.0_412" is 8."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    first, second = int(found[1]), int(found[2] or 0)
    return second if first == 1 else first
