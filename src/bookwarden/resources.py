"""Resources closed together, also when some of them could not be opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Protocol, TypeVar


class Closeable(Protocol):
    """Holder of a connection, a session or a file."""

    def close(self) -> None:
        """Release it."""


CloseableT = TypeVar("CloseableT", bound=Closeable)
ResourcesT = TypeVar("ResourcesT", bound="Resources")


class Resources:
    """Base of classes that open several things; closes them last opened first, each whatever the others raise."""

    def __init__(self) -> None:
        self._opened = ExitStack()

    def keep(self, thing: CloseableT) -> CloseableT:
        """Close this one too, before all that were kept earlier; return it."""
        self._opened.callback(thing.close)
        return thing

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close what was opened so far when the rest of a constructor fails: its caller has nothing to close."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close everything; the second time does nothing."""
        self._opened.close()

    def __enter__(self: ResourcesT) -> ResourcesT:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
