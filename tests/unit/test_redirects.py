from __future__ import annotations

from bookwarden.redirects import hosts_of


def test_each_host_of_an_address_counts() -> None:
    assert hosts_of("pulsar+ssl://a:1,b:2") == ["pulsar+ssl://a:1", "pulsar+ssl://b:2"]
    assert hosts_of("pulsar://a:1") == ["pulsar://a:1"]
    assert hosts_of("") == []
