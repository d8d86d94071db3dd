"""The children of many nodes over a ZooKeeper session, several requests in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.zookeeper import requests as wire
from bookwarden.metastore.zookeeper.session import PendingReply, ReplyLost, ServerRefusal, ZooKeeperSession

_IN_FLIGHT: Final = 64


def list_many(session: ZooKeeperSession, paths: Sequence[str], deadline: Deadline) -> list[list[str]]:
    """List the children of each absolute path, sorted; an empty list where there is no such node."""
    return session.read_fresh(lambda: _list_once(session, paths, deadline), deadline)


def _list_once(session: ZooKeeperSession, paths: Sequence[str], deadline: Deadline) -> list[list[str]]:
    window: deque[tuple[str, PendingReply]] = deque()
    found: list[list[str]] = []
    for path in paths:
        window.append((path, session.send(wire.GetChildren(path), deadline)))
        if len(window) >= _IN_FLIGHT:
            found.append(_children(session, *window.popleft(), deadline))
    found += [_children(session, *sent, deadline) for sent in window]
    return found


def _children(session: ZooKeeperSession, path: str, reply: PendingReply, deadline: Deadline) -> list[str]:
    try:
        try:
            names: list[str] = reply.get()
        except ReplyLost as lost:
            session.require_time(deadline, lost)
            names = session.read(wire.GetChildren(path), deadline)
    except ServerRefusal as refusal:
        if refusal.code != wire.NO_NODE:
            raise
        return []
    deadline.progress()
    return sorted(names)
