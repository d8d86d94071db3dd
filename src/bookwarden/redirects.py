"""Redirects of clients to another cluster (PIP-188), as brokers keep them."""

from __future__ import annotations

from dataclasses import dataclass

#: The property of a managed ledger whose topic was migrated; brokers write it with the terminated position.
MIGRATED_PROPERTY = "migrated"


@dataclass(frozen=True, slots=True)
class RedirectUrls:
    """Addresses of the cluster that clients are sent to, as they reach it; "" where there is none."""

    web_service_url: str = ""
    web_service_url_tls: str = ""
    broker_service_url: str = ""
    broker_service_url_tls: str = ""


@dataclass(frozen=True, slots=True)
class ClusterFlag:
    """The migration of a cluster as its metadata has it; ``migrated`` is for all of its namespaces."""

    migrated: bool
    urls: RedirectUrls
