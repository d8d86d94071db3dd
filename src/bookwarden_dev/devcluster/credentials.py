"""Credentials of a development cluster: certificates and tokens of two roles, passwords of its ZooKeeper.

They are made once, in files that only their owner reads, and are never on a command line.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from bookwarden.errors import MissingExtraError

SUPERUSER = "admin"
ORDINARY_ROLE = "ordinary"


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """The files of a certificate whose common name is the client's role, and of its key."""

    certificate: Path
    private_key: Path


@dataclass(frozen=True, slots=True)
class BrokerCredentials:
    """Files of a broker with TLS and of its clients."""

    certificate: Path  #: The broker's own, which is also the authority that signed the clients'.
    private_key: Path  #: The broker's.
    key_store: Path  #: Both in one file, as ZooKeeper takes them.
    token_key: Path  #: Signs the tokens: 32 bytes.
    superuser_token: Path  #: A JWT that never expires.
    ordinary_token: Path  #: Likewise, of a role without rights.
    superuser_certificate: ClientCertificate  #: Names the role as its common name.
    ordinary_certificate: ClientCertificate  #: Likewise, of a role without rights.


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
        key_store=folder / "broker.store.pem",
        token_key=folder / "token.key",
        superuser_token=folder / f"{SUPERUSER}.token",
        ordinary_token=folder / f"{ORDINARY_ROLE}.token",
        superuser_certificate=_client_certificate(folder, SUPERUSER),
        ordinary_certificate=_client_certificate(folder, ORDINARY_ROLE),
    )
    # Written last: where it is, the others are.
    if not made.ordinary_token.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write_certificates(made)
        key = secrets.token_bytes(32)
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


def _client_certificate(folder: Path, role: str) -> ClientCertificate:
    return ClientCertificate(folder / f"{role}.cert.pem", folder / f"{role}.key.pem")


def _write_certificates(made: BrokerCredentials) -> None:
    try:
        from bookwarden_dev.devcluster.certificates import Authority
    except ImportError as error:
        raise MissingExtraError("a cluster with TLS needs cryptography: pip install 'bookwarden[dev]'") from error
    authority = Authority("bookwarden development cluster")
    _write(made.certificate, authority.certificate)
    _write(made.private_key, authority.private_key)
    _write(made.key_store, authority.private_key + authority.certificate)
    for role, files in ((SUPERUSER, made.superuser_certificate), (ORDINARY_ROLE, made.ordinary_certificate)):
        certificate, private_key = authority.client_certificate(role)
        _write(files.certificate, certificate)
        _write(files.private_key, private_key)


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
