"""What a sweep proves before its first batch: that the roots belong to the BookKeeper, and are all that do."""

from __future__ import annotations

import logging
from collections.abc import Callable

from bookwarden.config import Settings
from bookwarden.context import MetadataContext
from bookwarden.errors import StoreUnavailableError
from bookwarden.pipelines.supervisor import Patience
from bookwarden.roots_context import require_all_roots, require_roots_of_bookkeeper

logger = logging.getLogger(__name__)


def prove_roots(
    settings: Settings, metadata: MetadataContext, patience: Patience, wait: Callable[[float], bool]
) -> None:
    """Return when it is proven, or when `wait`, which waits so many seconds, says that the sweep is to stop.

    A store that does not answer is asked again, as often and with the same pauses as a query that fails is started
    again; then its StoreUnavailableError is raised. All other errors are raised at once.
    """
    delay = patience.backoff
    for failures in range(1, patience.max_failures + 1):
        try:
            require_roots_of_bookkeeper(settings, metadata)
            for note in require_all_roots(settings, metadata):
                logger.warning("%s", note)
        except StoreUnavailableError as error:
            if failures == patience.max_failures:
                raise
            logger.warning("the metadata roots cannot be read: %s; failure %d, again in %.1f s", error, failures, delay)
            if wait(delay):
                return
            delay = min(2 * delay, patience.max_backoff)
        else:
            return
