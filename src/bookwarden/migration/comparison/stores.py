"""Two metadata stores compared node by node: is the target as the source was?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.migration.comparison.differences import Difference, compare_nodes, is_other_version
from bookwarden.migration.comparison.findings import DifferenceSink, Findings, Report, VersionRule
from bookwarden.migration.walking import TreeWalk

# ZooKeeper's own nodes, which Pulsar also copies from a store without a chroot.
ZOOKEEPERS_OWN: Final = "/zookeeper"


class Comparison:
    """Compares persistent nodes of two stores; reads only.

    ``passed_over`` are paths that are not compared, with all below them. ``switched_ms`` is when the target
    replaced the source, None if it has not. ``keep`` differences of each class are kept; ``sink`` gets all of them in
    the order of their discovery, from one thread at a time. ``progress`` is called with the number of nodes compared
    so far. Ephemeral nodes count as absent.
    """

    def __init__(
        self,
        source: MetadataStore,
        target: MetadataStore,
        *,
        passed_over: Collection[str] = (ZOOKEEPERS_OWN,),
        switched_ms: int | None = None,
        versions: VersionRule = VersionRule.AUTO,
        keep: int = 20,
        sink: DifferenceSink = lambda _: None,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._walk = TreeWalk((source, target), self._compare, passed_over=passed_over)
        self._switched_ms = switched_ms
        self._findings = Findings(keep=keep, versions=versions, sink=sink)
        self._progress = progress

    def run(self) -> Report:
        """Compare everything, once; raises the errors of the stores and of the sink."""
        self._walk.run()
        return self._findings.report()

    def _compare(self, paths: Sequence[str], nodes: Sequence[Sequence[Versioned | None]]) -> None:
        compared = ephemeral = other_versions = 0
        differences: list[Difference] = []
        switched_ms, wants_versions = self._switched_ms, self._findings.wants_versions
        for path, source, target in zip(paths, *nodes, strict=True):
            kept_source, kept_target = _persistent(source), _persistent(target)
            if kept_source is None and kept_target is None:
                ephemeral += source is not None or target is not None
                continue
            compared += 1
            if not wants_versions and is_other_version(kept_source, kept_target, switched_ms):
                other_versions += 1
                continue
            difference = compare_nodes(path, kept_source, kept_target, switched_ms)
            if difference is not None:
                differences.append(difference)
        self._progress(self._findings.add(compared, ephemeral, differences, other_versions))


def _persistent(node: Versioned | None) -> Versioned | None:
    return None if node is None or node.ephemeral else node
