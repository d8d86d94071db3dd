"""axe-core, which finds what keeps people from using a page: from npm, once, into the cache folder."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path

from bookwarden.errors import ServerError
from bookwarden_dev.devcluster.releases.cache import ensure_entry

_VERSION = "4.14.1"
_SHA512 = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="


def has_npm() -> bool:
    """Return whether it can be fetched."""
    return shutil.which("npm") is not None


def axe_script() -> str:
    """Return the script that a page runs to be examined; ServerError if it is not the one that was looked at."""
    return (ensure_entry(f"axe-core-{_VERSION}", _fetched) / "axe.min.js").read_text(encoding="utf-8")


def _fetched(folder: Path) -> Path:
    subprocess.run(["npm", "pack", "--silent", f"axe-core@{_VERSION}"], cwd=folder, check=True, capture_output=True)
    archive = folder / f"axe-core-{_VERSION}.tgz"
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != _SHA512:
        raise ServerError(f"axe-core {_VERSION} from npm has the SHA-512 {digest}, and not {_SHA512}: it is not used")
    with tarfile.open(archive) as packed:
        packed.extract("package/axe.min.js", folder)
    return folder / "package"
