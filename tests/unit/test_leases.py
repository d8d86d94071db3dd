"""What the three leases share: the record of a holder, and the thread that renews it."""

from __future__ import annotations

import os
import socket
import threading
from threading import Event

import pytest

from bookwarden.leases import Renewal, describe_holder, holder_here
from servers.waiting import eventually


def test_a_holder_is_described_by_its_record() -> None:
    first, second = holder_here(), holder_here()
    assert first["id"] != second["id"]
    assert describe_holder(first) == f"{socket.gethostname()} as process {os.getpid()} since {first['began']}"


@pytest.mark.parametrize("record", [None, [], "host", {}, {"host": "a", "pid": 1}, {"holder": "of an earlier version"}])
def test_a_record_that_names_nobody_is_described_too(record: object) -> None:
    assert describe_holder(record) == "a host that its record does not name"


def runs(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())


def test_it_is_renewed_until_the_body_ends() -> None:
    renewed, again = Event(), Event()

    def renew() -> bool:
        (again if renewed.is_set() else renewed).set()
        return True

    with Renewal(renew, 0.001, name="renewed"):
        assert renewed.wait(30)
        assert again.wait(30)
    assert not runs("renewed")


def test_nothing_is_renewed_once_it_is_lost() -> None:
    calls: list[int] = []

    def renew() -> bool:
        calls.append(len(calls))
        return len(calls) < 3

    renewal = Renewal(renew, 0.001, name="lost")
    renewal.start()
    eventually(lambda: not runs("lost"))
    assert calls == [0, 1, 2]
    renewal.stop()
