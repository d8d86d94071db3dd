"""How an Oxia store is connected: its URL and settings, a token, a certificate, and a server that is not there."""

from __future__ import annotations

import datetime
import ipaddress
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bookwarden.config import load_settings
from bookwarden.errors import ConfigError, StoreAccessError, StoreUnavailableError
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.urls import open_store, scheme_of, split_chroot
from bookwarden.wiring.stores import open_metadata_store
from servers.scripted_oxia import ScriptedOxia


def test_a_token_is_sent_and_one_that_is_refused_is_no_matter_of_waiting() -> None:
    with closing(ScriptedOxia(token="secret")) as server:
        server.set("/a", b"value")
        with closing(open_store(server.url, token="secret")) as store:
            node = store.get("/a")
        assert node is not None
        assert node.value == b"value"
        with closing(open_store(server.url, token="wrong-token")) as store:
            with pytest.raises(StoreAccessError, match="check the metadata store's token") as caught:
                store.get("/a")
            assert "wrong-token" not in str(caught.value)
            assert isinstance(store, OxiaStore)
            assert "wrong-token" not in repr(store._cluster.connection)


@pytest.mark.parametrize("days_left", [1, -1], ids=["valid", "expired"])
def test_a_certificate_that_has_expired_is_named(tmp_path: Path, days_left: int) -> None:
    key, certificate = self_signed(days_left)
    ca = tmp_path / "ca.pem"
    ca.write_bytes(certificate)
    credentials = grpc.ssl_server_credentials([(key, certificate)])
    options = {"use_ssl": True, "ca": str(ca), "connect_timeout_s": 5.0 if days_left > 0 else 1.0}
    with closing(ScriptedOxia(credentials=credentials)) as server, closing(open_store(server.url, **options)) as store:
        server.set("/a", b"value")
        if days_left > 0:
            assert store.get("/a") is not None
        else:
            with pytest.raises(StoreUnavailableError, match=r"(?i)cannot be reached .*certificate"):
                store.get("/a")


def self_signed(days_left: int) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.timezone.utc)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=9))
        .not_valid_after(now + datetime.timedelta(days=days_left))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem, certificate.public_bytes(serialization.Encoding.PEM)


def test_no_server_is_one_line_that_names_it() -> None:
    store = open_store("oxia://127.0.0.1:1", connect_timeout_s=0.5)
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1 cannot be reached .*refused") as caught:
        store.get("/a")
    assert "\n" not in str(caught.value)
    store.close()


@pytest.mark.parametrize(
    ("url", "address", "namespace"),
    [
        ("oxia://oxia:6648", "oxia:6648", "default"),
        ("oxia://oxia:6648/", "oxia:6648", "default"),
        ("oxia://oxia.pulsar.svc:6648/broker", "oxia.pulsar.svc:6648", "broker"),
    ],
)
def test_the_address_and_the_namespace_of_a_url(url: str, address: str, namespace: str) -> None:
    store = open_store(url)
    assert isinstance(store, OxiaStore)
    connection = store._cluster.connection
    assert (connection.address, connection.namespace) == (address, namespace)
    assert scheme_of(url) == "oxia"
    assert split_chroot(url) == (f"oxia://{address}/{namespace}", "")
    store.close()


def test_the_settings_reach_the_store() -> None:
    given = {
        "oxia_token": "secret",
        "session_timeout_seconds": "7.0",
        "batch_size": "300",
        "max_requests_per_second": "5.0",
        "max_store_latency_ms": "null",
    }
    settings = load_settings(overrides={f"metadata_store.{name}": value for name, value in given.items()})
    store = open_metadata_store(settings.metadata_store, "oxia://oxia:6648/broker")
    assert isinstance(store, OxiaStore)
    connection = store._cluster.connection
    assert (connection.token, connection.session_timeout_s, connection.batch_size) == ("secret", 7.0, 300)
    assert connection.max_requests_per_second == 5.0
    assert "secret" not in repr(settings)
    store.close()


def test_requests_are_as_large_as_the_kind_of_store_likes_best_unless_the_settings_say_how_large() -> None:
    for given, expected in (({}, 500), ({"metadata_store.batch_size": "100"}, 100)):
        store = open_metadata_store(load_settings(overrides=given).metadata_store, "oxia://oxia:6648/broker")
        assert isinstance(store, OxiaStore)
        assert store._cluster.connection.batch_size == expected
        store.close()


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("oxia://", {}, "expected oxia://host:port/namespace"),
        ("oxia://oxia/broker", {}, "expected oxia://host:port/namespace"),
        ("oxia://oxia:6648/a/b", {}, "expected oxia://host:port/namespace"),
        ("oxia://oxia:6648", {"session_timeout_s": 1.0}, "Oxia takes 2 to 300 s"),
        ("oxia://oxia:6648", {"ca": "/no/such/file"}, "there is no such file"),
        ("oxia://oxia:6648", {"certfile": __file__}, "go together"),
        ("oxia://oxia:6648", {"nonsense": 1}, "nonsense"),
    ],
)
def test_settings_that_cannot_work_are_refused(url: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_store(url, **options)
