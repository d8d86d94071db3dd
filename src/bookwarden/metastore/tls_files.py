"""The TLS files of a metadata store's connection."""

from __future__ import annotations

import os

from bookwarden.errors import ConfigError


def validate_tls_files(*, ca: str | None, certfile: str | None, keyfile: str | None) -> None:
    """Raise ConfigError for a file that does not exist, and for half a pair."""
    for name, file in (("ca", ca), ("certfile", certfile), ("keyfile", keyfile)):
        if file is not None and not os.path.isfile(file):
            raise ConfigError(f"the metadata store's TLS file {name} is {file!r}: there is no such file")
    if bool(certfile) != bool(keyfile):
        raise ConfigError("the metadata store's TLS certfile and keyfile go together; only one of them is set")
