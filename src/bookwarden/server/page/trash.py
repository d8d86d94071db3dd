"""The page of the trash as HTML and JSON: what waits, until when, and the commands that restore it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from bookwarden.errors import FormatError
from bookwarden.findings import size_text
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.trash import KeepRule, TrashLease
from bookwarden.server.page.problems import age_text
from bookwarden.server.page.templates import Card, encode_json, moment, plain, reading_fields, render, state_text
from bookwarden.server.page.values import Overview, Trash
from bookwarden.trash.generations import is_log
from bookwarden.trash.summary import Summary

_SOURCE: Final = "/page/trash.json"
_NAMES: Final = 5
_TOPIC: Final = "topic"


class TrashRow(NamedTuple):
    """One life of a topic, or of all partitions of one that were deleted; all texts."""

    topic: str  #: Its full name.
    partitions: str  #: Of how many it is; "" of one.
    what: str  #: What was dropped, and how long ago.
    when: str  #: At which time.
    brokers: str  #: By which brokers.
    ledgers: str  #: Number of ledgers, and their bytes.
    subscriptions: str  #: Their names, or how many there are.
    expires: str  #: In how long.
    expires_at: str  #: At which time.
    missing: tuple[str, ...]  #: What does not come back.
    restore: str  #: How far a restore is that is not finished.
    command: str  #: That restores it; "" of what comes back with another topic.


def render_trash(shown: Overview) -> str:
    """Render the page `/trash`."""
    assert shown.trash is not None
    trash, store = shown.trash.value, shown.store.value
    lease = None if store is None else store.lease
    return render(
        "trash",
        shown,
        trash=trash,
        cards=_cards(shown, trash),
        rows=[_row(ones, command, shown.now_ms) for ones, command in _together(trash.generations)] if trash else [],
        namespaces=[
            (one.namespace, moment(one.gone_ms), f"bookwarden trash restore --namespace {shlex.quote(one.namespace)}")
            for one in (trash.namespaces if trash else ())
        ],
        store=store,
        lease=lease,
        rules=[_rule(rule) for rule in (lease.keep if lease else ())],
    )


def trash_json(shown: Overview) -> bytes:
    """Return what the page `/trash` shows; each generation is as `trash list` has it, with its command."""
    assert shown.trash is not None
    store, trash = shown.store.value, shown.trash.value
    lease = None if store is None else store.lease
    fields = reading_fields(shown.trash)
    fields["lease"] = None if lease is None else plain(lease)
    fields["value"] = None if trash is None else plain(trash)
    if trash is not None:
        commands = _commands(trash.generations)
        for one, command in zip(fields["value"]["generations"], commands, strict=True):
            one["command"] = command
    return encode_json(fields)


def _cards(shown: Overview, trash: Trash | None) -> list[Card]:
    assert shown.trash is not None
    lease = _lease_card(shown)
    if trash is None:
        text = state_text(shown.trash)
        return [Card("In the trash", "?", text, "trash#while-it-runs", _SOURCE, problem=True), lease]
    whole = "" if not trash.left_out else f" of the newest {len(trash.generations):,}"
    expiring = [one.expires_ms for one in trash.generations if one.expires_ms is not None]
    first = min(expiring, default=None)
    number = len(trash.generations) + trash.left_out
    lives = "life of a topic" if number == 1 else "lives of topics"
    return [
        Card("In the trash", f"{number:,}", lives, "trash#what-is-kept", _SOURCE),
        Card("Ledgers", f"{trash.ledgers:,}", "of all kinds", "trash#what-is-kept", _SOURCE),
        Card(
            "Messages",
            size_text(sum(one.bytes for one in trash.generations)),
            f"each entry once{whole}",
            "trash#what-it-promises",
            _SOURCE,
        ),
        Card(
            "Next expires",
            "-" if first is None else _until(first, shown.now_ms),
            "nothing does" if first is None else moment(first),
            "trash#set-up",
            _SOURCE,
        ),
        lease,
    ]


def _lease_card(shown: Overview) -> Card:
    store, runbook = shown.store.value, "trash#when-nothing-more-is-kept"
    if store is None:
        return Card("Brokers keep", "?", state_text(shown.store), runbook, _SOURCE, problem=True)
    lease = store.lease
    if lease is None:
        return Card("Brokers keep", "nothing", "no sweep has given them a lease", runbook, _SOURCE, store.has_trash)
    if not lease.is_valid(shown.store.read_ms):
        text = f"the lease ended {age_text(shown.now_ms - lease.defer_until_ms)} ago"
        return Card("Brokers keep", "nothing", text, runbook, _SOURCE, store.has_trash)
    return Card("Brokers keep", "what they drop", f"{_lease_text(lease)}", runbook, _SOURCE)


def _lease_text(lease: TrashLease) -> str:
    return f"until {moment(lease.defer_until_ms)}, unless {lease.renewed_by} renews the lease"


def _rule(rule: KeepRule) -> tuple[str, str, str]:
    return rule.namespaces, _kept(rule.deleted_s), _kept(rule.trimmed_s)


def _kept(seconds: int) -> str:
    return age_text(seconds * 1000) if seconds else "not at all"


def _until(at_ms: int, now_ms: int) -> str:
    return age_text(at_ms - now_ms) if at_ms > now_ms else "now"


def _together(generations: Sequence[Summary]) -> list[tuple[list[Summary], str]]:
    """Put partitions of one topic together that one command restores."""
    found: dict[object, tuple[list[Summary], str]] = {}
    for number, (one, command) in enumerate(zip(generations, _commands(generations), strict=True)):
        is_partition = one.what == _TOPIC and command == _restore(_base(one.topic)) and _base(one.topic) != one.topic
        found.setdefault(command if is_partition else number, ([], command))[0].append(one)
    return list(found.values())


def _commands(generations: Iterable[Summary]) -> list[str]:
    """Return the command that restores each; what was dropped last comes first."""
    ended = set[str]()
    found = []
    for one in generations:
        if is_log(one.topic):
            found.append("")
        elif one.what == _TOPIC and one.topic not in ended:
            # The newest life that is over, with all partitions of the topic.
            ended.add(one.topic)
            found.append(_restore(_base(one.topic)))
        else:
            found.append(f"{_restore(one.topic)} --generation {one.generation}{_options(one)}")
    return found


def _options(one: Summary) -> str:
    """Return the options that restore what was dropped of a topic; none of one that is over."""
    if one.what == "subscriptions":
        return f" --subscription {shlex.quote(one.subscriptions[0]) if len(one.subscriptions) == 1 else 'NAME'}"
    return " --under-live" if one.what == "ledgers" else ""


def _restore(topic: str) -> str:
    return f"bookwarden trash restore {shlex.quote(topic)}"


def _base(topic: str) -> str:
    try:
        return str(TopicName.parse(topic).base)
    except FormatError:
        return topic


def _row(ones: Sequence[Summary], command: str, now_ms: int) -> TrashRow:
    first = ones[0]
    dropped_ms = max(one.dropped_ms for one in ones)
    expiring = [one.expires_ms for one in ones if one.expires_ms is not None]
    names = sorted({name for one in ones for name in one.subscriptions})
    brokers = sorted({broker for one in ones for broker in one.brokers})
    what = {_TOPIC: "deleted", "ledgers": "trimmed"}.get(first.what, "subscriptions removed")
    expires_ms, number = min(expiring, default=None), sum(one.ledgers for one in ones)
    left = "not known" if expires_ms is None else _until(expires_ms, now_ms)
    return TrashRow(
        first.topic if len(ones) == 1 else _base(first.topic),
        "" if len(ones) == 1 else f"{len(ones):,} partitions",
        f"{what} {age_text(now_ms - dropped_ms)} ago",
        moment(dropped_ms),
        f"by {_some(brokers)}",
        f"{number:,} {'ledger' if number == 1 else 'ledgers'}, {size_text(sum(one.bytes for one in ones))}",
        f"subscriptions: {_some(names)}" if names else "no subscription",
        f"expires in {left}" if left not in ("now", "not known") else f"expires: {left}",
        moment(expires_ms) if expires_ms is not None else "no sweep says how long it is kept",
        tuple(dict.fromkeys(text for one in ones for text in one.missing)),
        next((one.restore for one in ones if one.restore), ""),
        command,
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
