"""Credentials, ACLs and TLS of the ZooKeeper store, and that no secret is shown."""

from __future__ import annotations

import contextlib
import datetime
import gc
import ipaddress
import logging
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import kazoo.exceptions
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kazoo.client import KazooClient
from kazoo.security import ACL, OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from bookwarden.errors import ConfigError, StoreAccessError, StoreUnavailableError
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.urls import open_store
from bookwarden.metastore.zookeeper.session import ZooKeeperConnection
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from contract.conftest import StoreMaker
from servers.lone_zookeeper import LoneZooKeeper, running_zookeeper

SECRET = "s3cret-of-the-warden"
OURS = ("warden", SECRET)
THEIRS = ("warden", "guess")


@pytest.fixture
def guarded(connect: StoreMaker) -> str:
    """A node, and children, that only our credentials may use."""
    path = f"/t-{uuid4().hex}"
    store = connect(digest=OURS, acl="creator")
    store.create(path, b"mine")
    for index in range(150):
        store.create(f"{path}/n{index:03d}", b"value")
    return path


def test_the_right_credentials_read_and_delete(connect: StoreMaker, guarded: str) -> None:
    store = connect(digest=OURS)
    paths = [f"{guarded}/n{index:03d}" for index in range(150)]
    assert all(store.get_many(paths))
    assert store.delete_many([(path, 0) for path in paths]) == [DeleteResult.DELETED] * 150


@pytest.mark.parametrize("digest", [THEIRS, None], ids=["wrong", "none"])
@pytest.mark.parametrize("multi_read", [True, False], ids=["MultiRead", "single"])
def test_other_credentials_are_refused_everything(
    connect: StoreMaker, guarded: str, digest: tuple[str, str] | None, multi_read: bool
) -> None:
    store = connect(digest=digest, multi_read=multi_read)
    paths = [f"{guarded}/n{index:03d}" for index in range(150)]
    with pytest.raises(StoreAccessError, match="credentials"):
        store.get_many(["/", *paths])
    with pytest.raises(StoreAccessError, match="credentials"):
        store.list_children(guarded)
    with pytest.raises(StoreAccessError, match="credentials"):
        store.put(guarded, b"theirs", 0)
    with pytest.raises(StoreAccessError, match="credentials"):
        store.create(f"{guarded}/new", b"")
    with pytest.raises(StoreAccessError, match="credentials"):
        store.delete_many([(path, 0) for path in paths])
    assert len(connect(digest=OURS).list_children(guarded)) == 150


def test_refused_deletes_are_told_from_those_that_were_done(connect: StoreMaker, guarded: str) -> None:
    store = connect(digest=THEIRS)
    open_paths = [f"/open-{uuid4().hex}" for _ in range(3)]
    for path in open_paths:
        store.create(path, b"")
    asked = [open_paths[0], f"{guarded}/n000", open_paths[1], f"{guarded}/n001", open_paths[2]]
    results = store.delete_many([(path, 0) for path in asked])
    deleted, unknown = DeleteResult.DELETED, DeleteResult.UNKNOWN
    assert results == [deleted, unknown, deleted, unknown, deleted]


def test_nodes_may_be_left_open_to_readers(connect: StoreMaker) -> None:
    path = f"/t-{uuid4().hex}"
    connect(digest=OURS, acl="creator-read-open").create(path, b"for all")
    stranger = connect()
    assert stranger.get(path) is not None
    with pytest.raises(StoreAccessError):
        stranger.put(path, b"", 0)


@pytest.fixture
def root(connect: StoreMaker) -> str:
    """A metadata root of the test's own."""
    path = f"/t-{uuid4().hex}"
    connect().create(path, b"")
    return path


@contextlib.contextmanager
def topics_closed_to(hosts: str, *rules: ACL) -> Iterator[KazooClient]:
    """Let only these use the node of the topics; yield a client without credentials."""
    stranger = KazooClient(hosts)
    stranger.start()
    try:
        stranger.ensure_path("/managed-ledgers")
        stranger.set_acls("/managed-ledgers", list(rules))
        yield stranger
    finally:
        owner = KazooClient(hosts, auth_data=[("digest", ":".join(OWNER))])
        owner.start()
        for tree in ("/managed-ledgers", "/bookwarden"):
            owner.delete(tree, recursive=True)
        for client in (owner, stranger):
            client.stop()
            client.close()
        gc.collect()


OWNER = ("owner", "secret")
CLOSED = (make_digest_acl(*OWNER, all=True), make_digest_acl(*OURS, all=True), make_acl("world", "anyone", read=True))


def rights_of(client: KazooClient, path: str) -> set[tuple[str, str]]:
    return {(rule.id.scheme, rule.id.id.partition(":")[0]) for rule in client.get_acls(path)[0]}


def test_what_is_our_own_is_closed_as_the_topics_are(
    connect: StoreMaker, lone_zookeeper: LoneZooKeeper, root: str
) -> None:
    """A registry that a stranger can replace sends brokers anywhere, however well all of Pulsar is guarded."""
    with topics_closed_to(f"{lone_zookeeper.hosts}{root}", *CLOSED) as stranger:
        # From before the topics were closed.
        stranger.create("/bookwarden")
        stranger.create("/bookwarden/open")
        store = connect(digest=OURS, acl="as-pulsar", chroot=root)
        store.create("/bookwarden/deep/registry", b"1", make_parents=True)
        ephemeral = store.ephemeral_sequential("/bookwarden/deep/id-", b"")
        for path in ("/bookwarden/deep/registry", "/bookwarden/deep", ephemeral):
            assert rights_of(stranger, path) == {("digest", "owner"), ("digest", "warden"), ("world", "anyone")}, path
            with pytest.raises(kazoo.exceptions.NoAuthError):
                stranger.set(path, b"2")
        for path in ("/bookwarden/deep/registry", "/bookwarden/open"):
            with pytest.raises(kazoo.exceptions.NoAuthError):
                stranger.delete(path)
        assert store.put("/bookwarden/deep/registry", b"2", 0) == 1
        elsewhere = f"/elsewhere-{uuid4().hex}"
        store.create(elsewhere, b"")
        assert stranger.get_acls(elsewhere)[0] == stranger.get_acls("/bookwarden/open")[0] == OPEN_ACL_UNSAFE
        # A broker makes it anew, open.
        stranger.delete("/managed-ledgers")
        stranger.create("/managed-ledgers")
        connect(digest=OURS, acl="as-pulsar", chroot=root).create("/bookwarden/later", b"")
        with pytest.raises(kazoo.exceptions.NoAuthError):
            stranger.set("/bookwarden/later", b"2")


def test_credentials_that_see_no_hashes_close_it_all_the_same(
    connect: StoreMaker, lone_zookeeper: LoneZooKeeper, root: str
) -> None:
    ours = make_digest_acl(*OURS, read=True, write=True, create=True, delete=True)
    with topics_closed_to(f"{lone_zookeeper.hosts}{root}", ours, make_digest_acl(*OWNER, all=True)) as stranger:
        store = connect(digest=OURS, acl="as-pulsar", chroot=root)
        store.create("/bookwarden/registry", b"1", make_parents=True)
        with pytest.raises(kazoo.exceptions.NoAuthError):
            stranger.set("/bookwarden/registry", b"2")
        assert store.put("/bookwarden/registry", b"2", 0) == 1
        # For the end of the block.
        nodes = [("/bookwarden/registry", 1), ("/bookwarden", 0)]
        assert store.delete_many(nodes) == [DeleteResult.DELETED] * 2


def test_the_password_is_in_no_log_error_or_text(
    connect: StoreMaker, guarded: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)
    store = connect(digest=OURS)
    assert store.get(guarded) is not None
    assert "Sending request" in caplog.text
    assert SECRET not in caplog.text
    assert SECRET not in repr(ZooKeeperConnection("h:1", digest=OURS, keyfile_password=SECRET))
    assert not any(record.levelno < logging.DEBUG for record in caplog.records)


def test_a_chroot_is_put_before_every_path(connect: StoreMaker) -> None:
    root = f"/t-{uuid4().hex}"
    whole = connect()
    whole.create(root, b"top")
    below = connect(chroot=root)
    below.create("/a", b"1")
    assert whole.get_many([f"{root}/a"])[0] == below.get("/a")
    top = below.get("/")
    assert top is not None
    assert top.value == b"top"
    below.sync()
    path = below.ephemeral_sequential("/id-", b"")
    assert path.startswith("/id-")
    assert below.get(path) is not None
    assert below.list_children("/") == ["a", path[1:]]


def test_a_chroot_that_does_not_exist_is_an_error_and_not_an_empty_store(
    connect: StoreMaker, lone_zookeeper: LoneZooKeeper
) -> None:
    with pytest.raises(ConfigError, match="/nowhere"):
        connect(chroot="/nowhere").get("/ledgers")
    store = open_store(f"zk:{lone_zookeeper.hosts}/nowhere")
    with pytest.raises(ConfigError, match="/nowhere"):
        store.delete_many([("/ledgers", 0)])


def test_no_server_is_one_line_that_names_it(lone_zookeeper: LoneZooKeeper) -> None:
    store = ZooKeeperStore(ZooKeeperConnection("127.0.0.1:1", connect_timeout_s=0.5))
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1 cannot be reached .*refused") as caught:
        store.get("/")
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and certificates of 127.0.0.1 signed by it, one that is valid and one that was, as PEM files."""
    folder = tmp_path_factory.mktemp("certificates")
    ca_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = certificate("test ca", ca_key, "test ca", ca_key)
    server = certificate("127.0.0.1", server_key, "test ca", ca_key)
    key = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "ca.pem").write_bytes(ca)
    (folder / "server.pem").write_bytes(server)
    (folder / "key.pem").write_bytes(key)
    (folder / "store.pem").write_bytes(key + server)
    expired = certificate("127.0.0.1", server_key, "test ca", ca_key, days=-1)
    (folder / "expired.pem").write_bytes(expired)
    (folder / "expired-store.pem").write_bytes(key + expired)
    stranger = ec.generate_private_key(ec.SECP256R1())
    (folder / "other-ca.pem").write_bytes(certificate("other ca", stranger, "other ca", stranger))
    return folder


def certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, issuer_key: ec.EllipticCurvePrivateKey, *, days: int = 1
) -> bytes:
    now = datetime.datetime.now(datetime.timezone.utc)
    is_ca = name == issuer
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=7))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if not is_ca:
        address = x509.IPAddress(ipaddress.ip_address(name))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def secure_zookeeper(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneZooKeeper]:
    with running_with_tls(tmp_path_factory.mktemp("secure"), certificates / "store.pem", certificates) as server:
        yield server


@contextlib.contextmanager
def running_with_tls(home: Path, key_store: Path, certificates: Path) -> Iterator[LoneZooKeeper]:
    settings = (
        "secureClientPort={secure_port}\nsecureClientPortAddress=127.0.0.1\n"
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
        f"ssl.keyStore.location={key_store}\n"
        f"ssl.trustStore.location={certificates / 'ca.pem'}\nssl.clientAuth=need\n"
    )
    with running_zookeeper(home, settings=settings) as server:
        yield server


# kazoo switches SSL 2 and 3 off by options that Python deprecates, and has no other way.
@pytest.mark.filterwarnings("ignore:ssl.OP_NO_SSL:DeprecationWarning")
def test_tls_with_a_client_certificate(secure_zookeeper: LoneZooKeeper, certificates: Path) -> None:
    store = secure_store(secure_zookeeper, certificates, ca="ca.pem", check_hostname=True)
    paths = [f"/tls{index}" for index in range(150)]
    for path in paths:
        store.create(path, b"v" * 2000)
    assert all(store.get_many(paths))
    assert store.delete_many([(path, 0) for path in paths]) == [DeleteResult.DELETED] * 150
    store.close()


# It also leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore:ssl.OP_NO_SSL:DeprecationWarning", "ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_server_that_another_ca_vouches_for_is_not_trusted(
    secure_zookeeper: LoneZooKeeper, certificates: Path
) -> None:
    store = secure_store(secure_zookeeper, certificates, ca="other-ca.pem", connect_timeout_s=2.0)
    with pytest.raises(StoreUnavailableError, match=r"(?i)certificate"):
        store.get("/")
    gc.collect()


@pytest.mark.filterwarnings("ignore:ssl.OP_NO_SSL:DeprecationWarning", "ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_server_whose_certificate_expired_is_named_with_the_reason(zookeeper_home: Path, certificates: Path) -> None:
    with running_with_tls(zookeeper_home, certificates / "expired-store.pem", certificates) as server:
        store = secure_store(server, certificates, ca="ca.pem", connect_timeout_s=3.0)
        with pytest.raises(
            StoreUnavailableError, match=r"certificate has expired.*check the TLS certificates"
        ) as caught:
            store.get("/")
        store.close()
    assert f"127.0.0.1:{server.secure_port} cannot be reached" in str(caught.value)
    assert "\n" not in str(caught.value)
    gc.collect()


@pytest.mark.filterwarnings("ignore:ssl.OP_NO_SSL:DeprecationWarning", "ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_certificate_of_ours_that_expired_is_told_as_the_server_tells_it(
    secure_zookeeper: LoneZooKeeper, certificates: Path
) -> None:
    store = secure_store(secure_zookeeper, certificates, "ca.pem", certfile="expired.pem", connect_timeout_s=3.0)
    with pytest.raises(StoreUnavailableError, match=r"(?i)certificate.*check the TLS certificates"):
        store.get("/")
    store.close()
    gc.collect()


def secure_store(
    server: LoneZooKeeper, certificates: Path, ca: str, certfile: str = "server.pem", **options: object
) -> ZooKeeperStore:
    store = open_store(
        f"zk:127.0.0.1:{server.secure_port}",
        use_ssl=True,
        ca=str(certificates / ca),
        certfile=str(certificates / certfile),
        keyfile=str(certificates / "key.pem"),
        **options,
    )
    assert isinstance(store, ZooKeeperStore)
    return store


@pytest.mark.parametrize(
    "options",
    [
        {"ca": "/no/such/file"},
        {"certfile": __file__},
        {"digest": ("a:b", "c")},
        {"digest": ("a", "")},
        {"acl": "everyone"},
        {"nonsense": 1},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused_before_anything_is_connected(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_store("zk:127.0.0.1:1", **options)


@pytest.mark.parametrize("url", ["zk:", "etcd:host", "host:port", ""])
def test_an_unknown_url_is_refused_with_what_there_is(url: str) -> None:
    with pytest.raises(ConfigError, match=r"zk:"):
        open_store(url)
