"""Choose TCP ports that a server can leave and take again."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from pathlib import Path

from bookwarden.errors import ServerError

LOOPBACK = "127.0.0.1"
_LOWEST = 15000
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Ports given out by this process: the server may not listen yet, or be down for a while.
_handed_out: set[int] = set()


def free_ports(count: int, avoid: Sequence[int] = ()) -> tuple[int, ...]:
    """Return ports on 127.0.0.1 that nothing listens on; raise ServerError if there are not enough.

    They lie below the range from which the kernel gives ports to outgoing connections: while a server is down,
    no connection of another process can take its port. A process gets each once, as long as there are others.
    """
    candidates = [port for port in range(_LOWEST, _first_ephemeral()) if port not in avoid]
    random.SystemRandom().shuffle(candidates)
    candidates.sort(key=_handed_out.__contains__)
    chosen: list[int] = []
    for port in candidates:
        if len(chosen) == count:
            break
        if is_free(port):
            chosen.append(port)
    if len(chosen) < count:
        raise ServerError(f"no {count} free TCP ports on {LOOPBACK}: end programs that listen there, then try again")
    _handed_out.update(chosen)
    return tuple(chosen)


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Java's servers do: connections of an earlier server that still linger are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _first_ephemeral() -> int:
    try:
        first = int(_RANGE_FILE.read_text(encoding="ascii").split()[0])
    except OSError:
        first = 32768
    # A kernel set to use nearly all ports leaves no range of our own: then any port must do.
    return first if first > _LOWEST + 1000 else 65536
