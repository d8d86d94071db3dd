"""Credentials of a connection to Pulsar that cannot work are told before anything connects."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.oauth2 import ClientCredentials, client_of
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.errors import ConfigError, PulsarAccessError
from bookwarden_dev.devcluster.credentials import BrokerCredentials, broker_credentials

SECRET = "very-secret"


def connection(**given: Any) -> PulsarConnection:
    return PulsarConnection("pulsar+ssl://127.0.0.1:1", "https://127.0.0.1:1", **given)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> BrokerCredentials:
    return broker_credentials(tmp_path_factory.mktemp("credentials"))


def test_a_certificate_and_its_key_are_a_pair(made: BrokerCredentials) -> None:
    own = made.superuser_certificate
    pair = (str(own.certificate), str(own.private_key))
    assert connection(tls_certificate_file=pair[0], tls_private_key_file=pair[1]).client_certificate() == pair


@pytest.mark.parametrize("kind", ["another", "encrypted", "no PEM"])
def test_a_key_that_is_not_the_certificates_is_refused_without_asking(
    made: BrokerCredentials, tmp_path: Path, kind: str
) -> None:
    own, key = made.superuser_certificate, tmp_path / "key.pem"
    encrypted = load_pem_private_key(own.private_key.read_bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")
    )
    other = made.ordinary_certificate.private_key.read_bytes()
    key.write_bytes({"another": other, "encrypted": encrypted, "no PEM": b"key"}[kind])
    wrong = connection(auth="tls", tls_certificate_file=str(own.certificate), tls_private_key_file=str(key))
    with pytest.raises(ConfigError, match=r"pulsar\.tls_private_key_file"):
        wrong.client()
    with pytest.raises(ConfigError, match=r"pulsar\.tls_private_key_file"):
        PulsarAdmin(wrong)


@pytest.mark.parametrize("key", [{"client_secret": SECRET}, {"client_id": SECRET}, SECRET])
def test_an_oauth2_key_that_is_not_whole_never_reaches_the_client_that_would_log_it(
    key: object, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"data:application/json;base64,{base64.b64encode(json.dumps(key).encode()).decode()}"
    with pytest.raises(ConfigError, match=r"pulsar\.oauth2\.private_key") as caught:
        connection(auth="oauth2", oauth2={"issuer_url": "http://127.0.0.1:1", "private_key": url}).client()
    assert SECRET not in str(caught.value) + "".join(capfd.readouterr())


def test_the_key_file_may_name_the_issuer(tmp_path: Path) -> None:
    key = {"client_id": "me", "client_secret": SECRET, "issuer_url": "https://issuer/", "type": "client_credentials"}
    file = tmp_path / "key.json"
    file.write_text(json.dumps(key))
    expected = {"client_id": "me", "client_secret": SECRET, "issuer_url": "https://issuer", "scope": "all"}
    assert client_of({"private_key": str(file), "audience": "", "scope": "all"}) == expected


PLAIN, TLS = ("pulsar://h,g:6650", "http://h:8080"), ("pulsar+ssl://h:6651", "https://h:8443")


@pytest.mark.parametrize(
    ("given", "options", "url", "trusted"),
    [
        (PLAIN, {}, "http://h:8080/admin", True),
        (PLAIN, {}, "http://H:9999", True),
        (PLAIN, {}, "pulsar://g:1", True),
        (PLAIN, {}, "http://evil:8080", False),
        (PLAIN, {}, "pulsar://evil:6650", False),
        (PLAIN, {}, "https://evil:8443", True),
        (PLAIN, {"tls_allow_insecure": True}, "https://evil:8443", False),
        (PLAIN, {"tls_validate_hostname": False}, "https://evil:8443", False),
        (PLAIN, {"tls_allow_insecure": True}, "https://h:8443", True),
        (PLAIN, {"trusted_hosts": ("broker-*.pulsar.svc",)}, "http://broker-7.pulsar.svc:8080", True),
        (PLAIN, {"trusted_hosts": ("broker-*.pulsar.svc",)}, "http://broker-7.pulsar.svc.evil:8080", False),
        (PLAIN, {"trusted_hosts": ("b.c",)}, "http://bxc", False),
        (PLAIN, {"trusted_hosts": ("::1",)}, "http://[::1]:8080", True),
        (PLAIN, {}, "http://h:8080@evil", False),
        (PLAIN, {}, "http://[broken", False),
        (TLS, {}, "https://other:8443", True),
        (TLS, {}, "http://h:8080", False),
        (TLS, {"trusted_hosts": ("*",)}, "http://h:8080", False),
        (TLS, {"trusted_hosts": ("*",)}, "pulsar://h:6650", False),
        (("pulsar://h:1", "https://h:8443"), {}, "pulsar://h:2", True),
    ],
)
def test_who_may_have_our_token(given: tuple[str, str], options: dict[str, Any], url: str, trusted: bool) -> None:
    made = PulsarConnection(*given, auth="token", token=SECRET, **options)
    for kind in ("none", "tls"):
        replace(made, auth=kind).require_trusted(url)
    for one in (made, replace(made, auth="oauth2")):
        if trusted:
            one.require_trusted(url)
            continue
        with pytest.raises(PulsarAccessError) as refused:
            one.require_trusted(url)
        assert SECRET not in str(refused.value)


def test_an_address_that_the_cluster_names_is_trusted_no_more_for_that() -> None:
    made = PulsarConnection(*PLAIN, auth="token", token=SECRET)
    for one in (made.at("http://evil:8080"), made.at("http://h:1").at("http://evil:8080")):
        with pytest.raises(PulsarAccessError, match="http://evil:8080"):
            one.require_trusted(one.admin_url)
        one.require_trusted("http://h:8080")
    given = made.trusting("http://clients:8080").at("http://clients:8080")
    given.require_trusted("http://clients:8080")
    with pytest.raises(PulsarAccessError):
        given.require_trusted("http://evil:8080")


@pytest.mark.parametrize(("endpoint", "sent"), [("https://issuer/token", True), ("http://issuer/token", False)])
def test_the_client_secret_goes_to_no_token_endpoint_without_tls(tmp_path: Path, endpoint: str, sent: bool) -> None:
    key = tmp_path / "key.json"
    key.write_text(json.dumps({"client_id": "me", "client_secret": SECRET}))
    asked: list[str] = []

    class Pool:
        def request(self, method: str, url: str, **_: Any) -> Any:
            asked.append(f"{method} {url}")
            found = {"token_endpoint": endpoint} if method == "GET" else {"access_token": "t"}
            return SimpleNamespace(status=200, json=lambda: found)

    pool: Any = Pool()
    credentials = ClientCredentials({"issuer_url": "https://issuer", "private_key": str(key)}, pool, 1.0)
    if sent:
        assert credentials.token() == "t"
    else:
        with pytest.raises(PulsarAccessError, match="token_endpoint without TLS"):
            credentials.token()
    assert (f"POST {endpoint}" in asked) is sent
