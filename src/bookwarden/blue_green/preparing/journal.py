"""The journal of `prepare`: what is about to be changed, with its value before, durable before it is changed.

A file of JSON lines on this machine. A line without an end was never acted on: it is cut off when the next is written.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bookwarden.blue_green.preparing.plan import Action, Side, Step
from bookwarden.durable import sync
from bookwarden.errors import FormatError, RefusedError, StoreUnavailableError

_FORMAT: Final = 1
_NAME: Final = "prepare.jsonl"
BEGUN: Final = "begun"
DONE: Final = "done"
FAILED: Final = "failed"
TAKEN_BACK: Final = "taken back"
_POLICIES: Final = (Action.POLICY, Action.TOPIC_POLICY)


class PreparationJournal:
    """The journal in a folder; one process at a time writes."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self.path = folder / _NAME
        self._clock = clock

    def changes(self) -> dict[tuple[str, str, str, str], Step]:
        """Return by name each step that was begun, the newest, and was not taken back; FormatError if damaged."""
        found: dict[tuple[str, str, str, str], Step] = {}
        for state, step in self._entries():
            if state == BEGUN:
                found[step.name] = step
            elif state == TAKEN_BACK:
                found.pop(step.name, None)
        return found

    def originals(self) -> dict[tuple[str, str], Any]:
        """Return by target and key the policies of blue that were changed, as they were before."""
        return {
            (step.target, step.key): step.before
            for step in self.changes().values()
            if step.side is Side.BLUE and step.action in _POLICIES
        }

    @contextmanager
    def writing(self) -> Iterator[Callable[[str, Step], None]]:
        """Hold the journal, and return what notes a step in a state; RefusedError while another process has it.

        A note is on disk when that returns; StoreUnavailableError where it is not: then nothing may be changed.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            opened = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o640)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            self._lock(opened)
            self._end_last_line(opened)
            sync(self._folder)
            yield lambda state, step: self._note(opened, state, step)
        finally:
            os.close(opened)

    def _lock(self, opened: int) -> None:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RefusedError(f"another process prepares with {self.path}: wait for it") from error

    def _end_last_line(self, opened: int) -> None:
        size = os.fstat(opened).st_size
        data = os.pread(opened, size, 0)
        whole = data.rfind(b"\n") + 1
        if whole != size:
            os.ftruncate(opened, whole)
        os.lseek(opened, whole, os.SEEK_SET)

    def _note(self, opened: int, state: str, step: Step) -> None:
        entry = {"format": _FORMAT, "at_ms": int(self._clock() * 1000), "state": state, **step.as_json()}
        data = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        try:
            while data:
                data = data[os.write(opened, data) :]
            os.fdatasync(opened)
        except OSError as error:
            raise self._unwritable(error) from error

    def _entries(self) -> Iterator[tuple[str, Step]]:
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreUnavailableError(f"journal {self.path} cannot be read ({error.strerror})") from error
        # Behind the last end of a line is nothing, or what was cut short.
        for number, line in enumerate(lines[:-1], 1):
            try:
                told = json.loads(line)
                if told["format"] != _FORMAT:
                    raise ValueError(f"format {told['format']}")
                yield str(told["state"]), Step.of_json(told)
            except (ValueError, KeyError, TypeError) as error:
                raise FormatError(
                    f"line {number} of journal {self.path} cannot be read ({error}): what was changed before is not "
                    "known; mend the line, or move the file away and check the policies of blue by hand"
                ) from error

    def _unwritable(self, error: OSError) -> StoreUnavailableError:
        return StoreUnavailableError(f"journal {self.path} cannot be written ({error.strerror}): nothing is changed")
