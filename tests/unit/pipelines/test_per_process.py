"""What a worker process keeps for its later tasks."""

from __future__ import annotations

import os
from collections.abc import Hashable

from bookwarden.pipelines.workers import PerProcess


def in_a_fork(kept: PerProcess[int], key: Hashable) -> tuple[int, int]:
    """Return the child's process id, and what it has under the key."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, str(kept.get(key, os.getpid)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as answer:
        return child, int(answer.read())


def test_one_is_made_for_each_key_and_a_forked_process_makes_its_own() -> None:
    kept: PerProcess[int] = PerProcess()
    assert kept.get("one", os.getpid) == os.getpid()
    assert kept.get("two", lambda: 2) == 2
    child, found = in_a_fork(kept, "one")
    assert child == found
    assert kept.get("one", lambda: 0) == os.getpid()


def test_what_is_taken_is_kept_no_longer() -> None:
    kept: PerProcess[int] = PerProcess()
    assert kept.take("one") is None
    kept.put("one", 1)
    assert kept.take("one") == 1
    assert kept.get("one", lambda: 2) == 2
