"""The jar for brokers, built once of its sources into the cache, as released servers are."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bookwarden_dev.devcluster.bookie_clusters import SiteBroker
from bookwarden_dev.devcluster.releases.cache import ensure_entry

_SOURCE = Path(__file__).parents[3] / "broker"
# pom.xml and src/main of broker/ in commit 2148828, by `git archive`: a clone may have no history.
_SOURCE_0_1_0 = Path(__file__).parents[2] / "data" / "broker_0_1_0.tar.xz"
_BUILD_SECONDS = 600


@functools.cache
def broker_jar() -> Path:
    """Return the jar; the first call on a machine, and after a change of it, takes a minute."""
    sources = [path for path in sorted(_SOURCE.rglob("*")) if path.is_file() and "target" not in path.parts]
    digest = hashlib.sha256()
    for path in sources:
        digest.update(f"{path.relative_to(_SOURCE)}\n".encode() + path.read_bytes())
    return _built(digest.hexdigest(), lambda folder: _copy_sources(folder / "broker"))


@functools.cache
def broker_jar_0_1_0() -> Path:
    """Return the jar of bookwarden 0.1.0, which knows nothing of ranges of ledgers without an owner mark."""
    return _built(hashlib.sha256(_SOURCE_0_1_0.read_bytes()).hexdigest(), _unpack_0_1_0)


@contextmanager
def with_jar(brokers: Sequence[SiteBroker], jar: Path) -> Iterator[None]:
    """Have brokers use this jar from their next start on, for the block."""
    specs = [broker.process.spec for broker in brokers]
    for broker, spec in zip(brokers, specs, strict=True):

        def command(present: Callable[[], Sequence[str]] = spec.command) -> list[str]:
            return [word.replace(str(broker_jar()), str(jar)) for word in present()]

        broker.process.spec = replace(spec, command=command)
    try:
        yield
    finally:
        for broker, spec in zip(brokers, specs, strict=True):
            broker.process.spec = spec


def _copy_sources(folder: Path) -> None:
    shutil.copytree(_SOURCE, folder, ignore=shutil.ignore_patterns("target"))


def _unpack_0_1_0(folder: Path) -> None:
    with tarfile.open(_SOURCE_0_1_0) as content:
        content.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))


def _built(digest: str, provide: Callable[[Path], None]) -> Path:
    """Return the jar of the sources that ``provide`` puts into broker/ of a folder."""

    def build(folder: Path) -> Path:
        provide(folder)
        source, built = folder / "broker", folder / "built"
        built.mkdir()
        command = ["mvn", "-q", "-B", "--strict-checksums", "package", "-Dmaven.test.skip=true"]
        ended = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
        assert ended.returncode == 0, ended.stdout[-3000:]
        (jar,) = (path for path in (source / "target").glob("*.jar") if not path.name.startswith("original-"))
        jar.rename(built / jar.name)
        return built

    (jar,) = ensure_entry(f"broker-jar-{digest[:16]}", build).glob("*.jar")
    return jar
