"""The end of a failed command: one line on the standard error, and an exit code for the kind of failure."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Any, Final

import click

from bookwarden.cli.shell.invocation import Invocation
from bookwarden.errors import BookwardenError, FileError, MissingExtraError
from bookwarden.exit_codes import CLOSED_OUTPUT, INTERRUPTED, USAGE

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class TranslatingGroup(click.Group):
    """The root of all commands: turns the errors of each into its line and exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order in which they were added: that of their use."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a stack trace is shown only with --debug."""
        try:
            return super().invoke(ctx)
        except BookwardenError as error:
            return _end(ctx, error, str(error), error.exit_code)
        except ModuleNotFoundError as error:
            missing = missing_extra(error)
            if missing is None:
                raise
            return _end(ctx, error, str(missing), missing.exit_code)
        except click.UsageError as error:
            if _invocation(ctx).output != "json":
                raise
            return _end(ctx, error, error.format_message(), USAGE)
        except KeyboardInterrupt as error:
            return _end(ctx, error, str(error) or "interrupted", INTERRUPTED)
        except BrokenPipeError:
            _leave_output()
            ctx.exit(CLOSED_OUTPUT)
        except OSError as error:
            if error.filename is None and error.errno not in _FULL:
                raise
            if error.filename is None:
                _leave_output()
                return _end(ctx, error, f"the output cannot be written: {error.strerror}", FileError.exit_code)
            return _end(ctx, error, f"{error.filename} cannot be used: {error.strerror}", FileError.exit_code)
        except (EOFError, click.Abort) as error:
            return _end(ctx, error, "interrupted", INTERRUPTED)
        except SystemError as error:
            # The native Pulsar client reports Ctrl-C like this.
            if not isinstance(error.__cause__, KeyboardInterrupt):
                raise
            return _end(ctx, error, "interrupted", INTERRUPTED)


def _invocation(ctx: click.Context) -> Invocation:
    found = ctx.obj
    return found if isinstance(found, Invocation) else Invocation(output=ctx.params.get("output", "text"))


def _end(ctx: click.Context, error: BaseException, text: str, exit_code: int) -> None:
    invocation = _invocation(ctx)
    if invocation.debug:
        traceback.print_exception(error, file=sys.stderr)
    invocation.writer.fail(text, exit_code)
    ctx.exit(exit_code)


def _leave_output() -> None:
    """Stop writing to the standard output, also what is still in its buffer at the end of the process."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:
        # A test's output has no file.
        return


# By imported module; setup.cfg has the distributions.
EXTRA_OF: Final = {
    "jinja2": "spark",
    "numpy": "spark",
    "pandas": "spark",
    "prometheus_client": "spark",
    "pyarrow": "spark",
    "pyspark": "spark",
    "grpc": "oxia",
    "xxhash": "oxia",
    "boto3": "s3",
    "botocore": "s3",
    "google.api_core": "gcs",
    "google.auth": "gcs",
    "google.cloud.storage": "gcs",
    "azure.core": "azure",
    "azure.identity": "azure",
    "azure.storage.blob": "azure",
    "fastapi": "serve",
    "uvicorn": "serve",
    "flask": "demo",
    "flask_cors": "demo",
    "moto": "demo",
}


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the extra to install after a failed import; None for a module that no extra brings."""
    name = error.name or ""
    for package, extra in EXTRA_OF.items():
        if f"{name}.".startswith(f"{package}.") or f"{package}.".startswith(f"{name}."):
            return MissingExtraError(f"this needs the Python package {name}: pip install 'bookwarden[{extra}]'")
    return None
