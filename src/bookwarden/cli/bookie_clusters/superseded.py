"""`bookwarden bookie-clusters set-read-mode` and `close-client`: of PIP-470, with nothing left to do."""

from __future__ import annotations

import click

from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.cli.shell.output import Document, Note
from bookwarden.switching.documents import SUPERSEDED


def superseded(operation: str) -> click.Command:
    """Make the command that says what takes the place of this operation, whatever it is given."""

    @click.command(
        operation,
        short_help="Change nothing; say what takes its place.",
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("_given", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENT]...")
    @output_option
    @pass_invocation
    def say(invocation: Invocation, _given: tuple[str, ...]) -> None:
        invocation.write(Document({"changed": False, "instead": SUPERSEDED[operation]}, (Note(SUPERSEDED[operation]),)))

    say.help = f"Change nothing.\n\n{SUPERSEDED[operation]}."
    return say
