"""The cells of the matrix: which versions run together, one axis at a time from a base, and what is not run here."""

from __future__ import annotations

import configparser
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookwarden_dev.devcluster.releases.versions import (
    OXIA_0_14_0,
    PULSAR,
    marks_by_broker,
    takes_the_jar,
)

#: All that Maven Central has whole, the oldest first.
PULSARS: Final = ("3.0.7", "3.3.6", "4.0.1", "4.0.6", "4.0.8", "4.2.4", "5.0.0-M1")
BASE_PULSAR: Final = "4.0.8"
BASE_PYTHON: Final = "3.11"
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
#: Of Oxia; of those that are not built here somebody gives the program.
OXIAS: Final = ("0.14.0", "0.17.1")
#: What a cell shows of the libraries in its environment.
LIBRARIES: Final = ("pyspark", "pulsar-client", "pandas", "pyarrow")
#: What a cell's environment has of ours.
EXTRAS: Final = ("demo", "serve")
_OWN: Final = re.compile(r"bookwarden\[(\w+)\]")
_LOWER: Final = re.compile(r"([\w-]+)(?:\[[\w,]+\])?\s*>=\s*([\w.]+)")


@dataclass(frozen=True, slots=True)
class Environment:
    """Python and its libraries: the newest that our ranges allow, but for the pins."""

    python: str = BASE_PYTHON
    pins: tuple[str, ...] = ()  #: As "pandas<3".
    oldest: bool = False  #: The oldest release of every range instead.

    @property
    def name(self) -> str:
        """A name for its folder."""
        words = [self.python, *(["oldest"] if self.oldest else []), *(re.sub(r"\W+", "-", pin) for pin in self.pins)]
        return "-".join(words)


@dataclass(frozen=True, slots=True)
class Cell:
    """Versions that run together."""

    name: str
    pulsar: str = BASE_PULSAR
    oxia: str | None = None  #: The version that keeps the metadata; None for the ZooKeeper that this Pulsar ships.
    environment: Environment = field(default_factory=Environment)

    @property
    def metadata(self) -> str:
        """Where the metadata is, as in ClusterOptions."""
        return "zookeeper" if self.oxia is None else "oxia"

    @property
    def store(self) -> str:
        """The same for people."""
        return "ZooKeeper" if self.oxia is None else f"Oxia {self.oxia}"


CELLS: Final = (
    Cell("base"),
    *(Cell(f"pulsar-{version}", pulsar=version) for version in PULSARS if version != BASE_PULSAR),
    *(Cell(f"oxia-{version}", oxia=version) for version in OXIAS),
    Cell("oxia-0.14.0-pulsar-4.2.4", pulsar="4.2.4", oxia="0.14.0"),
    Cell("spark-oldest", environment=Environment(pins=("pyspark==4.2.0",))),
    Cell("pulsar-client-oldest", environment=Environment(pins=("pulsar-client==3.9.0",))),
    Cell("pandas-3", environment=Environment(pins=("pandas>=3",))),
    *(Cell(f"python-{version}", environment=Environment(version)) for version in PYTHONS if version != BASE_PYTHON),
    Cell("oldest-of-everything", pulsar=PULSARS[0], environment=Environment(oldest=True)),
    Cell("newest-of-everything", pulsar=PULSARS[-1], oxia=OXIAS[-1], environment=Environment(PYTHONS[-1])),
)
#: What operators may run and no registry here has, with the day on which it was asked for.
NOT_SERVED: Final[Mapping[str, str]] = {
    "Pulsar 4.1": "no broker of it is in Maven Central as it is reached here (2026-11-25)",
    "Pulsar 4.0.0 to 4.0.5, 4.0.7, but for 4.0.1": (
        "poms that Maven needs for the archive, or for all the jars, are not in Maven Central as it is reached here "
        "(2026-11-29)"
    ),
    "Pulsar 4.0.9 to 4.0.13, 5.0.1": "no broker of it is in Maven Central as it is reached here (2026-11-25)",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine has for cells."""

    pythons: Collection[str]  #: As "3.11".
    oxias: Collection[str] = (OXIA_0_14_0.version,)  #: Versions that are built here, or whose program is given.


#: What a cell does with a part of the scenario; anything else is the reason why it leaves it out.
PLAYED: Final = "played"
REFUSED: Final = "refused"


def parts_of(cell: Cell) -> dict[str, str]:
    """Return the parts of the scenario, by name in their order: played, played to see the refusal, or why not."""
    marks, jar = marks_by_broker(cell.pulsar), takes_the_jar(cell.pulsar)
    return {
        "leaks": PLAYED,
        "deletion": PLAYED,
        "broker marks": REFUSED if not marks else "with deletion" if cell.oxia is None else "ZooKeeper alone",
        "switch": PLAYED if jar and cell.oxia is None else "ZooKeeper alone" if jar else "the jar is for 4.0 and newer",
    }


def absence_of(cell: Cell, machine: Machine) -> str | None:
    """Return why a cell is not run on this machine; None if it is."""
    if cell.pulsar not in PULSAR:
        return f"the servers of Pulsar {cell.pulsar} are not pinned in the table of releases yet"
    if cell.oxia is not None and cell.oxia not in machine.oxias:
        return f"the server of Oxia {cell.oxia} is no released Go module: give its program, OXIA=PROGRAM"
    if cell.environment.python not in machine.pythons:
        return f"Python {cell.environment.python} is not on this machine"
    return None


def oldest_pins(setup: str, extras: Sequence[str]) -> list[str]:
    """Return a pin of the oldest release of each requirement, of a setup.cfg and extras of it, that has a lower end."""
    settings = configparser.ConfigParser()
    settings.read_string(setup)
    all_extras = settings["options.extras_require"]
    pending, lines = [settings["options"]["install_requires"], *(all_extras[name] for name in extras)], list[str]()
    while pending:
        for line in filter(None, map(str.strip, pending.pop().splitlines())):
            if own := _OWN.fullmatch(line):
                pending.append(all_extras[own[1]])
            else:
                lines.append(line)
    found = (_LOWER.match(line) for line in lines)
    return sorted({f"{match[1]}=={match[2]}" for match in found if match})
