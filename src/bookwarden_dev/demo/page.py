"""The web page of `bookwarden serve` over a demo's cluster, in the demo's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Thread
from typing import Final

from bookwarden.config import Settings
from bookwarden_dev.devcluster.ports import LOOPBACK, free_ports

#: Seconds for a request that is under way at the end.
_STOPPING_S: Final = 2


@contextmanager
def served_page(settings: Settings, say: Callable[[str], None]) -> Iterator[None]:
    """Serve the page for the block, and say its address; do nothing where the extra `serve` is not installed."""
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        yield
        return
    import uvicorn

    from bookwarden.server.app import listen, make_app

    (port,) = free_ports(1)
    listening = listen(LOOPBACK, port)
    config = uvicorn.Config(
        make_app(settings, None), log_config=None, log_level="critical", timeout_graceful_shutdown=_STOPPING_S
    )
    server = uvicorn.Server(config)
    # Of this process alone: whatever ends the demo ends it too.
    thread = Thread(target=server.run, args=([listening],), name="page", daemon=True)
    thread.start()
    say(f"the web page of this cluster, until the demo ends: http://{LOOPBACK}:{port}/")
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(2 * _STOPPING_S)
