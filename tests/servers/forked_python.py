"""Pythons of Spark that start at once: forked from a process that has imported what they need.

Spark starts one for each streaming query, and some that fork its workers; their imports take longer than most of what
a test has them do. This module is run by the process that is forked from, and by a script in the place of Python, which
stands for a fork until that ends.
"""

from __future__ import annotations

import os
import socket
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FORKED = ("pyspark.sql.streaming.python_streaming_source_runner", "pyspark.daemon")
_IMPORTED = (
    *_FORKED,
    "pyspark.worker",
    "bookwarden.pipelines.metadata_source",
    "bookwarden.pipelines.scan.operation",
    "bookwarden.pipelines.sweep.query",
)
_BYTES = 1 << 20


@contextmanager
def forking_python(folder: Path) -> Iterator[str]:
    """Give the path of a Python for Spark that forks during the block."""
    # Not for the script, which starts often.
    import subprocess

    address, script = folder / "socket", folder / "python"
    command = [sys.executable, __file__, "serve", str(address)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout
        assert server.stdout.readline() == b"ready\n"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{__file__}" run "{address}" "$@"\n')
        script.chmod(0o700)
        yield str(script)


def _serve(address: str) -> None:
    """Fork for each connection, until the standard input is closed."""
    import gc
    import importlib
    import select
    import signal

    for name in _IMPORTED:
        importlib.import_module(name)
    # Workers collect garbage after each task; in this there is none.
    gc.freeze()
    # Nobody waits for those that end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _become(connection)
        connection.close()


def _become(connection: socket.socket) -> None:
    """Run the module that was asked for, with the environment, folder and standard streams that came; end with it."""
    import json
    import runpy
    import signal
    import threading

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, sent, _, _ = connection.recvmsg(_BYTES, socket.CMSG_SPACE(3 * array("i").itemsize))
    for number, stream in enumerate(array("i", sent[0][2])):
        os.dup2(stream, number)
        os.close(stream)
    asked = json.loads(text)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv = asked["arguments"]

    def end_with_script() -> None:
        connection.recv(1)
        os._exit(1)

    threading.Thread(target=end_with_script, daemon=True).start()
    # The end of the connection is that of this process, whatever it forks itself.
    os.register_at_fork(after_in_child=connection.close)
    code = 1
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code & 0xFF if isinstance(end.code, int) else 1
    finally:
        if sys.exc_info()[0]:
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(bytes([code]))
        os._exit(code)


def _run(address: str, arguments: list[str]) -> None:
    if arguments[0] != "-m" or arguments[1] not in _FORKED:
        os.execv(sys.executable, [sys.executable, *arguments])
    import json

    asked = {"environment": dict(os.environ), "folder": os.getcwd(), "arguments": arguments[1:]}
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    streams = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [0, 1, 2]))
    connection.sendmsg([json.dumps(asked).encode()], [streams])
    sys.exit((connection.recv(1) or b"\1")[0])


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        _run(sys.argv[2], sys.argv[3:])
