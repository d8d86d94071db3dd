"""Wiring of the drain of a former bookie cluster."""

from __future__ import annotations

from bookwarden.config import Settings
from bookwarden.resources import Resources
from bookwarden.switching.moving.draining import Draining
from bookwarden.wiring.cleanup import CleanupContext, PromotionContext


class DrainContext(Resources):
    """Everything that drains a former cluster; close it, or use it in a with statement."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        with self._closed_on_error():
            cleaning = self._keep(CleanupContext(settings))
            promotion = self._keep(PromotionContext(settings))
            switching = cleaning.switching
            #: Drains, and says how far a drain is.
            self.draining = Draining(
                switching.registered.registry,
                switching.inventory,
                cleaning.cleanup,
                promotion.promoting,
                switching.topics.unload,
            )
