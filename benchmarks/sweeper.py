"""The process that a benchmark lets sweep: `python -m benchmarks.sweeper SETTINGS_FILE`.

It starts Spark, reports `{"ready": true}`, and takes orders on its standard input: `once` drains what is due and
reports the seconds; `stream` sweeps until the input is closed or SIGTERM comes. The end of the input ends it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time

from bookwarden.config import load_settings
from bookwarden.pipelines.session import running_session
from bookwarden.pipelines.sweep.driver import run_sweep


def main(settings_file: str) -> None:
    """Carry out orders until the input ends."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    settings = load_settings(settings_file)
    with running_session(settings, local=True) as spark:
        _report({"ready": True})
        for order in sys.stdin:
            if order.strip() == "stream":
                threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
                run_sweep(spark, settings)
                return
            started = time.monotonic()
            run_sweep(spark, settings, once=True)
            _report({"seconds": time.monotonic() - started})


def _report(fields: dict[str, object]) -> None:
    print(json.dumps(fields), flush=True)


def _stop_at_end_of_input() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1])
