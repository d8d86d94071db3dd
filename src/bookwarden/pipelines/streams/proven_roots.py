"""Proofs of a sweep before its first batch: that the roots belong to the BookKeeper, and are all that do.

A sweep runs for months, in which another Pulsar may appear; so the second proof is repeated all the time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from bookwarden.background import in_background
from bookwarden.config import Settings
from bookwarden.errors import RefusedError, StoreError, StoreUnavailableError
from bookwarden.pipelines.streams.supervisor import Patience
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.roots import roots_proof_of

logger = logging.getLogger(__name__)
LOOK_AGAIN_SECONDS: Final = 300.0
"""Half of what a ledger is old by default before it may go, so that one who lists it by then was seen."""
_END_SECONDS = 5.0


def prove_roots(
    settings: Settings, metadata: MetadataContext, patience: Patience, wait: Callable[[float], bool]
) -> None:
    """Return when it is proven, or when `wait`, called with seconds to wait, returns that the sweep is to stop.

    A store that does not answer is asked again, as often and with the same pauses as a failed query is restarted; then
    its StoreUnavailableError is raised. All other errors are raised at once.
    """
    proof, delay = roots_proof_of(settings.metadata_store, metadata), patience.backoff
    for failures in range(1, patience.max_failures + 1):
        try:
            proof.require_roots_of_bookkeeper()
            for note in proof.require_all_roots():
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


@contextmanager
def looked_at_again(
    look: Callable[[], object], stop: Callable[[], None], seconds: float = LOOK_AGAIN_SECONDS
) -> Iterator[None]:
    """Look for other Pulsars at this interval, in seconds, while the block runs.

    Once `look` refuses, as `RootsProof.require_all_roots` does, `stop` is called, which should end the block; after
    it the RefusedError is raised. A store that does not answer is asked again the next time.
    """
    refused: list[RefusedError] = []

    def watch(ended: threading.Event) -> None:
        while not ended.wait(seconds):
            try:
                look()
            except RefusedError as error:
                logger.error("the sweep stops: %s", error)
                refused.append(error)
                stop()
                return
            except StoreError as error:
                logger.warning("whether another Pulsar shares the BookKeeper cannot be seen now: %s", error)

    with in_background(watch, "other-roots", end_seconds=_END_SECONDS):
        yield
    if refused:
        raise refused[0]
