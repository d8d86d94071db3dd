"""Archives of the classes that Spark loads: its JVM maps one at its start, and needs less than half the time.

A JVM writes one at its end, into a file of its own; only what a JVM that ended well has written takes its place, all at
once. An archive is for one Java and one set of jars, by its name; the JVM itself checks both again, and its sums, and
goes on without an archive that does not fit. One that was cut off would kill the JVM, so its name has its size too.
Nothing here lets a start fail. Source: the java command of JDK 17,
application class-data sharing.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from uuid import uuid4

from bookwarden.durable import sync
from bookwarden.java import java_executable

logger = logging.getLogger(__name__)
_FORMAT: Final = 1
#: Java says at length which classes it cannot archive, and why an archive does not fit. Another Java than HotSpot knows
#: none of these options.
_ALWAYS: Final = ("-XX:+IgnoreUnrecognizedVMOptions", "-Xlog:disable", "-XX:+VerifySharedSpaces")
#: Where an operator has options of the same kind, a JVM with both may not start.
_OWN_OPTIONS: Final = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare")
_VARIABLES: Final = ("PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
#: An archive has 100 to 200 MB: no disk is filled with it.
_FREE_BYTES: Final = 2 << 30
_SMALLEST: Final = 1 << 20
_UNUSED_SECONDS: Final = 30 * 86_400.0
_LEFT_SECONDS: Final = 86_400.0
_SUFFIX: Final = ".jsa"
_NEW: Final = ".new"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """An archive that is there, or, with ``fresh``, one that this JVM writes at its end."""

    path: Path  #: The archive; of one that is to be made, its name without its size.
    fresh: Path | None = None  #: The file that the JVM writes; None where there is an archive.

    @property
    def options(self) -> tuple[str, ...]:
        """The options for the JVM."""
        if self.fresh is None:
            return (*_ALWAYS, f"-XX:SharedArchiveFile={self.path}")
        return (*_ALWAYS, f"-XX:ArchiveClassesAtExit={self.fresh}")

    def keep(self, *, ended_well: bool) -> None:
        """Put what the JVM wrote into its place, if it ended well; else remove it."""
        if self.fresh is None:
            return
        try:
            if ended_well and (size := self.fresh.stat().st_size) >= _SMALLEST:
                sync(self.fresh)
                os.replace(self.fresh, f"{self.path}-{size}{_SUFFIX}")
                logger.info("classes of Spark are archived in %s-%d%s", self.path, size, _SUFFIX)
        except OSError as error:
            logger.info("no archive of Spark's classes was made: %s", error)
        with contextlib.suppress(OSError):
            self.fresh.unlink(missing_ok=True)


def archive_for(application: str, *, conf: Mapping[str, str]) -> ClassArchive | None:
    """Return the archive for the JVM of an application that ends soon; None where there is none to use or to make.

    ``conf`` are the operator's properties of Spark.
    """
    try:
        home = spark_home()
        executable = java_executable()
        if home is None or executable is None or _has_own_options(conf, home):
            return None
        folder = _cache_folder()
        path = folder / f"{application}-{_identity(executable, home / 'jars')}"
        for found in folder.glob(f"{path.name}-*{_SUFFIX}"):
            if found.stem == f"{path.name}-{found.stat().st_size}":
                # Of the time of its last use.
                os.utime(found)
                return ClassArchive(found)
        folder.mkdir(parents=True, exist_ok=True)
        _remove_unused(folder)
        if shutil.disk_usage(folder).free < _FREE_BYTES or not os.access(folder, os.W_OK):
            return None
        return ClassArchive(path, path.with_name(f"{path.name}.{uuid4().hex}{_NEW}"))
    except OSError as error:
        logger.info("Spark starts without an archive of its classes: %s", error)
        return None


def spark_home() -> Path | None:
    """Return the folder of the Spark that PySpark starts."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    found = find_spec("pyspark")
    return None if found is None or found.origin is None else Path(found.origin).parent


def _cache_folder() -> Path:
    chosen = os.environ.get("BOOKWARDEN_CACHE")
    if chosen:
        return Path(chosen) / "classes"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "bookwarden" / "classes"


def _has_own_options(conf: Mapping[str, str], home: Path) -> bool:
    texts = [*conf.values(), *(os.environ.get(name, "") for name in _VARIABLES)]
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    with contextlib.suppress(FileNotFoundError):
        texts.append(defaults.read_text(encoding="utf-8", errors="replace"))
    return any(option in text for option in _OWN_OPTIONS for text in texts)


def _identity(executable: str, jars: Path) -> str:
    java = Path(executable).resolve()
    made_of = (_FORMAT, str(java), *_stamp(java), str(jars.resolve()), *sorted(_stamps(jars)))
    return hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]


def _stamps(folder: Path) -> Iterator[tuple[str, int, int]]:
    for path in folder.iterdir():
        yield (path.name, *_stamp(path))


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _remove_unused(folder: Path) -> None:
    """Remove archives that nothing used for a month, and what JVMs that were killed have left."""
    now = time.time()
    for path in (*_of(folder, f"*{_SUFFIX}"), *_of(folder, f"*{_NEW}")):
        age = now - path.stat().st_mtime
        if age > (_LEFT_SECONDS if path.suffix == _NEW else _UNUSED_SECONDS):
            path.unlink(missing_ok=True)


def _of(folder: Path, pattern: str) -> Iterable[Path]:
    return list(folder.glob(pattern))
