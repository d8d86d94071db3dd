"""Topics are unloaded once nobody has anything left to read, and after an abort where a fence may hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bookwarden.blue_green.aborting import Aborting
from bookwarden.blue_green.observing import Expected, Observer
from bookwarden.blue_green.releasing import Held, Releasing, held_in
from bookwarden.blue_green.states import CursorSeen, TopicSeen
from bookwarden.errors import PulsarError, RefusedError, StoreError
from bookwarden.ledgers.names import TopicName
from unit.blue_green.scripted_blue import NAMESPACE, TOPIC, ScriptedBlue, cursor, node
from unit.blue_green.test_states import LEFT, MARKED, READ


@pytest.fixture
def blue(tmp_path: Path) -> ScriptedBlue:
    made = ScriptedBlue(tmp_path)
    made.flag()
    made.put_topic(node())
    made.loaded = {TOPIC}
    return made


def seen(
    name: str, *cursors: CursorSeen, loaded: bool = True, lacks: bool = False, lacks_readers: tuple[str, ...] = ()
) -> TopicSeen:
    return TopicSeen(name, MARKED, True, loaded, None, cursors, lacks, lacks_readers)


def test_what_is_loaded_and_drained_can_be_released_and_nothing_else() -> None:
    topics = [
        seen("drained", READ),
        seen("bare"),
        seen("unloaded", READ, loaded=False),
        seen("held", READ, lacks=True),
        seen("released", READ, loaded=False, lacks=True),
        seen("without consumers", READ, lacks_readers=("app",)),
        seen("of two", READ, LEFT, lacks_readers=("app",)),
        seen("behind", LEFT, lacks=True),
        seen("draining", LEFT),
    ]
    assert held_in(topics) == Held(("held", "without consumers"), ("behind",), ("drained", "bare"))


@pytest.mark.parametrize("backlog", [{"msgBacklog": 4}, {}], ids=["behind", "not known"])
def test_a_reader_that_no_node_tells_of_keeps_its_topic(blue: ScriptedBlue, backlog: dict[str, Any]) -> None:
    releasing = Releasing(blue.observer, blue, blue.record)
    blue.told[TOPIC] = {"subscriptions": {"reader-1": {"durable": False, **backlog}}}
    with pytest.raises(RefusedError, match="reader-1"):
        releasing.release(TOPIC)
    assert blue.unloaded == []
    # A watch asks again and again.
    assert list(blue.record.events()) == []
    blue.told[TOPIC] = {"subscriptions": {"reader-1": {"durable": False, "msgBacklog": 0}}}
    releasing.release(TOPIC)
    assert blue.unloaded == [TOPIC]


@pytest.mark.parametrize("publishers", [[], [{}]], ids=["on no side", "on green"])
def test_an_abort_unloads_what_may_be_fenced_once_the_flag_is_off(
    blue: ScriptedBlue, tmp_path: Path, publishers: list[Any]
) -> None:
    green = ScriptedBlue(tmp_path / "green")
    green.told[TOPIC] = {"publishers": publishers}
    blue.told[TOPIC] = {"subscriptions": {}}
    blue.record.starting(NAMESPACE, [Expected(TOPIC, ("app",), had_producer=True)])
    flags: list[bool] = []
    blue.on_unload = lambda _topic: flags.append(blue.nodes.is_flagged(NAMESPACE))
    observer = Observer(lambda: "blue", blue.nodes, blue, lambda: blue.loaded, green)
    done = Aborting(lambda: "blue", blue, observer, blue.record).abort([NAMESPACE])
    lacking = () if publishers else (TOPIC,)
    assert (done.on_no_side, done.unloaded, done.troubles) == (lacking, lacking, ())
    # With the flag on, nobody could load it again.
    assert flags == [False] * len(lacking)


def test_what_an_abort_could_not_unload_is_told(blue: ScriptedBlue, tmp_path: Path) -> None:
    def broken(_topic: str) -> None:
        raise PulsarError("no answer")

    green = ScriptedBlue(tmp_path / "green")
    green.told[TOPIC] = {}
    blue.told[TOPIC] = {"subscriptions": {}}
    blue.on_unload = broken
    blue.record.starting(NAMESPACE, [Expected(TOPIC, had_producer=True)])
    observer = Observer(lambda: "blue", blue.nodes, blue, lambda: blue.loaded, green)
    done = Aborting(lambda: "blue", blue, observer, blue.record).abort([NAMESPACE])
    assert (done.taken_off, done.unloaded) == ((NAMESPACE,), ())
    assert "may be fenced" in done.troubles[0]


def test_a_topic_that_is_not_read_is_not_released(blue: ScriptedBlue) -> None:
    path = f"/managed-ledgers/shop/live/persistent/{TOPIC.rpartition('/')[2]}/app"
    blue.store.create(path, cursor(5, 3))
    blue.told[TOPIC] = {"subscriptions": {"app": {"msgBacklog": 9, "consumers": []}}}
    with pytest.raises(RefusedError, match="9 entries unread"):
        Releasing(blue.observer, blue, blue.record).release(TOPIC)
    assert blue.unloaded == []


@pytest.mark.parametrize("error", [PulsarError("no answer"), StoreError("no answer")])
def test_what_cannot_be_released_now_keeps_no_other_topic(blue: ScriptedBlue, error: Exception) -> None:
    other = TOPIC.replace("orders", "others")
    blue.store.create(f"/managed-ledgers/{TopicName.parse(other).managed_ledger}", node())
    blue.loaded |= {other}
    blue.told |= {TOPIC: {"subscriptions": {}}, other: {"subscriptions": {}}}

    def broken(topic: str) -> None:
        if topic == TOPIC:
            raise error

    blue.on_unload = broken
    assert Releasing(blue.observer, blue, blue.record).release_all([TOPIC, other]) == {TOPIC: "no answer"}
    assert blue.unloaded[-1] == other
