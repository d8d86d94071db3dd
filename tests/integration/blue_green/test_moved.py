"""Clients moved from blue to green by the commands, while they run: every message arrives, once, whatever happens."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pulsar
import pytest
from pyspark.sql import SparkSession

from bookwarden.cluster_migration.aborting import MigrationAborter, TopicReopener
from bookwarden.cluster_migration.finishing import MigrationFinisher, verify_migration
from bookwarden.cluster_migration.green_resources import GreenResources
from bookwarden.cluster_migration.starting import MigrationStarter
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.metadata.migrations import MigrationNodes
from bookwarden.clusters.pulsar.rest.brokers import broker_clock
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.ledgers.metadata import AbsentLedger, StoredLedger
from bookwarden.ledgers.names import TopicName
from bookwarden.pipelines.scan.folder import plans_of
from bookwarden.pipelines.scan.operation import OrphanScan
from bookwarden.pipelines.sweep.driver import run_sweep
from bookwarden.redirects import ClusterFlag, RedirectUrls
from bookwarden.server.metrics import migration_metrics
from bookwarden.wiring.cluster_migration import ClusterMigration, redirect_urls
from bookwarden_dev.demo.traffic import Flow
from bookwarden_dev.devcluster.servers.settings import PULSARS_LEDGERS_ROOT
from servers.blue_green.application import Application
from servers.blue_green.dying import Dying, Interrupted, KilledError
from servers.blue_green.java_traffic import JavaFlow, java_traffic
from servers.blue_green.late import ask_with, late_subscriptions_lose_nothing
from servers.blue_green.moving import SECONDS, Watching, drain, drained, has_all, require_exact, restart, traffic
from servers.blue_green.site import BlueGreenSite
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]

MORE_THAN_ONE_LOOK_RELEASES = 60
BROKERS_OWN = {"__change_events", "__transaction_buffer_snapshot"}


def test_the_flags_are_written_and_read_back(site: BlueGreenSite) -> None:
    namespace = site.make_namespace(site.fresh("flags"))
    with site.context() as context:
        blue, admin = context.blue, context.blue.admin
        assert (blue.cluster, context.green.cluster) == ("blue", "green")
        assert context.green.admin.read_flag("green") is None
        before = set(blue.nodes.flagged_namespaces())
        urls = redirect_urls(context.clients)
        admin.write_flag(blue.cluster, ClusterFlag(False, urls))
        assert admin.read_flag(blue.cluster) == ClusterFlag(False, urls)
        assert not admin.is_migrated(namespace)
        assert not blue.nodes.is_flagged(namespace)
        admin.set_migrated(namespace, True)
        assert admin.is_migrated(namespace)
        assert set(blue.nodes.flagged_namespaces()) - before == {namespace}
        admin.set_migrated(namespace, False)
        admin.write_flag(blue.cluster, ClusterFlag(False, RedirectUrls()))
        assert set(blue.nodes.flagged_namespaces()) == before


def test_no_policy_is_taken_back_of_a_namespace_that_was_flagged_since_the_question(site: BlueGreenSite) -> None:
    namespace = site.make_namespace(site.fresh("asked"))
    with site.admin(site.blue) as admin:
        admin.put(topic_path(f"persistent://{namespace}/orders"))
    site.run("prepare", namespace, "--execute", "--yes")
    with site.context() as context:
        flag = partial(context.blue.admin.set_migrated, namespace)
        acts = {"values from before? [y/N]": partial(flag, True)}
        assert ask_with(site, "prepare", namespace, "--take-back", on=acts) == 5
        assert not context.blue.admin.policies(namespace)["autoTopicCreationOverride"]["allowAutoTopicCreation"]
        flag(False)
    back = site.answer("prepare", namespace, "--take-back", "--yes")["taken_back"]
    assert ("blue", "autoTopicCreation") in {(one["side"], one["key"]) for one in back}


def test_a_namespace_moves_without_losing_a_message(site: BlueGreenSite, tmp_path: Path) -> None:
    site.moved = move_with_an_account(site, tmp_path)


def move_with_an_account(site: BlueGreenSite, tmp_path: Path) -> str:
    """Move a namespace while its clients run, and count every message; return its name."""
    namespace = site.make_namespace(site.fresh("account"))
    pauses = {"quick": 0.0, "slow": 0.1, "partitioned": 0.0, "away": 0.0}
    topics = {name: f"persistent://{namespace}/{name}" for name in pauses}
    with site.admin(site.blue) as admin:
        admin.put(f"{topic_path(topics['partitioned'])}/partitions", 3)
    with ExitStack() as running:
        applications = {
            name: running.enter_context(
                Application(site.blue.connection(), topics[name], "app", pause, tmp_path / name)
            )
            for name, pause in pauses.items()
        }
        flows = [Flow(topic, subscription=None) for topic in topics.values()]
        sending = running.enter_context(traffic(site, flows))
        eventually(lambda: all(application.received for application in applications.values()), SECONDS)
        applications["away"].kill()
        sending.wait_for(20, SECONDS)
        assert site.answer("start", namespace, "--yes", expected=23)["would_fail"]
        site.run("prepare", namespace, "--execute", "--yes")
        # A subscription that nobody reads holds its topic on blue: that has to be accepted by name.
        (refused,) = site.answer("start", namespace, "--yes", expected=23)["namespaces"]
        assert refused["accept"] == ["idle-subscriptions"]
        (begun,) = site.answer("start", namespace, "--yes", "--accept", "idle-subscriptions")["namespaces"]
        assert (begun["topics"], begun["marked"]) == (6, 6)
        with Watching(site, namespace) as watching:
            watching.until("STUCK")
        assert site.run("verify", namespace, expected=22).stdout.count("STUCK on blue") == 1
        applications["away"].restart()
        drain(site, [namespace], list(applications.values()))
        sending.wait_for(20, SECONDS)
        assert [one.tally.send_errors for one in sending.stop()] == [0] * len(topics)
        for name, application in applications.items():
            application.hurry()
            eventually(partial(has_all, application, sending.numbers(topics[name])), SECONDS, 0.5)
    verified = site.answer("verify", namespace)
    assert verified["done"]
    assert all(one["began_with"] and one["on_green"] for one in verified["topics"])
    return namespace


def test_subscriptions_and_partitions_that_come_while_topics_move_lose_nothing(
    site: BlueGreenSite, tmp_path: Path
) -> None:
    late_subscriptions_lose_nothing(site, "4.0.8", tmp_path)


def test_what_moved_is_finished_and_nothing_else_is_touched(
    site: BlueGreenSite, spark: SparkSession, tmp_path: Path
) -> None:
    """Goes on with the namespace that moved above; another one of blue stays as it is."""
    namespace, other = site.moved or move_with_an_account(site, tmp_path), site.make_namespace(site.fresh("other"))
    # Another try begins with another one: of this nothing will be left.
    site.moved = ""
    kept = f"persistent://{other}/kept"
    with traffic(site, [Flow(kept)], before=20) as running:
        require_exact(running.stop())
    with site.context() as context:
        store = ManagedLedgers(context.blue.store)
        read = store.read(TopicName.parse(kept).managed_ledger)
        topics = list(context.blue.nodes.topics(namespace))
        named = [(TopicName.of_managed_ledger(one.managed_ledger), one) for one in topics]
        before = [one for name, one in named if name.local_name not in BROKERS_OWN]
        moved = {ledger_id for one in before for ledger_id in one.info.ledger_ids}
        found = context.blue.read_ledgers(sorted(moved))
        leaked = next(one for one in found if isinstance(one, StoredLedger))
    assert read is not None
    # Blue may have deleted some by itself: what was loaded before it was told not to is deleted once nobody uses it.
    there = {str(TopicName.of_managed_ledger(one.managed_ledger).base) for one in before}
    assert there
    site.bookwarden("init")
    planned = site.answer("finish", namespace, expected=None)
    assert not planned["executed"]
    # Read, and on blue alone: the plan says how much history goes.
    counts = {one["topic"]: (one["entries"], one["size"]) for one in planned["topics"]}
    assert all(min(count) for count in counts.values()), counts
    assert "Read history: " in site.run("finish", namespace, expected=None).stdout
    # Clients were connected to blue a moment ago: once its topics are gone, blue sends none of them to green.
    assert "within the last hour" in site.run("finish", namespace, "--execute", "--yes", expected=5).stderr
    accepted = ("--accept", "late-clients")
    finished = site.answer("finish", namespace, "--execute", "--yes", *accepted)
    assert [one["problem"] for one in finished["topics"] if not one["done"]] == []
    assert {one["topic"] for one in finished["topics"]} >= there
    assert site.answer("finish", namespace, "--execute", "--yes", *accepted)["topics"] == []
    assert site.answer("verify", namespace)["done"]
    # A late client of a topic with partitions would make another one on green: what keeps blue from saying so stays.
    (failed,) = site.answer("prepare", namespace, "--take-back", "--yes", expected=1)["failed"]
    assert (failed["side"], failed["key"]) == ("blue", "autoTopicCreation")
    with site.admin(site.blue) as admin:
        assert not admin.get_json(f"/namespaces/{namespace}")["autoTopicCreationOverride"]["allowAutoTopicCreation"]
    require_errors_of_late_clients(site, namespace, tmp_path)
    # The sweep takes what was marked, and nothing else.
    run_sweep(spark, site.settings, once=True)
    with site.context() as context:
        read_ledgers = context.blue.read_ledgers
        assert all(isinstance(one, AbsentLedger) for one in read_ledgers(sorted(moved)))
        assert all(isinstance(one, StoredLedger) for one in read_ledgers(sorted(read.info.ledger_ids)))
        left = [TopicName.of_managed_ledger(one.managed_ledger) for one in context.blue.nodes.topics(namespace)]
        assert {topic.local_name for topic in left} <= BROKERS_OWN
        again = ManagedLedgers(context.blue.store).read(TopicName.parse(kept).managed_ledger)
        assert again is not None
        assert read.info.ledger_ids <= again.info.ledger_ids
        # One that was left behind: the scan finds it, and nothing else.
        context.blue.store.create(ledger_path(PULSARS_LEDGERS_ROOT, leaked.ledger_id), leaked.raw, make_parents=True)
    # A broker tells whole seconds, and what is younger than its clock is too young.
    made_ms = int(time.time() * 1000)
    with site.admin(site.blue) as admin:
        eventually(lambda: broker_clock(admin) > made_ms)
    scan = OrphanScan(spark, site.settings)
    scanned = scan.run(scan.begin())
    candidates = plans_of(site.settings).all_candidates(scanned.plan)
    # Clients of the broker write the schema of its own topic at once, and leave those that come too late.
    found = {one.ledger_id: one.holder for one in candidates if one.holder.rpartition("/")[2] not in BROKERS_OWN}
    assert found.keys() == {leaked.ledger_id}, found
    assert scanned.summary.missing_total == 0


def require_errors_of_late_clients(site: BlueGreenSite, namespace: str, folder: Path) -> None:
    """Have Java clients with blue's URL come when all is over: they get errors, and make nothing on green."""
    before = on_green(site, namespace)
    flows = [JavaFlow("partitioned", "late", earliest=True), JavaFlow("quick", "late", earliest=True)]
    with java_traffic(folder / "late", site.blue.service_url, "4.0.8") as clients:
        for flow in flows:
            clients.receive(flow, namespace)
            clients.send(flow, namespace)
        for flow in flows:
            eventually(lambda flow=flow: len(clients.troubles(flow)) >= 4, SECONDS, 0.2)
            assert all("TopicDoesNotExist" in text for text in clients.troubles(flow)), clients.troubles(flow)
            assert clients.count(flow.name) == -1
    assert on_green(site, namespace) == before


def on_green(site: BlueGreenSite, namespace: str) -> set[str]:
    with site.context() as context:
        return {one.managed_ledger for one in context.green.nodes.topics(namespace)}


def test_a_watch_that_ends_leaves_no_drained_topic_loaded(site: BlueGreenSite) -> None:
    namespace = site.make_namespace(site.fresh("idle"))
    with site.admin(site.blue) as admin:
        for number in range(MORE_THAN_ONE_LOOK_RELEASES):
            path = topic_path(f"persistent://{namespace}/t{number}")
            admin.put(path)
            admin.put(f"{path}/subscription/app", {"ledgerId": -1, "entryId": -1})
    site.run("prepare", namespace, "--execute", "--yes")
    site.run("start", namespace, "--release", "--yes")
    left = site.answer("release", namespace)
    assert (left["free"], left["drained"]) == ([], [])


def test_what_a_moved_bundle_or_a_killed_broker_strands_is_told_and_read(site: BlueGreenSite, tmp_path: Path) -> None:
    namespace = site.make_namespace(site.fresh("stranded"))
    topic, quick = (f"persistent://{namespace}/{name}" for name in ("slow", "quick"))
    sends = [Flow(topic, subscription=None, per_second=100), Flow(quick, subscription=None)]
    with (
        Application(site.blue.connection(), topic, "app", 0.1, tmp_path / "received") as application,
        Application(site.blue.connection(), quick, "app", 0.0, tmp_path / "quick") as drained_at_once,
        traffic(site, sends, before=150) as running,
    ):
        eventually(lambda: application.received, SECONDS)
        eventually(lambda: len(drained_at_once.received) >= 100, SECONDS)
        site.run("prepare", namespace, "--execute", "--yes")
        # As the runbook says where a double is worse than a wait: else a consumer that asks blue once more in the very
        # moment in which its subscription is deleted makes it again, and reads all of the topic.
        with site.admin(site.blue) as admin:
            admin.post(f"/namespaces/{namespace}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
        # What it acknowledged a moment ago would come again to any consumer that is killed.
        read = set(drained_at_once.received)
        site.run("start", namespace, "--yes")
        with Watching(site, namespace) as watching:
            watching.until("DRAINING")
            with site.admin(site.blue) as admin:
                admin.put(f"/namespaces/{namespace}/unload")
            step = watching.until("STRANDED")
            assert any("STRANDED" in text and "abort" in text for text in step["warnings"])
            metric = f'bookwarden_cluster_migration_topics{{namespace="{namespace}",state="STRANDED"}} 1.0'
            assert metric in migration_metrics(site.settings).decode()
            assert site.answer("abort", namespace)["taken_off"] == [namespace]
            watching.until("flag off")
        # It went to green at once, and what it had not read is on blue: a restart brings it back.
        restart([application, drained_at_once])
        eventually_read(application)
        site.run("start", namespace, "--yes")
        with Watching(site, namespace) as watching:
            watching.until("DRAINING")
            site.blue.broker.kill()
            site.blue.broker.start()
            watching.until("STRANDED")
            while not any("restarted" in text for one in watching.steps for text in one["warnings"]):
                watching.until("STRANDED")
        site.run("abort", namespace)
        application.hurry()
        restart([application, drained_at_once])
        drained(site, namespace)
        site.run("start", namespace, "--yes")
        drain(site, [namespace], [application, drained_at_once])
        running.wait_for(20, SECONDS)
        assert {one.tally.send_errors for one in running.stop()} == {0}
        eventually(lambda: not running.numbers(topic) - set(application.received), SECONDS, 0.5)
        eventually(lambda: not running.numbers(quick) - set(drained_at_once.received), SECONDS, 0.5)
        # Blue had deleted its subscription twice, and was asked for it again each time; `abort` had made it at its end.
        again = Counter(drained_at_once.received)
        assert [number for number in read if again[number] > 1] == []
    assert site.answer("verify", namespace)["done"]


def eventually_read(application: Application) -> None:
    """Wait until a consumer that was started anew gets messages."""
    before = len(application.received)
    eventually(lambda: len(application.received) > before, SECONDS)


def test_after_an_abort_topics_are_reopened_and_can_move_again(site: BlueGreenSite, tmp_path: Path) -> None:
    namespace = site.make_namespace(site.fresh("back"))
    read, unread = (f"persistent://{namespace}/{name}" for name in ("read", "unread"))
    with (
        Application(site.blue.connection(), read, "app", 0.0, tmp_path / "blue") as application,
        traffic(site, [Flow(read, subscription=None), Flow(unread, is_away=True)]) as running,
    ):
        eventually(lambda: application.received, SECONDS)
        site.run("prepare", namespace, "--execute", "--yes")
        site.run("start", namespace, "--yes", "--accept", "idle-subscriptions")
        site.run("reopen", read, "--execute", expected=5)
        aborted = site.answer("abort", namespace)
        assert {one["topic"] for one in aborted["marked"]} == {read, unread}
        # A producer whose write was under way when its topic was marked may be on no side by then: it is named.
        running.wait_for(20, SECONDS, [topic for topic in (read, unread) if topic not in aborted["on_no_side"]])
        running.stop(seconds=1)
        # What went to green is read there, and the rest on blue by a client that is made anew.
        application.restart()
        with Application(site.green.connection(), read, "app", 0.0, tmp_path / "green") as on_green:
            eventually(lambda: running.numbers(read) <= {*application.received, *on_green.received}, SECONDS, 0.5)
    assert [one["done"] for one in site.answer("reopen", unread)] == [False]
    assert [one["done"] for one in site.answer("reopen", unread, "--execute")] == [True]
    assert [one["done"] for one in site.answer("reopen", unread, "--undo")] == [True]
    assert [one["done"] for one in site.answer("reopen", unread, read, "--execute")] == [True, True]
    # Blue serves as before: it accepts messages, and has what nobody read.
    with traffic(site, [Flow(read), Flow(unread)], before=20) as running:
        accounts = {account.tally.topic: account.tally for account in running.stop()}
    assert accounts[read].lost == accounts[unread].lost == accounts[read].doubled == 0
    site.run("start", namespace, "--yes", "--accept", "idle-subscriptions")
    site.run("watch", namespace, "--timeout", "90", expected=None)
    assert site.answer("verify", namespace)["done"]


def test_start_takes_the_flag_off_where_a_topic_was_not_marked(site: BlueGreenSite, tmp_path: Path) -> None:
    """A bundle moves between the load and the flag: what nobody asks for then is loaded by no broker any more."""
    namespace = site.make_namespace(site.fresh("unmarked"))
    served, quiet = (f"persistent://{namespace}/{name}" for name in ("served", "quiet"))
    with (
        Application(site.blue.connection(), served, "app", 0.0, tmp_path / "received") as application,
        traffic(site, [Flow(served, subscription=None)], before=20) as running,
    ):
        with site.admin(site.blue) as admin:
            admin.put(topic_path(quiet))
        site.run("prepare", namespace, "--execute", "--yes")
        with site.context() as context:
            starting = starting_of(context)
            unloaded = partial(context.blue.admin.unload, quiet)
            starting._admin = Interrupted(context.blue.admin, "set_migrated", unloaded)  # type: ignore[assignment]
            starting.set_urls()
            begun = starting.start(namespace)
            assert begun.took_back
            assert quiet in begun.left
            assert not context.blue.admin.is_migrated(namespace)
            assert context.record.begun() == [] or namespace not in context.record.begun()
        # What was not marked serves on; run again, all of it moves.
        site.run("start", namespace, "--yes")
        drain(site, [namespace], [application])
        running.wait_for(20, SECONDS)
        assert running.stop()[0].tally.send_errors == 0
        eventually(partial(has_all, application, running.numbers(served)), SECONDS, 0.5)
    assert site.answer("verify", namespace)["done"]


#: Where `abort` dies, and where `reopen` does, a topic each; of the last ones blue has deleted the subscription.
ABORT_DEATHS = [("admin", "set_migrated", "before"), ("admin", "set_migrated", "after"), ("record", "append", "before")]
#: Where it dies once the flag is off: subscriptions that blue had deleted are made again.
LATE_ABORT_DEATHS = [("admin", "create_subscription", "before"), ("admin", "create_subscription", "after")]
REOPEN_DEATHS = {
    "unloaded": ("admin", "unload", "after"),
    "announced": ("record", "append", "after"),
    "unwritten": ("nodes", "replace_value", "before"),
    "written": ("nodes", "replace_value", "after"),
    "bare": ("admin", "create_subscription", "before"),
    "whole": ("admin", "create_subscription", "after"),
}


def test_abort_and_reopen_go_on_where_they_were_killed(site: BlueGreenSite) -> None:
    namespace = site.make_namespace(site.fresh("killed-back"))
    deaths = {f"persistent://{namespace}/{name}": death for name, death in REOPEN_DEATHS.items()}
    left = f"persistent://{namespace}/left"
    unread = [topic for topic, death in deaths.items() if death[1] != "create_subscription"]
    drained = [left, *(topic for topic in deaths if topic not in unread)]
    with traffic(site, [Flow(topic) for topic in drained], before=5) as running:
        require_exact(running.stop())
    with traffic(site, [Flow(topic, is_away=True) for topic in unread], before=5) as running:
        running.stop(seconds=0)
        wanted = {topic: Counter(running.numbers(topic)) for topic in unread}
    site.run("prepare", namespace, "--execute", "--yes")
    site.run("start", namespace, "--yes", "--accept", "idle-subscriptions")
    with site.context() as context:
        for topic in drained:
            eventually(lambda topic=topic: no_cursors(context.blue.nodes, topic), SECONDS, 0.5)
        for part, call, when in ABORT_DEATHS:
            abort_and_die(context, namespace, part, call, when)
        assert not context.blue.nodes.is_flagged(namespace)
        for topic, (part, call, when) in deaths.items():
            reopening = TopicReopener(context.blue, context.record)
            setattr(reopening, f"_{part}", Dying(getattr(reopening, f"_{part}"), call, when))
            with pytest.raises(KilledError):
                reopening.reopen(topic)
        for part, call, when in LATE_ABORT_DEATHS:
            abort_and_die(context, namespace, part, call, when)
    aborted = site.answer("abort", namespace)
    # The others were opened by then, and so have to be completed by `reopen`.
    assert {one["topic"] for one in aborted["marked"]} >= {left}
    assert aborted["troubles"] == []
    assert reads_nothing(site, left)
    assert site.answer("abort", namespace)["made_again"] == []
    site.answer("reopen", *deaths, "--execute")
    # Blue serves as before: it has what nobody had read, gives nothing twice, and accepts messages.
    with traffic(site, [Flow(topic, subscription=None) for topic in deaths], before=5) as running:
        assert {one.tally.send_errors for one in running.stop()} == {0}
    with closing(site.blue.connection().client()) as client:
        for topic in deaths:
            sent = wanted.get(topic, Counter()) + Counter(running.numbers(topic))
            consumer = client.subscribe(topic, "app", initial_position=pulsar.InitialPosition.Earliest)
            assert Counter(int(consumer.receive(60_000).data()) for _ in range(sent.total())) == sent, topic


def abort_and_die(context: ClusterMigration, namespace: str, part: str, call: str, when: str) -> None:
    """Abort, and be killed at a call."""
    aborting = MigrationAborter(context.blue, context.observer, context.record)
    setattr(aborting, f"_{part}", Dying(getattr(aborting, f"_{part}"), call, when))
    with pytest.raises(KilledError):
        aborting.abort([namespace])


def reads_nothing(site: BlueGreenSite, topic: str) -> bool:
    """Return whether an application that is restarted with blue's URL gets nothing of a topic that it has read."""
    with closing(site.blue.connection().client()) as client:
        consumer = client.subscribe(topic, "app", initial_position=pulsar.InitialPosition.Earliest)
        try:
            consumer.receive(2_000)
        except pulsar.Timeout:
            return True
    return False


def no_cursors(nodes: MigrationNodes, topic: str) -> bool:
    """Return whether blue has deleted each subscription of a topic."""
    found = nodes.topic(TopicName.parse(topic).managed_ledger)
    return found is not None and not found.cursors


def starting_of(context: ClusterMigration) -> MigrationStarter:
    resources = GreenResources(context.blue, context.green, context.record)
    return MigrationStarter(context.blue, context.observer, context.record, redirect_urls(context.clients), resources)


def begin(starting: MigrationStarter, namespace: str) -> None:
    starting.set_urls()
    starting.start(namespace)


def test_start_and_finish_go_on_where_they_were_killed(site: BlueGreenSite, tmp_path: Path) -> None:
    deaths = [
        ("admin", "write_flag", "after"),
        ("record", "starting", "after"),
        ("admin", "set_migrated", "after"),
        ("record", "marked", "before"),
    ]
    site.bookwarden("init")
    names = [site.make_namespace(site.fresh(f"killed-{number}")) for number in range(len(deaths))]
    topics = [f"persistent://{name}/orders" for name in names]
    with ExitStack() as running:
        applications = [
            running.enter_context(Application(site.blue.connection(), topic, "app", 0.0, tmp_path / str(number)))
            for number, topic in enumerate(topics)
        ]
        sending = running.enter_context(traffic(site, [Flow(topic, subscription=None) for topic in topics], before=20))
        eventually(lambda: all(application.received for application in applications), SECONDS)
        site.run("prepare", *names, "--execute", "--yes")
        for namespace, (part, call, when) in zip(names, deaths, strict=True):
            with site.context() as context:
                starting = starting_of(context)
                if call == "write_flag":
                    context.blue.admin.write_flag(context.blue.cluster, ClusterFlag(False, RedirectUrls()))
                setattr(starting, f"_{part}", Dying(getattr(starting, f"_{part}"), call, when))
                with pytest.raises(KilledError):
                    begin(starting, namespace)
            (begun,) = site.answer("start", namespace, "--yes")["namespaces"]
            assert begun["ok"], (part, call, when)
        drain(site, names, applications)
        sending.wait_for(20, SECONDS)
        assert [one.tally.send_errors for one in sending.stop()] == [0] * len(topics)
        for topic, application in zip(topics, applications, strict=True):
            eventually(partial(has_all, application, sending.numbers(topic)), SECONDS, 0.5)
    assert site.answer("verify", *names)["done"]
    with site.context() as context:
        blue, green, observer, record = context.blue, context.green, context.observer, context.record
        verified = verify_migration(blue, green, observer, record, names)
        doomed = MigrationFinisher(blue, green, observer, context.removal, record)
        doomed._record = Dying(record, "append", "after")
        with pytest.raises(KilledError):
            list(doomed.carry_out(doomed.plan(names, verified, ["late-clients"])))
    site.run("finish", *names, "--execute", "--yes", "--accept", "late-clients")
    assert site.answer("finish", *names)["topics"] == []
