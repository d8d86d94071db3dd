"""The driver process of a build: its folder, its record in Pulsar's store, its Spark session and signals."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bookwarden.bookie_clusters.moving.build import Build, BuildLease, BuildReport, CopyCounts, Pacer, find_build
from bookwarden.bookie_clusters.moving.scope import Route, Scope, route_of
from bookwarden.bookie_clusters.registry import Registry
from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits
from bookwarden.clusters.bookkeeper.listing import LedgerListing
from bookwarden.config import Settings
from bookwarden.errors import FileError, NotFoundError, RefusedError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.orphans.plan import new_id
from bookwarden.pipelines.copying.stages import (
    BYTES,
    COPYING_STAGE,
    LEDGERS,
    LISTING_STAGE,
    CopyJob,
    CopyProgress,
    CopyStages,
    VerifyJob,
    counts_of,
    first_staying,
    planned_counts_of,
)
from bookwarden.pipelines.scan.driver import paused_by_signals
from bookwarden.pipelines.scan.files import ScanFolder, Seal
from bookwarden.pipelines.scan.lock import alone
from bookwarden.pipelines.scan.stage import Progress, Stages
from bookwarden.pipelines.session import QUICK_JVM, running_session
from bookwarden.records import record_fields, record_of
from bookwarden.wiring.cluster import Cluster

_APPLICATION: Final = "bookwarden-ledger-copy"
_RESULT: Final = "result.json"
_FOLDERS: Final = "var/builds"
# Looking at the folder must not cost more than a small part of the time.
_LOOK_EVERY_S: Final = 1.0
_LOOK_SHARE: Final = 20


@dataclass(frozen=True)
class BuildRequest:
    """A build to run."""

    location: str | None = None  #: Path or URI of its folder; None makes one, and finds it again for a resumed build.
    source: str | None = None  #: Name of a bookie cluster; None chooses as `route_of` does.
    target: str | None = None  #: Likewise.
    scope: Scope = field(default_factory=Scope)  #: Of a new build.
    limits: CopyLimits = field(default_factory=CopyLimits)  #: For each bookie of either side, for all tasks together.
    keep: int = 20  #: Ledgers of each outcome that the report shows.
    dry_run: bool = False  #: List and count only.
    resume: bool = False  #: Go on with a stopped one.
    verify: bool = False  #: Copy nothing; prove what was copied.


@dataclass(frozen=True)
class _Header:
    """The header of a build, as it was begun."""

    source: str  #: Name of a bookie cluster.
    target: str  #: Likewise.
    source_instance: str  #: What its INSTANCEID said.
    target_instance: str  #: Likewise.
    scope: dict[str, list[str]]  #: As values of JSON.
    started_ms: int  #: By this machine's clock, in ms since the epoch.
    verify: bool = False  #: It proves what was copied, and is never resumed.


def run_build(
    cluster: Cluster,
    request: BuildRequest,
    *,
    progress: Progress = lambda *_: None,
    on_update: Callable[[Build], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    local: bool = False,
) -> BuildReport:
    """Copy ledgers on Spark, or say what would be copied; with `local` on a Spark that is started here.

    ``progress`` is called for the listing, ``on_update`` with how far the copying is. Raises ScanPaused at SIGINT and
    SIGTERM, RefusedError where nothing may be copied or another process builds, NotFoundError where there is nothing to
    go on with, StoreError and SparkError.
    """
    begin = time.monotonic()
    with _folder_for(request, cluster.store) as location:
        registry = cluster.registry.require().registry
        folder = ScanFolder(location)
        try:
            header = _resumed(folder, request, registry) if request.resume else _begun(folder, request, registry)
            source = registry.cluster(header.source)
            run = _Run(
                cluster.settings,
                request,
                folder,
                Build(header.source, header.target, record_of(Scope, header.scope), _name(folder), header.started_ms),
                LedgerListing(cluster.registry.store_of(source), source.ledgers_root),
                progress,
                on_update,
                say,
                local,
            )
            if request.dry_run or request.verify:
                with alone(folder.folder):
                    folder.begin(asdict(header))
                    return run.verify(begin) if request.verify else run.look(begin)
            with BuildLease(cluster.store) as lease:
                run.take(lease)
                with alone(folder.folder):
                    if not request.resume:
                        folder.begin(asdict(header))
                    return run.copy(lease, begin)
        except OSError as error:
            raise FileError(f"{location} cannot be read and written: {error}") from error


@contextmanager
def _folder_for(request: BuildRequest, pulsar: MetadataStore) -> Iterator[str]:
    """Return the folder of the build: the one asked for, the one of the stopped build, or a new one."""
    if request.location is not None:
        yield request.location
    elif request.dry_run:
        with tempfile.TemporaryDirectory(prefix="bookwarden-build-") as folder:
            yield folder
    elif request.resume:
        found = find_build(pulsar)
        if found is None or found.newest.is_through:
            raise NotFoundError("no build was stopped: there is nothing to go on with")
        yield found.newest.folder
    else:
        # The tasks have the working folder of the JVM, which may be another.
        yield str(Path(_FOLDERS, new_id(int(time.time() * 1000))).absolute())


def _begun(folder: ScanFolder, request: BuildRequest, registry: Registry) -> _Header:
    if folder.folder.exists("scan.json"):
        raise RefusedError(
            f"{folder.folder.location} has a build, or a scan, already: name another folder, or go on with --resume"
        )
    source, target = route_of(registry, request.source, request.target)
    return _Header(
        source,
        target,
        registry.cluster(source).instance,
        registry.cluster(target).instance,
        record_fields(request.scope),
        int(time.time() * 1000),
        request.verify,
    )


def _resumed(folder: ScanFolder, request: BuildRequest, registry: Registry) -> _Header:
    location = folder.folder.location
    if not folder.folder.exists("scan.json"):
        raise NotFoundError(
            f"there is no build in {location}: go on where it was begun (`bookie-clusters status` names the host), or "
            "begin another, which finds what was copied"
        )
    if folder.folder.exists(_RESULT):
        raise RefusedError(f"the build in {location} is through ({_RESULT}): begin another")
    fields: dict[str, Any] = folder.header()
    try:
        header = _Header(**fields)
        route_of(registry, header.source, header.target)
    except TypeError as error:
        raise RefusedError(f"{location} has no build, or that of another version: begin another") from error
    if header.verify:
        raise RefusedError(f"{location} has copies that were verified, and no build: verify again in another folder")
    asked = (("--src-cluster", request.source, header.source), ("--target", request.target, header.target))
    for name, given, begun in asked:
        if given not in (None, begun):
            raise RefusedError(f"the build in {location} has {name} {begun}, not {given}")
    instances = tuple(registry.cluster(name).instance for name in (header.source, header.target))
    if instances != (header.source_instance, header.target_instance):
        raise RefusedError(f"{header.source} or {header.target} was registered again since this build: begin another")
    return header


def _name(folder: ScanFolder) -> str:
    """Return the folder's location so that another process of this machine finds it."""
    local = folder.folder.local_path
    return folder.folder.location if local is None else str(local)


@dataclass
class _Run:
    """One process at work on a build."""

    _settings: Settings  #: Of stores, bookies and Spark.
    _request: BuildRequest  #: As the operator gave it.
    _folder: ScanFolder  #: Of the build's files.
    _build: Build  #: As it is now.
    _listing: LedgerListing  #: Of the source.
    _progress: Progress  #: Is called for the listing.
    _on_update: Callable[[Build], None]  #: Is called with how far the copying is.
    _say: Callable[[str], None]  #: Is called with each step.
    _local: bool  #: On a Spark that is started here.
    _pacer: Pacer = field(default_factory=Pacer)  #: Of this process.
    _look_at: float = 0.0  #: When the folder may be read again, by the steady clock.
    _complete: CopyCounts = field(default_factory=CopyCounts)  #: Of what was complete before.

    def __post_init__(self) -> None:
        self._watch = CopyProgress(self._folder)

    def look(self, begin: float) -> BuildReport:
        """List the source, and say what would be copied."""
        with self._copying(lambda _: None) as copying:
            listed = copying.read_source(self._listing)
        build = replace(self._with(listed), counts=planned_counts_of(listed))
        staying = first_staying(self._folder, LISTING_STAGE, listed, self._request.keep)
        return BuildReport(build, tuple(staying), time.monotonic() - begin, is_dry_run=True)

    def take(self, lease: BuildLease) -> None:
        """Take the record, before anything is written to the folder."""
        lease.take(self._build, self._say)
        build = self._build
        self._say(f"copying {build.scope} from {build.source} to {build.target}; all is kept in {build.folder}")

    def verify(self, begin: float) -> BuildReport:
        """List the source, and prove what the target has of it."""
        build = self._build
        self._say(f"reading what {build.target} has of {build.scope} in {build.source}; all is kept in {build.folder}")
        return self._through(lambda _: None, lambda: None, begin)

    def copy(self, lease: BuildLease, begin: float) -> BuildReport:
        """List the source, and copy."""
        return self._through(lease.tell, lease.require, begin, lease.end)

    def _through(
        self,
        tell: Callable[[Build], None],
        require: Callable[[], None],
        begin: float,
        end: Callable[[Build], None] = lambda _: None,
    ) -> BuildReport:
        with self._copying(tell) as copying:
            listed = copying.read_source(self._listing)
            self._build = self._with(listed)
            self._complete = counts_of(listed)
            # What an earlier process copied does not count for the pace of this one.
            self._looked()
            tell(self._build)
            require()
            copied = copying.copy(listed)
        counts = counts_of([*listed, *copied])
        looked_at, size = (sum(seal.notes[name] for seal in copied) for name in (LEDGERS, BYTES))
        build = replace(
            self._build,
            ended_ms=int(time.time() * 1000),
            looked_at=looked_at,
            size_looked_at=size,
            counts=counts,
            pace=self._pacer.at(looked_at, size),
        )
        self._on_update(build)
        staying = first_staying(self._folder, COPYING_STAGE, copied, self._request.keep)
        report = BuildReport(build, tuple(staying), time.monotonic() - begin, is_verification=self._request.verify)
        end(build)
        self._folder.folder.write_json(_RESULT, report.as_json())
        return report

    @contextmanager
    def _copying(self, tell: Callable[[Build], None]) -> Iterator[CopyStages]:
        what_next = f"go on with: bookwarden bookie-clusters build --resume --folder {self._build.folder}"
        defaults = QUICK_JVM if self._local else {}
        with running_session(self._settings, local=self._local, application=_APPLICATION, defaults=defaults) as spark:
            tasks = spark.sparkContext.defaultParallelism
            reads = self._settings.orphans.max_reads_per_second
            kind = VerifyJob if self._request.verify else CopyJob
            copied = kind(
                self._settings,
                Route(self._build.source, self._build.target),
                self._build.scope,
                self._request.limits.shared_by(tasks),
                None if reads is None else reads / tasks,
            )

            def progress(stage: str, done: int, total: int) -> None:
                if stage != COPYING_STAGE:
                    self._progress(stage, done, total)
                elif self._looked():
                    tell(self._build)
                    self._on_update(self._build)

            with paused_by_signals(
                spark, "stopped" if self._request.dry_run or self._request.verify else f"paused; {what_next}"
            ):
                yield CopyStages(Stages(spark, self._folder, progress), copied, tasks)

    def _looked(self) -> bool:
        """Look how far the copying is, if it is time to; return whether it was."""
        begun = time.monotonic()
        if begun < self._look_at:
            return False
        with suppress(OSError):
            # A folder that cannot be read now fails the tasks if it stays so.
            self._watch.look()
        self._look_at = time.monotonic() + max(_LOOK_EVERY_S, _LOOK_SHARE * (time.monotonic() - begun))
        self._build = replace(
            self._build,
            looked_at=self._watch.ledgers,
            size_looked_at=self._watch.size,
            counts=self._watch.counts.plus(self._complete),
            pace=self._pacer.at(self._watch.ledgers, self._watch.size),
        )
        return True

    def _with(self, listed: list[Seal]) -> Build:
        ledgers, size = (sum(seal.notes[name] for seal in listed) for name in (LEDGERS, BYTES))
        return replace(self._build, is_listed=True, ledgers=ledgers, size=size)
