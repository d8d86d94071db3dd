"""Progress of applying a plan: what a killed apply goes on from."""

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
    """What became of the candidates of a plan so far.

    Every candidate up to ledger ``done_through`` (None: none yet) is done with, save those in ``failed``, whose marks
    were not confirmed. ``marked`` were confirmed, with ``marked_bytes``; ``dropped`` were not as the plan has them.
    ``seen_apart_ms`` is the limit by which others were held back; with another limit it begins anew. ``updated_ms`` is
    in milliseconds since the epoch.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    plan_id: str
    done_through: int | None = None
    failed: tuple[int, ...] = ()
    marked: int = 0
    marked_bytes: int = 0
    dropped: int = 0
    seen_apart_ms: int = 0
    updated_ms: int = 0

    def encode(self) -> bytes:
        """Render the progress as JSON with a checksum."""
        return encode_document(self, _DOCUMENT, FORMAT)

    @classmethod
    def decode(cls, data: bytes, plan_id: str) -> ApplyProgress:
        """Read it back; FormatError if it is damaged, or of another plan."""
        progress = decode_document(data, cls, _DOCUMENT, FORMAT, _INSTEAD)
        if progress.plan_id != plan_id:
            raise FormatError(f"the {_DOCUMENT} is of plan {progress.plan_id} and not of {plan_id}: {_INSTEAD}")
        return progress
