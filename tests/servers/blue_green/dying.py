"""An operation that dies at a chosen call, as a process that is killed there, or is met by something in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class KilledError(BaseException):
    """The process is gone; nobody below catches it."""


class Dying:
    """Passes every call on, and dies before or after one of a name; ``when`` is before or after."""

    def __init__(self, of: object, name: str, when: str) -> None:
        self._of = of
        self._name = name
        self._when = when

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        return self._deadly(found) if name == self._name else found

    def _deadly(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            if self._when == "after":
                call(*arguments, **options)
            raise KilledError(self._name)

        return called


class Interrupted:
    """Passes every call on; right before the first one of a name something else happens."""

    def __init__(self, of: object, name: str, event: Callable[[], object]) -> None:
        self._of = of
        self._name = name
        self._event: Callable[[], object] | None = event

    def __getattr__(self, name: str) -> Any:
        if name == self._name and self._event is not None:
            event, self._event = self._event, None
            event()
        return getattr(self._of, name)
