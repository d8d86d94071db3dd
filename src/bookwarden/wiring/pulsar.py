"""Wiring of the connection to Pulsar's brokers."""

from __future__ import annotations

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.config import PulsarSettings


def connection_of(pulsar: PulsarSettings) -> PulsarConnection:
    """Return the addresses and credentials of the Pulsar cluster."""
    key = pulsar.oauth2.private_key.get_secret_value()
    return PulsarConnection(
        service_url=pulsar.service_url,
        admin_url=pulsar.admin_url,
        auth=pulsar.auth,
        token=pulsar.token.get_secret_value() if pulsar.token else None,
        token_file=pulsar.token_file,
        tls_certificate_file=pulsar.tls_certificate_file,
        tls_private_key_file=pulsar.tls_private_key_file,
        tls_trust_certs_file=pulsar.tls_trust_certs_file,
        tls_allow_insecure=pulsar.tls_allow_insecure,
        tls_validate_hostname=pulsar.tls_validate_hostname,
        trusted_hosts=pulsar.trusted_hosts,
        oauth2={name: value for name, value in {**pulsar.oauth2.model_dump(), "private_key": key}.items() if value},
        client_options=dict(pulsar.client),
    )


def admin_of(connection: PulsarConnection, timeout_s: float) -> PulsarAdmin:
    """Make an admin client of its own, whose requests take ``timeout_s`` at most; the caller closes it."""
    return PulsarAdmin(connection, timeout_s)
