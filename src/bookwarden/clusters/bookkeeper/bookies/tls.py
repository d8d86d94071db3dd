"""Encryption of a connection to a bookie: TLS on the bookie's one port, begun at our request."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import cached_property

from bookwarden.errors import ConfigError


@dataclass(frozen=True)
class BookieTls:
    """The PEM files for TLS to bookies; without trusted authorities those of this machine are used.

    The certificate is for bookies that ask for one. Bookies often have addresses that are in no certificate; without
    ``validate_hostname`` any certificate of the trusted authorities is accepted.
    """

    trust_certs_file: str | None = None
    certificate_file: str | None = None
    private_key_file: str | None = None
    validate_hostname: bool = True

    @cached_property
    def context(self) -> ssl.SSLContext:
        """The TLS context; ConfigError if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.trust_certs_file)
            context.check_hostname = self.validate_hostname
            if self.certificate_file:
                context.load_cert_chain(self.certificate_file, self.private_key_file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the TLS files of the section bookkeeper cannot be used: {error}") from error
        return context
