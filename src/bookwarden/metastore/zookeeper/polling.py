"""kazoo's threads, whose connection waits for its sockets with one poll.

kazoo itself makes, asks and closes an epoll for every wait, of which there are four in a request and its answer: a
quarter of the processor time of the connection's thread.
"""

from __future__ import annotations

import math
import select
from collections.abc import Sequence
from socket import socket
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler


def polling_handler() -> Any:
    """Make a handler for one KazooClient."""
    handler = SequentialThreadingHandler()
    handler.select = select_by_poll
    return handler


# Fast path of select.select, must equal it: tests/unit/metastore/test_zookeeper_polling.py
def select_by_poll(
    readers: Sequence[socket], writers: Sequence[socket], _: Sequence[socket], timeout: float | None = None
) -> tuple[list[socket], list[socket], list[socket]]:
    """Do what select.select does, for file descriptors above 1,023 too; ``timeout`` is in seconds, None without end.

    A broken connection counts as ready: its next read or write raises the error. No socket may be in both lists.
    """
    poll = select.poll()
    for reader in readers:
        poll.register(reader, select.POLLIN)
    for writer in writers:
        poll.register(writer, select.POLLOUT)
    events = poll.poll(None if timeout is None else math.ceil(max(timeout, 0) * 1000))
    ready = {number for number, _ in events}
    return [one for one in readers if one.fileno() in ready], [one for one in writers if one.fileno() in ready], []
