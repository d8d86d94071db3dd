"""A soak of a move from blue to green: Java clients of every kind, moved by the commands, and every message counted.

The rows are those that brokers lose or double messages of by themselves. A row that `start` does not refuse and that
has a loss or a double ends it with exit code 1. Only told are losses of topics that are not persistent, and doubles of
consumers that are restarted with blue's URL while their topic moves.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.population import zookeeper_at

from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.exit_codes import LATE
from bookwarden_dev.devcluster import ClusterOptions
from servers.blue_green.deadlock import deadlock_is_reported_and_cured
from servers.blue_green.java_traffic import FIRST_OF_GREEN, JavaAccount, JavaFlow, JavaTraffic, java_traffic
from servers.blue_green.late import FLAGGED, QUESTION, ask_with, late_flows, make_topics
from servers.blue_green.moving import Watching, drain_or_abort, drained
from servers.blue_green.rows import at_most_once, moving_rows, refused_rows, restarted_rows, table
from servers.blue_green.site import BlueGreenSite, blue_green_site
from servers.blue_green.third import NAMESPACE, Replicated, third_cluster
from servers.waiting import eventually

_PAIRS: Final = (("4.0.8", "4.0.8"), ("4.2.4", "4.2.4"), ("4.0.8", "4.2.4"))
_IDS: Final = "/ledgers/idgen/ID-"
_BACKLOG: Final = 60
_SECONDS: Final = 180.0
#: Topics that late consumers come to, or whose broker is killed, in so many namespaces; each has a flow of messages.
_TOPICS: Final = 200
_NAMESPACES: Final = 5
_REFUSED: Final = ("compacted-topics", "readers", "transactions")
_OPTIONS: Final = {"transactionCoordinatorEnabled": "true"}
_ACTS: Final = ("late", "killed", "rows", "restarted", "replicated", "deadlock", "refused")
Say = Callable[[str], None]


def main() -> int:
    """Move all rows for each pair of versions, as `make soak STORM=blue-green` does."""
    parser = argparse.ArgumentParser(prog="python -m servers.blue_green.soak", description=__doc__)
    parser.add_argument("--versions", nargs="*", metavar="BLUE:GREEN", help="pairs to move; all three unless told")
    parser.add_argument(
        "--topics",
        type=int,
        default=_TOPICS,
        help="that late consumers come to, or whose broker is killed (%(default)s)",
    )
    parser.add_argument("--acts", nargs="*", choices=_ACTS, default=_ACTS, help="some of the acts; all unless told")
    asked = parser.parse_args()
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    pairs = [tuple(one.split(":")) for one in asked.versions] if asked.versions else _PAIRS
    bad = [name for blue, green in pairs for name in play(blue, green, asked.topics, asked.acts)]
    _say(
        f"lost or doubled: {', '.join(bad)}"
        if bad
        else "0 lost, 0 doubled in every row that is not refused, nor only told"
    )
    return 1 if bad else 0


def play(blue: str, green: str, topics: int, acts: Sequence[str]) -> list[str]:
    """Move the rows of these acts between two clusters of these versions; return those that lost or doubled something.

    Their folder stays if there is any, and if a command does not do what it has to.
    """
    home = Path(tempfile.mkdtemp(prefix="bookwarden-blue-green-"))
    _say(f"{blue} to {green}; servers in {home}")
    sides = [ClusterOptions(pulsar=version, broker_settings=_OPTIONS) for version in (blue, green)]
    with blue_green_site(home, *sides) as site:
        advance_ids(site)
        with java_traffic(home / "traffic", site.blue.service_url, blue) as traffic:
            moves: dict[str, Callable[[], list[JavaAccount]]] = {
                "late": lambda: move_late(site, home, blue, topics),
                "killed": lambda: move_killed(site, home, blue, topics),
                "rows": lambda: move(site, traffic),
                "restarted": lambda: move_restarted(site, traffic),
                "replicated": lambda: move_replicated(site, traffic, home, blue),
                "deadlock": lambda: cure_deadlock(site, blue),
                # The last: a transaction that it leaves open stands in the way of every other move.
                "refused": lambda: move_refused(site, traffic),
            }
            accounts = [one for act in _ACTS if act in acts for one in moves[act]()]
    bad = [f"{one.flow.name} ({blue} to {green})" for one in accounts if not one.is_exact]
    if not bad:
        shutil.rmtree(home)
    return bad


def cure_deadlock(site: BlueGreenSite, version: str) -> list[JavaAccount]:
    """Provoke blue's deadlock, which the commands have to report until its broker is killed; no message is counted."""
    deadlock_is_reported_and_cured(site, version)
    _say("a deadlock in blue's broker was reported, and cured")
    return []


def advance_ids(site: BlueGreenSite) -> None:
    """Have green's ledgers begin at ids that blue does not come to."""
    with zookeeper_at(site.green.store_url) as client:
        client.ensure_path(_IDS.rpartition("/")[0])
        made = [client.create_async(_IDS, ephemeral=True, sequence=True) for _ in range(FIRST_OF_GREEN)]
        for one in made:
            one.get()


def move_late(site: BlueGreenSite, home: Path, version: str, topics: int) -> list[JavaAccount]:
    """Move topics to which late consumers come, with clients of their own, which end in a hurry."""
    with java_traffic(home / "late", site.blue.service_url, version) as traffic:
        return _move_late(site, traffic, topics)


def _move_late(site: BlueGreenSite, traffic: JavaTraffic, topics: int) -> list[JavaAccount]:
    """Move topics to which Latest consumers come, fast and slow, while `start` asks and behind each flag.

    What is reported as late may lack as many messages as green had before it, until it is reset.
    """
    names = [site.make_namespace(f"late-{number}/live") for number in range(min(_NAMESPACES, topics))]
    flows = [JavaFlow(f"topic-{number:03}", "Exclusive, latest", per_second=2) for number in range(topics)]
    namespaces = {flow.name: names[number % len(names)] for number, flow in enumerate(flows)}

    def late(when: str, speed: str, pause_ms: int, place: int) -> list[JavaFlow]:
        # A quarter of each namespace's topics for each kind: numbers of a namespace are len(names) apart.
        chosen = [flow for number, flow in enumerate(flows) if number // len(names) % 4 == place]
        found = late_flows(chosen, f"{when}-{speed}", pause_ms)
        return [dataclasses.replace(one, row=f"{when}, {speed}", may_double=True) for one in found]

    asked = [*late("asked", "fast", 0, 0), *late("asked", "slow", 2_000, 1)]
    flagged = [*late("flagged", "fast", 0, 2), *late("flagged", "slow", 2_000, 3)]
    between = late("between", "fast", 0, 0)
    for flow in (*asked, *flagged, *between):
        namespaces[flow.name] = namespaces[flow.of]
    for name in names:
        make_topics(site, name, [flow for flow in flows if namespaces[flow.name] == name])
    for flow in flows:
        traffic.receive(flow, namespaces[flow.name], "late-consumers")
    eventually(lambda: all(traffic.is_received(flow, 0) for flow in flows), _SECONDS, 0.2)
    for flow in flows:
        traffic.send(flow, namespaces[flow.name], "late-producers")
    traffic.wait_for(4, flows)
    site.run("prepare", *names, "--execute", "--yes")

    def come(flow: JavaFlow) -> None:
        traffic.receive(flow, namespaces[flow.name], f"late-{flow.subscription}")

    def while_it_asks() -> None:
        for flow in asked:
            come(flow)
        eventually(lambda: all(traffic.is_received(flow, 1) for flow in asked), _SECONDS, 0.5)

    def once_flagged(name: str) -> None:
        for flow in flagged:
            if namespaces[flow.name] == name:
                come(flow)

    acts = {QUESTION: while_it_asks} | {f"{name}: {FLAGGED}": partial(once_flagged, name) for name in names}
    # Brokers take a snapshot for transactions of each topic that a Java producer comes to, sooner or later.
    accepted = _accept(("idle-subscriptions", "transactions"))
    code = ask_with(site, "start", *names, *accepted, on=acts)
    _say(f"start: exit code {code}; {len(asked) + len(flagged) + len(between)} late subscriptions of {topics} topics")
    assert code in (0, LATE), code
    for flow in between:
        come(flow)
    # Green has entries before the slow ones come.
    time.sleep(5)
    traffic.hurry()
    drain_or_abort(site, names, _say, accepted)
    traffic.wait_for(4, flows)
    traffic.end()
    with site.context() as context:
        reported = {(topic, name): entries for topic, name, entries in context.record.late(names)}
    every = [*flows, *asked, *flagged, *between]

    def lost(flow: JavaFlow) -> int:
        return reported.get((flow.topic(namespaces[flow.name]), flow.subscription), 0)

    for flow in traffic.lacking(every, 40, lost):
        _say(f"{flow.name}: {traffic.lacks(flow)} messages come only once its consumer is made again")
        traffic.receive_again(flow, namespaces[flow.name], site.green.service_url)
    traffic.lacking(every, 40, lost)
    for line in table([traffic.account(flow) for flow in every]):
        _say(line)
    unreported = [flow.name for flow in every if traffic.lacks(flow) > lost(flow)]
    _say(f"reported as late: {len(reported)}; lost and not reported: {', '.join(unreported) or 'none'}")
    site.run("verify", *names, expected=LATE if reported else 0)
    if reported and not unreported:
        site.run("watch", *names, "--late-subscriptions", "reset", "--timeout", "60")
        traffic.lacking(every, 60)
        _say(f"reset: {sum(map(traffic.lacks, every))} still lack messages")
        site.run("verify", *names)
    return [traffic.account(flow) for flow in every]


def move_killed(site: BlueGreenSite, home: Path, version: str, topics: int) -> list[JavaAccount]:
    """Move topics whose broker is killed behind the flag, twice, and go on each time as the runbook says."""
    with java_traffic(home / "killed", site.blue.service_url, version) as traffic:
        return _move_killed(site, traffic, topics)


def _move_killed(site: BlueGreenSite, traffic: JavaTraffic, topics: int) -> list[JavaAccount]:
    """Abort after each kill, restart all consumers with blue's URL, let them read what was stranded, start again.

    What a consumer had not acknowledged when its broker was killed, or it was closed, comes again.
    """
    names = [site.make_namespace(f"killed-{number}/live") for number in range(min(_NAMESPACES, topics))]
    namespaces: dict[str, str] = {}
    flows = []
    for number in range(topics):
        # A quarter of each namespace's topics has a backlog, which a kill strands.
        is_slow = number // len(names) % 4 == 0
        row = f"broker killed, {'slow' if is_slow else 'quick'} consumer"
        flow = JavaFlow(f"killed-{number:03}", row, earliest=True, per_second=2, may_double=True)
        flows.append(dataclasses.replace(flow, pause_ms=700 if is_slow else 0))
        namespaces[flow.name] = names[number % len(names)]

    def receive(life: int) -> None:
        for flow in flows:
            traffic.leave(flow)
        for flow in flows:
            name = namespaces[flow.name]
            traffic.receive(flow, name, f"{name.partition('/')[0]}-consumers-{life}")

    for name in names:
        make_topics(site, name, [flow for flow in flows if namespaces[flow.name] == name])
    receive(0)
    eventually(lambda: all(traffic.is_received(flow, 0) for flow in flows), _SECONDS, 0.2)
    for flow in flows:
        traffic.send(flow, namespaces[flow.name], "killed-producers")
    traffic.wait_for(_BACKLOG, flows)
    site.run("prepare", *names, "--execute", "--yes")
    accepted = _accept(("idle-subscriptions", "transactions"))
    for life in (1, 2):
        site.run("start", *names, "--yes", *accepted)
        time.sleep(3)
        site.blue.broker.kill()
        site.blue.broker.start()
        aborted = site.answer("abort", *names)
        _say(f"killed and aborted: {len(aborted['on_no_side'])} on no side, {len(aborted['made_again'])} made again")
        receive(life)
        for name in names:
            drained(site, name)
    site.run("start", *names, "--yes", *accepted)
    traffic.hurry()
    drain_or_abort(site, names, _say, accepted)
    traffic.wait_for(4, flows)
    traffic.end()
    for flow in traffic.lacking(flows, 40):
        _say(f"{flow.name}: {traffic.lacks(flow)} messages come only once its consumer is made again")
        traffic.receive_again(flow, namespaces[flow.name], site.green.service_url)
    traffic.lacking(flows, 40)
    accounts = [traffic.account(flow) for flow in flows]
    for line in table(accounts):
        _say(line)
    sent, doubled = sum(one.sent for one in accounts), sum(one.doubled for one in accounts)
    _say(f"two kills: {sent:,} sent, {sum(one.lost for one in accounts)} lost, {doubled:,} doubled")
    site.run("verify", *names)
    return accounts


def move(site: BlueGreenSite, traffic: JavaTraffic) -> list[JavaAccount]:
    """Move the rows that lose nothing; return the account of each, but for what nobody keeps."""
    namespace = site.make_namespace("rows/live")
    flows = [*moving_rows(), at_most_once()]
    away = [flow for flow in flows if flow.comes_back]
    make_topics(site, namespace, flows)
    for flow in flows:
        # A Java consumer that is closed while it connects closes the connection, and so that of others.
        traffic.receive(flow, namespace, "restarted" if flow.restart_ms else "consumers")
    eventually(lambda: all(traffic.is_received(flow, 0) for flow in flows), _SECONDS, 0.2)
    for flow in flows:
        if not flow.sends_later:
            traffic.send(flow, namespace)
    first = [flow for flow in flows if not flow.sends_later]
    traffic.wait_for(_BACKLOG, first)
    for flow in away:
        traffic.leave(flow)
    traffic.wait_for(_BACKLOG, first)
    before = site.answer("preflight", namespace, expected=23)
    _say(f"preflight: in the way are {', '.join(sorted({one['check'] for one in _blocking(before)}))}")
    site.run("prepare", namespace, "--execute", "--yes")
    (row,) = site.answer("start", namespace, "--yes", expected=23)["namespaces"]
    assert row["accept"] == ["idle-subscriptions"], row
    (begun,) = site.answer("start", namespace, "--yes", "--accept", "idle-subscriptions")["namespaces"]
    _say(f"start: {begun['marked']} of {begun['topics']} topics and partitions are marked")
    with Watching(site, namespace) as watching:
        for flow in flows:
            if flow.sends_later:
                traffic.send(flow, namespace, "late")
        traffic.wait_for(1, [flow for flow in flows if flow.sends_later])
        step = watching.until("STUCK")
        _say(f"watch: {step['states']}; the consumers that were away come back, with blue's URL")
        for flow in away:
            traffic.receive(flow, namespace, "returned")
    traffic.restarts(False)
    drain_or_abort(site, [namespace], _say)
    traffic.wait_for(_BACKLOG, flows)
    return _account(site, traffic, namespace, flows)


def move_restarted(site: BlueGreenSite, traffic: JavaTraffic) -> list[JavaAccount]:
    """Move consumers that are made anew all the time, where blue makes no subscription for who asks for one."""
    namespace = site.make_namespace("restarted/live")
    # Names of workers are those of flows, and the first move has such flows too.
    flows = [dataclasses.replace(flow, name=f"once-{flow.name}") for flow in restarted_rows()]
    traffic.restarts(True)
    make_topics(site, namespace, flows)
    for flow in flows:
        traffic.receive(flow, namespace, "restarted-once")
    eventually(lambda: all(traffic.is_received(flow, 0) for flow in flows), _SECONDS, 0.2)
    for flow in flows:
        traffic.send(flow, namespace, "restarted-producers")
    traffic.wait_for(_BACKLOG, flows)
    site.run("prepare", namespace, "--execute", "--yes")
    with site.admin(site.blue) as admin:
        admin.post(f"/namespaces/{namespace}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    # Between two of its consumers a subscription has a backlog and none.
    site.run("start", namespace, "--yes", "--accept", "idle-subscriptions")
    drain_or_abort(site, [namespace], _say)
    traffic.wait_for(_BACKLOG, flows)
    return _account(site, traffic, namespace, flows)


def move_refused(site: BlueGreenSite, traffic: JavaTraffic) -> list[JavaAccount]:
    """Have the rows refused that cannot be made safe, then move them by their names, and tell what becomes of them."""
    namespace = site.make_namespace("refused/live")
    flows = refused_rows()
    make_topics(site, namespace, flows)
    with site.admin(site.blue) as admin:
        compacted = next(flow for flow in flows if flow.name == "compacted").topic(namespace)
        admin.post(f"{topic_path(compacted)}/compactionThreshold", 1_000_000)
    for flow in flows:
        traffic.receive(flow, namespace, "refused-consumers")
        traffic.send(flow, namespace, "refused-producers")
    traffic.wait_for(_BACKLOG, flows)
    site.run("prepare", namespace, "--execute", "--yes")
    for accepted in (_REFUSED[:2], _REFUSED[1:], _REFUSED[::2]):
        site.run("start", namespace, "--yes", *_accept(accepted), expected=23)
    (row,) = site.answer("start", namespace, "--yes", expected=23)["namespaces"]
    assert row["accept"] == list(_REFUSED), row
    (begun,) = site.answer("start", namespace, "--yes", *_accept(_REFUSED))["namespaces"]
    _say(f"start --accept {' '.join(_REFUSED)}: {begun['marked']} of {begun['topics']} are marked")
    # Transactions that were open keep their topic from its end.
    site.run("watch", namespace, "--release", "--timeout", "20", expected=None)
    traffic.wait_for(_BACKLOG, [flow for flow in flows if not flow.transactions])
    _account(site, traffic, namespace, flows, patience_s=5)
    return []


def move_replicated(site: BlueGreenSite, traffic: JavaTraffic, home: Path, version: str) -> list[JavaAccount]:
    """Move a namespace that is replicated with a third cluster both ways; return the account of each direction."""
    with third_cluster(site, home, version) as west:
        replicated = Replicated(site, west, traffic)
        replicated.begin()
        checks = replicated.is_refused_while_west_is_away()
        assert checks == ["replication elsewhere"], checks
        _say("start: refused while west is away")
        before = replicated.doubled_before
        _say(f"doubled by the end of west's broker, before the move: {sum(before.values())}")
        replicated.move()
        accounts = _account(site, traffic, NAMESPACE, replicated.flows)
        return [dataclasses.replace(one, doubled=one.doubled - before[one.flow.name]) for one in accounts]


def _account(
    site: BlueGreenSite, traffic: JavaTraffic, namespace: str, flows: Sequence[JavaFlow], patience_s: float = 40.0
) -> list[JavaAccount]:
    """End the traffic, wait for what is under way, print the table; return the accounts of what somebody keeps."""
    traffic.end()
    received = [flow for flow in flows if flow.persistent and flow.consumers]
    for flow in traffic.lacking(received, patience_s):
        if flow.restart_ms or flow.comes_back:
            _say(f"{flow.name}: {traffic.lacks(flow)} messages come only once its consumer is made again")
            traffic.receive_again(flow, namespace, site.green.service_url)
    traffic.lacking(received, patience_s)
    accounts = [traffic.account(flow) for flow in flows]
    for line in table(accounts):
        _say(line)
    for one in accounts:
        if one.failed:
            _say(f"{one.flow.name}: {'; '.join(traffic.troubles(one.flow)[:3])}")
    verified = site.answer("verify", namespace, expected=None)
    faults = [f"{one['topic']}: {', '.join(one['faults'])}" for one in verified["topics"] if one["faults"]]
    _say(f"verify: {'done' if verified['done'] else '; '.join([*verified['faults'], *faults])}")
    return [one for one in accounts if one.flow.persistent]


def _blocking(answer: dict[str, list[dict[str, str]]]) -> list[dict[str, str]]:
    return [one for one in answer["findings"] if one["verdict"] == "would fail"]


def _accept(names: Sequence[str]) -> list[str]:
    return [word for name in names for word in ("--accept", name)]


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
