"""Checks of clients: transactions, versions that do not follow a redirect, and the addresses that they are sent to."""

from __future__ import annotations

import re
from collections import defaultdict
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from bookwarden.cluster_migration.readiness.findings import Override, Results, good, loses, or_good, warns
from bookwarden.cluster_migration.scope import namespace_of
from bookwarden.cluster_migration.sides.values import PENDING_ACKNOWLEDGEMENTS, LookupResult, Observations
from bookwarden.findings import some


class Follows(Enum):
    """An answer: does a client go to green when it is redirected?"""

    YES = "yes"
    MAY_HANG = "yes, or its whole client stalls"
    IF_TESTED = "with one broker on green; with several, test it"
    NO = "no"
    UNKNOWN = "unknown"


# As clients name themselves to brokers: Java before 3.0 by its number alone; newer ones may add a description.
_JAVA: Final = re.compile(r"(?:Pulsar-Java-v)?(\d+)\.(\d+)(?:\.\d+)*(?:-.*)?")
_CPP: Final = re.compile(r"Pulsar-CPP-v(\d+)\.(\d+)")
_GO: Final = re.compile(r"Pulsar Go (\d+)\.(\d+)")
_UPGRADE: Final = (
    "upgrade them (Java 3.2, C++ and Python 3.5), or restart them with green's address right after the flag"
)


def follows(version: str) -> Follows:
    """Return whether a client of this version, as it names itself, follows; where both URLs are set."""
    if found := _CPP.match(version):
        return Follows.MAY_HANG if (int(found[1]), int(found[2])) >= (3, 5) else Follows.NO
    if found := _GO.match(version):
        # Since pulsar-client-go#1210, by its own account; not tried.
        return Follows.UNKNOWN
    if found := _JAVA.fullmatch(version):
        number = (int(found[1]), int(found[2]))
        if number < (3, 0):
            return Follows.NO
        return Follows.YES if number >= (3, 2) else Follows.IF_TESTED
    return Follows.UNKNOWN


@or_good("no transaction is open, and none was seen")
def transactions(seen: Observations) -> Results:
    """Check that no transactions are in use: what blue commits is not visible on green."""
    if seen.blue.transaction_error:
        yield loses(
            f"transactions under way are not known: {seen.blue.transaction_error}",
            "let our role read them (superuser), and make sure that there are none",
            override=Override.TRANSACTIONS,
        )
    yield from _open(seen)
    for ours, _ in seen.pairs():
        used = sorted(one.name for one in ours.topics.values() if one.transactions)
        used += sorted(name for name in ours.system_topics if name.endswith(PENDING_ACKNOWLEDGEMENTS))
        if used or ours.transaction_bytes:
            yield loses(
                f"transactions were used on {some(used)}" if used else "transactions were used in it",
                "stop these applications before the flag, and start them with green's address",
                ours.name,
                used,
                Override.TRANSACTIONS,
            )


def _open(seen: Observations) -> Results:
    """Judge open transactions: those of the scope, those that may come to it, and those of other namespaces."""
    ours: list[str] = []
    elsewhere: list[str] = []
    for name, topics in sorted(seen.blue.open_transactions.items()):
        inside = not topics or any(namespace_of(topic) in seen.scope for topic in topics)
        (ours if inside else elsewhere).append(name)
    if ours:
        yield loses(
            f"{len(ours)} transactions are open on blue",
            "end them, and stop the applications that begin them until they use green",
            evidence=ours,
            override=Override.TRANSACTIONS,
        )
    if elsewhere:
        yield warns(
            f"{len(elsewhere)} transactions are open on topics of other namespaces",
            "know that none of these applications goes on to topics of the scope",
            evidence=elsewhere,
        )


def _all_follow(seen: Observations) -> str:
    connected = any(one.client_versions for ours, _ in seen.pairs() for one in ours.topics.values())
    return "all clients that are connected follow" if connected else "no client is connected"


@or_good(_all_follow)
def versions(seen: Observations) -> Results:
    """Check that each client that is connected will follow; those that come later are not seen."""
    for ours, _ in seen.pairs():
        by_answer: dict[Follows, list[str]] = defaultdict(list)
        for topic in sorted(ours.topics.values(), key=lambda one: one.name):
            for version in sorted(topic.client_versions):
                by_answer[follows(version)].append(f"{version or 'no version'} on {topic.name}")
        for answer, said in ((Follows.NO, "do not follow"), (Follows.UNKNOWN, "may not follow")):
            if by_answer[answer]:
                yield loses(
                    f"clients that {said}: {some(by_answer[answer])}",
                    _UPGRADE,
                    ours.name,
                    by_answer[answer],
                    Override.OLD_CLIENTS,
                )
        if by_answer[Follows.MAY_HANG]:
            yield warns(
                f"clients in C++ (Python, Node.js), which may stall: {some(by_answer[Follows.MAY_HANG])}",
                "give no Python client a Python logger before the move: its process aborts when it is redirected; "
                "be ready to restart their processes where `watch` says CONSUMERS LEFT or PRODUCERS LEFT",
                ours.name,
                by_answer[Follows.MAY_HANG],
            )
        if by_answer[Follows.IF_TESTED] and len(seen.green.brokers) > 1:
            yield warns(
                f"not sure with several brokers on green: {some(by_answer[Follows.IF_TESTED])}",
                "try this version with a topic of its own, or upgrade it to Java 3.2",
                ours.name,
                by_answer[Follows.IF_TESTED],
            )


_SET: Final = "set cluster_migration.green.clients"


def addresses(seen: Observations) -> Results:
    """Check that both addresses are set, lead to green's brokers, and not back to blue's."""
    urls = seen.urls
    for name, url, scheme in (
        ("broker_service_url", urls.broker_service_url, "pulsar"),
        ("broker_service_url_tls", urls.broker_service_url_tls, "pulsar+ssl"),
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
    if urls.broker_service_url and not seen.lookups:
        yield loses("no topic was looked up through the addresses", "find out why, and try again")
    for url, listed in seen.web_brokers.items():
        yield from _judge_web(seen, url, listed)


def _judge(seen: Observations, lookup: LookupResult) -> Results:
    green, blue = _addresses(seen, "green"), _addresses(seen, "blue")
    owner = lookup.owner or lookup.url
    if lookup.error and not _is_used(seen, lookup.url):
        yield warns(
            f"{lookup.url} does not answer: {lookup.error}",
            "nothing: blue's brokers have no address of this kind, so that no client uses it",
        )
    elif lookup.error:
        yield loses(
            f"{lookup.url} does not answer a client: {lookup.error}",
            f"{_SET} to what clients reach; running clients keep a wrong address for ever",
        )
    elif _place(owner) in blue:
        yield loses(f"{lookup.url} leads to {owner}, a broker of blue", f"{_SET} to green's addresses")
    elif _place(owner) not in green:
        yield loses(
            f"{lookup.url} leads to {owner}, which is no broker of green ({', '.join(sorted(green)) or 'none known'})",
            f"{_SET} to green's addresses; with a proxy, let it serve green",
        )
    else:
        yield good(f"{lookup.url} answered for {lookup.topic}: {owner}, version {lookup.server}")


def _is_used(seen: Observations, url: str) -> bool:
    """Return whether clients may have come to blue by an address of this kind, plain or with TLS."""
    scheme = urlsplit(url).scheme
    offered = [urlsplit(address).scheme for one in seen.blue.brokers for address in one.addresses]
    return not offered or scheme in offered


def _judge_web(seen: Observations, url: str, listed: frozenset[str] | str) -> Results:
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
