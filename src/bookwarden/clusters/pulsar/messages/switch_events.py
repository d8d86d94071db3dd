"""The topic of switch directives: an event for each switch of bookie clusters."""

from __future__ import annotations

from typing import Final

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.producers import ConfirmedProducers
from bookwarden.clusters.pulsar.rest.schemas import WriterSchema
from bookwarden.ledgers.switch_event import SwitchEvent
from bookwarden.wire.switch_event import encode_switch_event, switch_event_schema

SWITCH_TOPIC: Final = "persistent://pulsar/system/__bookie_cluster_switch"
_TIMEOUT_S: Final = 10.0


class SwitchEvents:
    """Sends events; connects at the first."""

    def __init__(self, connection: PulsarConnection) -> None:
        self._producers = ConfirmedProducers(
            lambda: connection.client(operation_timeout_seconds=int(_TIMEOUT_S)), send_timeout_s=_TIMEOUT_S
        )

    def send(self, event: SwitchEvent) -> None:
        """Send an event, and wait until it is confirmed; raise PulsarError if it is not."""
        schema = WriterSchema("AVRO", switch_event_schema())
        self._producers.send(SWITCH_TOPIC, encode_switch_event(event), schema=schema, key=None, properties={})
        self._producers.flush()

    def close(self) -> None:
        """Close the client."""
        self._producers.close()
