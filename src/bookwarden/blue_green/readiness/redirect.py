"""The check of the addresses that clients are sent to."""

from __future__ import annotations

from urllib.parse import urlsplit

from bookwarden.blue_green.readiness.lines import Lines, good, loses, warns
from bookwarden.blue_green.sides.values import LookupSeen, Observations

_SET = "set cluster_migration.green.clients"


def urls(seen: Observations) -> Lines:
    """Check that both addresses are set, lead to green's brokers, and not back to blue's."""
    told = seen.urls
    for name, url, scheme in (
        ("broker_service_url", told.broker_service_url, "pulsar"),
        ("broker_service_url_tls", told.broker_service_url_tls, "pulsar+ssl"),
    ):
        if not url:
            yield loses(
                f"{name} is not set: brokers take that, clients would be sent nowhere, for as long as they run",
                f"{_SET}.{name}; Java clients of 3.0 fail without the one for TLS even if they use none: any will do",
            )
        elif not _is_address(url, scheme):
            yield loses(f"{name} {url!r} is no address like {scheme}://host:port", f"{_SET}.{name}")
    for lookup in seen.lookups:
        yield from _judge(seen, lookup)
    if told.broker_service_url and not seen.lookups:
        yield loses("no topic was looked up through the addresses", "find out why, and try again")
    for url, listed in seen.web_brokers.items():
        yield from _judge_web(seen, url, listed)


def _judge(seen: Observations, lookup: LookupSeen) -> Lines:
    green, blue = _addresses(seen, "green"), _addresses(seen, "blue")
    owner = lookup.owner or lookup.url
    if lookup.trouble and not _is_used(seen, lookup.url):
        yield warns(
            f"{lookup.url} does not answer: {lookup.trouble}",
            "nothing: blue's brokers have no address of this kind, so that no client uses it",
        )
    elif lookup.trouble:
        yield loses(
            f"{lookup.url} does not answer a client: {lookup.trouble}",
            f"{_SET} to what clients reach; running clients keep a wrong address for ever",
        )
    elif _place(owner) in blue:
        yield loses(f"{lookup.url} leads to {owner}, a broker of blue", f"{_SET} to green's addresses")
    elif _place(owner) not in green:
        yield loses(
            f"{lookup.url} leads to {owner}, which is no broker of green ({', '.join(sorted(green)) or 'none told'})",
            f"{_SET} to green's addresses; with a proxy, let it serve green",
        )
    else:
        yield good(f"{lookup.url} answered for {lookup.topic}: {owner}, version {lookup.server}")


def _is_used(seen: Observations, url: str) -> bool:
    """Return whether clients may have come to blue by an address of this kind, plain or with TLS."""
    scheme = urlsplit(url).scheme
    offered = [urlsplit(address).scheme for one in seen.blue.brokers for address in one.addresses]
    return not offered or scheme in offered


def _judge_web(seen: Observations, url: str, listed: frozenset[str] | str) -> Lines:
    if isinstance(listed, str):
        yield warns(f"{url} does not answer: {listed}", "clients that look up by http are sent there")
    elif not listed.isdisjoint({one.name for one in seen.blue.brokers}):
        yield loses(f"{url} is blue's own", f"{_SET} to green's addresses")
    elif listed.isdisjoint({one.name for one in seen.green.brokers}):
        yield loses(f"{url} is of a cluster with other brokers than green", f"{_SET} to green's addresses")
    else:
        yield good(f"{url} is green's")


def _addresses(seen: Observations, which: str) -> set[str]:
    side = seen.green if which == "green" else seen.blue
    return {_place(address) for one in side.brokers for address in one.addresses}


def _place(url: str) -> str:
    return urlsplit(url).netloc.lower()


def _is_address(url: str, scheme: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == scheme and all(_has_port(place) for place in parts.netloc.split(","))
    except ValueError:
        return False


def _has_port(place: str) -> bool:
    host, _, port = place.rpartition(":")
    return bool(host) and port.isdigit()
