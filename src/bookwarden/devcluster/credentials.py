"""Credentials of a development cluster: a certificate, tokens of two roles, passwords of its ZooKeeper.

They are made once, in files that only their owner reads, and are never on a command line.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from bookwarden.devcluster.ports import LOOPBACK
from bookwarden.errors import ServerError

SUPERUSER = "admin"
ORDINARY_ROLE = "ordinary"
_VALID = datetime.timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class BrokerCredentials:
    """The files that a broker with TLS and tokens needs, and those that its clients need."""

    certificate: Path
    private_key: Path
    token_key: Path
    superuser_token: Path
    ordinary_token: Path


@dataclass(frozen=True, slots=True)
class ZooKeeperCredentials:
    """Files and credentials of a ZooKeeper that knows its users.

    The servers log in by SASL, the only way in which Pulsar does; ``digest`` ("user:password") is for clients
    such as ours.
    """

    server_login: Path
    client_login: Path
    digest_file: Path

    @property
    def digest(self) -> str:
        """The digest credentials, as ZooKeeper's add-auth request takes them."""
        return self.digest_file.read_text(encoding="utf-8")


def broker_credentials(folder: Path) -> BrokerCredentials:
    """Return the broker's credentials in a folder, made now if there are none."""
    made = BrokerCredentials(
        certificate=folder / "broker.cert.pem",
        private_key=folder / "broker.key.pem",
        token_key=folder / "token.key",
        superuser_token=folder / f"{SUPERUSER}.token",
        ordinary_token=folder / f"{ORDINARY_ROLE}.token",
    )
    # Written last: where it is, the others are.
    if not made.ordinary_token.exists():
        folder.mkdir(parents=True, exist_ok=True)
        certificate, private_key = _self_signed()
        key = secrets.token_bytes(32)
        _write(made.certificate, certificate)
        _write(made.private_key, private_key)
        _write(made.token_key, key)
        _write(made.superuser_token, sign_token(key, SUPERUSER).encode())
        _write(made.ordinary_token, sign_token(key, ORDINARY_ROLE).encode())
    return made


def zookeeper_credentials(folder: Path) -> ZooKeeperCredentials:
    """Return the ZooKeeper's credentials in a folder, made now if there are none."""
    made = ZooKeeperCredentials(folder / "zookeeper.jaas", folder / "pulsar.jaas", folder / "bookwarden.digest")
    if not made.digest_file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        password = secrets.token_hex(16)
        module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
        _write(made.server_login, f'Server {{ {module} user_pulsar="{password}"; }};\n'.encode())
        _write(made.client_login, f'Client {{ {module} username="pulsar" password="{password}"; }};\n'.encode())
        _write(made.digest_file, f"bookwarden:{secrets.token_hex(16)}".encode())
    return made


def sign_token(key: bytes, role: str) -> str:
    """Return a token that never expires: a JWT (RFC 7519) signed with HMAC-SHA-256."""
    signed = b".".join(_encode(json.dumps(part).encode()) for part in ({"alg": "HS256"}, {"sub": role}))
    return (signed + b"." + _encode(hmac.new(key, signed, hashlib.sha256).digest())).decode()


def _encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _self_signed() -> tuple[bytes, bytes]:
    """Make a certificate for this machine that is its own authority, and its key, both as PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ServerError("a cluster with TLS needs cryptography: pip install 'bookwarden[dev]'") from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bookwarden development cluster")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(LOOPBACK))]
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
