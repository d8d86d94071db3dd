"""The run of the matrix: one cell after the other, each in its environment; resumed where an earlier run ended."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from servers.matrix.cells import CELLS, EXTRAS, OXIAS, PYTHONS, Cell, Environment, Machine, oldest_pins
from servers.matrix.table import due, read_results, render

_CHECKOUT: Final = Path(__file__).parents[3]
_RESULTS: Final = _CHECKOUT / "build" / "matrix"
_DOCUMENT: Final = _CHECKOUT / "docs" / "compatibility.md"
#: What decides about a result; a commit of anything else leaves it as it is.
_RUN: Final = ("src", "broker", "setup.cfg", "tests/servers/matrix")
_CELL_S: Final = 2400
_PYTHON: Final = f"{sys.version_info[0]}.{sys.version_info[1]}"


def main() -> int:
    """Run what is due, and write the document after each cell; return 1 if a cell failed."""
    parser = argparse.ArgumentParser(prog="python -m servers.matrix.run", description=__doc__)
    parser.add_argument("--cells", nargs="+", choices=[cell.name for cell in CELLS], help="these alone, and again")
    parser.add_argument("--oxia", metavar="PROGRAM", help=f"of Oxia {OXIAS[-1]}, whose server is not built here")
    asked = parser.parse_args()
    machine = Machine(
        {python for python in PYTHONS if _interpreter(python)}, OXIAS if asked.oxia else Machine(()).oxias
    )
    commit = _commit()
    chosen = [cell for cell in CELLS if cell.name in asked.cells] if asked.cells else CELLS
    known = {} if asked.cells else read_results(_RESULTS)
    failed = [cell.name for cell in due(chosen, known, machine, commit) if not _run(cell, machine, commit, asked.oxia)]
    _DOCUMENT.write_text(render(CELLS, read_results(_RESULTS), machine), encoding="utf-8")
    if failed:
        _say(f"== not as it should be: {', '.join(failed)}")
    return 1 if failed else 0


def _run(cell: Cell, machine: Machine, commit: str, oxia: str | None) -> bool:
    _say(f"== {cell.name}: Pulsar {cell.pulsar}, {cell.store}, {cell.environment.name}")
    python = _environment(cell.environment)
    _RESULTS.mkdir(parents=True, exist_ok=True)
    # It stays if anything fails, with all logs.
    home = Path(tempfile.mkdtemp(prefix=f"bookwarden-matrix-{cell.name}-"))
    command = [python, "-m", "servers.matrix.scenario", cell.name, f"--home={home}", f"--results={_RESULTS}"]
    command += [f"--commit={commit}", *([f"--oxia={oxia}"] if oxia and cell.oxia == OXIAS[-1] else [])]
    log = _RESULTS / f"{cell.name}.log"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (_CHECKOUT / "src", _CHECKOUT / "tests")))}
    # One that is cut short leaves none.
    (_RESULTS / f"{cell.name}.json").unlink(missing_ok=True)
    with log.open("wb") as output:
        try:
            code = subprocess.run(
                command, check=False, stdout=output, stderr=output, timeout=_CELL_S, env=environment
            ).returncode
        except subprocess.TimeoutExpired as error:
            _say(f"   {error}")
            code = 1
    if code == 0:
        shutil.rmtree(home)
    else:
        _say(f"   failed: {log}, servers' logs in {home}")
    _DOCUMENT.write_text(render(CELLS, read_results(_RESULTS), machine), encoding="utf-8")
    return code == 0


def _commit() -> str:
    """Return the last commit that changed what is run, with a plus if something of it is not committed."""
    commit = _git("log", "-1", "--format=%h", "--", *_RUN).strip()
    return f"{commit}+" if _git("status", "--porcelain", "--", *_RUN) else commit


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=_CHECKOUT, check=True, capture_output=True, text=True).stdout


def _interpreter(python: str) -> str | None:
    """Return the program of a version of Python: this one, that of PATH, or one of pyenv's."""
    if python == _PYTHON:
        return sys.executable
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [shutil.which(f"python{python}"), *map(str, sorted(versions.glob(f"{python}.*/bin/python")))]
    # A shim of pyenv is there for a version that is not chosen, too.
    return next((each for each in reversed(found) if each and _starts(each)), None)


def _starts(program: str) -> bool:
    return subprocess.run([program, "-c", ""], check=False, capture_output=True).returncode == 0


def _environment(environment: Environment) -> str:
    """Return the Python of a virtual environment with what a cell needs, made first if it is not there."""
    if environment == Environment(_PYTHON):
        return sys.executable
    folder = _CHECKOUT / f".venv-matrix-{environment.name}"
    python = folder / "bin" / "python"
    installed = folder / ".installed"
    if not installed.exists():
        interpreter = _interpreter(environment.python)
        assert interpreter is not None
        _say(f"   making {folder.name}")
        subprocess.run([interpreter, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        oldest = (
            oldest_pins((_CHECKOUT / "setup.cfg").read_text(encoding="utf-8"), EXTRAS) if environment.oldest else []
        )
        subprocess.run([*install, "-e", f"{_CHECKOUT}[{','.join(EXTRAS)}]", *oldest], check=True)
        if environment.pins:
            # One by one with the rest a pin beyond our range would be refused.
            subprocess.run([*install, *environment.pins], check=True)
        installed.touch()
    return str(python)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
