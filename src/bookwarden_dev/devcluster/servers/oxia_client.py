"""Client of Oxia by its own program, for the lookups of the development cluster."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from bookwarden.errors import ServerError

_REQUEST_SECONDS = 5
_END_SECONDS = 30.0
_ABSENT = "key not found"


@dataclass(frozen=True, slots=True)
class OxiaClient:
    """Asks the Oxia server at an address ("host:port") by the program `oxia`; each request is a process of its own."""

    program: Path
    address: str

    def exists(self, key: str) -> bool:
        """Return whether there is a record of this key; raise ServerError if Oxia does not say."""
        return self._run("get", "--hex", key) is not None

    def delete(self, key: str) -> bool:
        """Delete a record of any version; return whether there was one; raise ServerError on failure."""
        return self._run("delete", key) is not None

    def keys(self, first: str, end: str) -> list[str]:
        """Return the keys from ``first`` to before ``end``, in Oxia's order of paths; raise ServerError on failure.

        In that order a key with fewer slashes comes first: from "/a/" to before "/a//" are the children of "/a" only.
        """
        # The shards answer one after the other.
        return sorted((self._run("list", "--key-min", first, "--key-max", end) or "").splitlines(), key=_by_depth)

    def _run(self, *arguments: str) -> str | None:
        """Return what a request prints, None if there is no such key."""
        command = [str(self.program), "client", f"--service-address={self.address}"]
        command += [f"--request-timeout={_REQUEST_SECONDS}s", *arguments]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_END_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServerError(f"Oxia at {self.address} cannot be asked ({error}): start it first") from error
        if ended.returncode == 0:
            return ended.stdout
        lines = ended.stderr.strip().splitlines() or ["nothing"]
        if _ABSENT in lines[-1]:
            return None
        raise ServerError(f"Oxia at {self.address} did not answer, and its client printed: {lines[-1]}")


def _by_depth(key: str) -> tuple[int, str]:
    return key.count("/"), key
