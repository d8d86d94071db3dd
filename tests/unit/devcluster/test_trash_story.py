"""The verdict of the trash's demo: what it takes for good, and that it takes nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bookwarden.ledgers.outcomes import Outcome
from bookwarden_dev.demo.trash_story import (
    BILLING,
    FULL,
    HALF,
    HOLES,
    SCRATCH,
    SHOP,
    CursorState,
    SubscriptionEnd,
    TopicEnd,
    TrashFinale,
)

AT = CursorState("7:34", "[]")
SUBSCRIPTIONS = tuple(SubscriptionEnd(name, AT, AT, False, 35, 0, 0) for name in (FULL, HALF, HOLES))
TOPIC = TopicEnd(BILLING, False, 7, 7, 75, 75, {"0": 35, "1": 40}, {"0": 35, "1": 40}, SUBSCRIPTIONS)
DELETED = Outcome.DELETED.value
FINALE = TrashFinale(
    (TOPIC, replace(TOPIC, topic=SHOP, under_live=True)),
    "a topic is there: --under-live puts what the trash has under it",
    SCRATCH,
    9,
    0,
    {DELETED: 9},
    "the trash has nothing of it",
    (),
)


def subscription(**wrong: Any) -> TrashFinale:
    """Return the end with one subscription of the last topic that is wrong."""
    ends = (*SUBSCRIPTIONS[:2], replace(SUBSCRIPTIONS[2], **wrong))
    return topic(subscriptions=ends)


def topic(**wrong: Any) -> TrashFinale:
    """Return the end with a last topic that is wrong."""
    return replace(FINALE, topics=(FINALE.topics[0], replace(FINALE.topics[1], **wrong)))


@pytest.mark.parametrize(
    "good",
    [
        FINALE,
        # A mark that was sent twice is found done.
        replace(FINALE, expired_outcomes={DELETED: 9, Outcome.ALREADY_GONE.value: 2}),
        # A consumer had made it again, so that it stands further than it was.
        subscription(joined=True, restored=CursorState("9:1", "[]")),
    ],
    ids=["all back", "marked twice", "joined"],
)
def test_what_came_back_whole_is_good(good: TrashFinale) -> None:
    assert good.as_it_should


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(subscription(lost=1), id="a message lost"),
        pytest.param(subscription(doubled=1), id="a message twice"),
        pytest.param(subscription(restored=CursorState("7:33", "[]")), id="another position"),
        pytest.param(subscription(restored=CursorState("7:34", "[(7:36..7:36]]")), id="other acknowledgements"),
        pytest.param(subscription(joined=True, lost=1), id="a message lost of a joined one"),
        pytest.param(topic(ledgers_back=6), id="a ledger is not back"),
        pytest.param(topic(ledgers=0, ledgers_back=0), id="no ledger"),
        pytest.param(topic(read=74), id="a message is not read"),
        pytest.param(topic(sent=0, read=0), id="no message"),
        pytest.param(topic(versions={"0": 36, "1": 39}), id="read by another schema"),
        pytest.param(topic(subscriptions=SUBSCRIPTIONS[:2]), id="a subscription is missing"),
        pytest.param(replace(FINALE, topics=FINALE.topics[:1]), id="a topic is missing"),
        pytest.param(replace(FINALE, refusal="restored"), id="no refusal"),
        pytest.param(replace(FINALE, refusal=""), id="nothing refused"),
        pytest.param(replace(FINALE, expired_left=1), id="a ledger is left"),
        pytest.param(replace(FINALE, expired_ledgers=0), id="nothing expired"),
        pytest.param(replace(FINALE, expired_outcomes={}), id="nothing swept"),
        pytest.param(replace(FINALE, expired_outcomes={Outcome.ALREADY_GONE.value: 9}), id="another deleted it"),
        pytest.param(replace(FINALE, expired_outcomes={DELETED: 8, Outcome.GAVE_UP.value: 1}), id="given up"),
        pytest.param(replace(FINALE, too_late=""), id="restored too late"),
        pytest.param(replace(FINALE, in_trash=(SHOP,)), id="something is left in the trash"),
    ],
)
def test_anything_else_is_not(bad: TrashFinale) -> None:
    assert not bad.as_it_should
