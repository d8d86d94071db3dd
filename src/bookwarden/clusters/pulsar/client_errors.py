"""Errors and results of the binary client: the one table that turns them into ours."""

from __future__ import annotations

import pulsar

from bookwarden.errors import BookwardenError, NotFoundError, PulsarAccessError, PulsarError, PulsarUnavailableError

_ACCESS = (pulsar.AuthenticationError, pulsar.AuthorizationError)
_ABSENT = (pulsar.TopicNotFound, pulsar.SubscriptionNotFound)
_LATER = (
    pulsar.BrokerMetadataError,
    pulsar.ConnectError,
    pulsar.LookupError,
    pulsar.NotConnected,
    pulsar.ProducerBlockedQuotaExceededException,
    pulsar.ReadError,
    pulsar.ServiceUnitNotReady,
    pulsar.Timeout,
    pulsar.TooManyLookupRequestException,
    pulsar.UnknownError,
)


def translate(error: pulsar.PulsarException, doing: str) -> BookwardenError:
    """Translate the client's error; the caller chains it. `doing` names the action and the topic."""
    what = f"{doing}: {str(error).removeprefix('Pulsar error: ')}"
    if isinstance(error, _ACCESS):
        return PulsarAccessError(f"{what}; check pulsar.auth and the rights of our role")
    if isinstance(error, _ABSENT):
        return NotFoundError(f"{what}; `bookwarden init` creates the deletion topics")
    if isinstance(error, pulsar.InvalidUrl):
        return PulsarError(f"{what}; check pulsar.service_url")
    if isinstance(error, _LATER):
        return PulsarUnavailableError(f"{what}; check pulsar.service_url and that the broker runs, or try again later")
    return PulsarError(what)


def result_name(result: pulsar.Result) -> str:
    """Return the name of a send's result as in the client's documentation does, such as ``Timeout``."""
    return str(result).removeprefix("Result.")
