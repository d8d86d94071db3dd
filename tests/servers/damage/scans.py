"""The act that scans a cluster with many damaged nodes at once, twice a round: no plan has anything that lives."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import SparkSession

from bookwarden.errors import BookwardenError, FormatError
from bookwarden.pipelines.scan.folder import plans_of
from bookwarden.pipelines.scan.operation import OrphanScan
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.managed_ledger import decode_managed_ledger
from bookwarden.wire.schema_locator import decode_schema_locator
from servers.damage.filling import DamagedCluster
from servers.damage.fuzz import settings_of
from servers.damage.nodes import NodeKind, copy_keys, ledgers_named
from servers.damage.truth import LiveMark, Truth
from servers.damage.variants import Damage, Exemption, Variant, exemption_of, make_variants

_DECODERS: Final[Mapping[NodeKind, Callable[[bytes], object]]] = {
    NodeKind.MANAGED_LEDGER: decode_managed_ledger,
    NodeKind.CURSOR: decode_cursor,
    NodeKind.SCHEMA: decode_schema_locator,
}
# What waits in real life, for clocks, compactions and a second look, need not wait here.
_ALL_AGES_0: Final = {
    "orphans.min_age_days": "0",
    "orphans.longest_compaction_hours": "0",
    "orphans.seen_apart_hours": "0",
    "orphans.max_share": "1",
}
# A broker tells whole seconds, and what is younger than its clock is too young.
_OLD_ENOUGH_S: Final = 2.5


@dataclass
class PlannedLive:
    """What plans had of that which lives."""

    ledgers: int = 0
    copies: int = 0
    exempt: Counter[Exemption] = field(default_factory=Counter)

    @property
    def failed(self) -> bool:
        return bool(self.ledgers or self.copies)

    def lines(self) -> Iterator[str]:
        """Say it all."""
        yield f"live ledgers planned: {self.ledgers}, live copies planned: {self.copies}"
        for exemption in Exemption:
            yield f"  not counted: {self.exempt[exemption]} planned by {exemption.value}"


class DamagedScans:
    """Scans a filled cluster, healthy and damaged."""

    def __init__(self, site: DamagedCluster, spark: SparkSession, truth: Truth, seed: int) -> None:
        self._site, self._spark, self._truth, self._seed = site, spark, truth, seed
        folder = {"orphans.folder": str(site.home / "orphans"), **_ALL_AGES_0}
        self._settings = settings_of(site, site.home / "scans", **folder).settings
        self.planned = PlannedLive()
        self._told: set[str] = set()

    def run(self) -> None:
        """Scan the healthy cluster, then damage its nodes in four rounds."""
        self._round("a healthy cluster", [])
        # Enough for each round to find what it takes.
        variants = make_variants(list(self._truth.nodes.values()), 4000, self._seed)
        rounds: dict[str, tuple[int, Callable[[Variant], bool]]] = {
            "nodes that parse and name something else": (50, self._names_something_else),
            "swaps of a kind": (20, lambda variant: variant.damage is Damage.SWAP_SAME),
            "nodes that parse and name the same": (50, self._names_the_same),
            "nodes with any damage": (60, lambda _: True),
        }
        for name, (most, fits) in rounds.items():
            self._round(name, _on_different_nodes(filter(fits, variants), most))

    def _round(self, name: str, variants: Sequence[Variant]) -> None:
        self._write({path: value for variant in variants for path, value in variant.writes})
        time.sleep(_OLD_ENOUGH_S)
        self._told.clear()
        try:
            for number in range(2):
                begun = time.monotonic()
                try:
                    scan = OrphanScan(self._spark, self._settings)
                    found = scan.run(scan.begin())
                except BookwardenError as error:
                    self._site.say(f"scan {number + 1} of {name} ({len(variants)}): no plan: {error}")
                    continue
                plans = plans_of(self._settings)
                ledgers = {one.ledger_id: one.cause for one in plans.all_candidates(found.plan)}
                copies = {copy_keys(one.uuid, one.ledger_id): one.cause for one in plans.all_copies(found.plan)}
                self._site.say(
                    f"scan {number + 1} of {name} ({len(variants)}): {len(ledgers)} ledgers and {len(copies)} copies "
                    f"planned, {len(found.summary.doubts)} doubts, {found.missing} missing, exit code "
                    f"{found.exit_code} ({time.monotonic() - begun:.0f} s)"
                )
                self._judge(variants, ledgers, copies)
        finally:
            self._write({path: self._truth.nodes[path].value for variant in variants for path, _ in variant.writes})

    def _judge(
        self, variants: Sequence[Variant], ledgers: Mapping[int, str], copies: Mapping[frozenset[str], str]
    ) -> None:
        of_path = {path: variant for variant in variants for path, _ in variant.writes}
        for path in self._truth.nodes:
            for mark in self._truth.live_marks_of(path):
                cause = copies.get(mark.keys) if mark.keys else ledgers.get(mark.ledger_id)
                if cause is not None and str(mark) not in self._told:
                    self._told.add(str(mark))
                    # A cursor's buckets and compacted ledgers depend on its topic's node as well.
                    self._tell(mark, cause, of_path.get(path) or of_path.get(path.rpartition("/")[0]))

    def _tell(self, mark: LiveMark, cause: str, variant: Variant | None) -> None:
        exemption = None if variant is None else exemption_of(variant, self._truth.nodes[variant.path])
        if exemption is not None:
            self.planned.exempt[exemption] += 1
        else:
            self.planned.copies += bool(mark.keys)
            self.planned.ledgers += not mark.keys
        word = "PLANNED" if exemption is None else f"not counted, {exemption.value}"
        self._site.say(f"{word}: {mark}, cause {cause}: {variant or 'its node is healthy'}")
        for path, _ in () if variant is None else variant.writes:
            self._site.say(f"  healthy: {path}={self._truth.nodes[path].value.hex()}")

    def _write(self, values: Mapping[str, bytes]) -> None:
        for path, value in values.items():
            self._site.tree.set(path, value)

    def _names_something_else(self, variant: Variant) -> bool:
        named = self._named_if_read(variant)
        return variant.damage is not Damage.SWAP_SAME and named is not None and named != self._named(variant)

    def _names_the_same(self, variant: Variant) -> bool:
        return self._named_if_read(variant) == self._named(variant)

    def _named(self, variant: Variant) -> frozenset[int]:
        node = self._truth.nodes[variant.path]
        return frozenset(ledgers_named(node.path, node.kind, node.value))

    @staticmethod
    def _named_if_read(variant: Variant) -> frozenset[int] | None:
        """Return the ledgers that the damaged node names; None where the product refuses it, or it is compressed.

        A managed ledger that is refused makes the scan doubt all data ledgers, and hides what else it would plan.
        """
        path, value = variant.writes[0]
        try:
            _DECODERS[variant.kind](value)
            return frozenset(ledgers_named(path, variant.kind, value))
        except (FormatError, ValueError):
            return None


def _on_different_nodes(variants: Iterable[Variant], most: int) -> list[Variant]:
    found: list[Variant] = []
    taken: set[str] = set()
    for variant in variants:
        paths = {path for path, _ in variant.writes}
        if len(found) < most and taken.isdisjoint(paths):
            found.append(variant)
            taken |= paths
    return found
