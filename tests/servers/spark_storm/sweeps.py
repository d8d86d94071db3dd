"""The acts in which a sweep on a Spark cluster loses processes, is doubled, or gets more executors."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from bookwarden.errors import RefusedError
from servers.spark_gates import Gates
from servers.spark_storm.marks import SETTINGS, Account
from servers.spark_storm.stage import START_S, Stage
from servers.waiting import eventually

_STEP, _TASKS = int(SETTINGS["sweep.ledgers_per_step"]), 8
_WINDOW_S = 5.0


def plain(stage: Stage) -> None:
    """Sweep with nothing in the way."""
    with stage.store() as store:
        marks = stage.planted("plain", store)
        with stage.sweeping(marks, {}):
            pass
        _nothing_twice(stage.account(marks))


def kill(stage: Stage, point: str, kills: int, act: str = "") -> None:
    """Kill executors at a point, one after the other."""
    act, chance = act or point, random.Random(stage.seed)
    gates = Gates(stage.home / f"{act}-gates")
    with stage.store() as store:
        marks = stage.planted(act, store)
        # Of one core: with the task at the point no other is killed, which may be between its sends and their record.
        with stage.sweeping(marks, {**gates.conf, "spark.executor.cores": "1"}) as submission:
            for _ in range(kills):
                taken = stage.spring(gates, point, "kill", submission, chance.randrange(2))
                eventually(lambda pid=taken["executor"]: not Path(f"/proc/{pid}").exists(), 30)
                stage.say(f"  executor {taken['executor']} of user {taken['user']} killed, {marks.left()} ledgers left")
        account = stage.account(marks)
    if point == "sends":
        # Between the broker's confirmation and the record: the sends of one step for each kill.
        assert account.retries_again + account.dead_letters_again <= kills * _STEP, account
        assert account.settled_again <= account.retries_again, account
    else:
        _sent_once(account)
    if point in ("delete", "sends", "record"):
        # What went before the kill is found gone by the replay.
        gone = account.outcomes["already gone"] - len(marks.ledgers["absent"])
        assert gone > 0, "no kill came after a delete"


def retry(stage: Stage, kills: int) -> None:
    """Kill Python workers alone: Spark runs their tasks again."""
    gates = Gates(stage.home / "retry-gates")
    with stage.store() as store:
        marks = stage.planted("retry", store)
        with stage.sweeping(marks, gates.conf) as submission:
            for number in range(kills):
                taken = stage.spring(gates, ("journal", "delete", "record")[number % 3], "die", submission)
                stage.say(f"  worker {taken['python']} killed, {marks.left()} ledgers left")
            eventually(lambda: (gates.folder / "second-attempt").exists(), START_S)
        _sent_once(stage.account(marks))


def speculation(stage: Stage) -> None:
    """Let a task be slow after its journal, until another attempt at it runs at the same time."""
    gates = Gates(stage.home / "speculation-gates")
    conf = {
        **gates.conf,
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.2",
        "spark.speculation.interval": "100ms",
    }
    with stage.store() as store:
        marks = stage.planted("speculation", store, **{"spark.conf": "{spark.speculation: 'true'}"})
        with stage.sweeping(marks, conf) as submission:
            taken = stage.spring(gates, "journal", "wait", submission)
            eventually(lambda: (gates.folder / "second-attempt").exists(), START_S)
            stage.say(f"  worker {taken['python']} was slow, and a second attempt passed it")
        account = stage.account(marks)
        # Two attempts at a task may both send what one batch sends; deletes are done once.
        assert account.retries_again + account.dead_letters_again <= stage.marks, account


def driver(stage: Stage, kills: int) -> None:
    """Kill the driver and its JVM, and start it again on the same checkpoint."""
    chance = random.Random(stage.seed)
    with stage.store() as store:
        marks = stage.planted("driver", store, **_slowly(stage))
        submission = stage.submission(marks.site, "ledger_deletion.py", {"spark.cores.max": "4"})
        submission.start()
        try:
            before = marks.left()
            for number in range(kills):
                wanted = before * (1 - (number + chance.random()) / (kills + 1))
                eventually(lambda most=wanted: marks.left() < most, START_S, pause=0.1)
                submission.kill()
                stage.say(f"  driver killed, {marks.left()} ledgers left")
                submission.start()
            stage.settle(marks, submission)
        finally:
            submission.kill()
        # A driver's executors may run on for a moment, at the same time as those of its successor.
        account = stage.account(marks)
        assert account.retries_again + account.dead_letters_again <= kills * _STEP * _TASKS, account


def _slowly(stage: Stage) -> dict[str, str]:
    """Give the settings with which a sweep takes a minute, however many marks there are."""
    return {"metadata_store.max_requests_per_second": str(stage.marks / 10)}


def second(stage: Stage) -> None:
    """Start a second driver while the first sweeps: it is refused."""
    with stage.store() as store:
        marks = stage.planted("second", store, **_slowly(stage), **{"metadata_store.session_timeout_seconds": "10"})
        conf = {"spark.cores.max": "2"}
        with stage.sweeping(marks, conf) as first:
            eventually(lambda: first.driver() is not None and marks.left() < len(marks.ledgers["unnamed"]), START_S)
            other = stage.submission(marks.site, "ledger_deletion.py", conf, name="second")
            other.start()
            code = other.ended(START_S)
            log = other.process.log_since_start()
            assert code == RefusedError.exit_code, f"{code}: {log[-3000:]}"
            assert "another sweep runs on" in log, log[-3000:]
            stage.say(f"  the second driver was refused with exit code {code}")
        _nothing_twice(stage.account(marks))


def dynamic(stage: Stage) -> None:
    """Begin with one executor, and get more; the limit of requests a second holds for all together."""
    gates = Gates(stage.home / "dynamic-gates")
    (gates.folder / "rates").touch()
    conf = {
        **gates.conf,
        "spark.executor.cores": "1",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": "1",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.executorIdleTimeout": "10s",
        "spark.scheduler.minRegisteredResourcesRatio": "0.0",
    }
    with stage.store() as store:
        marks = stage.planted("dynamic", store, **_slowly(stage))
        limit = marks.site.settings.metadata_store.max_requests_per_second
        with stage.sweeping(marks, conf):
            pass
        _nothing_twice(stage.account(marks))
    nodes, executors = Counter[int](), set[str]()
    for file in gates.folder.glob("rates-*"):
        executors.add(file.name.split("-")[1])
        for line in file.read_text().splitlines():
            at, _, count = line.partition(" ")
            nodes[int(float(at) / _WINDOW_S)] += int(count)
    most = max(nodes.values()) / _WINDOW_S
    stage.say(f"  {len(executors)} executors asked for {most:.0f} nodes a second at most, and {limit:g} are allowed")
    assert len(executors) > 2, "no executors were added"
    # A batch of nodes counts when it is sent: for each executor one more may fall into a window.
    assert most <= limit * 1.1, most


def _nothing_twice(account: Account) -> None:
    _sent_once(account)
    assert account.journaled_again == 0, account


def _sent_once(account: Account) -> None:
    again = (account.settled_again, account.dead_letters_again, account.retries_again)
    assert again == (0, 0, 0), account
