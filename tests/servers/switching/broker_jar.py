"""The jar for brokers, built once of these sources into the cache, as released servers are."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
from pathlib import Path

from bookwarden.devcluster.releases.cache import ensure_entry

_SOURCE = Path(__file__).parents[3] / "broker"
_BUILD_SECONDS = 600


@functools.cache
def broker_jar() -> Path:
    """Return the jar; the first call on a machine, and after a change of it, takes a minute."""
    sources = [path for path in sorted(_SOURCE.rglob("*")) if path.is_file() and "target" not in path.parts]
    digest = hashlib.sha256()
    for path in sources:
        digest.update(f"{path.relative_to(_SOURCE)}\n".encode() + path.read_bytes())
    (jar,) = ensure_entry(f"broker-jar-{digest.hexdigest()[:16]}", _build).glob("*.jar")
    return jar


def _build(folder: Path) -> Path:
    source, built = folder / "broker", folder / "built"
    shutil.copytree(_SOURCE, source, ignore=shutil.ignore_patterns("target"))
    built.mkdir()
    command = ["mvn", "-q", "-B", "--strict-checksums", "package", "-Dmaven.test.skip=true"]
    ended = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:]
    (jar,) = (path for path in (source / "target").glob("*.jar") if not path.name.startswith("original-"))
    jar.rename(built / jar.name)
    return built
