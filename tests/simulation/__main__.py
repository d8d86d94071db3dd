"""Play lives: one with ``--seed 123 --steps 500``, as many as it takes with ``--steps 1000000`` alone."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from .runner import STEPS_OF_A_LIFE, hunt, run
from .script import FEATURES, KINDS


def main() -> int:
    """Play what was asked for; 1 if something was violated."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play the life of this number only")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first number, without --seed")
    parser.add_argument("--steps", type=int, default=20_000, help="operations of that life, or of all together")
    parser.add_argument("--without", action="append", default=[], help="a feature that is left out", choices=FEATURES)
    parser.add_argument("--only", action="append", default=[], help="leave out all other features", choices=FEATURES)
    parser.add_argument("--often", action="append", default=[], help="what happens ten times as often", choices=KINDS)
    parser.add_argument("--whole", action="store_true", help="do not make the script smaller")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    features = (frozenset(asked.only) or FEATURES) - frozenset(asked.without)
    started = time.monotonic()
    if asked.seed is not None:
        failure = run(asked.seed, asked.steps, features, often=asked.often, shrink=not asked.whole)
    else:
        failure = hunt(asked.steps, features, often=asked.often, first_seed=asked.first, shrink=not asked.whole)
    took = time.monotonic() - started
    lives = 1 if asked.seed is not None else max(1, asked.steps // STEPS_OF_A_LIFE)
    sys.stdout.write(f"{failure or f'{asked.steps:,} steps of {lives:,} lives: nothing was violated'}\n{took:.1f} s\n")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
