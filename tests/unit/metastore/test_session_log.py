"""What is logged of a session with ZooKeeper: no credentials, and no value of a node, which may have a password."""

from __future__ import annotations

import logging

import pytest
from kazoo.protocol.serialization import Auth, SetData
from kazoo.protocol.states import WatchedEvent

from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.zookeeper.requests import MultiRead
from bookwarden.metastore.zookeeper.session import _SessionLog

SECRET = b"sesame"


def test_values_of_nodes_are_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    log = _SessionLog(logging.getLogger("bookwarden.test"), {})
    node = Versioned(SECRET, 0, 0)
    with caplog.at_level(logging.DEBUG):
        # As kazoo's connection does.
        log.debug("Sending request(xid=%s): %s", 3, SetData("/ledgers/00/0000/L0007", SECRET, 0))
        log.debug("Sending request(xid=%s): %s", 4, MultiRead(["/ledgers/00/0000/L0007"]))
        log.debug("Received response(xid=%s): %r", 4, [node])
        log.debug("Received response(xid=%s): %r", 5, (SECRET, None))
        log.debug("Received response(xid=%s): %r", 6, SECRET)
        log.debug("Received error(xid=%s) %r", 7, ValueError("away"))
        log.debug("Received EVENT: %s", WatchedEvent("CHANGED", "CONNECTED", "/a"))
        log.debug("Sending request(xid=%s): %s", 8, Auth(0, "digest", SECRET))
    assert SECRET.decode() not in caplog.text
    told = [record.getMessage() for record in caplog.records]
    assert told[:3] == [
        "Sending request(xid=3): SetData /ledgers/00/0000/L0007",
        "Sending request(xid=4): MultiRead",
        "Received response(xid=4): 'list'",
    ]
    assert told[5] == "Received error(xid=7) ValueError('away')"
    assert len(told) == 7
