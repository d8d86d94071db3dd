"""The Java that runs the servers: find it, check it, build command lines for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bookwarden.errors import ServerError

OLDEST_JAVA = 17
_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.xml")
# The flags of the distribution's bin/pulsar; its comments say which library needs which.
_OPENED = (
    "java.base/java.io",
    "java.base/java.util.zip",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
)
_PROPERTIES = {
    "java.net.preferIPv4Stack": "true",
    "jute.maxbuffer": "10485760",
    "zookeeper.clientTcpKeepAlive": "true",
    "io.netty.tryReflectionSetAccessible": "true",
    "org.apache.pulsar.shade.io.netty.tryReflectionSetAccessible": "true",
    "io.netty.leakDetection.level": "disabled",
    "io.netty.recycler.maxCapacityPerThread": "4096",
    "pulsar.allocator.exit_on_oom": "true",
    "log4j2.is.webapp": "false",
    "log4j.shutdownHookEnabled": "false",
    "bookkeeper.metadata.bookie.drivers": "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
    "bookkeeper.metadata.client.drivers": "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
}


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that is new enough."""

    executable: str
    version: int

    def command(
        self,
        release: Path,
        main_class: str,
        arguments: Sequence[str],
        *,
        heap_mb: int,
        direct_mb: int = 64,
        properties: Sequence[tuple[str, str]] = (),
        full_compiler: bool = False,
        jars: Sequence[str] = (),
    ) -> list[str]:
        """Return the command that runs a main class of a Pulsar release, whose jars are in its folder ``lib``.

        ``jars`` are files beside them.

        Its temporary files are where this process has its own, unless the property ``java.io.tmpdir`` says otherwise.
        Without the full compiler (C2) a server starts with a third of the processor time, and serves more slowly
        once it is warm.
        """
        options = [f"-Xms{heap_mb // 4}m", f"-Xmx{heap_mb}m", f"-XX:MaxDirectMemorySize={direct_mb}m"]
        # Serial collector: the smallest resident size; perf data would leave files behind after a kill.
        options += ["-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto"]
        if not full_compiler:
            options += ["-XX:TieredStopAtLevel=1"]
        if self.version >= 23:
            options += ["--sun-misc-unsafe-memory-access=allow"]
        options += ["--enable-native-access=ALL-UNNAMED"]
        for package in _OPENED:
            options += ["--add-opens", f"{package}=ALL-UNNAMED"]
        own = {"log4j2.configurationFile": _LOG_CONFIGURATION.as_uri(), "java.io.tmpdir": tempfile.gettempdir()}
        given = {**_PROPERTIES, **own, **dict(properties)}
        options += [f"-D{name}={value}" for name, value in given.items()]
        class_path = os.pathsep.join((f"{release / 'lib'}/*", *jars))
        return [self.executable, *options, "-cp", class_path, main_class, *arguments]


def find_java() -> Java:
    """Return the Java of JAVA_HOME, else of PATH; raise ServerError if there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    executable = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if executable is None or not os.access(executable, os.X_OK):
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on PATH"
        raise ServerError(f"Java {OLDEST_JAVA} or newer is needed, and {where}: install it (package openjdk-17-jre)")
    answer = subprocess.run([executable, "-version"], capture_output=True, text=True, check=False)
    version = parse_version(answer.stderr + answer.stdout)
    if version is None or answer.returncode != 0:
        raise ServerError(f"{executable} -version does not run: install Java {OLDEST_JAVA}, or set JAVA_HOME to one")
    if version < OLDEST_JAVA:
        raise ServerError(
            f"{executable} is Java {version}, needed is {OLDEST_JAVA} or newer: install it, or set JAVA_HOME to one"
        )
    return Java(executable, version)


def parse_version(text: str) -> int | None:
    """Read the major version from what `java -version` prints: "17.0.15" is 17, "1.8.0_412" is 8."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    first, second = int(found[1]), int(found[2] or 0)
    return second if first == 1 else first
