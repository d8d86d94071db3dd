"""Holes that were closed, each put back by a change of the product: the simulation has to find every one."""

from __future__ import annotations

from . import deciding, reading, scanning, settling
from .hole import Hole

MUTATIONS: dict[str, Hole] = {**reading.HOLES, **deciding.HOLES, **settling.HOLES, **scanning.HOLES}

__all__ = ["MUTATIONS", "Hole"]
