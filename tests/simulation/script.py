"""Scripts: operations with a seed each; how one is made from a number, carried out, and made smaller."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import NamedTuple

from . import brokers, damage, forging, switches
from .faults import Troubles
from .life import Life

Action = Callable[[Life, Random], None]


class Operation(NamedTuple):
    """One thing that happens; whatever it draws comes from its seed."""

    name: str
    seed: int


class Script(NamedTuple):
    """A life and what happens in it."""

    life: int
    operations: tuple[Operation, ...]


class _Kind(NamedTuple):
    """How often an operation comes, what it does, and the feature that it needs, "" for none."""

    weight: int
    action: Action
    feature: str = ""


def _of_world(operation: brokers.Operation) -> Action:
    return lambda life, rng: operation(life.world, rng)


def _troubled(action: Callable[[Life, Random, Troubles], None]) -> Action:
    return lambda life, rng: action(life, rng, _troubles(rng))


def _troubles(rng: Random) -> Troubles:
    return Troubles(
        failures=rng.choice((0.0, 0.0, 0.02, 0.1)),
        interleaved=rng.choice((0.0, 0.05, 0.2)),
        kill_at=rng.randrange(1, 60) if rng.random() < 0.15 else None,
        lags=rng.random() < 0.2,
        truncates=rng.random() < 0.1,
    )


def _wait(life: Life, rng: Random) -> None:
    life.world.advance(rng.choice((rng.random() * 30, rng.random() * 900, rng.random() * 7200)))


def _wait_long(life: Life, rng: Random) -> None:
    life.world.advance(rng.choice((30, 80, 200)) * 3600.0)


def _turn_sweepers_clock(life: Life, rng: Random) -> None:
    life.sweeper.skew_s = rng.choice((0.0, 0.0, -300.0, 300.0, 86_400.0, -86_400.0))


def _mark_with_a_slow_clock(life: Life, rng: Random) -> None:
    life.mark_topic(rng, _troubles(rng), skew_ms=rng.choice((-900_000, 900_000)))


_BYTES = ("random", "cut", "flip")
KINDS: dict[str, _Kind] = {
    "create topic": _Kind(5, _of_world(brokers.create_topic)),
    "roll over": _Kind(30, _of_world(brokers.roll_over)),
    "trim": _Kind(6, _of_world(brokers.trim)),
    "subscribe": _Kind(2, _of_world(brokers.subscribe)),
    "switch cursor": _Kind(6, _of_world(brokers.switch_cursor)),
    "unsubscribe": _Kind(1, _of_world(brokers.unsubscribe)),
    "make bucket": _Kind(3, _of_world(brokers.make_bucket)),
    "drop bucket": _Kind(1, _of_world(brokers.drop_bucket)),
    "restart broker": _Kind(1, _of_world(brokers.restart_broker)),
    "compact": _Kind(9, _of_world(brokers.compact)),
    "add schema": _Kind(3, _of_world(brokers.add_schema)),
    "delete schema": _Kind(1, _of_world(brokers.delete_schema)),
    "delete topic": _Kind(2, _of_world(brokers.delete_topic)),
    "shadow": _Kind(1, _of_world(brokers.shadow)),
    "collect": _Kind(1, _of_world(brokers.collect)),
    "replicate again": _Kind(1, _of_world(brokers.replicate_again), "replication"),
    "wait": _Kind(14, _wait),
    "wait long": _Kind(2, _wait_long),
    "sweep": _Kind(22, _troubled(Life.sweep)),
    "scan": _Kind(3, _troubled(lambda life, rng, troubles: _ignore(life.scan(rng, troubles)))),
    "apply": _Kind(3, _troubled(lambda life, rng, troubles: _ignore(life.apply(rng, troubles)))),
    "undo": _Kind(2, _troubled(Life.undo)),
    "mark by id": _Kind(2, _troubled(Life.mark_by_id)),
    "mark topic": _Kind(4, _troubled(Life.mark_topic)),
    "forge": _Kind(8, lambda life, rng: forging.forge(life.world, life.topics, rng, life.features)),
    "offload": _Kind(8, _of_world(brokers.offload), "offload"),
    "lose copy": _Kind(3, _of_world(brokers.lose_copy), "offload"),
    "rescue": _Kind(1, _of_world(brokers.rescue), "rescue"),
    "count back": _Kind(1, _of_world(brokers.count_back), "ids again"),
    "move metadata": _Kind(1, _troubled(Life.move_metadata), "moved metadata"),
    "broker clock": _Kind(1, _of_world(brokers.jump_broker_clock), "broker clocks"),
    "sweeper clock": _Kind(1, _turn_sweepers_clock, "clocks"),
    "slow producer": _Kind(3, _mark_with_a_slow_clock, "producers' clocks"),
    "damage bytes": _Kind(2, lambda life, rng: damage.damage_topic(life.world, rng, _BYTES), "bad bytes"),
    "damage strange": _Kind(
        2, lambda life, rng: damage.damage_topic(life.world, rng, ("strange", "foreign", "newer")), "strange nodes"
    ),
    "damage to nothing": _Kind(1, lambda life, rng: damage.damage_topic(life.world, rng, ("empty",)), "empty nodes"),
    "damage list": _Kind(3, lambda life, rng: damage.damage_topic(life.world, rng, ("hole",)), "holes"),
    "damage cursor": _Kind(
        2, lambda life, rng: damage.damage_cursor(life.world, rng, (*_BYTES, "strange", "empty")), "bad cursors"
    ),
    "damage schema": _Kind(1, lambda life, rng: damage.damage_schema(life.world, rng, _BYTES)),
    "damage ledger": _Kind(
        2, lambda life, rng: damage.damage_ledger(life.world, rng, (*_BYTES, "foreign", "empty")), "bad ledgers"
    ),
    "hide topic": _Kind(1, lambda life, rng: damage.hide_topic(life.world, rng), "hidden nodes"),
    "collect half": _Kind(1, _of_world(brokers.collect_half), "half lost"),
    "switch bookies": _Kind(2, lambda life, rng: switches.switch(life.world, life.topics, rng), "registry"),
    "forge directive": _Kind(1, lambda life, rng: switches.forge(life.world, life.topics, rng), "registry"),
    "repair": _Kind(1, lambda life, _: life.world.repair()),
}
FEATURES = frozenset(kind.feature for kind in KINDS.values() if kind.feature) | {
    "stranger",
    "forged times",
    "other bookies",
    "forged verification",
    "undone",
    "leaked compactions",
    "bad shadows",
}


# What the product does not stand yet; whoever mends it takes the line away.
KNOWN: dict[str, str] = {}


def script_of(seed: int, steps: int, features: frozenset[str], often: Collection[str] = ()) -> Script:
    """Make a script of so many operations; those named ``often`` come ten times as often as in an ordinary life."""
    rng = Random(f"script {seed}")
    usable = {
        name: kind.weight * (10 if name in often else 1)
        for name, kind in KINDS.items()
        if not kind.feature or kind.feature in features
    }
    names = rng.choices(list(usable), list(usable.values()), k=steps)
    return Script(seed, tuple(Operation(name, rng.randrange(2**32)) for name in names))


def play(script: Script, features: frozenset[str]) -> Life:
    """Carry a script out, to its end; raises Violation."""
    life = Life(script.life, features)
    for operation in script.operations:
        KINDS[operation.name].action(life, Random(operation.seed))
        life.check()
    life.finish()
    return life


def shrunk(script: Script, fails: Callable[[Script], bool]) -> Script:
    """Drop operations as long as the script still fails: halves first, then ever smaller parts (delta debugging)."""
    operations: Sequence[Operation] = script.operations
    size = max(1, len(operations) // 2)
    while True:
        dropped = False
        at = 0
        while at < len(operations):
            fewer = (*operations[:at], *operations[at + size :])
            if fails(script._replace(operations=fewer)):
                operations, dropped = fewer, True
            else:
                at += size
        if size == 1 and not dropped:
            return script._replace(operations=tuple(operations))
        size = max(1, size // 2)


def _ignore(_: object) -> None:
    """Take no notice."""
