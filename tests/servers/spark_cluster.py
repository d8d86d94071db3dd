"""A Spark standalone cluster on this machine: a master, and workers that share with the driver what machines share.

Each worker has a folder, a Python environment and, where asked for, a user of its own; none knows of this checkout.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import pyspark
import urllib3

from bookwarden.processes import ProcessIdentity, descendants, identify
from bookwarden_dev.devcluster import ServerProcess, ServerSpec
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports
from servers.class_archives import quick_spark_home, quick_spark_options

_SUBMIT_SECONDS = 240.0
SPARK_HOME = Path(pyspark.__file__).parent
# On Linux all of 127.0.0.0/8 is this machine.
_HOSTS = ("127.0.0.2", "127.0.0.3") if sys.platform == "linux" else (LOOPBACK, LOOPBACK)
# The interpreter below this virtual environment; it has nothing installed that is installed here.
BARE_PYTHON = str(Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}"))
#: What ``spark.pyspark.python`` is to be for the Python of each machine: found by its PATH.
OWN_PYTHON: Final = "machine-python"
_LEFT_OUT = ("site-packages", "dist-packages", "test", "idlelib", "tkinter", "lib2to3", "config-*")
# Java's login wants an account: two of those that every system has, and whose processes do nothing. Their group need
# not be known.
_ACCOUNTS, _GROUP = ("daemon", "bin", "games", "backup", "nobody"), 64_000


def bare_environment(**more: str) -> dict[str, str]:
    """Give what a process needs that must not see this checkout or its virtual environment."""
    return {
        "SPARK_HOME": str(quick_spark_home()),
        "PYSPARK_PYTHON": BARE_PYTHON,
        "PYSPARK_DRIVER_PYTHON": BARE_PYTHON,
        "SPARK_LOCAL_IP": LOOPBACK,
        # Empty is absent for Python: nothing of the caller's may reach the cluster.
        "PYTHONPATH": "",
        "PYTHONDONTWRITEBYTECODE": "",
        **more,
    }


def bare_python_says(code: str) -> subprocess.CompletedProcess[str]:
    """Run a line in the bare interpreter, in the environment and as far from the checkout as the executors."""
    environment = {**os.environ, **bare_environment()}
    return subprocess.run(
        [BARE_PYTHON, "-c", code], env=environment, cwd="/", capture_output=True, text=True, check=False
    )


def java_options(folder: Path) -> str:
    """Give what keeps a Java's temporary files in the folder, and lets it start as quickly as that of other tests."""
    return " ".join((f"-Djava.io.tmpdir={folder} -XX:-UsePerfData -XX:TieredStopAtLevel=1", *quick_spark_options()))


def other_users() -> list[int]:
    """List the users that machines can have."""
    return [entry.pw_uid for entry in pwd.getpwall() if entry.pw_name in _ACCOUNTS and entry.pw_uid]


def why_no_other_users() -> str | None:
    """Return why processes of other users cannot run here; None if they can."""
    if os.geteuid() != 0:
        return "this is not run as root"
    if shutil.which("setpriv") is None:
        return "there is no setpriv (package util-linux)"
    if len(other_users()) < 2:
        return f"there are not two of the accounts {', '.join(_ACCOUNTS)}"
    for needed in (quick_spark_home() / "jars", SPARK_HOME):
        command = [*_as_user(other_users()[0]), "test", "-r", str(needed)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return f"other users cannot read {needed}"
    return None


def _as_user(user: int) -> list[str]:
    # What a group's member makes, the others of the group may write.
    changed = ["setpriv", f"--reuid={user}", f"--regid={_GROUP}", "--clear-groups"]
    return [*changed, "sh", "-c", 'umask 007; exec "$@"', "sh"]


@dataclass(frozen=True)
class Machine:
    """A folder that stands for a machine, with the Python environment that is installed on it.

    ``user`` is that of its processes; None is the caller's. Spark takes machines of the same ``host`` for one.
    """

    folder: Path
    user: int | None = None
    host: str = LOOPBACK

    def install(self, packages: Path, customize: Path | None = None) -> None:
        """Install a Python with the packages in a folder; ``customize`` is a module that it imports at its start."""
        site = self.folder / "python" / "site"
        shutil.copytree(packages, site, copy_function=_link)
        if customize is not None:
            shutil.copy2(customize, site / "sitecustomize.py")
        script = self.folder / "bin" / OWN_PYTHON
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nPYTHONPATH="{site}:$PYTHONPATH" exec {self._interpreter()} "$@"\n')
        script.chmod(0o755)
        for made in ("tmp", "work"):
            (self.folder / made).mkdir()
        if self.user is not None:
            self._hand_over(self.user)

    def _interpreter(self) -> str:
        if self.user is None:
            return BARE_PYTHON
        # It may lie where other users cannot read it.
        home, standard = self.folder / "python", Path(sysconfig.get_path("stdlib"))
        ignored = shutil.ignore_patterns(*_LEFT_OUT)
        shutil.copytree(standard, home / "lib" / standard.name, ignore=ignored, copy_function=_link)
        for library in Path(sys.base_prefix, "lib").glob("libpython*.so*"):
            shutil.copy2(library, home / "lib")
        (home / "bin").mkdir()
        shutil.copy2(BARE_PYTHON, home / "bin")
        return f"env LD_LIBRARY_PATH={home / 'lib'} {home / 'bin' / Path(BARE_PYTHON).name}"

    def _hand_over(self, user: int) -> None:
        for folder, _, _ in os.walk(self.folder):
            os.chown(folder, user, _GROUP)
        self.folder.chmod(0o750)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its processes."""
        temporary = str(self.folder / "tmp")
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "SPARK_LOCAL_IP": self.host,
            "TMPDIR": temporary,
            "SPARK_LOCAL_DIRS": temporary,
        }

    def command(self, *words: str) -> list[str]:
        """Begin a command with what lets its user run it."""
        return [*([] if self.user is None else _as_user(self.user)), *words]


def driver_of(submission: ServerProcess, script: str) -> ProcessIdentity | None:
    """Find the Python process of the script that spark-submit has started."""
    for pid in descendants(submission.pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if "python" in words[0] and words[1].endswith(script):
                return identify(pid)
    return None


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def share(folder: Path) -> None:
    """Make a folder that all machines share: each of their users, and the caller's, may write."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o2770)
    if os.geteuid() == 0:
        os.chown(folder, 0, _GROUP)


class SparkCluster:
    """A master and two workers, each a machine of its own with the packages of a folder; use it in a with statement.

    ``cores`` are those of a worker. ``users``: each worker has a user of its own. ``customize`` is as for `install`, on
    the workers.
    """

    def __init__(
        self,
        home: Path,
        packages: Path,
        *,
        cores: int = 1,
        worker_memory: str = "768m",
        users: bool = False,
        customize: Path | None = None,
    ) -> None:
        self.home = home
        self._packages = packages
        self._customize = customize
        workers = [Machine(home / f"worker-{n}", other_users()[n] if users else None, _HOSTS[n]) for n in range(2)]
        self.driver = Machine(home / "driver")
        self.workers = workers
        port, self._web_port, *worker_ports = free_ports(2 + 2 * len(workers))
        self.master_url = f"spark://{LOOPBACK}:{port}"
        self._servers = [
            self._daemon(
                self.driver,
                "master",
                "master.Master",
                port,
                self._web_port,
                [],
                lambda _: self._alive_workers() is not None,
            )
        ]
        for number, machine in enumerate(workers):
            options = ["--cores", str(cores), "--memory", worker_memory, "--work-dir", str(self.work_folder(number))]
            self._servers.append(
                self._daemon(
                    machine,
                    f"worker-{number}",
                    "worker.Worker",
                    *worker_ports[2 * number : 2 * number + 2],
                    [*options, self.master_url],
                    lambda _, needed=number + 1: (self._alive_workers() or 0) >= needed,
                )
            )

    def work_folder(self, worker: int) -> Path:
        """Where a worker keeps what its executors get and write."""
        return self.workers[worker].folder / "work"

    def executors(self) -> list[ProcessIdentity]:
        """List the executors that run, of all applications."""
        found = []
        for server in self._servers[1:]:
            for pid in descendants(server.pid):
                with suppress(FileNotFoundError, ProcessLookupError):
                    if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(identify(pid))
        return [executor for executor in found if executor is not None]

    def submit(self, script: Path, arguments: Sequence[str], conf: Mapping[str, str], **environment: str) -> None:
        """Run a script by spark-submit in client mode to its end; ServerError if it fails."""
        self.submission(script, arguments, conf, **environment).run(_SUBMIT_SECONDS)

    def submission(
        self,
        script: Path,
        arguments: Sequence[str],
        conf: Mapping[str, str],
        *,
        name: str = "submit",
        **environment: str,
    ) -> ServerProcess:
        """Make what `submit` runs, on the driver's machine; it is not started yet."""
        command = [str(quick_spark_home() / "bin" / "spark-submit"), "--master", self.master_url]
        own = {
            "spark.driver.defaultJavaOptions": java_options(self.driver.folder / "tmp"),
            # In the folder of each executor.
            "spark.executor.defaultJavaOptions": java_options(Path()),
            "spark.pyspark.python": OWN_PYTHON,
            "spark.pyspark.driver.python": OWN_PYTHON,
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            # Else a worker that is quick to come up takes all tasks before the other is there.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            "spark.ui.enabled": "false",
        }
        for key, value in {**own, **conf}.items():
            command += ["--conf", f"{key}={value}"]
        return ServerProcess(
            self._spec(self.driver, name, [*command, str(script), *arguments], lambda _: True, environment)
        )

    def _daemon(
        self,
        machine: Machine,
        name: str,
        entry: str,
        port: int,
        web_port: int,
        options: Sequence[str],
        is_ready: Callable[[float], bool],
    ) -> ServerProcess:
        command = [str(quick_spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{entry}"]
        command += ["--host", machine.host, "--port", str(port), "--webui-port", str(web_port), *options]
        return ServerProcess(self._spec(machine, name, command, is_ready, {"SPARK_DAEMON_MEMORY": "256m"}))

    def _spec(
        self,
        machine: Machine,
        name: str,
        command: Sequence[str],
        is_ready: Callable[[float], bool],
        environment: Mapping[str, str],
    ) -> ServerSpec:
        temporary = machine.folder / "tmp"
        environment = {
            **bare_environment(**machine.environment),
            "SPARK_DAEMON_JAVA_OPTS": java_options(temporary),
            **environment,
        }
        return ServerSpec(
            name,
            lambda: machine.command(*command),
            self.home / f"{name}.log",
            is_ready,
            machine.folder,
            environment,
        )

    def _alive_workers(self) -> int | None:
        try:
            answer = urllib3.request("GET", f"http://{LOOPBACK}:{self._web_port}/json/", timeout=2.0, retries=False)
        except urllib3.exceptions.HTTPError:
            return None
        # While the page is being set up, the path answers with the HTML of the page above it.
        if answer.status != 200 or "json" not in answer.headers.get("Content-Type", ""):
            return None
        return int(json.loads(answer.data)["aliveworkers"])

    def __enter__(self) -> SparkCluster:
        for machine in self.workers:
            machine.install(self._packages, self._customize)
        self.driver.install(self._packages)
        try:
            for server in self._servers:
                server.start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        for server in reversed(self._servers):
            server.stop()
