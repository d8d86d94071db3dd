"""A broker as an operator has it: a home of its own, with bin/pulsar of the release, lib and configuration files."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bookwarden_dev.devcluster.bookie_clusters import SiteBroker
from bookwarden_dev.devcluster.processes.process import ServerProcess, temporary_folder
from bookwarden_dev.devcluster.servers.settings import broker_settings, read_settings
from bookwarden_dev.devcluster.servers.specs import ServerFactory

_MEMORY: Final = "-Xms128m -Xmx512m -XX:MaxDirectMemorySize=256m"
# As for servers that are started by `java`: small, and no files that a kill leaves behind.
_COLLECTOR: Final = "-XX:+UseSerialGC -XX:-UsePerfData -XX:TieredStopAtLevel=1"


class InstalledBroker(SiteBroker):
    """A broker that `bin/pulsar broker` starts, in its own folder; nothing of the cached release is changed."""

    def __init__(self, factory: ServerFactory, settings: dict[str, str]) -> None:
        super().__init__(factory, settings)
        self._factory = factory
        #: PULSAR_HOME.
        self.folder = factory.home / "pulsar"
        spec = self.process.spec
        temporary = temporary_folder(spec.working_folder, spec.name)
        environment = {
            "PULSAR_MEM": _MEMORY,
            "PULSAR_GC": _COLLECTOR,
            "PULSAR_GC_LOG": "-Xlog:disable",
            "PULSAR_EXTRA_OPTS": f"-Dpulsar.allocator.exit_on_oom=true -Djava.io.tmpdir={temporary}",
        }
        self.process = ServerProcess(dataclasses.replace(spec, command=self._command, environment=environment))

    @property
    def broker_conf(self) -> Path:
        """Its settings."""
        return self.folder / "conf" / "broker.conf"

    @property
    def pulsar_env(self) -> Path:
        """Its environment, which bin/pulsar reads."""
        return self.folder / "conf" / "pulsar_env.sh"

    @property
    def jar(self) -> Path:
        """The place of bookwarden's jar."""
        return self.folder / "lib" / "bookwarden-broker.jar"

    def install_jar(self, jar: Path, printed: dict[str, Any]) -> None:
        """Put the jar into lib and the lines that `bookie-clusters jar` showed into the files; it does not restart."""
        for path in (self.broker_conf, self.pulsar_env):
            shutil.copyfile(path, _kept(path))
        shutil.copyfile(jar, self.jar)
        set_lines(self.broker_conf, printed["broker.conf"])
        set_lines(self.pulsar_env, [printed["environment"]])

    def remove_jar(self) -> None:
        """Take the jar out of lib, and put the files back; it does not restart."""
        for path in (self.broker_conf, self.pulsar_env):
            _kept(path).replace(path)
        self.jar.unlink()

    def _command(self) -> Sequence[str]:
        if not self.folder.exists():
            self._unpack()
        return [str(self.folder / "bin" / "pulsar"), "broker"]

    def _unpack(self) -> None:
        release = self._factory.runtime().release
        (self.folder / "lib").mkdir(parents=True)
        shutil.copytree(release / "bin", self.folder / "bin")
        shutil.copytree(release / "conf", self.folder / "conf")
        (self.folder / "instances").symlink_to(release / "instances")
        for library in (release / "lib").iterdir():
            (self.folder / "lib" / library.name).symlink_to(library)
        released = read_settings(self.broker_conf)
        options = self._factory.options
        wanted = broker_settings(released, self._factory.ports, options)
        set_lines(
            self.broker_conf, [f"{name}={value}" for name, value in wanted.items() if released.get(name) != value]
        )


def set_lines(path: Path, lines: Sequence[str]) -> None:
    """Put lines of the form NAME=VALUE each in the place of the line with this name; the others at the end."""
    new = {line.partition("=")[0]: line for line in lines}
    kept = [new.pop(line.partition("=")[0], line) for line in path.read_text(encoding="utf-8").splitlines()]
    path.write_text("\n".join([*kept, *new.values(), ""]), encoding="utf-8")


def _kept(path: Path) -> Path:
    return path.with_name(f"{path.name}.stock")
