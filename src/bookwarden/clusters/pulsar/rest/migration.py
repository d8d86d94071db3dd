"""A broker's REST about the migration of its metadata store (PIP-454).

Format: MetadataMigrationBase of Pulsar 4.2: GET status answers MigrationState; POST start answers 204 at once and does
everything in the background: its failures are in that broker's log and in the flag alone.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Final, NamedTuple

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.errors import (
    BookwardenError,
    FormatError,
    NotFoundError,
    PulsarAccessError,
    PulsarError,
    PulsarUnavailableError,
    RefusedError,
)

_PATH: Final = "/metadata/migration"
# The broker connects to the target before it answers.
_START_TIMEOUT_S: Final = 30.0
_MAX_REASON: Final = 300


class BrokerStatus(NamedTuple):
    """A broker's answer: the phase, and the target if there is one."""

    phase: str
    target_url: str | None


class MigrationAdmin:
    """Asks the broker that an admin REST reaches."""

    def __init__(self, admin: PulsarAdmin) -> None:
        self._admin = admin

    def status(self) -> BrokerStatus:
        """Ask for the phase, as this broker sees it; the flag in the source is authoritative.

        Raises NotFoundError where the broker is older than 4.2, PulsarAccessError where our role is no superuser's,
        PulsarError or FormatError without a usable answer.
        """
        try:
            answer = self._admin.get_json(f"{_PATH}/status")
        except (NotFoundError, PulsarAccessError) as error:
            raise _explained(error) from error
        try:
            target = answer.get("targetUrl")
            return BrokerStatus(str(answer["phase"]), None if target is None else str(target))
        except (AttributeError, KeyError) as error:
            raise FormatError(f"GET {_PATH}/status answered without a phase: {str(answer)[:200]}") from error

    def brokers(self) -> list[str]:
        """List the brokers of this broker's cluster; raises PulsarError."""
        return [str(name) for name in self._admin.get_json("/brokers")]

    def start(self, target_url: str) -> None:
        """Have this broker begin the migration, once the flag is known to be absent.

        Returns when the broker took the order, not when anything was done. Raises as `status`; RefusedError where the
        broker's store cannot be migrated, PulsarError where the broker refused for another reason, and
        PulsarUnavailableError where it did not answer in time: it waits for a target that it cannot reach, and may
        begin when it can.
        """
        params = {"target": target_url}
        try:
            answer = self._admin.request(
                "POST", f"{_PATH}/start", params=params, ok=(200, 204, 400, 500), timeout_s=_START_TIMEOUT_S
            )
        except (NotFoundError, PulsarAccessError) as error:
            raise _explained(error) from error
        except PulsarUnavailableError as error:
            raise PulsarUnavailableError(
                f"{error}; if the broker waits for {target_url}, it begins as soon as it reaches it: restart that "
                "broker unless you want that, and look at `bookwarden metadata-migration status`"
            ) from error
        if answer.status == 400:
            raise RefusedError(f"the broker refuses: {_reason(answer.data)} (only brokers on a ZooKeeper can migrate)")
        if answer.status == 500:
            raise PulsarError(
                f"the broker could not begin with {target_url}: {_reason(answer.data)}; nothing was "
                "written: check that the brokers reach that Oxia and that the namespace exists"
            )


def _explained(error: BookwardenError) -> BookwardenError:
    if isinstance(error, NotFoundError):
        # What a broker says that has no such path is of no use: some lines of its web server's JSON.
        return NotFoundError("the broker knows no migrations: they need Pulsar 4.2 or newer on all brokers")
    return PulsarAccessError(f"{error}; only a superuser (superUserRoles) may ask for migrations")


def _reason(body: bytes) -> str:
    """Return the message in a broker's answer, without the Java stack trace."""
    text = body.decode("utf-8", "replace")
    with suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["reason"])
    message = re.search(r"Message:\s*(.*?)\s*(?:Stacktrace:|$)", text, re.DOTALL)
    return " ".join((message[1] if message else text).split())[:_MAX_REASON] or "no reason given"
