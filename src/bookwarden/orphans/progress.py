"""Progress of applying a plan, from which a killed apply continues."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ConfigDict

from bookwarden.errors import FormatError
from bookwarden.orphans.documents import decode_document, encode_document

FORMAT = 1
_DOCUMENT = "progress of a plan"
_INSTEAD = (
    "delete the file to begin at the plan's first candidate again (a ledger that is marked twice is deleted once), "
    "or make another plan"
)


@dataclass(frozen=True, slots=True)
class ApplyProgress:
    """The runs of a plan so far, taken together."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    plan_id: str  #: As in the manifest.
    #: Every candidate up to this ``order`` is settled, save ``failed``; None: none yet.
    done_through: int | None = None
    failed: tuple[int, ...] = ()  #: The ``order`` of those whose marks were not confirmed.
    marked: int = 0  #: Confirmed marks.
    marked_bytes: int = 0  #: Logical bytes of the marked.
    dropped: int = 0  #: Candidates that were no longer as the plan has them.
    seen_apart_ms: int = 0  #: Others were held back by this limit; under another one, applying starts over.
    updated_ms: int = 0  #: In ms since the epoch.
    #: Candidates of these topics and namespaces were held back; with others, applying starts over.
    not_emptied: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Render the progress as JSON with a checksum."""
        return encode_document(self, _DOCUMENT, FORMAT)

    @classmethod
    def decode(cls, data: bytes, plan_id: str) -> ApplyProgress:
        """Parse the progress; FormatError if it is damaged, or of another plan."""
        progress = decode_document(data, cls, _DOCUMENT, FORMAT, _INSTEAD)
        if progress.plan_id != plan_id:
            raise FormatError(f"the {_DOCUMENT} is of plan {progress.plan_id} and not of {plan_id}: {_INSTEAD}")
        return progress
