"""Pulsar's admin REST: one pooled client that returns values and raises bookwarden's errors."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

import urllib3

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.oauth2 import ClientCredentials
from bookwarden.errors import (
    BookwardenError,
    ConfigError,
    NotFoundError,
    PulsarAccessError,
    PulsarConflictError,
    PulsarError,
    PulsarTimeoutError,
    PulsarUnavailableError,
)
from bookwarden.signs_of_life import SIGNS_OF_LIFE

Params = Mapping[str, str | int | bool]

_MAX_REDIRECTS = 5
_MAX_REASON = 300
_NO_OWNER = "Can't find owner"
# BookKeeper's client says this if the id of a new ledger exists already: BKException, code -17.
_ID_TAKEN = "Bad ledger metadata version"
_BASE = "/admin/v2"


class PulsarAdmin:
    """The admin REST of one cluster; thread-safe, keeps its connections alive.

    A path is below ``/admin/v2`` unless it begins with ``/admin/`` or ``/lookup/``; its parts are already encoded.
    Raises PulsarUnavailableError (no answer, no owner of the topic, 429, 5xx), PulsarAccessError (401, 403, a client
    certificate that is missing or not trusted), NotFoundError (404), PulsarConflictError (409, 412), PulsarError (any
    other answer) and ConfigError (an address or a credential that cannot work); each names what was asked, never a
    credential.
    """

    def __init__(self, connection: PulsarConnection, timeout_s: float = 10.0) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._base = _checked_address(connection.admin_url)
        self._pool = _open_pool(connection)
        self._credentials = (
            ClientCredentials(connection.oauth2, self._pool, timeout_s) if connection.auth == "oauth2" else None
        )

    def __reduce__(self) -> tuple[type[PulsarAdmin], tuple[PulsarConnection, float]]:
        return PulsarAdmin, (self._connection, self._timeout_s)

    def get_json(self, path: str, *, params: Params | None = None) -> Any:
        """Return the decoded answer to a GET."""
        answer = self.request("GET", path, params=params, ok=(200,))
        try:
            return answer.json()
        except ValueError as error:
            text = f"{self._base} did not answer with JSON to GET {path}; check that pulsar.admin_url is a broker's"
            raise PulsarError(text) from error

    def put(self, path: str, body: object = None, *, params: Params | None = None) -> None:
        """Send a PUT with a JSON body."""
        self.request("PUT", path, params=params, body=body)

    def post(self, path: str, body: object = None, *, params: Params | None = None) -> None:
        """Send a POST with a JSON body."""
        self.request("POST", path, params=params, body=body)

    def delete(self, path: str, *, params: Params | None = None) -> None:
        """Send a DELETE."""
        self.request("DELETE", path, params=params)

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        ok: Collection[int] = (200, 204),
        timeout_s: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request, follow redirects to the owner broker, and return the answer if its status is `ok`."""
        url = self._base + (path if path.startswith(("/admin/", "/lookup/")) else _BASE + path)
        if params:
            url += "?" + urlencode({name: _text(value) for name, value in params.items()})
        data = None if body is None else json.dumps(body).encode()
        sent = {"Accept": "application/json", "Content-Type": "application/json", **(headers or {})}
        answer = self._follow(method, url, data, sent, timeout_s or self._timeout_s)
        if answer.status in ok:
            return answer
        raise self._failure(answer, f"{method} {path}")

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.clear()

    def _follow(
        self, method: str, url: str, data: bytes | None, headers: dict[str, str], timeout_s: float
    ) -> urllib3.BaseHTTPResponse:
        for _ in range(_MAX_REDIRECTS):
            self._connection.require_trusted(url)
            answer = self._send(method, url, data, {**headers, **self._authorization()}, timeout_s)
            location = answer.headers.get("Location")
            if answer.status not in (307, 308) or not location:
                return answer
            target = urljoin(url, location)
            _check_redirect(url, target)
            url = target
        raise PulsarUnavailableError(f"{self._base} redirected {method} more than {_MAX_REDIRECTS} times; try later")

    def _send(
        self, method: str, url: str, data: bytes | None, headers: Mapping[str, str], timeout_s: float
    ) -> urllib3.BaseHTTPResponse:
        # A pooled connection that the broker closed shows it only on use; a GET may be sent twice.
        attempts = 2 if method == "GET" else 1
        while True:
            attempts -= 1
            try:
                answer = self._pool.request(
                    method, url, body=data, headers=headers, retries=False, redirect=False, timeout=timeout_s
                )
                SIGNS_OF_LIFE.give()
                return answer
            except urllib3.exceptions.ProtocolError as error:
                if attempts == 0:
                    raise _unreachable(url, error) from error
            except urllib3.exceptions.HTTPError as error:
                raise _unreachable(url, error) from error

    def _authorization(self) -> dict[str, str]:
        if self._credentials is not None:
            return {"Authorization": f"Bearer {self._credentials.token()}"}
        if self._connection.auth == "token":
            return {"Authorization": f"Bearer {self._connection.current_token()}"}
        return {}

    def _failure(self, answer: urllib3.BaseHTTPResponse, asked: str) -> BookwardenError:
        said = f"{asked[:_MAX_REASON]}: the broker answered {answer.status}: {self._reason(answer)}"
        if answer.status in (401, 403):
            way = (
                "no credentials" if self._connection.auth == "none" else f"credentials of kind {self._connection.auth}"
            )
            return PulsarAccessError(f"{said}; sent with {way}: check pulsar.auth and the rights of our role")
        if answer.status == 404:
            return NotFoundError(said)
        # For some seconds, a broker that is coming back says this (PulsarWebResource.validateTopicOwnershipAsync, 4.0).
        ownerless = answer.status == 412 and _NO_OWNER in said
        if answer.status in (409, 412) and not ownerless:
            return PulsarConflictError(said)
        if answer.status >= 500 and _ID_TAKEN in said:
            return PulsarUnavailableError(
                f"{said}; a ledger has the id already that a new one was to get: after a move of the metadata run "
                "`bookwarden metadata-migration counters --execute`, else try again"
            )
        if ownerless or answer.status == 429 or answer.status >= 500:
            return PulsarUnavailableError(f"{said}; try again later")
        return PulsarError(said)

    def _reason(self, answer: urllib3.BaseHTTPResponse) -> str:
        text = answer.data.decode("utf-8", "replace")
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if isinstance(value, dict):
            # The broker's own, or its web server's.
            text = str(value.get("reason") or value.get("message") or text)
        for secret in self._authorization().values():
            text = text.replace(secret.removeprefix("Bearer "), "***")
        line = _without_page_or_trace(text)
        return line[:_MAX_REASON] or answer.reason or "no reason given"


def _without_page_or_trace(text: str) -> str:
    """Put what a broker answered on one line: of an HTML page its title, of a Java stack trace what is before it."""
    title = re.search(r"<title>(.*?)</title>", text, re.DOTALL | re.IGNORECASE)
    if title is None and text.startswith("<"):
        # Its web server has pages that are no whole ones.
        text = re.sub(r"<[^>]*>", " ", text)
    return " ".join((title[1] if title else re.split(r"\n\s*at ", text)[0]).split())


def _checked_address(admin_url: str) -> str:
    try:
        parts = urlsplit(admin_url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"pulsar.admin_url is no usable address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"pulsar.admin_url {admin_url!r} must look like http://broker:8080 or https://broker:8443")
    if "@" in parts.netloc:
        raise ConfigError("pulsar.admin_url must hold no user or password; set pulsar.auth instead")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{port}" if port else "") + parts.path.rstrip("/")


def _open_pool(connection: PulsarConnection) -> urllib3.PoolManager:
    options: dict[str, Any] = {"num_pools": 32, "maxsize": 16}
    if connection.admin_url.startswith("https:"):
        options["cert_reqs"] = "CERT_NONE" if connection.tls_allow_insecure else "CERT_REQUIRED"
        options["ca_certs"] = _existing("tls_trust_certs_file", connection.tls_trust_certs_file)
        if not connection.tls_validate_hostname or connection.tls_allow_insecure:
            options["assert_hostname"] = False
        if connection.auth == "tls":
            options["cert_file"], options["key_file"] = connection.client_certificate()
    return urllib3.PoolManager(**options)


def _existing(name: str, path: str | None) -> str | None:
    if not path:
        return None
    try:
        with open(path, "rb"):
            return path
    except OSError as error:
        raise ConfigError(f"pulsar.{name} {path!r} cannot be read: {error.strerror}") from error


def _check_redirect(source: str, target: str) -> None:
    # Credentials are sent along, so never from https to http, nor to anything but a web address.
    before, after = urlsplit(source), urlsplit(target)
    if after.scheme != before.scheme or not after.hostname:
        text = f"{before.netloc} redirects to {after.scheme}://{after.netloc}; credentials are not sent there"
        raise PulsarError(f"{text}: check the brokers' advertised addresses")


def _unreachable(url: str, error: urllib3.exceptions.HTTPError) -> BookwardenError:
    parts = urlsplit(url)
    where = f"{parts.scheme}://{parts.netloc}"
    if isinstance(error, urllib3.exceptions.SSLError):
        if "WRONG_VERSION_NUMBER" in str(error) or "record layer" in str(error).lower():
            return ConfigError(
                f"{where} does not speak TLS: check pulsar.admin_url (http:// or https://, and the port)"
            )
        if _is_about_our_certificate(error):
            return PulsarAccessError(
                f"{where} takes no client without a certificate that it trusts ({_first_line(error)}): "
                "check pulsar.auth (tls) and pulsar.tls_certificate_file"
            )
        return ConfigError(
            f"TLS with {where} failed ({_first_line(error)}): check pulsar.tls_trust_certs_file, the host name, "
            "and whether the broker asks for a client certificate"
        )
    if isinstance(error, urllib3.exceptions.LocationValueError):
        return ConfigError(f"pulsar.admin_url {where} is no usable address")
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return PulsarUnavailableError(f"the name {parts.hostname} cannot be resolved: check pulsar.admin_url")
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return PulsarUnavailableError(f"{where} is not reachable: check pulsar.admin_url and that the broker runs")
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return PulsarTimeoutError(f"{where} gave no answer in time: check pulsar.admin_url, or try again later")
    if isinstance(error, urllib3.exceptions.ProtocolError):
        return PulsarUnavailableError(
            f"{where} closed the connection: check that pulsar.admin_url is a broker's web address "
            "(http:// or https://), or try again later"
        )
    return PulsarUnavailableError(f"request to {where} failed ({_first_line(error)}): check pulsar.admin_url")


def _is_about_our_certificate(error: urllib3.exceptions.SSLError) -> bool:
    # Alerts (RFC 8446, 6.2) come from the server; these are what servers say of a missing or distrusted certificate.
    text = str(error).lower().replace("_", " ")
    said = ("certificate", "unknown ca", "decrypt error", "handshake failure", "access denied")
    return " alert " in text and any(alert in text for alert in said)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:_MAX_REASON]


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
