"""The metrics of a command that ends: written to a file for node_exporter, and pushed to a gateway.

bookwarden_run_COMMAND.prom    when the newest run began and ended, and its exit code
bookwarden_COMMAND.prom        what the newest run that came to an end found

With metrics.cluster its name stands in front of .prom. What is found stays where a later run fails: the file is left as
it is, and so is the group of the gateway, but for the run's own metrics.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bookwarden.config import MetricsSettings
from bookwarden.errors import ConfigError
from bookwarden.exit_codes import FAILED, INTERRUPTED
from bookwarden.metrics.names import Program, Sample

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

logger = logging.getLogger(__name__)
_JOB: Final = "bookwarden"
_PUSH_SECONDS: Final = 10.0


class Run:
    """One run of a command; what it found is published once the run ends."""

    def __init__(self) -> None:
        self.found: list[Sample] = []
        self.exit_code = FAILED

    def show(self, samples: Iterable[Sample], exit_code: int = 0) -> None:
        """Keep what the run found; the exit code is of one that ends without click's own error for it."""
        self.found, self.exit_code = list(samples), exit_code


@contextmanager
def published_run(settings: MetricsSettings, program: Program, *, publishes: bool = True) -> Iterator[Run]:
    """Publish a run of a command when the body ends, however it does; where no place for that is set, nothing is.

    Of a dry run, or a look at a part, nothing ``publishes``: the metrics are of what the command is for.
    Raises ConfigError at the start where the folder cannot be written. What cannot be published at the end is logged,
    and costs the run nothing.
    """
    run, publisher = Run(), _Publisher(settings, program.command)
    if not publishes or not publisher.is_set:
        yield run
        return
    publisher.require()
    begin = time.time()
    try:
        yield run
    except BaseException as error:
        run.exit_code = _exit_code_of(error)
        raise
    finally:
        publisher.publish(run, begin)


def _exit_code_of(error: BaseException) -> int:
    """Return the exit code of an error of ours, or of click, which has its ends as errors too."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    found = getattr(error, "exit_code", FAILED)
    return found if isinstance(found, int) else FAILED


class _Publisher:
    def __init__(self, settings: MetricsSettings, command: str) -> None:
        self._settings = settings
        self._command = command

    @property
    def is_set(self) -> bool:
        return bool(self._settings.textfile_folder or self._settings.push_gateway)

    def require(self) -> None:
        """Raise ConfigError where the folder cannot be written, and ModuleNotFoundError without prometheus_client."""
        folder = self._settings.textfile_folder
        if folder and not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(
                f"metrics.textfile_folder {folder} is no folder that can be written: make it, or set none"
            )
        import prometheus_client  # noqa: F401 - what is missing is to be said before the work begins

    def publish(self, run: Run, begin: float) -> None:
        label = (self._command,)
        own = [
            Sample("bookwarden_run_started_timestamp_seconds", begin, label),
            Sample("bookwarden_run_ended_timestamp_seconds", time.time(), label),
            Sample("bookwarden_run_exit_code", run.exit_code, label),
        ]
        if self._settings.textfile_folder:
            self._write("run_", own)
            if run.found:
                self._write("", run.found)
        if self._settings.push_gateway:
            self._push(own, run.found)

    def _write(self, prefix: str, samples: list[Sample]) -> None:
        from prometheus_client import write_to_textfile

        cluster = self._settings.cluster
        names = [f"bookwarden_{prefix}{self._command.replace('-', '_')}", *([cluster] if cluster else [])]
        path = Path(self._settings.textfile_folder) / f"{'_'.join(names)}.prom"
        try:
            write_to_textfile(str(path), _registry_of(samples, cluster))
        except OSError as error:
            logger.error("metrics cannot be written to %s: %s", path, error.strerror)

    def _push(self, own: list[Sample], found: list[Sample]) -> None:
        from prometheus_client import push_to_gateway, pushadd_to_gateway

        group = {"command": self._command}
        if self._settings.cluster:
            group["cluster"] = self._settings.cluster
        # Labels of the group are added there.
        registry = _registry_of([*own, *found])
        push = push_to_gateway if found else pushadd_to_gateway
        try:
            push(self._settings.push_gateway, _JOB, registry, group, _PUSH_SECONDS)
        except OSError as error:
            logger.error("metrics cannot be pushed to %s: %s", self._settings.push_gateway, error)


def _registry_of(samples: Iterable[Sample], cluster: str = "") -> CollectorRegistry:
    """Make a registry that has these samples, with a label for the cluster where one is named."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

    from bookwarden.metrics.instruments import families_of

    class Samples(Collector):
        def collect(self) -> Iterator[Metric]:
            return families_of(samples, {"cluster": cluster} if cluster else {})

    registry = CollectorRegistry()
    registry.register(Samples())
    return registry
