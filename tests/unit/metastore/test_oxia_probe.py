"""What is seen of a namespace before metadata is moved into it, and that nothing is left there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from bookwarden.errors import ConfigError, StoreAccessError, StoreError, StoreUnavailableError
from bookwarden.metastore.interface import TargetSeen
from bookwarden.metastore.oxia.channels import OxiaConnection
from bookwarden.metastore.oxia.store import probe_namespace
from bookwarden.wire.pb import oxia_client_pb2 as pb
from servers.scripted_oxia import Refusal, ScriptedOxia

Maker = Callable[..., ScriptedOxia]


@pytest.fixture
def scripted() -> Iterator[Maker]:
    made: list[ScriptedOxia] = []

    def make(**options: Any) -> ScriptedOxia:
        made.append(ScriptedOxia(**options))
        return made[-1]

    yield make
    for server in made:
        server.close()


def probe(server: ScriptedOxia, *, may_write: bool = True, **options: Any) -> TargetSeen:
    return probe_namespace(OxiaConnection(server.addresses[0], **options), may_write=may_write)


@pytest.mark.parametrize("natural", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_an_empty_namespace_shows_its_order_by_a_key_that_is_deleted_again(
    scripted: Maker, natural: bool, shards: int
) -> None:
    server = scripted(natural=natural, shards=shards)
    assert probe(server) == TargetSeen((), not natural, False)
    assert server.records == {}


@pytest.mark.parametrize("natural", [False, True])
def test_without_leave_to_write_the_order_stays_unknown(scripted: Maker, natural: bool) -> None:
    server = scripted(natural=natural)
    assert probe(server, may_write=False) == TargetSeen((), None, False)
    assert server.calls["WriteStream"] == 0
    assert server.records == {}


@pytest.mark.parametrize("by_depth", [False, True])
def test_a_namespace_with_keys_is_not_written_to(scripted: Maker, by_depth: bool) -> None:
    server = scripted(shards=2, by_depth=by_depth, is_0_15=by_depth)
    keys = ["/admin", "/admin/clusters/a", "/ledgers", "/ledgers/00/0000/L0001"]
    for key in keys:
        server.set(key)
    before = dict(server.records)
    assert probe(server) == TargetSeen(("admin", "ledgers"), True, by_depth)
    assert server.records == before


def test_keys_in_natural_order_are_told_by_what_is_there(scripted: Maker) -> None:
    server = scripted(natural=True)
    server.set("/ledgers/00/0000/L0001")
    before = dict(server.records)
    assert probe(server).hierarchical is False
    assert server.records == before


def test_a_later_oxia_is_told_by_the_name_of_its_service(scripted: Maker) -> None:
    assert probe(scripted(is_0_15=True)).is_0_15
    assert not probe(scripted()).is_0_15


def test_a_probe_without_an_answer_is_an_error_that_names_its_key(scripted: Maker) -> None:
    server = scripted()

    def refuse(_: Any) -> Any:
        raise Refusal("gone", grpc.StatusCode.UNAVAILABLE)

    server.write = refuse
    with pytest.raises(StoreUnavailableError, match=r"/bookwarden-preflight-.* look whether that key is left"):
        probe(server)


@pytest.mark.parametrize("kind", ["puts", "deletes"])
def test_a_probe_that_is_refused_is_an_error(scripted: Maker, kind: str) -> None:
    server = scripted()

    def refuse(request: pb.WriteRequest) -> pb.WriteResponse:
        answer = server.apply(request)
        for one in getattr(answer, kind):
            one.status = pb.UNEXPECTED_VERSION_ID
        return answer

    server.write = refuse
    with pytest.raises(StoreError, match="which answered UNEXPECTED_VERSION_ID"):
        probe(server)


def test_what_is_not_there_or_refuses_is_an_error(scripted: Maker) -> None:
    with pytest.raises((StoreError, ConfigError)):
        probe_namespace(OxiaConnection("127.0.0.1:1", connect_timeout_s=0.2), may_write=True)
    server = scripted(token="secret")
    with pytest.raises(StoreAccessError):
        probe(server, token="wrong")
    assert probe(server, token="secret").hierarchical
