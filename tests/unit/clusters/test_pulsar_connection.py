"""Credentials of a connection to Pulsar that cannot work are told before anything connects."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.oauth2 import client_of
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.devcluster.credentials import BrokerCredentials, broker_credentials
from bookwarden.errors import ConfigError

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
