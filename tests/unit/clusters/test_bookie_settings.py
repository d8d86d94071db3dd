"""The settings of the section bookkeeper reach the reader of bookies."""

from __future__ import annotations

from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions
from bookwarden.clusters.bookkeeper.bookies.tls import BookieTls
from bookwarden.config import load_settings
from bookwarden.wiring.bookkeeper import bookie_options_of


def test_the_defaults_are_the_readers_own() -> None:
    assert bookie_options_of(load_settings().bookkeeper) == BookieOptions()


def test_every_setting_has_its_effect() -> None:
    values = {
        "tls": "true",
        "tls_trust_certs_file": "/ca.pem",
        "tls_certificate_file": "/own.pem",
        "tls_private_key_file": "/own.key",
        "tls_validate_hostname": "false",
        "connect_timeout_seconds": "1.5",
        "request_timeout_seconds": "2.5",
        "reads_in_flight": "3",
        "bytes_in_flight": "70000",
    }
    settings = load_settings(overrides={f"bookkeeper.{name}": value for name, value in values.items()})
    assert set(values) == set(type(settings.bookkeeper).model_fields)
    tls = BookieTls("/ca.pem", "/own.pem", "/own.key", validate_hostname=False)
    assert bookie_options_of(settings.bookkeeper) == BookieOptions(1.5, 2.5, 3, 70000, tls)
