"""Templates of the pages, in which every value is escaped, and what all pages show."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from bookwarden.server.page.problems import headline, is_complete, problems_of, time_text
from bookwarden.server.page.values import Overview, Reading

if TYPE_CHECKING:
    from jinja2 import Template


class Card(NamedTuple):
    """A figure with what it is of."""

    name: str  #: Its heading.
    value: str  #: The figure, as text.
    detail: str  #: What is to be known of it.
    runbook: str  #: PAGE#SECTION.
    source: str  #: The path of its JSON.
    problem: bool = False  #: Whether it is among what needs a look.


@cache
def template(name: str) -> Template:
    # Late: its extra is not in every environment, and most commands do without.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("bookwarden.server.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def render(name: str, shown: Overview, /, **values: Any) -> str:
    """Render the page of this name; its template gets these values, and what every page shows."""
    problems, complete = problems_of(shown), is_complete(shown)
    return template(f"{name}.html.j2").render(
        page=name,
        shown=shown,
        cluster=shown.cluster,
        at=f"{time_text(shown.now_ms)} UTC",
        problems=problems,
        headline=headline(problems, complete=complete),
        well=complete and not problems,
        state=state_text,
        **values,
    )


def render_runbook(title: str, lines: Iterable[tuple[str, str]]) -> str:
    """Render a page of the documents: of each line its anchor, "" of what is no heading, and its text."""
    return template("runbook.html.j2").render(page="runbook", title=title, lines=lines)


def state_text(reading: Reading[Any]) -> str:
    """Return why a part is not as of now; "" if it is."""
    if reading.silent_since_ms:
        return f"no answer since {time_text(reading.silent_since_ms)} UTC"
    return "" if reading.read_ms else "not read yet"


def reading_fields(reading: Reading[Any]) -> dict[str, Any]:
    return {"read_ms": reading.read_ms, "error": reading.error, "silent_since_ms": reading.silent_since_ms}


def plain(value: Any, left_out: str = "") -> Any:
    """Return a value whose records are objects with names, and enums their values, without its field ``left_out``."""
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "_asdict"):
        return {name: plain(one) for name, one in value._asdict().items()}
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return {name: plain(getattr(value, name)) for name in names if name != left_out}
    return [plain(one) for one in value] if isinstance(value, tuple) else value


@cache
def page_file(name: str) -> bytes:
    """Return a file of this package that pages load."""
    return resources.files("bookwarden.server.page").joinpath(name).read_bytes()


def encode_json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()


def moment(milliseconds: int) -> str:
    # A time that is none in the calendar is no reason not to show the rest.
    try:
        at = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return "at no time of the calendar"
    return at.strftime("%Y-%m-%d %H:%M UTC")
