"""The admin client over real sockets: redirects, credentials, refusals, and errors that say what to do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.registered_brokers import (
    read_loaded_topics,
    read_registered_brokers,
    read_web_brokers,
)
from bookwarden.errors import (
    BookwardenError,
    ConfigError,
    NotFoundError,
    PulsarAccessError,
    PulsarConflictError,
    PulsarError,
    PulsarUnavailableError,
)
from bookwarden.metastore.memory import MemoryStore

SECRET = "eyJhbGciOiJIUzI1NiJ9.very-secret"
Answer = tuple[int, dict[str, str], str]


class Site:
    """An HTTP server that answers as the test says and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str | None, bytes]] = []
        self.answer: Callable[[str], Answer] = lambda path: (200, {}, "{}")
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                site.asked.append((self.command, self.path, self.headers.get("Authorization"), body))
                status, headers, text = site.answer(self.path)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(text.encode()))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_PUT = do_POST = do_DELETE = handle_any

            def log_message(self, format: str, *args: object) -> None:
                """Keep the test's output clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


@pytest.fixture
def other() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def admin_of(url: str, **credentials: object) -> PulsarAdmin:
    return PulsarAdmin(PulsarConnection("pulsar://127.0.0.1:1", url, **credentials), timeout_s=2.0)


def test_a_redirect_to_the_owner_is_followed_with_method_body_and_credentials(site, other):
    site.answer = lambda path: (307, {"Location": f"{other.url}{path}&authoritative=true"}, "")
    with_token = admin_of(site.url, auth="token", token=SECRET)
    with_token.put("/persistent/t/n/a/unload", {"x": 1}, params={"force": True})
    assert other.asked == [
        ("PUT", "/admin/v2/persistent/t/n/a/unload?force=true&authoritative=true", f"Bearer {SECRET}", b'{"x": 1}')
    ]
    with_token.close()


def named(url: str) -> str:
    """The same address by another name of this machine."""
    return url.replace("127.0.0.1", "localhost")


def test_a_token_follows_no_redirect_to_a_host_that_the_settings_do_not_name(site, other):
    site.answer = lambda path: (307, {"Location": f"{named(other.url)}{path}"}, "")
    with pytest.raises(PulsarAccessError) as refused:
        admin_of(site.url, auth="token", token=SECRET).get_json("/clusters")
    assert named(other.url) in str(refused.value)
    assert "pulsar.trusted_hosts" in str(refused.value)
    assert SECRET not in str(refused.value)
    assert other.asked == []
    for credentials in ({"auth": "none"}, {"auth": "token", "token": SECRET, "trusted_hosts": ("elsewhere", "LOCAL*")}):
        assert admin_of(site.url, **credentials).get_json("/clusters") == {}
    assert [asked[2] for asked in other.asked] == [None, f"Bearer {SECRET}"]


def test_a_token_is_not_sent_to_a_broker_that_only_a_node_of_the_metadata_store_names(site, other):
    store = MemoryStore()
    registration = {"webServiceUrl": named(other.url), "brokerVersion": "4.0.8"}
    store.create("/loadbalance/brokers/b:8080", json.dumps(registration).encode(), make_parents=True)
    connection = PulsarConnection("pulsar://127.0.0.1:1", site.url, auth="token", token=SECRET)
    (broker,) = read_registered_brokers(store, connection)
    assert broker.settings is None
    assert broker.error is not None
    assert named(other.url) in broker.error
    assert "pulsar.trusted_hosts" in broker.error
    with pytest.raises(PulsarAccessError, match=r"pulsar\.trusted_hosts"):
        read_loaded_topics(store, connection)
    assert other.asked == []
    trusting = replace(connection, trusted_hosts=("localhost",))
    assert read_registered_brokers(store, trusting)[0].settings == {}
    assert {asked[2] for asked in other.asked} == {f"Bearer {SECRET}"}
    # What clients are told is of the settings.
    other.answer = lambda path: (200, {}, '["b:8080"]')
    assert read_web_brokers(connection, named(other.url)) == {"b:8080"}


def test_credentials_are_never_sent_on_over_another_scheme(site):
    site.answer = lambda path: (307, {"Location": "https://elsewhere.invalid/admin"}, "")
    with pytest.raises(PulsarError, match=r"https://elsewhere\.invalid; credentials are not sent there"):
        admin_of(site.url, auth="token", token=SECRET).get_json("/clusters")


def test_endless_redirects_end(site):
    site.answer = lambda path: (307, {"Location": path}, "")
    with pytest.raises(PulsarUnavailableError, match="redirected GET more than 5 times"):
        admin_of(site.url).get_json("/clusters")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, PulsarAccessError),
        (403, PulsarAccessError),
        (404, NotFoundError),
        (409, PulsarConflictError),
        (412, PulsarConflictError),
        (422, PulsarError),
        (429, PulsarUnavailableError),
        (500, PulsarUnavailableError),
        (503, PulsarUnavailableError),
    ],
)
def test_a_refusal_names_what_was_asked_and_the_reason_but_no_secret(site, status, kind):
    site.answer = lambda path: (status, {}, json.dumps({"reason": f"no\n  way, {SECRET}"}))
    with pytest.raises(BookwardenError) as caught:
        admin_of(site.url, auth="token", token=SECRET).delete("/persistent/t/n/a")
    assert type(caught.value) is kind
    assert "DELETE /persistent/t/n/a" in str(caught.value)
    assert "no way, ***" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_topic_that_has_no_owner_for_the_moment_is_a_matter_of_time(site):
    site.answer = lambda path: (412, {}, json.dumps({"reason": "Can't find owner for topic persistent://t/n/a"}))
    with pytest.raises(PulsarUnavailableError, match="Can't find owner for topic persistent://t/n/a; try again later"):
        admin_of(site.url).get_json("/persistent/t/n/a/internalStats")


def test_a_rotated_token_is_used_at_once(site, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("one\n")
    admin = admin_of(site.url, auth="token", token_file=str(file))
    admin.get_json("/clusters")
    file.write_text("two\n")
    admin.get_json("/clusters")
    assert [asked[2] for asked in site.asked] == ["Bearer one", "Bearer two"]


def test_an_oauth2_token_is_fetched_once_and_again_after_its_end(site, tmp_path: Path):
    lives = iter((0, 3600))

    def answer(path: str) -> Answer:
        if path == "/issuer/.well-known/openid-configuration":
            return 200, {}, json.dumps({"token_endpoint": f"{site.url}/token"})
        if path == "/token":
            return 200, {}, json.dumps({"access_token": f"t{len(site.asked)}", "expires_in": next(lives) or 1e-9})
        return 200, {}, "[]"

    site.answer = answer
    key = tmp_path / "key.json"
    key.write_text(json.dumps({"client_id": "me", "client_secret": SECRET}))
    oauth2 = {"issuer_url": f"{site.url}/issuer", "private_key": f"file://{key}", "audience": "urn:pulsar"}
    admin = admin_of(site.url, auth="oauth2", oauth2=oauth2)
    for _ in range(3):
        admin.get_json("/clusters")
    assert [asked[2] for asked in site.asked if asked[1] == "/admin/v2/clusters"] == [
        "Bearer t2",
        "Bearer t5",
        "Bearer t5",
    ]
    (first, _) = [asked[3] for asked in site.asked if asked[1] == "/token"]
    assert b"grant_type=client_credentials" in first
    assert b"audience=urn%3Apulsar" in first


def test_oauth2_that_is_refused_says_so_without_the_secret(site, tmp_path: Path):
    site.answer = lambda path: (
        (200, {}, json.dumps({"token_endpoint": f"{site.url}/token"})) if "well-known" in path else (401, {}, SECRET)
    )
    key = tmp_path / "key.json"
    key.write_text(json.dumps({"client_id": "me", "client_secret": SECRET}))
    with pytest.raises(PulsarAccessError, match="answered 401") as caught:
        admin_of(site.url, auth="oauth2", oauth2={"issuer_url": site.url, "private_key": str(key)}).get_json(
            "/clusters"
        )
    assert SECRET not in str(caught.value)


def test_a_connection_that_the_server_closed_meanwhile_is_opened_anew(site):
    admin = admin_of(site.url)
    site.answer = lambda path: (200, {"Connection": "close"}, "[]")
    for _ in range(3):
        assert admin.get_json("/clusters") == []


def test_an_answer_that_is_not_json_names_the_setting(site):
    site.answer = lambda path: (200, {}, "<html>")
    with pytest.raises(PulsarError, match=r"pulsar\.admin_url"):
        admin_of(site.url).get_json("/clusters")


@pytest.mark.parametrize("url", ["http://:8080", "pulsar://a:1", "a:8080", "http://a:b", "http://me:pw@a:8080"])
def test_an_address_that_cannot_work_is_a_setting_at_fault(url):
    with pytest.raises(ConfigError, match=r"pulsar\.admin_url") as caught:
        admin_of(url)
    assert "pw" not in str(caught.value)


def test_nobody_at_the_address_is_told_with_the_setting(site):
    site.close()
    with pytest.raises(PulsarUnavailableError, match=r"not reachable: check pulsar\.admin_url"):
        admin_of(site.url).get_json("/clusters")


def test_https_to_a_plain_port_is_a_setting_at_fault(site):
    with pytest.raises(ConfigError, match=r"does not speak TLS: check pulsar\.admin_url"):
        admin_of(site.url.replace("http:", "https:")).get_json("/clusters")


def test_missing_certificates_are_named():
    with pytest.raises(ConfigError, match="tls_trust_certs_file"):
        admin_of("https://a:8443", tls_trust_certs_file="/no/such/file")
    with pytest.raises(ConfigError, match="tls_certificate_file"):
        admin_of("https://a:8443", auth="tls")
