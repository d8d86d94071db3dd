"""Ports of the development cluster."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from bookwarden.errors import ServerError
from bookwarden_dev.devcluster import DevCluster, ports


def test_ports_are_distinct_and_below_those_of_outgoing_connections() -> None:
    chosen = ports.free_ports(50)
    assert len(set(chosen)) == 50
    limits = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if limits.exists():
        assert max(chosen) < int(limits.read_text().split()[0])


def test_a_port_on_which_somebody_listens_is_not_free() -> None:
    with socket.create_server((ports.LOOPBACK, 0)) as server:
        assert not ports.is_free(server.getsockname()[1])


def test_taken_and_avoided_ports_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = set(range(15000, 15010))
    monkeypatch.setattr(ports, "_LOWEST", 15000)
    monkeypatch.setattr(ports, "_first_ephemeral", lambda: 15013)
    monkeypatch.setattr(ports, "is_free", lambda port: port not in taken)
    assert set(ports.free_ports(2, avoid=[15011])) == {15010, 15012}


def test_a_port_is_handed_out_once_as_long_as_there_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_LOWEST", 15000)
    monkeypatch.setattr(ports, "_first_ephemeral", lambda: 15008)
    monkeypatch.setattr(ports, "is_free", lambda port: True)
    monkeypatch.setattr(ports, "_handed_out", set())
    first, second = ports.free_ports(3), ports.free_ports(4)
    assert not set(first) & set(second)
    (last, again) = ports.free_ports(2)
    assert last not in (*first, *second)
    assert again in (*first, *second)


def test_a_new_cluster_leaves_others_their_ports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ports, "_LOWEST", 15000)
    monkeypatch.setattr(ports, "_first_ephemeral", lambda: 15006)
    monkeypatch.setattr(ports, "is_free", lambda port: True)
    chosen = DevCluster(tmp_path, avoid=(15001, 15004)).ports
    assert {chosen.zookeeper, chosen.bookie, chosen.broker, chosen.web} == {15000, 15002, 15003, 15005}


def test_too_few_free_ports_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port: False)
    with pytest.raises(ServerError, match="no 3 free TCP ports"):
        ports.free_ports(3)
