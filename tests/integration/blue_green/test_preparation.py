"""Green that lacks things: the pre-flight names them, `prepare` mends them, killed at any write or not, and once."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest

from bookwarden.cluster_migration.preparing.operation import Preparation
from bookwarden.cluster_migration.readiness.checks import evaluate
from bookwarden.cluster_migration.sides.policies import INACTIVE
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden_dev.devcluster.ports import free_ports
from servers.blue_green import shop
from servers.blue_green.site import BlueGreenSite
from servers.switching.open_transactions import open_transactions
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

READY, REFUSED, NOT_READY, MISSING = 0, 5, 23, 22
BROKER_URL = "BOOKWARDEN_CLUSTER_MIGRATION__GREEN__CLIENTS__BROKER_SERVICE_URL"


def filled(site: BlueGreenSite, namespace: str) -> str:
    site.make_namespace(namespace)
    with site.admin(site.blue) as admin:
        shop.fill(admin, namespace)
    return namespace


def in_the_way(answer: Mapping[str, Any], namespace: str) -> set[str]:
    """Return the checks that stand in the way of a namespace, by name."""
    return {
        one["check"]
        for one in answer["findings"]
        if one["namespace"] == namespace and one["severity"] in ("loses messages", "stands still")
    }


def test_what_green_lacks_is_named_mended_and_mended_once(site: BlueGreenSite) -> None:
    gone, shared = (site.fresh(name).partition("/")[0] for name in ("gone", "shop"))
    no_tenant, no_namespace, no_topics, parts = (
        filled(site, name) for name in (f"{gone}/all", f"{shared}/absent", f"{shared}/bare", f"{shared}/parts")
    )
    everything = (no_tenant, no_namespace, no_topics, parts)
    site.make_namespace(no_topics, site.green)
    site.make_namespace(parts, site.green, deletes=False)
    with site.admin(site.green) as admin:
        admin.post(f"/namespaces/{no_topics}/messageTTL", 77)
        shop.subscribe(admin, f"persistent://{no_topics}/greens-own", "own")
        mail = f"persistent://{parts}/mail"
        admin.put(f"{topic_path(f'persistent://{parts}/orders')}/partitions", 2)
        admin.put(topic_path(mail))
        shop.add_schema(admin, mail, 1)
        shop.subscribe(admin, mail, "greens-own")

    before = site.answer("preflight", *everything, expected=NOT_READY)
    of_topics = {"topics on green", "schemas", "idle subscriptions"}
    assert in_the_way(before, no_tenant) >= of_topics | {"namespaces on green"}
    assert in_the_way(before, no_namespace) >= of_topics | {"namespaces on green"}
    assert in_the_way(before, no_topics) >= of_topics
    assert in_the_way(before, parts) >= of_topics
    told = {one["seen"] for one in before["findings"]}
    assert f"green has no tenant {gone}: clients would close for good" in told
    assert any(f"persistent://{parts}/orders: 2 instead of 3" in text for text in told)
    assert any(f"{mail}: 1 of 3 versions" in text for text in told)
    rows = {row["namespace"]: row for row in before["namespaces"]}
    assert rows[parts]["partitions"] == 6
    assert not any(row["ready"] for row in rows.values())

    planned = site.answer("prepare", *everything)
    assert site.answer("prepare", *everything, "--verify", expected=MISSING)["steps"] == planned["steps"]
    done = site.answer("prepare", *everything, "--execute", "--yes")
    assert [one["target"] for one in done["done"]] == [one["target"] for one in planned["steps"]]
    assert (done["failed"], done["left"], done["left_to_you"]) == ([], [], [])
    after = site.answer("preflight", *everything, expected=READY)
    assert all(row["ready"] for row in after["namespaces"])
    assert site.answer("prepare", *everything, "--execute", "--yes")["done"] == []
    site.answer("prepare", *everything, "--verify", expected=0)

    with site.context() as context:
        seen = context.preflight.observe(everything)
        for ours, theirs in seen.pairs():
            assert theirs is not None
            wanted, found = shop.contents(ours, "blue"), shop.contents(theirs, "green")
            assert found["schemas"] == wanted["schemas"]
            assert set(wanted["subscriptions"]) <= set(found["subscriptions"])
            assert found["subscriptions"]["persistent://mail", "app"] == ({"region": "north"}, False, 0)
            assert set(wanted["topics"]) <= set(found["topics"])
            assert set(wanted["rights"]) <= set(found["rights"])
            assert wanted["topic policies"].items() <= found["topic policies"].items()
            # Green creates topics as blue did before.
            assert found["policies"]["autoTopicCreation"]["allowAutoTopicCreation"]
            assert not wanted["policies"]["autoTopicCreation"]["allowAutoTopicCreation"]
            for side in (wanted, found):
                assert not side["policies"][INACTIVE]["deleteWhileInactive"]
        # What green had otherwise is as it was.
        bare = seen.green.namespaces[no_topics]
        assert bare.policies["message_ttl_in_seconds"] == 77
        assert f"persistent://{no_topics}/greens-own" in bare.topics
        names = {one.name for one in seen.green.namespaces[parts].topics[mail].subscriptions}
        assert names >= {"app", "greens-own"}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "is not set"),
        ("pulsar://127.0.0.1:{unused}", "is not reachable"),
        ("{blue}", "a broker of blue"),
        ("{web}", "does not speak Pulsar's protocol"),
    ],
    ids=["none", "nobody listens", "blue's own", "a web address"],
)
def test_addresses_that_do_not_lead_to_green_are_named(site: BlueGreenSite, url: str, said: str) -> None:
    # Only the addresses can be wrong.
    namespace = site.make_namespace(site.fresh("addresses"), site.blue, site.green, deletes=False)
    site.run("prepare", namespace, "--execute", "--yes")
    web = f"pulsar://{site.green.admin_url.partition('://')[2]}"
    value = url.format(unused=free_ports(1)[0], blue=site.blue.service_url, web=web)
    ended = site.run("preflight", namespace, "-o", "json", expected=NOT_READY, environment={BROKER_URL: value})
    answer = json.loads(ended.stdout)
    bad = [one for one in answer["findings"] if one["verdict"] == "would fail"]
    assert {one["check"] for one in bad} == {"green's addresses"}
    assert any(said in one["seen"] for one in bad)


def test_cases_that_cannot_be_made_safe_are_refused_and_accepted_by_name(site: BlueGreenSite) -> None:
    namespace = site.make_namespace(site.fresh("risky"))
    kinds = ("read", "compacted", "left", "well", "kept")
    read, compacted, left, well, kept = (f"persistent://{namespace}/{kind}" for kind in kinds)
    client = pulsar.Client(site.blue.service_url)
    try:
        client.create_reader(read, pulsar.MessageId.earliest)
        client.subscribe(left, "app").close()
        consumers = [client.subscribe(topic, "app") for topic in (well, kept)]
        for topic in (read, compacted, left, well, kept):
            client.create_producer(topic).send(b"x", partition_key="k")
        for consumer in consumers:
            consumer.acknowledge(consumer.receive(30_000))
        with site.admin(site.blue) as admin:
            forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            admin.post(f"{topic_path(kept)}/retention", forever)
            admin.post(f"{topic_path(compacted)}/compactionThreshold", 1_000_000)
        site.run("prepare", namespace, "--execute", "--yes")
        answer = site.answer("preflight", namespace, expected=NOT_READY)
        told = {one["override"]: one["evidence"] for one in answer["findings"] if one["override"]}
        assert set(told) == {"readers", "compacted-topics", "idle-subscriptions", "history"}
        (history,) = told["history"]
        assert history.startswith(f"{kept} (1 entries, ")
        assert told["readers"] == [read]
        assert told["compacted-topics"] == [compacted]
        assert told["idle-subscriptions"] == [f"app of {left} (1 entries)"]
        row = answer["namespaces"][0]
        assert row["accept"] == ["compacted-topics", "history", "idle-subscriptions", "readers"]
        accepted = [word for name in row["accept"] for word in ("--accept", name)]
        site.run("preflight", namespace, *accepted[:6], expected=NOT_READY)
        site.run("preflight", namespace, *accepted, expected=READY)
        text = site.run("preflight", namespace, *accepted).stdout
        assert "clients in C++ (Python, Node.js), which may stall: Pulsar-CPP-v" in text
    finally:
        client.close()


def test_replication_to_green_is_refused_and_not_begun(site: BlueGreenSite) -> None:
    namespace = site.make_namespace(site.fresh("twice"))
    with site.admin(site.blue) as admin:
        if "green" not in admin.get_json("/clusters"):
            urls = {"serviceUrl": site.green.admin_url, "brokerServiceUrl": site.green.service_url}
            admin.put("/clusters/green", urls)
        admin.post(f"/tenants/{namespace.partition('/')[0]}", {"adminRoles": [], "allowedClusters": ["blue", "green"]})
        admin.post(f"/namespaces/{namespace}/replication", ["blue", "green"])
    answer = site.answer("preflight", namespace, expected=NOT_READY)
    assert "two-way-replication" in {one["override"] for one in answer["findings"]}
    (refused,) = site.answer("start", namespace, "--yes", expected=NOT_READY)["namespaces"]
    assert "two-way-replication" in refused["accept"]
    with site.context() as context:
        assert not context.blue.nodes.is_flagged(namespace)
    planned = site.answer("prepare", namespace)
    assert [one["side"] for one in planned["steps"]] == ["blue", "blue"]
    assert any("replicated to green" in one["seen"] for one in planned["left_to_you"])
    with site.admin(site.blue) as admin:
        admin.post(f"/namespaces/{namespace}/replication", ["blue"])
    site.run("prepare", namespace, "--execute", "--yes")
    site.run("preflight", namespace)


def test_transactions_that_are_open_are_refused(site: BlueGreenSite) -> None:
    namespace = site.make_namespace(site.fresh("paid"))
    topic = f"persistent://{namespace}/paid"
    with open_transactions(site.blue.service_url, [topic], site.home / "transactions.log") as client:
        client.wait_for(1)
        site.run("prepare", namespace, "--execute", "--yes")
        answer = site.answer("preflight", namespace, "--accept", "idle-subscriptions", expected=NOT_READY)
    bad = [one for one in answer["findings"] if one["verdict"] == "would fail"]
    assert {one["override"] for one in bad} == {"transactions"}
    assert "3 transactions are open on blue" in {one["seen"] for one in bad}
    assert any(topic in one["evidence"] for one in bad)
    site.run("preflight", namespace, "--accept", "idle-subscriptions", "--accept", "transactions", expected=READY)


def test_green_keeps_what_nobody_uses_yet(site: BlueGreenSite) -> None:
    namespace, control = site.make_namespace(site.fresh("kept")), site.make_namespace(site.fresh("control"), site.green)
    unused, lost = f"persistent://{namespace}/unused", f"persistent://{control}/unused"
    with site.admin(site.blue) as admin:
        admin.put(topic_path(unused))
    site.run("prepare", namespace, "--execute", "--yes")
    with site.admin(site.green) as admin:
        admin.put(topic_path(lost))
        # It was made later, and is gone as soon as it is old enough.
        eventually(lambda: admin.get_json(f"/persistent/{control}") == [], 120, 0.2)
        assert admin.get_json(f"/persistent/{namespace}") == [unused]
    site.run("prepare", namespace, "--verify")
    # While it moves, neither cluster is let delete again.
    with site.context() as context:
        context.blue.admin.set_migrated(namespace, True)
        site.run("prepare", namespace, "--take-back", "--yes", expected=REFUSED)
        context.blue.admin.set_migrated(namespace, False)
    assert site.answer("prepare", namespace, "--take-back", "--dry-run")["would_take_back"]
    with site.admin(site.green) as admin:
        assert admin.get_json(f"/persistent/{namespace}") == [unused]
    site.run("prepare", namespace, "--take-back", "--yes")
    with site.admin(site.green) as admin:
        eventually(lambda: admin.get_json(f"/persistent/{namespace}") == [], 120, 0.2)


class Killed(BaseException):
    """The end of the process, for what runs in this one."""


class Dying:
    """Writes of a cluster, of which the one ends the process before it is made, the next one behind it."""

    def __init__(self, writer: Any, deaths: Iterator[bool]) -> None:
        self._writer = writer
        self._deaths = deaths

    def __getattr__(self, name: str) -> Any:
        write = getattr(self._writer, name)

        def dying(*arguments: Any, **named: Any) -> None:
            if next(self._deaths):
                write(*arguments, **named)
            raise Killed(name)

        return dying


def alternating() -> Iterator[bool]:
    while True:
        yield False
        yield True


def test_killed_at_any_write_and_run_again_it_ends_the_same(site: BlueGreenSite) -> None:
    whole, broken = (filled(site, site.fresh(name)) for name in ("one-go", "stepwise"))
    site.run("prepare", whole, "--execute", "--yes")
    deaths = alternating()
    killed = 0
    with site.context() as context, site.context() as doomed:
        usual = Preparation(context.preflight, [broken], context.journal)
        for side in (doomed.blue, doomed.green):
            side.writer = Dying(side.writer, deaths)
        dying = Preparation(doomed.preflight, [broken], doomed.journal)
        while (plan := dying.plan()).steps:
            with pytest.raises(Killed):
                dying.execute(plan)
            killed += 1
            assert killed < 200
        assert killed >= 2 * 20
        assert usual.execute(usual.plan()).is_complete
        seen = context.preflight.observe([whole, broken])
        for side, name in ((seen.green, "green"), (seen.blue, "blue")):
            assert shop.contents(side.namespaces[broken], name) == shop.contents(side.namespaces[whole], name)

        # The policies from before are known, whichever run noted them.
        done = usual.take_back(usual.held([broken]))
        assert not done.failed
        seen = context.preflight.observe([broken])
        for side, name in ((seen.green, "green"), (seen.blue, "blue")):
            found = shop.contents(side.namespaces[broken], name)
            assert found["policies"][INACTIVE] == shop.INACTIVE
            assert found["topic policies"]["persistent://mail"][INACTIVE] == shop.INACTIVE
            assert found["policies"]["autoTopicCreation"]["allowAutoTopicCreation"]


def has_lines(path: Path, count: int) -> bool:
    return path.exists() and path.read_bytes().count(b"\n") >= count


def test_a_process_that_is_killed_leaves_nothing_to_mend_by_hand(site: BlueGreenSite) -> None:
    namespace = filled(site, site.fresh("killed"))
    journal = site.home / "cluster-migration" / "prepare.jsonl"
    for lines in (3, 11):
        wanted = lines + (journal.read_bytes().count(b"\n") if journal.exists() else 0)
        process = subprocess.Popen(site.command("prepare", namespace, "--execute", "--yes"), stderr=subprocess.DEVNULL)
        eventually(partial(has_lines, journal, wanted), 120, 0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
    # As a death in the middle of a note leaves it.
    with journal.open("ab") as file:
        file.write(b'{"format": 1, "state": "beg')
    site.run("prepare", namespace, "--execute", "--yes")
    site.run("prepare", namespace, "--verify")
    site.run("preflight", namespace)


def test_start_has_the_same_findings_over_clusters_that_are_open(site: BlueGreenSite) -> None:
    namespace = site.make_namespace(site.fresh("unready"))
    with site.context() as context:
        checks = {one.check for one in evaluate(context.preflight.observe([namespace])) if one.blocks}
    assert checks == {"namespaces on green", "deletion held"}
