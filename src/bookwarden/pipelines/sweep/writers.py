"""The number of tasks that may delete ledgers at a time: one alone where a metadata store takes one writer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from bookwarden.config import MetadataStoreSettings
from bookwarden.errors import BookwardenError
from bookwarden.wiring.stores import has_one_writer

logger = logging.getLogger(__name__)


class Writers:
    """Decides whether one task alone may delete, by the settings and by what is known besides.

    ``moved_to`` names the store that BookKeeper's metadata was moved to, None as long as it was not. ``registered``
    reads which stores registered bookie clusters have of their own; a BookwardenError says that this is not known.
    """

    def __init__(
        self,
        settings: MetadataStoreSettings,
        moved_to: Callable[[], str | None] = lambda: None,
        registered: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._settings = settings
        self._moved_to = moved_to
        self._read_registered = registered
        self._registered: Sequence[str] | None = ()

    def look(self) -> None:
        """Read the stores of registered bookie clusters; while they are not known one of them may be an Oxia."""
        try:
            self._registered = self._read_registered()
        except BookwardenError as error:
            logger.warning("one task at a time deletes ledgers, since it is not known where all of them are: %s", error)
            self._registered = None

    @property
    def must_be_one(self) -> bool:
        """Whether one task alone may delete, by the latest look, and by where the metadata is now."""
        moved_to = self._moved_to()
        return self._registered is None or has_one_writer(
            self._settings, [*self._registered, *([moved_to] if moved_to else [])]
        )
