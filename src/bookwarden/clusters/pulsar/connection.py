"""Connection to a Pulsar cluster: addresses, credentials, TLS, and the clients made from them."""

from __future__ import annotations

import json
import logging
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pulsar

from bookwarden.clusters.pulsar.oauth2 import client_of
from bookwarden.errors import ConfigError, PulsarAccessError

AUTH_KINDS = ("none", "token", "tls", "oauth2")


def read_token(path: str) -> str:
    """Read a token from its file; ConfigError if that cannot be read, or is empty."""
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"token file {path} cannot be read: {error.strerror}") from error
    if not text:
        raise ConfigError(f"token file {path} is empty")
    return text


@dataclass(frozen=True, slots=True)
class PulsarConnection:
    """Addresses and credentials of a Pulsar cluster; picklable, so that it can travel to executors."""

    service_url: str  #: Of the binary protocol, pulsar:// or pulsar+ssl://.
    admin_url: str  #: Of the admin REST, http:// or https://.
    auth: str = "none"  #: One of AUTH_KINDS.
    token: str | None = field(default=None, repr=False)  #: The token's text.
    token_file: str | None = None  #: Read at each use, so that a rotated token is picked up.
    tls_certificate_file: str | None = None  #: Our own certificate, PEM.
    tls_private_key_file: str | None = None  #: The key of our certificate, PEM.
    tls_trust_certs_file: str | None = None  #: Trusted authorities, PEM; None: those of this machine.
    tls_allow_insecure: bool = False  #: Accepts any certificate of a broker.
    tls_validate_hostname: bool = True  #: A broker's certificate must have its host name.
    trusted_hosts: tuple[str, ...] = ()  #: Hosts that may have our token without verified TLS; ``*`` for any text.
    #: ``issuer_url``, ``private_key`` (path or data: URL), ``audience``, ``scope``.
    oauth2: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: For pulsar.Client by keyword (io_threads, operation_timeout_seconds, ...).
    client_options: Mapping[str, Any] = field(default_factory=dict)
    configured: tuple[str, ...] = ()  #: Addresses that an operator gave; this connection's own two if empty.

    def at(self, admin_url: str) -> PulsarConnection:
        """Return a connection to another admin REST that the cluster itself names, trusted no more for that."""
        return replace(self, admin_url=admin_url, configured=self._configured)

    def trusting(self, url: str) -> PulsarConnection:
        """Return the same connection, with a further address that an operator gave."""
        return replace(self, configured=(*self._configured, url))

    @property
    def _configured(self) -> tuple[str, ...]:
        return self.configured or (self.admin_url, *hosts_of(self.service_url))

    def require_trusted(self, url: str) -> None:
        """Raise PulsarAccessError where an address may not have our token: it would be a superuser's as a rule.

        Anybody who can write to the metadata store can name an address there. A token goes to hosts of the settings,
        and elsewhere by verified TLS alone; and never without TLS where all addresses given of that kind have it.
        """
        if self.auth not in ("token", "oauth2"):
            return
        scheme, host, where = _parts_of(url)
        given = [_parts_of(one) for one in self._configured]
        of_kind = {one for one, _, _ in given if _is_web(one) is _is_web(scheme)}
        has_tls = scheme in _WITH_TLS
        if not has_tls and of_kind and of_kind <= _WITH_TLS:
            raise PulsarAccessError(
                f"the token is not sent to {where}: it has no TLS, and the settings name addresses with it alone: "
                "check the brokers' advertised addresses"
            )
        verified = has_tls and self.tls_validate_hostname and not self.tls_allow_insecure
        if verified or host in {one for _, one, _ in given} or any(_fits(host, one) for one in self.trusted_hosts):
            return
        raise PulsarAccessError(
            f"the token is not sent to {where}: its TLS is not verified, or it has none, and its host is none of "
            "pulsar.admin_url, pulsar.service_url and pulsar.trusted_hosts: if it is a broker of this cluster, add it "
            "to pulsar.trusted_hosts"
        )

    def current_token(self) -> str:
        """Return the token's text, from the file if one is set; raise ConfigError if there is none."""
        if self.token_file:
            return read_token(self.token_file)
        if self.token:
            return self.token
        raise ConfigError("pulsar.auth is 'token', but neither pulsar.token_file nor pulsar.token is set")

    def client_certificate(self) -> tuple[str, str]:
        """Return the paths of our certificate and its key; raise ConfigError if they do not match."""
        certificate = self._existing("tls_certificate_file", self.tls_certificate_file)
        private_key = self._existing("tls_private_key_file", self.tls_private_key_file)
        try:
            # Without a password, OpenSSL would ask for that of an encrypted key on the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, private_key, password="")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            text = f"pulsar.tls_certificate_file {certificate} and pulsar.tls_private_key_file {private_key}"
            raise ConfigError(f"{text} are no certificate and its unencrypted key in PEM: {reason}") from error
        return certificate, private_key

    def client(self, **overrides: Any) -> pulsar.Client:
        """Open a client; the caller closes it. Never call this before a process forks: a client does not survive."""
        options: dict[str, Any] = {"logger": _client_logger()}
        options.update(self.client_options)
        options.update(overrides)
        if self.service_url.startswith("pulsar+ssl://"):
            options["tls_trust_certs_file_path"] = self.tls_trust_certs_file
            options["tls_allow_insecure_connection"] = self.tls_allow_insecure
            options["tls_validate_hostname"] = self.tls_validate_hostname and not self.tls_allow_insecure
        authentication = self._authentication()
        if authentication is not None:
            options["authentication"] = authentication
        try:
            return pulsar.Client(self.service_url, **options)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"pulsar.service_url {self.service_url} or pulsar.client: {error}") from error

    def _authentication(self) -> pulsar.Authentication | None:
        if self.auth == "none":
            return None
        if self.auth == "token":
            return pulsar.AuthenticationToken(self.current_token)
        if self.auth == "tls":
            return pulsar.AuthenticationTLS(*self.client_certificate())
        if self.auth == "oauth2":
            # The client would log the content of a private key that it cannot use.
            return pulsar.AuthenticationOauth2(json.dumps(client_of(self.oauth2)))
        raise ConfigError(f"pulsar.auth is {self.auth!r}; expected one of {', '.join(AUTH_KINDS)}")

    @staticmethod
    def _existing(name: str, path: str | None) -> str:
        if not path or not os.path.isfile(path):
            raise ConfigError(f"pulsar.{name} is {path!r}: there is no such file")
        return path


_WITH_TLS: Final = frozenset(("https", "pulsar+ssl"))


def hosts_of(service_url: str) -> list[str]:
    """Return an address for each host of a service URL, which may name several by commas."""
    scheme, _, hosts = service_url.partition("://")
    return [f"{scheme}://{host.strip()}" for host in hosts.partition("/")[0].split(",") if host.strip()]


def _parts_of(url: str) -> tuple[str, str, str]:
    """Return scheme and host of an address, and the address for people, without what may be a password."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
    except ValueError:
        return "", "", "an address that is none"
    return parts.scheme, host, f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _is_web(scheme: str) -> bool:
    return scheme.startswith("http")


def _fits(host: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern.lower()).replace(r"\*", ".*"), host) is not None


def _client_logger() -> Any:
    # The client writes to the standard output, past Python's logging; silencing the logger "pulsar" must stop it too.
    if logging.getLogger("pulsar").isEnabledFor(logging.ERROR):
        return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
