"""The verification on Spark, from the command line."""

from __future__ import annotations

import logging
import tempfile
from contextlib import ExitStack
from dataclasses import replace

from bookwarden.cli.preflight import require_spark
from bookwarden.cli.shell.invocation import Invocation
from bookwarden.migration.comparison.findings import VersionRule
from bookwarden.migration.comparison.verification import Verification


def verify_on_spark(
    invocation: Invocation,
    source: str | None,
    target: str | None,
    versions: VersionRule,
    folder: str | None,
    show: int,
    limit: float | None,
    *,
    resume: bool,
) -> Verification:
    """Compare on a Spark that is started here; without a folder only the result is kept."""
    require_spark()
    from bookwarden.pipelines.verification.driver import VerificationRequest, run_verification

    if invocation.verbose or invocation.debug:
        invocation.set_up_logging(logging.INFO)
    with ExitStack() as opened:
        location = folder or opened.enter_context(tempfile.TemporaryDirectory(prefix="bookwarden-verify-"))
        request = VerificationRequest(location, source, target, versions, show, limit, resume)
        found = run_verification(invocation.settings, request, say=invocation.say, local=True)
    return found if folder else replace(found, differences=None)
