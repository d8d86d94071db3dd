"""When the time of what the trash keeps is over, and what goes first where there is no room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.ledgers.trash import FormerNode, Generation, KeepRule, TrashRecord
from bookwarden.trash.expiry import HOLD_MS, Brief, brief_of, due_ms, oldest_beyond

TOPIC = "t/n/persistent/a"
MADE = 1_000
LIFE = Generation(TOPIC, MADE)
NODE = FormerNode(b"", 0, MADE, MADE)
TRIM = TrashRecord(TOPIC, 50_000, MADE, data=(1,), entries=(b"",))
ENDED = TrashRecord(TOPIC, 50_000, MADE, node=NODE)
CURSOR = TrashRecord(TOPIC, 50_000, MADE + 5, "sub", cursors=(2,), node=NODE)
EARLY_CURSOR = TrashRecord(TOPIC, 50_000, MADE + 5, "sub", cursors=(2,))
SCHEMA = TrashRecord(TOPIC, 50_000, MADE + 5, schema_id="t/n/a", schemas=(3,), node=NODE)
COMPACTED = TrashRecord(TOPIC, 50_000, MADE, compacted=(4,))


@pytest.mark.parametrize("record", [ENDED, CURSOR, EARLY_CURSOR, SCHEMA])
@pytest.mark.parametrize("ended", [frozenset(), frozenset((LIFE,))])
def test_what_was_deleted_is_kept_as_deleted(record: TrashRecord, ended: frozenset[Generation]) -> None:
    rules = (KeepRule("t/n", 3600, 7),)
    assert due_ms(brief_of(record, 0), rules, ended) == 50_000 + 3_600_000


@pytest.mark.parametrize("record", [TRIM, COMPACTED])
@pytest.mark.parametrize(
    ("rule", "alive_s", "ended_s"),
    [
        (KeepRule("t/n", 3600, 0), 600, 3600),
        (KeepRule("t/n", 3600, 7200), 7200, 3600),
        (KeepRule("t/n", 5, 60), 600, 5),
        (KeepRule("t/n", 0, 60), 60, 0),
        (KeepRule("t/other", 60, 60), 0, 0),
    ],
)
def test_a_trim_waits_for_the_end_of_its_topic(record: TrashRecord, rule: KeepRule, alive_s: int, ended_s: int) -> None:
    brief = brief_of(record, 0)
    others = frozenset((Generation(TOPIC, MADE + 1), Generation("t/n/persistent/b", MADE)))
    assert due_ms(brief, (rule,), others) == 50_000 + 1000 * alive_s
    assert due_ms(brief, (rule,), others | {LIFE}) == 50_000 + 1000 * ended_s
    assert HOLD_MS == 600_000


def test_the_first_rule_that_matches_holds_even_if_it_keeps_nothing() -> None:
    rules = (KeepRule("t/n", 0, 0), KeepRule("t/*", 60, 60))
    assert due_ms(brief_of(ENDED, 0), rules, ()) == 50_000


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 100)), max_size=12), st.integers(0, 500))
def test_no_more_goes_than_is_needed_and_the_oldest_first(found: list[tuple[int, int]], most: int) -> None:
    briefs = [Brief(time_ms, size, "t/n", None) for time_ms, size in found]
    until_ms = oldest_beyond(briefs, most)
    kept = [brief for brief in briefs if brief.time_ms > until_ms]
    assert sum(brief.size for brief in kept) <= most
    if until_ms >= 0:
        # With those of the newest time that goes it would be too much.
        assert sum(brief.size for brief in briefs if brief.time_ms >= until_ms) > most
