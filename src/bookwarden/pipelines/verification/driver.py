"""The driver process of a verification on Spark: its folder, session and signals, and what to do to go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from bookwarden.config import Settings
from bookwarden.errors import RefusedError, StoreError
from bookwarden.migration.comparison.findings import Report, VersionRule
from bookwarden.migration.comparison.verification import Verification
from bookwarden.migration.walking import WHOLE_TREE
from bookwarden.pipelines.scan.driver import paused_by_signals
from bookwarden.pipelines.scan.files import ScanFolder
from bookwarden.pipelines.scan.lock import alone
from bookwarden.pipelines.scan.stage import Progress, Stages
from bookwarden.pipelines.session import running_session
from bookwarden.pipelines.verification.store_comparison import DIFFERENCES_FOLDER, ComparedStores, StoreComparison
from bookwarden.wiring.migration import VerificationContext

_APPLICATION: Final = "bookwarden-metadata-verify"
_RESULT: Final = "result.json"
# So many nodes, read in the driver, decide whether the target took over the source's versions.
_JUDGED_BY: Final = 5_000


@dataclass(frozen=True)
class VerificationRequest:
    """A verification to run."""

    location: str  #: Path or URI of its folder, which must be new unless it is resumed.
    source: str | None = None  #: URL of a store; None takes that of the settings.
    target: str | None = None  #: URL of a store; None takes that of the source's flag.
    versions: VersionRule = VersionRule.AUTO  #: How versions are compared.
    keep: int = 20  #: Differences that the report shows.
    max_reads_per_second: float | None = None  #: For each of both stores; None is no limit.
    resume: bool = False  #: Go on with an interrupted one.


@dataclass(frozen=True)
class _Header:
    """The header of a verification, as it was begun."""

    source: str  #: URL.
    target: str  #: URL.
    phase: str | None  #: Of the source's flag; None without a flag.
    #: When the target took over, by the source's clock, in ms since the epoch; None if it has not.
    switched_ms: int | None
    versions: str  #: Value of the VersionRule asked for.
    versions_kept: bool | None  #: Whether versions count, as decided at the start; None if they were not asked for.


def run_verification(
    settings: Settings,
    request: VerificationRequest,
    *,
    progress: Progress = lambda *_: None,
    say: Callable[[str], None] = lambda _: None,
    local: bool = False,
) -> Verification:
    """Compare the stores on Spark; with `local` on one that is started here.

    Raises ScanPaused at SIGINT and SIGTERM, RefusedError where the folder is another's or in use, what
    `VerificationContext` raises, StoreError and SparkError.
    """
    begin = time.monotonic()
    folder = ScanFolder(request.location)
    try:
        with alone(folder.folder):
            header = _resumed(folder, request) if request.resume else _begun(settings, folder, request)
            say(f"comparing {header.source} with {header.target}; all is kept in {request.location}")
            report = _compare(settings, header, folder, request, progress, say, local)
            verification = Verification(
                header.source,
                header.target,
                header.phase,
                header.switched_ms,
                report,
                time.monotonic() - begin,
                f"{request.location.rstrip('/')}/{DIFFERENCES_FOLDER}",
            )
            folder.folder.write_json(_RESULT, verification.as_json())
    except OSError as error:
        raise StoreError(f"{request.location} cannot be read and written: {error}") from error
    return verification


def _begun(settings: Settings, folder: ScanFolder, request: VerificationRequest) -> _Header:
    if folder.folder.exists("scan.json"):
        raise RefusedError(
            f"{request.location} has a verification already: name another folder, or go on with --resume"
        )
    with VerificationContext(
        settings.metadata_store,
        source=request.source,
        target=request.target,
        max_reads_per_second=request.max_reads_per_second,
    ) as context:
        header = _Header(
            context.source_url,
            context.target_url,
            None if context.flag is None else context.flag.phase,
            context.switched_ms,
            request.versions.value,
            _versions_kept(context, request.versions),
        )
    folder.begin(asdict(header))
    return header


def _resumed(folder: ScanFolder, request: VerificationRequest) -> _Header:
    fields: dict[str, Any] = folder.header()
    if folder.folder.exists(_RESULT):
        raise RefusedError(f"the verification in {request.location} is finished ({_RESULT}): begin another")
    try:
        header = _Header(**fields)
    except TypeError as error:
        raise RefusedError(
            f"{request.location} has no verification, or that of another version: begin another"
        ) from error
    for name, given, begun in (("source", request.source, header.source), ("target", request.target, header.target)):
        if given not in (None, begun):
            raise RefusedError(f"the verification in {request.location} has the {name} {begun}, not {given}")
    return header


def _versions_kept(context: VerificationContext, rule: VersionRule) -> bool | None:
    """Return whether versions count, by a sample for AUTO; None where they are ignored, or it cannot tell."""
    if rule is not VersionRule.AUTO:
        return True if rule is VersionRule.REQUIRED else None
    sample, _ = context.comparison(versions=rule, switched_ms=context.switched_ms).run_part(WHOLE_TREE, _JUDGED_BY)
    return sample.versions_kept


def _compare(
    settings: Settings,
    header: _Header,
    folder: ScanFolder,
    request: VerificationRequest,
    progress: Progress,
    say: Callable[[str], None],
    local: bool,
) -> Report:
    with running_session(settings, local=local, application=_APPLICATION) as spark:
        tasks = spark.sparkContext.defaultParallelism
        limit = request.max_reads_per_second
        stores = ComparedStores(
            settings,
            header.source,
            header.target,
            header.switched_ms,
            VersionRule.REQUIRED if header.versions_kept else VersionRule.IGNORED,
            None if limit is None else limit / tasks,
        )
        with paused_by_signals(spark, f"go on by the same command with --resume, in {request.location}"):
            report = StoreComparison(
                Stages(spark, folder, progress),
                folder,
                stores,
                tasks,
                lambda nodes: say(f"{nodes:,} nodes compared"),
            ).run(request.keep)
    return replace(report, versions_kept=header.versions_kept)
