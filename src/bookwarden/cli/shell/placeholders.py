"""Placeholders for the modules that only a command that runs needs.

A command's module imports what the command works with: half a second, of which its help and its completion need
nothing. While only these are asked for, such modules are placeholders: their names can be imported, subscripted and put
into signatures. Any other use raises PlaceholderError, and the caller begins again with the modules themselves: so a
placeholder never gets into a text, and no command runs with one (late.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

_PACKAGES: Final = ("bookwarden", "bookwarden_dev", "rich", "yaml")
#: What help is made of: the commands, and modules whose values are choices and defaults of options. One that is missing
#: here costs its help half a second, and nothing else.
_NEEDED: Final = (
    "bookwarden.bookie_clusters.broker_jar",
    "bookwarden.bookie_clusters.registry",
    "bookwarden.cli",
    "bookwarden.cluster_migration.green_resources",
    "bookwarden.cluster_migration.readiness.findings",
    "bookwarden.deletion.inflight",
    "bookwarden.errors",
    "bookwarden.ledgers.disk_use",
    "bookwarden.metadata_migration.comparison",
    "bookwarden_dev.commands",
    "bookwarden_dev.devcluster.releases.versions",
    "bookwarden_dev.devcluster.servers.settings",
)
_HELP: Final = ("--help", "-h")


class PlaceholderError(Exception):
    """A placeholder was used for more than its name."""


class _Name:
    """A name of a module that is not imported."""

    def __getattr__(self, name: str) -> _Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name()

    def __call__(self, *_: object, **__: object) -> Any:
        raise PlaceholderError

    __str__ = __repr__ = __iter__ = __bool__ = __len__ = __contains__ = __index__ = __float__ = __call__
    __format__ = __add__ = __radd__ = __mul__ = __sub__ = __lt__ = __le__ = __gt__ = __ge__ = __call__

    def __getitem__(self, _: object) -> _Name:
        return self

    def __or__(self, _: object) -> _Name:
        return self

    __ror__ = __or__

    def __mro_entries__(self, _: tuple[type, ...]) -> tuple[type, ...]:
        return ()


class _Placeholder(ModuleType):
    """A module with any name in it."""

    #: A package, so that it has modules below it.
    __path__: MutableSequence[str] = []  # noqa: RUF012 - as of modules

    def __getattr__(self, name: str) -> _Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name()


class _Finder(MetaPathFinder, Loader):
    """Finds a placeholder for each module of the packages that help does not need."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        is_needed = _is_in(fullname, _NEEDED) or any(_is_in(needed, (fullname,)) for needed in _NEEDED)
        return ModuleSpec(fullname, self, is_package=True) if _is_in(fullname, _PACKAGES) and not is_needed else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Placeholder(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: it has all names."""


def only_helps(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a call seems to ask for help or completion alone."""
    return "_BOOKWARDEN_COMPLETE" in environment or any(argument in _HELP for argument in arguments)


@contextmanager
def placeholders() -> Iterator[None]:
    """Import placeholders during the block, and forget then all that was imported with them.

    Where one was used for more than its name, PlaceholderError comes out of the block.
    """
    before, finder = set(sys.modules), _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    except (PlaceholderError, TypeError, AttributeError) as error:
        raise PlaceholderError from error
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if _is_in(name, _PACKAGES):
                del sys.modules[name]


def are_used() -> bool:
    """Return whether modules may be placeholders now."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def _is_in(module: str, packages: Sequence[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)
