"""Clients' access to the development cluster's broker."""

from __future__ import annotations

from pathlib import Path

import urllib3

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden_dev.devcluster.credentials import broker_credentials
from bookwarden_dev.devcluster.ports import LOOPBACK
from bookwarden_dev.devcluster.servers.settings import ClusterPorts

_PROBE_SECONDS = 2.0


def service_url(ports: ClusterPorts, auth: str) -> str:
    """Return the URL for Pulsar clients."""
    return f"{'pulsar' if auth == 'none' else 'pulsar+ssl'}://{LOOPBACK}:{ports.broker}"


def admin_url(ports: ClusterPorts, auth: str) -> str:
    """Return the URL of the admin REST."""
    return f"{'http' if auth == 'none' else 'https'}://{LOOPBACK}:{ports.web}"


def broker_connection(
    ports: ClusterPorts, auth: str, credentials_folder: Path, *, superuser: bool = True
) -> PulsarConnection:
    """Return the connection to the broker: as the superuser, or, where there is auth, as a role without rights."""
    addresses = service_url(ports, auth), admin_url(ports, auth)
    if auth == "none":
        return PulsarConnection(*addresses)
    credentials = broker_credentials(credentials_folder)
    trusted = str(credentials.certificate)
    if auth == "tls":
        files = credentials.superuser_certificate if superuser else credentials.ordinary_certificate
        return PulsarConnection(
            *addresses,
            auth="tls",
            tls_certificate_file=str(files.certificate),
            tls_private_key_file=str(files.private_key),
            tls_trust_certs_file=trusted,
        )
    token = credentials.superuser_token if superuser else credentials.ordinary_token
    return PulsarConnection(*addresses, auth="token", token_file=str(token), tls_trust_certs_file=trusted)


def broker_is_ready(connection: PulsarConnection) -> bool:
    """Return whether the broker answers its readiness request with success."""
    headers = {"Authorization": f"Bearer {connection.current_token()}"} if connection.auth == "token" else {}
    with urllib3.PoolManager(
        ca_certs=connection.tls_trust_certs_file,
        cert_file=connection.tls_certificate_file,
        key_file=connection.tls_private_key_file,
        timeout=_PROBE_SECONDS,
        retries=False,
    ) as http:
        try:
            answer = http.request("GET", f"{connection.admin_url}/admin/v2/brokers/ready", headers=headers)
        except urllib3.exceptions.HTTPError:
            return False
        return answer.status == 200
