"""The global options, handed to every command, and the log file of one that runs for long."""

from __future__ import annotations

import getpass
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bookwarden.errors import FileError, FormatError
from bookwarden.ledgers.pending_deletion import MAX_LEDGER_ID

if TYPE_CHECKING:
    from bookwarden.cli.shell.output import Document, Stream, Writer
    from bookwarden.config import Settings


LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogFile(WatchedFileHandler):
    """Appends to a file, a new one where the former was moved away; one that cannot be written ends no work."""

    def __init__(self, path: str, level: int) -> None:
        """Open the file; raise FileError where it cannot be written."""
        try:
            super().__init__(path, encoding="utf-8")
        except OSError as error:
            raise FileError(f"log.file {path} cannot be written: {error.strerror}; name another, or none") from error
        self.setLevel(level)
        self.setFormatter(logging.Formatter(LOG_FORMAT))
        self._has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Write once what is wrong; logging would print a stack trace for each line."""
        error = sys.exc_info()[1]
        if not self._has_failed:
            reason = error.strerror if isinstance(error, OSError) else error
            sys.stderr.write(f"bookwarden: log.file {self.baseFilename} cannot be written: {reason}; it goes on\n")
        self._has_failed = True

    def flush(self) -> None:
        """Write what is in the buffer; at the end of the process a full disk is no error of its own."""
        try:
            super().flush()
        except OSError:
            if not self._has_failed:
                self.handleError(logging.makeLogRecord({}))


def parse_ledger_id(text: str) -> int:
    """Read the id of a ledger off a command line."""
    if text.isascii() and text.isdecimal() and int(text) <= MAX_LEDGER_ID:
        return int(text)
    raise click.BadParameter(f"{text!r} is not a ledger id: a number from 0 to {MAX_LEDGER_ID}")


def parse_topic(text: str) -> str:
    """Check the name of a topic on a command line, in any form that `TopicName.parse` takes."""
    from bookwarden.ledgers.names import TopicName

    try:
        topic = TopicName.parse(text)
    except FormatError as error:
        raise click.BadParameter(str(error)) from error
    if topic.domain != "persistent":
        raise click.BadParameter(f"{text}: topics that are not persistent have no ledgers")
    return text


# Libraries whose long log messages only repeat their errors.
_CHATTY = ("kazoo", "pulsar", "urllib3")


# Sessions with stores come and go all the time; what is wrong with one is a warning.
_SESSIONS = "bookwarden.metastore.zookeeper.session"


def _is_for_everybody(record: logging.LogRecord) -> bool:
    ours = record.name.partition(".")[0] in ("bookwarden", "bookwarden_dev", "uvicorn")
    return ours and (record.name != _SESSIONS or record.levelno >= logging.WARNING)


@dataclass
class Invocation:
    """One call of the program; the settings are read when a command first needs them."""

    config: Path | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    output: str = "text"
    debug: bool = False
    verbose: bool = False

    @cached_property
    def settings(self) -> Settings:
        """The settings; ConfigError when they are not usable."""
        # Imported late, as in `writer`: --help and --version need neither settings nor tables.
        from bookwarden.config import exposed_files, load_settings

        settings = load_settings(self.config, self.overrides)
        for name, what in exposed_files(settings):
            self.say(f"bookwarden: warning: {name} {what}; chmod 600 it, or 640 for a group that needs it")
        return settings

    @cached_property
    def writer(self) -> Writer:
        """The writer of results and failures."""
        from bookwarden.cli.shell.output import JsonWriter, TextWriter

        return (JsonWriter if self.output == "json" else TextWriter)(sys.stdout, sys.stderr)

    def write(self, document: Document) -> None:
        """Write a command's result."""
        self.writer.write(document)

    def write_stream(self, stream: Stream[Any]) -> None:
        """Write a command's result while it comes."""
        self.writer.write_stream(stream)

    def say(self, line: str) -> None:
        """Report the progress of a long command to people; nothing is written for programs that read JSON."""
        if self.output != "json":
            click.echo(line, err=True)

    def set_up_logging(self, usual: int = logging.ERROR) -> None:
        """Log to the standard error at the command's usual level, and more on demand.

        Without -v only our own lines are shown: those of Spark, the JVM and libraries are for who looks for a cause.
        A command that runs for long calls it again once it has the settings: then the file of log.file gets everything.
        Raises FileError where that cannot be written.
        """
        level = logging.DEBUG if self.debug else logging.INFO if self.verbose else usual
        shown = logging.StreamHandler()
        shown.setLevel(level)
        shown.setFormatter(logging.Formatter(LOG_FORMAT))
        if not (self.debug or self.verbose):
            shown.addFilter(_is_for_everybody)
        handlers: list[logging.Handler] = [shown]
        settings: Settings | None = self.__dict__.get("settings")
        if settings is not None and settings.log.file:
            handlers.append(LogFile(settings.log.file, min(level, logging.INFO)))
        logging.basicConfig(level=min(one.level for one in handlers), handlers=handlers, force=True)
        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.DEBUG if self.debug else logging.CRITICAL)
        # It logs each call into Spark with its arguments, and some of those are secrets.
        logging.getLogger("py4j").setLevel(logging.WARNING)


def operator() -> str:
    """Return the user and the machine, as what was done by a person is signed."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


pass_invocation = click.make_pass_decorator(Invocation)


def _let_writes_fail(context: click.Context, _: click.Parameter, value: str) -> None:
    invocation = context.find_object(Invocation)
    if invocation is not None and value == "fail":
        invocation.overrides = {**invocation.overrides, "metadata_store.migration_write_wait_seconds": "0"}


while_migrating_option: Callable[[Any], Any] = click.option(
    "--while-migrating",
    type=click.Choice(["wait", "fail"]),
    default="wait",
    show_default=True,
    callback=_let_writes_fail,
    expose_value=False,
    help="While Pulsar moves its metadata: updates of it wait for the end, or fail at once.",
)


def _choose_output(context: click.Context, _: click.Parameter, value: str | None) -> None:
    invocation = context.find_object(Invocation)
    if invocation is not None and value is not None:
        invocation.output = value


output_option: Callable[[Any], Any] = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    callback=_choose_output,
    expose_value=False,
    help="As the global option of this name.",
)


def max_reads_option(what: str) -> Callable[[Any], Any]:
    """Add --max-reads-per-second to a command as ``limit``; the help ends with the text given."""
    kind = click.FloatRange(min=0, min_open=True)
    return click.option("--max-reads-per-second", "limit", type=kind, metavar="N", help=f"Nodes read {what}")


def with_limit(settings: Settings, limit: float | None) -> Settings:
    """Return the settings with another limit of reads from the metadata stores; None changes nothing."""
    if limit is None:
        return settings
    orphan_settings = settings.orphans.model_copy(update={"max_reads_per_second": limit})
    return settings.model_copy(update={"orphans": orphan_settings})


def show_option(what: str) -> Callable[[Any], Any]:
    """Add --show, how much of a result a command lists; the help has the text given."""
    return click.option("--show", type=click.IntRange(min=0), default=20, show_default=True, help=what)
