"""Command lines of servers and tools in Java."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bookwarden.errors import ServerError
from bookwarden.java import Java
from bookwarden_dev.devcluster.releases.cache import ensure_entry

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


def java_command(
    java: Java,
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

    ``jars`` are further files. A main class may also be a source file (``NAME.java``), which is compiled once for all.

    Its temporary files are where this process has its own, unless the property ``java.io.tmpdir`` says otherwise.
    Without the full compiler (C2) a server starts with a third of the processor time, and serves more slowly
    once it is warm.
    """
    options = [f"-Xms{heap_mb // 4}m", f"-Xmx{heap_mb}m", f"-XX:MaxDirectMemorySize={direct_mb}m"]
    # Serial collector: the smallest resident size; perf data would leave files behind after a kill.
    options += ["-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto"]
    if not full_compiler:
        # A start uses most of its method handles once or twice: to compile each would take a tenth of its time.
        options += ["-XX:TieredStopAtLevel=1", "-Djava.lang.invoke.MethodHandle.COMPILE_THRESHOLD=20"]
    if java.version >= 23:
        options += ["--sun-misc-unsafe-memory-access=allow"]
    options += ["--enable-native-access=ALL-UNNAMED"]
    for package in _OPENED:
        options += ["--add-opens", f"{package}=ALL-UNNAMED"]
    own = {"log4j2.configurationFile": _LOG_CONFIGURATION.as_uri(), "java.io.tmpdir": tempfile.gettempdir()}
    given = {**_PROPERTIES, **own, **dict(properties)}
    options += [f"-D{name}={value}" for name, value in given.items()]
    class_path = os.pathsep.join((f"{release / 'lib'}/*", *jars))
    if main_class.endswith(".java"):
        source = Path(main_class)
        classes = _compiled(java, source, (*sorted(map(str, (release / "lib").iterdir())), *jars))
        class_path, main_class = os.pathsep.join((class_path, str(classes))), source.stem
    return [java.executable, *options, "-cp", class_path, main_class, *arguments]


def _compiled(java: Java, source: Path, jars: Sequence[str]) -> Path:
    """Return the cache's folder of the classes of a source file: `java NAME.java` would compile them at each start."""

    def compile_into(folder: Path) -> Path:
        classes = folder / "classes"
        compiler = [java.executable, "-XX:TieredStopAtLevel=1", "-m", "jdk.compiler/com.sun.tools.javac.Main"]
        command = [*compiler, "-proc:none", "-cp", os.pathsep.join(jars), "-d", str(classes), str(source)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise ServerError(f"{source} does not compile: {ended.stderr or ended.stdout}")
        return classes

    made_of = (java.executable, java.version, jars, source.read_bytes())
    return ensure_entry(f"java-{source.stem}-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]}", compile_into)
