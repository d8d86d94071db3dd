"""pulsar-perf of the Pulsar release: what a broker's bookies take from a producer that sends as fast as it can."""

from __future__ import annotations

import re
import subprocess

from bookwarden.java import find_java
from bookwarden_dev.devcluster.releases.distribution import ensure_distribution
from bookwarden_dev.devcluster.servers.java import java_command

_MAIN = "org.apache.pulsar.testclient.PulsarPerfTestTool"
_RATE = re.compile(r"Throughput produced: .*?([\d.]+) msg/s")
_ANY_RATE = "1000000"
# Without a limit it keeps all that it could not send yet.
_OUTSTANDING = 500
# As often it says so; in the first of these the virtual machines of producer and broker compile.
_INTERVAL_S = 10


def produced_per_second(service_url: str, topic: str, message_bytes: int, rounds: int) -> list[float]:
    """Send to a topic without batching; return the messages a second of so many rounds of 10 s, after a warm-up.

    Raises RuntimeError with its output if it sent nothing.
    """
    release = ensure_distribution()
    arguments = [str(release / "conf" / "client.conf"), "produce", topic]
    arguments += ["--service-url", service_url, "--size", str(message_bytes), "--rate", _ANY_RATE]
    seconds = (rounds + 1) * _INTERVAL_S + _INTERVAL_S // 2
    arguments += ["--disable-batching", "--max-outstanding", str(_OUTSTANDING), "--test-duration", str(seconds)]
    command = java_command(
        find_java(),
        release,
        _MAIN,
        arguments,
        heap_mb=512,
        direct_mb=512,
        properties=[("bookwarden.log.level", "info")],
        full_compiler=True,
    )
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=4 * seconds)
    rates = [float(found[1]) for found in _RATE.finditer(ended.stdout)][1:]
    if not any(rates):
        told = next((line for line in ended.stdout.splitlines() if "Error" in line or "ERROR" in line), ended.stdout)
        raise RuntimeError(f"pulsar-perf sent nothing, and ended with {ended.returncode}: {told[:2000]}")
    return rates
