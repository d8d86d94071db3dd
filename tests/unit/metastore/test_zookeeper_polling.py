"""How a connection to ZooKeeper waits for its sockets."""

from __future__ import annotations

import fcntl
import resource
import select
import socket
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookwarden.metastore.zookeeper.session import polling_handler, select_by_poll

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    near, far = socket.socketpair()
    with closing(near), closing(far):
        yield near, far


def test_the_sockets_that_are_ready_are_named(pair: Pair) -> None:
    near, far = pair
    far.sendall(b"x")
    assert select_by_poll([far, near], [], [], 5) == ([near], [], [])
    assert select_by_poll([far], [near], [], 5) == ([], [near], [])


@pytest.mark.parametrize("timeout", [0, 0.001, -1])
def test_nothing_is_ready_when_the_time_is_over(pair: Pair, timeout: float) -> None:
    assert select_by_poll([pair[0]], [], [], timeout) == ([], [], [])


def test_a_connection_that_the_other_side_closed_is_ready(pair: Pair) -> None:
    near, far = pair
    far.close()
    assert select_by_poll([near], [], [], 5)[0] == [near]
    assert select_by_poll([], [near], [], 5)[1] == [near]


def test_a_socket_that_we_closed_is_an_error(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(ValueError, match="negative"):
        select_by_poll([pair[0]], [], [], 5)


def test_file_descriptors_may_be_above_those_of_select(pair: Pair) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 1100:
        pytest.skip("this process may not have so many files")
    with socket.socket(fileno=_duplicate_above(pair[0], 1024)) as high:
        pair[1].sendall(b"x")
        assert select_by_poll([high], [], [], 5)[0] == [high]


STATES = st.sampled_from(["quiet", "readable", "full", "closed by the other side"])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(STATES, st.booleans()), max_size=4), st.sampled_from([0, 0.0, 0.001]))
def test_the_same_sockets_are_ready_as_select_says(sockets: list[tuple[str, bool]], timeout: float) -> None:
    pairs = [socket.socketpair() for _ in sockets]
    try:
        for (near, far), (state, _) in zip(pairs, sockets, strict=True):
            near.setblocking(False)
            if state == "readable":
                far.sendall(b"x")
            elif state == "full":
                with suppress(BlockingIOError):
                    while True:
                        near.send(bytes(4096))
            elif state != "quiet":
                far.close()
        readers = [near for (near, _), (_, reads) in zip(pairs, sockets, strict=True) if reads]
        writers = [near for (near, _), (_, reads) in zip(pairs, sockets, strict=True) if not reads]
        assert select_by_poll(readers, writers, [], timeout) == select.select(readers, writers, [], timeout)
    finally:
        for near, far in pairs:
            near.close()
            far.close()


def test_a_client_waits_so() -> None:
    assert polling_handler().select is select_by_poll


def _duplicate_above(original: socket.socket, lowest: int) -> int:
    return fcntl.fcntl(original.fileno(), fcntl.F_DUPFD_CLOEXEC, lowest)
