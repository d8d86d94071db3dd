"""The copying of ledgers to another bookie cluster, for spark-submit: settings, session, build.

spark-submit [--py-files or --archives as in docs/deploy.md] \\
    jobs/ledger_copy.py --config bookwarden.yaml --folder FOLDER
"""

from __future__ import annotations

import logging
import sys

from bookwarden.bookie_clusters.moving.build import ADVICE
from bookwarden.bookie_clusters.moving.scope import scope_of
from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits
from bookwarden.config import Settings
from bookwarden.metrics.findings import of_build_report
from bookwarden.metrics.names import Program
from bookwarden.metrics.runs import published_run
from bookwarden.pipelines.copying.driver import BuildRequest, run_build
from bookwarden.pipelines.submitted import arguments_of, run_submitted
from bookwarden.wiring.cluster import Cluster


def main() -> int:
    """Build, or go on with a build; return the exit code: those of `bookie-clusters build`, in docs/cli.md."""
    arguments = arguments_of("Copy ledgers to another bookie cluster.")
    arguments.add_argument("--src-cluster", metavar="NAME", help="copy from here; the one that was active before")
    arguments.add_argument("--target", metavar="NAME", help="copy to here; the active one unless given")
    arguments.add_argument("--all", action="store_true", help="all kinds, not schemas and cursors alone")
    for name in ("tenant", "namespace", "topic"):
        arguments.add_argument(f"--{name}", action="append", default=[], metavar="NAME", help=f"of this {name}")
    arguments.add_argument("--dry-run", action="store_true", help="count what would be copied")
    for unit in ("bytes", "ledgers"):
        arguments.add_argument(f"--max-{unit}-per-second", type=float, metavar="N", help="for each bookie")
    arguments.add_argument("--folder", metavar="FOLDER", required=True, help="new; driver and executors share it")
    arguments.add_argument("--verify", action="store_true", help="copy nothing, read back every copy")
    arguments.add_argument("--resume", action="store_true", help="go on with what was begun in the folder")
    given = arguments.parse_args()

    def work(settings: Settings) -> int:
        request = BuildRequest(
            given.folder,
            given.src_cluster,
            given.target,
            scope_of(
                every_kind=given.all,
                tenants=tuple(given.tenant),
                namespaces=tuple(given.namespace),
                topics=tuple(given.topic),
            ),
            CopyLimits(given.max_bytes_per_second, given.max_ledgers_per_second),
            dry_run=given.dry_run,
            resume=given.resume,
            verify=given.verify,
        )
        program = Program.BUILD_VERIFY if given.verify else Program.BUILD
        with published_run(settings.metrics, program, publishes=not given.dry_run) as run, Cluster(settings) as cluster:
            report = run_build(cluster, request, say=logging.info)
            run.show(of_build_report(report.build, is_verification=given.verify), report.exit_code)
        for one in report.staying:
            logging.warning("%d %s, of %s: %s", one.ledger_id, one.outcome.value, one.holder or one.kind, one.reason)
        for outcome in dict.fromkeys(one.outcome for one in report.staying):
            logging.warning("%s: %s", outcome.value, ADVICE[outcome])
        for outcome, kind in report.build.counts.in_order():
            logging.info("%s, %s: %d", outcome.value, kind, report.build.counts.ledgers[outcome, kind])
        return report.exit_code

    return run_submitted(given, work)


if __name__ == "__main__":
    sys.exit(main())
