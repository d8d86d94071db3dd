"""`bookwarden serve`: REST, for programs that drive what commands do, and a web page."""

from __future__ import annotations

import ipaddress
import logging

import click

from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.clusters.pulsar.connection import read_token
from bookwarden.config import ServeSettings
from bookwarden.errors import ConfigError

logger = logging.getLogger(__name__)
# How long requests under way may take when it is stopped: a switch waits for brokers.
_STOPPING_SECONDS = 30


@click.command()
@pass_invocation
def serve(invocation: Invocation) -> None:
    """Serve bookie-clusters by REST, and a web page.

    Offers /admin/v2/bookie-clusters, and at / a page that only reads, at serve.host and serve.port until it is stopped.
    Needs a token unless that is this machine alone.
    """
    # Late, since the extra that brings these may be missing.
    import uvicorn

    from bookwarden.server.app import listen, make_app

    settings = invocation.settings.serve
    token = _token(settings)
    if token is None and not _is_loopback(settings.host):
        raise ConfigError(
            f"serve.host {settings.host} can be reached from other machines: set serve.token_file, or "
            "BOOKWARDEN_SERVE__TOKEN"
        )
    invocation.set_up_logging(logging.INFO)
    # It has the starts and ends too.
    logging.getLogger("uvicorn.error").name = "uvicorn"
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(invocation.settings, token),
            ssl_certfile=settings.tls_certificate_file,
            ssl_keyfile=settings.tls_private_key_file,
            log_config=None,
            timeout_graceful_shutdown=_STOPPING_SECONDS,
        )
    )
    listening = listen(settings.host, settings.port)
    logger.info("serving / and /admin/v2/bookie-clusters on %s port %d", settings.host, settings.port)
    try:
        server.run([listening])
    except OSError as error:
        raise ConfigError(f"serve.tls_certificate_file and its key cannot be used: {error}") from error


def _token(settings: ServeSettings) -> str | None:
    if settings.token_file is not None:
        return read_token(settings.token_file)
    return None if settings.token is None else settings.token.get_secret_value() or None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
