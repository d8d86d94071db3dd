"""The kinds of producers and consumers that a move is shown with, and what becomes of their messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final

from servers.blue_green.java_traffic import JavaAccount, JavaFlow

_FAST: Final = 12
_RESTARTED: Final = 4


def moving_rows() -> list[JavaFlow]:
    """List what moves without a loss: all that `start` does not refuse, once idle subscriptions are accepted."""
    rows = [
        JavaFlow("latest-backlog", "Exclusive, latest, backlog", pause_ms=80),
        JavaFlow("earliest-backlog", "Exclusive, earliest, backlog", earliest=True, pause_ms=80),
        JavaFlow("latest", "Exclusive, latest"),
        JavaFlow("failover", "Failover, 2 consumers", "Failover", consumers=2, pause_ms=60),
        JavaFlow("by-key", "Key_Shared, 2 consumers, 7 keys", "Key_Shared", consumers=2, keys=7, pause_ms=60),
        JavaFlow("partitioned", "3 partitions, Shared", "Shared", partitions=3),
        JavaFlow("partitioned-slow", "3 partitions, Shared, backlog", "Shared", partitions=3, pause_ms=80),
        JavaFlow("delayed", "Shared, delayed by 20 s", "Shared", per_second=5, delay_ms=20_000),
        JavaFlow("slow", "Shared, latest, slow", "Shared", consumers=2, pause_ms=150),
        JavaFlow("batched", "Exclusive, batches", batched=True, per_second=200),
        JavaFlow("batched-slow", "Shared, batches, backlog", "Shared", batched=True, pause_ms=60),
        JavaFlow("away", "consumer away, backlog, comes back", comes_back=True),
        JavaFlow("away-earliest", "the same, earliest", earliest=True, comes_back=True),
        JavaFlow("idle", "idle subscription, no backlog, comes back", comes_back=True, sends_later=True),
    ]
    # Brokers delete what was drained, and a consumer that is made anew makes its subscription anew: doubles are told.
    rows += [dataclasses.replace(flow, may_double=True) for flow in restarted_rows()]
    rows += [
        JavaFlow(f"fast-{number:02}", "100 a second, earliest", earliest=True, per_second=100)
        for number in range(_FAST)
    ]
    return rows


def restarted_rows() -> list[JavaFlow]:
    """List topics whose consumers are made anew with blue's URL all the time, and begin at the earliest message."""
    return [
        JavaFlow(f"restarted-{number}", "earliest, restarted each 1.5 s", earliest=True, restart_ms=1500)
        for number in range(_RESTARTED)
    ]


def refused_rows() -> list[JavaFlow]:
    """List what cannot be made safe, and is refused unless it is accepted by its name."""
    return [
        JavaFlow("reader", "reader from the earliest", reader=True),
        JavaFlow("alone", "no subscription", consumers=0),
        JavaFlow("compacted", "compacted topic", consumers=0, keys=7),
        JavaFlow("paid", "transactions", per_second=5, transactions=True),
    ]


def at_most_once() -> JavaFlow:
    """Return the row whose messages nobody keeps: what is lost of it is told, and no fault."""
    return JavaFlow("non-persistent", "non-persistent topic", "Shared", persistent=False)


def table(accounts: Iterable[JavaAccount]) -> list[str]:
    """Return the lines of a table of what became of the messages; flows of the same row are one line."""
    by_row: dict[str, list[JavaAccount]] = {}
    for one in accounts:
        by_row.setdefault(one.flow.row, []).append(one)
    head = f"{'topic':<45}{'blue':>8}{'green':>8}{'received':>10}{'lost':>7}{'doubled':>9}{'disorder':>10}{'errors':>8}"
    return [head, *(_line(row, found) for row, found in by_row.items())]


def _line(row: str, accounts: Sequence[JavaAccount]) -> str:
    name = row if len(accounts) == 1 else f"{len(accounts)} topics, {row}"
    counts = [
        sum(getattr(one, field) for one in accounts)
        for field in ("sent_blue", "sent_green", "received", "lost", "doubled", "disordered", "failed")
    ]
    widths = (8, 8, 10, 7, 9, 10, 8)
    return f"{name:<45}" + "".join(f"{count:>{width},}" for count, width in zip(counts, widths, strict=True))
