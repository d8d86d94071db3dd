"""The archive for executors: this package and its dependencies, to be unpacked and put on PYTHONPATH.

Run as ``python -m bookwarden.pipelines.archive``, with an interpreter of the executors' minor version and platform:
the wheels in it are compiled. PySpark is not in it, because a Spark cluster brings its own.
"""

from __future__ import annotations

import argparse
import gzip
import logging
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bookwarden.errors import BookwardenError, ConfigError

logger = logging.getLogger(__name__)
EXTRA = "executor"
OFFLOAD_EXTRAS = ("s3", "gcs", "azure")
# The sources of a wheel. It is built from a copy, since setuptools packs anything that lies in an old build folder.
_SOURCES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "src", "schemas")
# Never imported, and a third of the size: test suites, headers, type stubs, console scripts.
_LEFT_OUT_FOLDERS = frozenset({"__pycache__", "tests", "include", "bin"})
_LEFT_OUT_SUFFIXES = frozenset({".pyi", ".pyx", ".pxd", ".h", ".hpp", ".a"})
# 1980, the first year that a zip file of these modules could state; any fixed time makes equal archives.
_TIME = 315_532_800
_COMPRESSION = 5


def build_archive(checkout: Path, output: Path, extras: Sequence[str] = ()) -> int:
    """Install the wheel of this checkout with its executor extra into a folder and pack that; return the file count.

    ``extras`` are further ones, such as ``s3``. Raises ConfigError when this is no checkout, BookwardenError when pip
    fails.
    """
    if not (checkout / "setup.cfg").is_file():
        raise ConfigError(f"{checkout} has no setup.cfg: give the folder of a bookwarden checkout")
    with tempfile.TemporaryDirectory(prefix="bookwarden-archive-") as scratch:
        environment = Path(scratch, "env")
        wheel = _build_wheel(checkout, Path(scratch))
        # Bytecode would be left out.
        _pip("install", "--target", str(environment), "--no-compile", f"{wheel}[{','.join((EXTRA, *extras))}]")
        return pack(environment, output)


def _build_wheel(checkout: Path, scratch: Path) -> Path:
    copy, wheels = scratch / "checkout", scratch / "wheels"
    copy.mkdir()
    for name in _SOURCES:
        source = checkout / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        elif source.exists():
            shutil.copy2(source, copy / name)
    _pip("wheel", "--no-deps", "--wheel-dir", str(wheels), str(copy))
    (wheel,) = wheels.glob("bookwarden-*.whl")
    return wheel


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise BookwardenError(f"pip {arguments[0]} failed: {said[-1] if said else f'exit code {done.returncode}'}")


def pack(environment: Path, output: Path) -> int:
    """Write the needed files of a folder as a tar that depends on names and bytes only; return their count."""
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{output.name}.partial")
    files = [path for path in sorted(environment.rglob("*")) if _is_needed(path, environment)]
    with (
        partial.open("wb") as raw,
        gzip.GzipFile("", "wb", _COMPRESSION, raw, mtime=_TIME) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in files:
            archive.add(path, str(path.relative_to(environment)), recursive=False, filter=_anonymous)
    partial.replace(output)
    return len(files)


def _is_needed(path: Path, environment: Path) -> bool:
    # RECORD lists the scripts that pip wrote for this interpreter, and an archive is never uninstalled from.
    if not path.is_file() or path.suffix in _LEFT_OUT_SUFFIXES or path.name in ("RECORD", "direct_url.json"):
        return False
    return _LEFT_OUT_FOLDERS.isdisjoint(path.relative_to(environment).parts[:-1])


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = _TIME
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the archive and report it; return the exit code."""
    parser = argparse.ArgumentParser(description="Pack bookwarden and its dependencies for Spark's executors.")
    parser.add_argument("--checkout", type=Path, default=Path(), help="folder of the checkout; the current one")
    parser.add_argument("--output", type=Path, default=Path("dist/bookwarden-env.tar.gz"))
    parser.add_argument(
        "--extra", action="append", default=[], choices=OFFLOAD_EXTRAS, help="a store of offloaded copies; repeatable"
    )
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        files = build_archive(given.checkout, given.output, given.extra)
    except BookwardenError as error:
        logger.error("%s", error)
        return error.exit_code
    size = given.output.stat().st_size / 1e6
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    logger.info("%s: %d files, %.0f MB, for Python %s on %s", given.output, files, size, version, sys.platform)
    return 0


if __name__ == "__main__":
    sys.exit(main())
