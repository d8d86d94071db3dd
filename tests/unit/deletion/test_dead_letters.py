"""Dead letters chosen and grouped by their reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pytest

from bookwarden.deletion.dead_letters import DeadLetters, LetterBounds, group_by_reason, reason_group, reset_properties
from bookwarden.errors import NotFoundError, RefusedError
from bookwarden.ledgers.received import REAL_TOPIC, ReceivedMark


class Box:
    """A DLQ in memory that notes what is taken from it, and how far it was read."""

    def __init__(self, *reasons: str) -> None:
        self.letters = [letter(number, reason) for number, reason in enumerate(reasons)]
        self.sent: list[str] = []
        self.unconfirmed = 0
        self.read = 0

    @contextmanager
    def open(self) -> Iterator[Box]:
        yield self
        assert self.unconfirmed == 0

    def __iter__(self) -> Iterator[ReceivedMark]:
        for found in list(self.letters):
            self.read += 1
            yield found

    def send_back(self, received: ReceivedMark, properties: Mapping[str, str]) -> None:
        self.sent.append(received.message_id)
        self.unconfirmed += 1

    def confirm(self) -> None:
        self.unconfirmed = 0

    def acknowledge(self, received: ReceivedMark) -> None:
        assert self.unconfirmed == 0
        self.letters.remove(received)


def letter(number: int, reason: str) -> ReceivedMark:
    properties = {"bookwarden.reason": reason} if reason else {}
    return ReceivedMark("dlq", f"1:{number}:-1", None, b"", properties, 1000 + number)


@pytest.mark.parametrize(
    ("reason", "group"),
    [
        (
            "after 10 retries: t/ns/persistent/a%2Fb still names the ledger 605 s after its mark was first read",
            "after # retries: <name> still names the ledger # s after its mark was first read",
        ),
        (
            "after 2 retries: ledger metadata: /ledgers/00/0000/L0007: 2 bytes where its length says 127",
            "after # retries: ledger metadata: <name>: # bytes where its length says #",
        ),
        ("no driver for offloaded copies on 'aws-s3' is set up", "no driver for offloaded copies on <text> is set up"),
        ("references of schema:t/ns/a: no answer", "references of <name>: no answer"),
        ("uid 3f2504e0 took 1,234.5 ms.", "uid # took # ms."),
        ("the metadata changed between check and delete", "the metadata changed between check and delete"),
        ("", ""),
    ],
)
def test_reasons_of_one_kind_are_alike(reason: str, group: str) -> None:
    assert reason_group(reason) == group
    assert reason_group(group) == group


def test_groups_tell_number_times_and_an_example_the_largest_first() -> None:
    box = Box("ledger 1 away", "other", "ledger 2 away", "", "ledger 3 away")
    groups = group_by_reason(DeadLetters(box).read())
    assert [(group.reason, group.count, group.oldest, group.newest) for group in groups] == [
        ("ledger # away", 3, 1000, 1004),
        ("", 1, 1003, 1003),
        ("other", 1, 1001, 1001),
    ]
    assert groups[0].example.message_id == "1:0:-1"


@pytest.mark.parametrize(
    ("text", "ids"),
    [("away", [0, 2]), ("ledger # away", [0, 2]), ("ledger 2", [2]), ("nobody", []), ("", [0, 1, 2])],
)
def test_a_reason_is_chosen_by_its_text_or_by_that_of_its_group(text: str, ids: list[int]) -> None:
    box = Box("ledger 1 away", "other", "ledger 2 away")
    expected = [f"1:{number}:-1" for number in ids]
    assert [found.message_id for found in DeadLetters(box).read(reason=text)] == expected
    assert [found.message_id for found in DeadLetters(box).replay(reason=text, dry_run=True)] == expected
    assert box.sent == []
    assert [found.message_id for found in DeadLetters(box).replay(reason=text)] == expected
    assert box.sent == expected
    assert len(box.letters) == 3 - len(ids)


def test_a_limit_counts_what_is_chosen_and_reads_no_further() -> None:
    box = Box("a", "b", "a", "a", "a")
    assert [found.message_id for found in DeadLetters(box).drop(reason="a", limit=2)] == ["1:0:-1", "1:2:-1"]
    assert (box.read, len(box.letters)) == (3, 3)


def test_ids_are_read_no_further_than_needed_and_the_absent_are_named() -> None:
    box = Box("a", "b", "c")
    list(DeadLetters(box).replay(["1:1:-1"]))
    assert (box.sent, box.read) == (["1:1:-1"], 2)
    with pytest.raises(NotFoundError, match="1:9:-1"):
        list(DeadLetters(box).replay(["1:9:-1"]))


def test_a_letter_that_is_sent_back_counts_as_new() -> None:
    properties = {"bookwarden.verified-at": "1", "RECONSUMETIMES": "9", "bookwarden.reason": "r", "theirs": "kept"}
    assert reset_properties(properties) == {"theirs": "kept"}


def test_what_came_from_the_topic_of_switch_directives_is_not_replayed() -> None:
    box = Box("malformed", "malformed", "malformed")
    box.letters[1] = replace(box.letters[1], properties={REAL_TOPIC: "directives"})
    letters = DeadLetters(box, "directives")
    with pytest.raises(RefusedError, match="1:1:-1 came from directives and is no mark"):
        list(letters.replay(["1:1:-1"]))
    assert [one.message_id for one in letters.replay()] == ["1:0:-1", "1:2:-1"]
    assert box.sent == ["1:0:-1", "1:2:-1"]
    assert [one.message_id for one in letters.drop()] == ["1:1:-1"]


def test_letters_are_told_while_the_work_goes_on_each_once_it_is_done() -> None:
    box = Box(*["away"] * 1200)
    letters = DeadLetters(box).replay()
    first = next(letters)
    assert (first.message_id, box.read, len(box.letters), len(box.sent)) == ("1:0:-1", 500, 700, 500)
    assert len(list(letters)) == 1199
    assert box.letters == []
    box = Box(*["away"] * 9)
    dropped = DeadLetters(box).drop()
    next(dropped)
    assert (box.read, len(box.letters)) == (1, 8)


def test_what_was_done_is_done_when_nobody_asks_for_more() -> None:
    box = Box(*["away"] * 600)
    letters = DeadLetters(box).replay()
    next(letters)
    letters.close()
    assert (len(box.sent), len(box.letters)) == (500, 100)


@pytest.mark.parametrize("verb", ["replay", "drop"])
def test_only_the_letters_that_were_counted_are_taken_and_none_that_came_since(verb: str) -> None:
    box = Box("away", "other", "away", "away", "away")
    box.letters[3] = replace(box.letters[3], topic="dlq-2", message_id="1:0:1:0")
    box.letters[4] = replace(box.letters[4], topic="dlq-2", message_id="1:0:1:1")
    letters, bounds = DeadLetters(box), LetterBounds()
    for found in letters.read(3, reason="away"):
        bounds.note(found)
    assert bounds.count == 3
    box.letters += [
        replace(letter(9, "away"), message_id="1:10:-1"),
        replace(letter(9, "away"), message_id="0:99:-1"),
        replace(letter(9, "away"), topic="dlq-3"),
    ]
    taken = [found.message_id for found in getattr(letters, verb)(reason="away", bounds=bounds)]
    # The last one is not later than those that were counted, so it can only have been there.
    assert taken == ["1:0:-1", "1:2:-1", "1:0:1:0", "0:99:-1"]
