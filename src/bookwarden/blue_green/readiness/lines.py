"""Lines of a check, before they have its number and name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from bookwarden.blue_green.readiness.findings import Override, Severity
from bookwarden.blue_green.sides.values import Observations


class Line(NamedTuple):
    """One line: how bad, what was seen, what to do, where, what is concerned, and what accepts it."""

    severity: Severity | None  #: None where all is well.
    seen: str  #: For people.
    advice: str = ""  #: To whoever reads it.
    namespace: str = ""  #: "" for what is of a whole cluster.
    evidence: tuple[str, ...] = ()  #: Everything that is concerned.
    override: Override | None = None  #: By which it may be accepted.


Lines = Iterator[Line]
Check = Callable[[Observations], Lines]


def good(seen: str, namespace: str = "") -> Line:
    """Make a line on which all is well."""
    return Line(None, seen, namespace=namespace)


def loses(
    seen: str, advice: str, namespace: str = "", evidence: Iterable[str] = (), override: Override | None = None
) -> Line:
    """Make a line of what would lose or double messages."""
    return Line(Severity.LOSES, seen, advice, namespace, tuple(evidence), override)


def stalls(
    seen: str, advice: str, namespace: str = "", evidence: Iterable[str] = (), override: Override | None = None
) -> Line:
    """Make a line of what would fail, or never end."""
    return Line(Severity.FAILS, seen, advice, namespace, tuple(evidence), override)


def warns(seen: str, advice: str, namespace: str = "", evidence: Iterable[str] = ()) -> Line:
    """Make a line that somebody should know of before."""
    return Line(Severity.WARNING, seen, advice, namespace, tuple(evidence))


def or_good(found: Iterable[Line], seen: str) -> Lines:
    """Return the lines, or one that all is well if there are none."""
    lines = list(found)
    yield from lines or [good(seen)]
