"""The base of all kinds of holders, and the names that kinds share with messages and with people."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from bookwarden.errors import FormatError
from bookwarden.ledgers.managed_ledger import CursorInfo


class LedgerComponent(enum.Enum):
    """The component of Pulsar that a ledger belonged to.

    The first three are PIP-186's enum names; the others are ours, since the proposal has none for these ledgers.
    """

    MANAGED_LEDGER = "MANAGED_LEDGER"
    MANAGED_CURSOR = "MANAGED_CURSOR"
    SCHEMA_STORAGE = "SCHEMA_STORAGE"
    COMPACTED_LEDGER = "COMPACTED_LEDGER"
    DELAYED_INDEX_BUCKET = "DELAYED_INDEX_BUCKET"


class PlaceKind(enum.Enum):
    """The kind of a place in the metadata; the values are for people."""

    MANAGED_LEDGER = "managed ledger"
    SHADOW_TOPIC = "shadow topic"
    CURSOR = "cursor"
    COMPACTED = "compacted ledger of a cursor's node"
    COMPACTED_NOW = "compacted ledger of a cursor's last entry"
    BUCKET = "bucket of delayed messages"
    SCHEMA = "schema"
    LOG_SEGMENT = "log segment"
    LOG_ALLOCATION = "log allocation"


# The fields of a mark that name its holder: the topic, the subscription, the id of the schema.
MarkFields = tuple[str, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Holder:
    """An owner of ledgers in Pulsar's metadata; each subclass is a kind, and has all that is known of it."""

    component: ClassVar[LedgerComponent]  #: The kind, as marks and listings name it.
    places: ClassVar[tuple[PlaceKind, ...]]  #: The places that name ledgers of this kind.
    label: ClassVar[str]  #: For people: such a holder.
    ledgers_label: ClassVar[str]  #: For people: its ledgers.
    prefix: ClassVar[str] = ""  #: Begins the text of each holder of the kind.
    names_below: ClassVar[int]  #: Number of names in the text below those of the namespace.
    tag: ClassVar[str]  #: Value under COMPONENT in the custom metadata.
    tag_names: ClassVar[tuple[str, ...]]  #: Keys of its other values.

    @classmethod
    @abstractmethod
    def of_text(cls, text: str) -> Holder | None:
        """Read the text of a holder of this kind back; None for any other text."""

    @property
    @abstractmethod
    def topic(self) -> str:
        """The managed ledger of the topic that it belongs to; of a schema, that of the topic without partitions."""

    @abstractmethod
    def tags(self) -> dict[str, str]:
        """Return the values of `tag_names` in the custom metadata of its ledgers."""

    @classmethod
    @abstractmethod
    def of_tags(cls, tags: Mapping[str, str]) -> Holder:
        """Read the holder off custom metadata that has all `tag_names`; FormatError if it is that of no holder."""

    @abstractmethod
    def mark_fields(self) -> MarkFields:
        """Return its fields in a mark: by the managed ledger, since a topic's name with a slash in it is ambiguous."""

    @classmethod
    @abstractmethod
    def of_mark(cls, topic_name: str, cursor_name: str | None, schema_id: str | None) -> Holder:
        """Return the holder that a mark of this kind names; FormatError if it names none."""

    def named_by(self) -> tuple[Holder, ...]:
        """Return the holders whose nodes say whether its ledgers are in use, the one that names them first."""
        return (self,)

    def is_markable(self) -> bool:
        """Return whether a mark of the holder is read back as the same holder."""
        return _marks_itself(self)


@dataclass(frozen=True, slots=True)
class CursorsHolder(Holder):
    """A holder whose ledgers the node of a cursor names."""

    managed_ledger: str

    @property
    def topic(self) -> str:
        return self.managed_ledger

    @classmethod
    @abstractmethod
    def of_cursor(cls, managed_ledger: str, cursor: str) -> CursorsHolder:
        """Return the holder of this kind whose ledgers a cursor's node names."""

    @staticmethod
    @abstractmethod
    def ledgers_in(info: CursorInfo) -> frozenset[int]:
        """Return the ledgers of this kind that a cursor's node names."""


@lru_cache(maxsize=16_384)
def _marks_itself(holder: Holder) -> bool:
    try:
        return holder.of_mark(*holder.mark_fields()) == holder
    except FormatError:
        return False
