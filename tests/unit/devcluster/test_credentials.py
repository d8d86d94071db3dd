"""Credentials of the development cluster."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from bookwarden.errors import ConfigError
from bookwarden_dev.devcluster.credentials import broker_credentials, sign_token, zookeeper_credentials
from bookwarden_dev.devcluster.servers.settings import ClusterOptions, ClusterPorts, access_settings


def decode(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def test_a_token_names_its_role_and_is_signed() -> None:
    head, body, signature = sign_token(b"key", "admin").split(".")
    assert json.loads(decode(head)) == {"alg": "HS256"}
    assert json.loads(decode(body)) == {"sub": "admin"}
    assert decode(signature) == hmac.new(b"key", f"{head}.{body}".encode(), hashlib.sha256).digest()


def test_credentials_are_made_once_and_are_for_their_owner_only(tmp_path: Path) -> None:
    made = broker_credentials(tmp_path / "c")
    login = zookeeper_credentials(tmp_path / "c")
    before = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    assert len(before) == 13
    assert broker_credentials(tmp_path / "c") == made
    assert zookeeper_credentials(tmp_path / "c") == login
    assert {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()} == before
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "c").iterdir()} == {0o600}


@pytest.mark.parametrize("auth", ["token", "tls"])
def test_the_brokers_settings_hold_no_secret(tmp_path: Path, auth: str) -> None:
    made = broker_credentials(tmp_path)
    text = json.dumps(access_settings(ClusterPorts(1, 2, 3, 4), made, auth))
    assert made.superuser_token.read_text() not in text
    assert "PRIVATE KEY" not in text
    assert str(made.superuser_token if auth == "token" else made.superuser_certificate.private_key) in text


def test_a_clients_certificate_names_its_role_and_is_signed_by_the_brokers(tmp_path: Path) -> None:
    made = broker_credentials(tmp_path)
    authority = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    for role, files in (("admin", made.superuser_certificate), ("ordinary", made.ordinary_certificate)):
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        certificate.verify_directly_issued_by(authority)
        assert certificate.subject.rfc4514_string() == f"CN={role}"
        key = load_pem_private_key(files.private_key.read_bytes(), None)
        assert key.public_key() == certificate.public_key()


def test_an_unknown_kind_of_auth_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected none, token or tls"):
        ClusterOptions(auth="kerberos")
