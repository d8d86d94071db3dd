"""Limits of requests to the stores of offloaded copies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """``attempts`` counts tries of one request, with a growing pause between them; times are in seconds.

    ``parallel`` is how many single requests are under way at once.
    """

    attempts: int = 5
    parallel: int = 16
    connect_timeout: float = 5.0
    read_timeout: float = 20.0
    abort_uploads: bool = True
