"""OAuth2 client credentials; tokens for the admin REST. The binary protocol's client fetches its own."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

import urllib3

from bookwarden.errors import ConfigError, PulsarAccessError, PulsarUnavailableError

# A token is renewed this much before it ends, because the clocks of issuer and broker differ.
_RENEW_BEFORE_S = 30.0
_DEFAULT_LIFE_S = 300.0


class ClientCredentials:
    """Fetches an access token from the issuer and keeps it until shortly before it expires; thread-safe."""

    def __init__(self, options: Mapping[str, str], pool: urllib3.PoolManager, timeout_s: float) -> None:
        self._options = options
        self._pool = pool
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._token = ""
        self._ends_at = 0.0

    def token(self) -> str:
        """Return a token that is valid now; raise ConfigError, PulsarAccessError or PulsarUnavailableError."""
        with self._lock:
            if time.monotonic() >= self._ends_at:
                self._fetch()
            return self._token

    def _fetch(self) -> None:
        client = client_of(self._options)
        issuer = client.pop("issuer_url")
        endpoint = self._call("GET", f"{issuer}/.well-known/openid-configuration", None).get("token_endpoint")
        if issuer.startswith("https:") and not str(endpoint).startswith("https:"):
            raise PulsarAccessError(
                f"OAuth2 issuer {urlsplit(issuer).netloc} names a token_endpoint without TLS: the client_secret is not "
                "sent there; check pulsar.oauth2.issuer_url"
            )
        form = {"grant_type": "client_credentials", **client}
        answer = self._call("POST", str(endpoint), form)
        token = answer.get("access_token")
        if not isinstance(token, str) or not token:
            raise PulsarAccessError(f"OAuth2 issuer {issuer} answered without an access_token; check pulsar.oauth2")
        life_s = float(answer.get("expires_in") or _DEFAULT_LIFE_S)
        self._token = token
        self._ends_at = time.monotonic() + max(life_s - _RENEW_BEFORE_S, life_s / 2)

    def _call(self, method: str, url: str, form: Mapping[str, str] | None) -> dict[str, Any]:
        where = f"OAuth2 issuer {urlsplit(url).netloc.rpartition('@')[2] or url}"
        headers = {"Content-Type": "application/x-www-form-urlencoded"} if form else None
        body = urlencode(form) if form else None
        try:
            answer = self._pool.request(
                method, url, body=body, headers=headers, retries=False, redirect=False, timeout=self._timeout_s
            )
        except urllib3.exceptions.LocationValueError as error:
            raise ConfigError(f"pulsar.oauth2.issuer_url is no usable address: {url}") from error
        except urllib3.exceptions.HTTPError as error:
            raise PulsarUnavailableError(f"{where} gives no answer; check pulsar.oauth2.issuer_url") from error
        if answer.status >= 500:
            raise PulsarUnavailableError(f"{where} answered {answer.status}; try again later")
        if answer.status != 200:
            raise PulsarAccessError(f"{where} answered {answer.status}; check pulsar.oauth2 and the private key file")
        try:
            value = answer.json()
        except ValueError as error:
            raise ConfigError(f"{where} did not answer with JSON; check pulsar.oauth2.issuer_url") from error
        if not isinstance(value, dict):
            raise ConfigError(f"{where} did not answer with a JSON object; check pulsar.oauth2.issuer_url")
        return value


def client_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return issuer_url, client_id and client_secret, and audience and scope if set; raise ConfigError."""
    key = read_private_key(options.get("private_key", ""))
    issuer = (options.get("issuer_url") or key.get("issuer_url") or "").rstrip("/")
    if not issuer:
        raise ConfigError("pulsar.oauth2.issuer_url is not set, and the private key file names none")
    client = {"issuer_url": issuer, "client_id": key["client_id"], "client_secret": key["client_secret"]}
    client.update({name: options[name] for name in ("audience", "scope") if options.get(name)})
    return client


def read_private_key(location: str) -> Mapping[str, str]:
    """Read the JSON with client_id and client_secret from a path, a file:// URL or a data: URL."""
    try:
        if location.startswith("data:"):
            kind, _, body = location.partition(",")
            text = base64.b64decode(body).decode() if kind.endswith(";base64") else unquote(body)
        else:
            path = unquote(urlsplit(location).path) if location.startswith("file:") else location
            text = Path(path).read_text(encoding="utf-8")
        key = json.loads(text)
    except OSError as error:
        raise ConfigError(f"pulsar.oauth2.private_key cannot be read: {error.strerror}") from error
    except ValueError:
        raise ConfigError("pulsar.oauth2.private_key is not valid JSON") from None
    if not isinstance(key, dict) or not key.get("client_id") or not key.get("client_secret"):
        raise ConfigError("pulsar.oauth2.private_key needs client_id and client_secret")
    return key
