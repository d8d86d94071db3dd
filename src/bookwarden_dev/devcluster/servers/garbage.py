"""Garbage collection of a bookie on demand, over the bookie's own HTTP server.

Sources: TriggerGCService and GarbageCollectorThread of BookKeeper 4.17.
"""

from __future__ import annotations

import urllib3

from bookwarden.errors import ServerError
from bookwarden_dev.devcluster.ports import LOOPBACK


class GarbageOnDemand:
    """Lets a bookie collect its garbage when asked, and by itself only after an hour.

    For clusters made with ``bookie_settings`` among their options.
    """

    def __init__(self, port: int) -> None:
        self._url = f"http://{LOOPBACK}:{port}/api/v1/bookie/gc"
        self.bookie_settings = {
            "httpServerEnabled": "true",
            "httpServerHost": LOOPBACK,
            "httpServerPort": str(port),
            # Milliseconds, also before the first; a bookie does not start with more than minorCompactionInterval.
            "gcWaitTime": "3600000",
        }

    def collect(self) -> None:
        """Start a collection of the bookie, unless one is under way; raise ServerError if it does not."""
        with urllib3.PoolManager(retries=False, timeout=10.0) as pool:
            try:
                status = pool.request("PUT", self._url).status
            except urllib3.exceptions.HTTPError as error:
                raise ServerError(f"the bookie cannot be asked to collect its garbage: {error}") from error
        if status != 200:
            raise ServerError(f"the bookie answered {status} when asked to collect its garbage: see its log")
