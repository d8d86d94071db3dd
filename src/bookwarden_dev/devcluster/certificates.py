"""Certificates of a development cluster: the broker's own, and the clients', signed by it; all PEM."""

from __future__ import annotations

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bookwarden_dev.devcluster.ports import LOOPBACK

_VALID = datetime.timedelta(days=3650)


class Authority:
    """A certificate for servers on this machine, which is also the authority that signs the clients'."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(LOOPBACK))]
        self._certificate = self._sign(
            self._builder(self._name, self._key)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        )

    @property
    def certificate(self) -> bytes:
        """The server's and authority's certificate."""
        return self._certificate

    @property
    def private_key(self) -> bytes:
        """Its key."""
        return _pem(self._key)

    def client_certificate(self, role: str) -> tuple[bytes, bytes]:
        """Make a certificate whose common name is this role, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        return self._sign(self._builder(_name(role), key).add_extension(usage, critical=False)), _pem(key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.timezone.utc)
        return (
            x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + _VALID)
        )

    def _sign(self, builder: x509.CertificateBuilder) -> bytes:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
