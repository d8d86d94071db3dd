"""A Spark standalone cluster on this machine: a master and workers, whose Python knows nothing of this checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pyspark
import urllib3

from bookwarden.devcluster import ServerProcess, ServerSpec
from bookwarden.devcluster.ports import LOOPBACK, free_ports
from bookwarden.devcluster.processes.process import temporary_folder
from servers.class_archives import quick_spark_options

_SUBMIT_SECONDS = 240.0
SPARK_HOME = Path(pyspark.__file__).parent
# The interpreter below this virtual environment; it has nothing installed that is installed here.
BARE_PYTHON = str(Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}"))


def bare_environment(**more: str) -> dict[str, str]:
    """Give what a process needs that must not see this checkout or its virtual environment."""
    return {
        "SPARK_HOME": str(SPARK_HOME),
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


class SparkCluster:
    """A master and workers of one core each; use it in a with statement."""

    def __init__(self, home: Path, workers: int = 2, worker_memory: str = "768m") -> None:
        self.home = home
        port, self._web_port, *worker_ports = free_ports(2 + 2 * workers)
        self.master_url = f"spark://{LOOPBACK}:{port}"
        self._servers = [
            self._daemon(
                "master", "master.Master", port, self._web_port, [], lambda _: self._alive_workers() is not None
            )
        ]
        for number in range(workers):
            options = ["--cores", "1", "--memory", worker_memory, "--work-dir", str(self.work_folder(number))]
            self._servers.append(
                self._daemon(
                    f"worker-{number}",
                    "worker.Worker",
                    *worker_ports[2 * number : 2 * number + 2],
                    [*options, self.master_url],
                    lambda _, needed=number + 1: (self._alive_workers() or 0) >= needed,
                )
            )

    def work_folder(self, worker: int) -> Path:
        """Where a worker keeps what its executors get and write."""
        return self.home / f"work-{worker}"

    def submit(self, script: Path, arguments: Sequence[str], conf: Mapping[str, str], python_path: Path) -> None:
        """Run a script by spark-submit in client mode to its end, with this PYTHONPATH; ServerError if it fails."""
        self.submission(script, arguments, conf, python_path).run(_SUBMIT_SECONDS)

    def submission(
        self, script: Path, arguments: Sequence[str], conf: Mapping[str, str], python_path: Path
    ) -> ServerProcess:
        """Make what `submit` runs; it is not started yet."""
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.master_url]
        java = java_options(temporary_folder(self.home / "submit", "submit"))
        own = {"spark.driver.defaultJavaOptions": java, "spark.executor.defaultJavaOptions": java}
        for name, value in {**own, **conf}.items():
            command += ["--conf", f"{name}={value}"]
        environment = bare_environment(PYTHONPATH=str(python_path))
        return ServerProcess(self._spec("submit", [*command, str(script), *arguments], lambda _: True, environment))

    def _daemon(
        self,
        name: str,
        entry: str,
        port: int,
        web_port: int,
        options: Sequence[str],
        is_ready: Callable[[float], bool],
    ) -> ServerProcess:
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{entry}"]
        command += ["--host", LOOPBACK, "--port", str(port), "--webui-port", str(web_port), *options]
        return ServerProcess(self._spec(name, command, is_ready, bare_environment(SPARK_DAEMON_MEMORY="256m")))

    def _spec(
        self, name: str, command: Sequence[str], is_ready: Callable[[float], bool], environment: Mapping[str, str]
    ) -> ServerSpec:
        folder = self.home / name
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**environment, "SPARK_DAEMON_JAVA_OPTS": java_options(temporary_folder(folder, name))}
        return ServerSpec(name, lambda: command, self.home / f"{name}.log", is_ready, folder, environment)

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
