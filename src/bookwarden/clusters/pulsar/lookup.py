"""A topic looked up as clients do it: through one address, by Pulsar's binary protocol, without creating anything."""

from __future__ import annotations

from contextlib import closing
from typing import Final, NamedTuple

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.protocol import LOOKED_UP, LOOKUP, Session, refused
from bookwarden.errors import PulsarError, PulsarUnavailableError
from bookwarden.wire.pb.pulsar_api_pb2 import BaseCommand, CommandLookupTopicResponse

_TIMEOUT_S: Final = 10.0
_REDIRECTS: Final = 5


class LookedUp(NamedTuple):
    """The answer: the owner's address of the kind that was asked for, and the version of the server that was reached.

    ``through_proxy`` says that clients stay with the address that they have.
    """

    owner: str
    server: str
    through_proxy: bool


def lookup(connection: PulsarConnection, url: str, topic: str, timeout_s: float = _TIMEOUT_S) -> LookedUp:
    """Look a topic up through this address, with the credentials of the connection; follow redirects.

    ``url`` names one host, and is of the settings. The topic need not exist, and does not afterwards. Raises
    PulsarUnavailableError without an answer, PulsarAccessError where the credentials are refused or a redirect leads to
    where they are not sent, PulsarError where the lookup is refused, ConfigError for an address that is none.
    """
    authoritative, connection = False, connection.trusting(url)
    for _ in range(_REDIRECTS):
        with closing(Session(connection, url, timeout_s)) as session:
            answer = _ask(session, connection, url, topic, timeout_s, authoritative=authoritative)
            owner = answer.brokerServiceUrlTls if url.startswith("pulsar+ssl:") else answer.brokerServiceUrl
            if answer.response == CommandLookupTopicResponse.Failed:
                raise refused(f"looking {topic} up through {url}", answer.error, answer.message)
            if not owner:
                raise PulsarError(f"{url} found {topic}, and named no address of the kind that was asked with")
            if answer.response == CommandLookupTopicResponse.Connect:
                return LookedUp(owner, session.server, answer.proxy_through_service_url)
            url, authoritative = owner, answer.authoritative
    raise PulsarUnavailableError(f"looking {topic} up was redirected more than {_REDIRECTS} times; try again later")


def look_up(connection: PulsarConnection, url: str, topic: str) -> tuple[str, str]:
    """Look a topic up as `lookup` does; return its owner's address, and the version of the server."""
    found = lookup(connection, url, topic)
    return found.owner, found.server


def _ask(
    session: Session, connection: PulsarConnection, url: str, topic: str, timeout_s: float, *, authoritative: bool
) -> CommandLookupTopicResponse:
    asked = BaseCommand(type=LOOKUP)
    asked.lookupTopic.topic, asked.lookupTopic.request_id = topic, 1
    asked.lookupTopic.authoritative = authoritative
    if connection.client_options.get("listener_name"):
        asked.lookupTopic.advertised_listener_name = str(connection.client_options["listener_name"])
    session.send(asked)
    return session.answer(LOOKED_UP, f"looking {topic} up through {url}", timeout_s).lookupTopicResponse
