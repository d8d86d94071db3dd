"""What a build copies, from where and to where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookwarden.bookie_clusters.moving.scope import Route, Scope, route_of, scope_of
from bookwarden.bookie_clusters.registry import Registry
from bookwarden.errors import FormatError, RefusedError
from bookwarden.ledgers.kinds import BucketHolder, CompactedHolder, CursorHolder, Holder, ManagedLedgerHolder
from bookwarden.ledgers.kinds.schema import SchemaHolder
from bookwarden.records import record_fields, record_of
from servers.switching.ground import registry_of

DATA = ManagedLedgerHolder("t/n/persistent/orders")
PARTITION = ManagedLedgerHolder("t/n/persistent/orders-partition-2")
CURSOR = CursorHolder("t/n/persistent/orders-partition-2", "sub")
SCHEMA = SchemaHolder("t/n/orders")
COMPACTED = CompactedHolder("t/n/persistent/orders")
BUCKET = BucketHolder("t/n/persistent/orders", "sub")
OLD = ManagedLedgerHolder("t/use/n/persistent/orders")
OTHER = CursorHolder("u/n/persistent/orders", "sub")
NAMELESS = CursorHolder("t/n/persistent/or ders", "sub")
EVERYTHING = {DATA, PARTITION, CURSOR, SCHEMA, COMPACTED, BUCKET, OLD, OTHER, NAMELESS}


def scope(
    *,
    every_kind: bool = True,
    tenants: tuple[str, ...] = (),
    namespaces: tuple[str, ...] = (),
    topics: tuple[str, ...] = (),
) -> Scope:
    return scope_of(every_kind=every_kind, tenants=tenants, namespaces=namespaces, topics=topics)


@pytest.mark.parametrize(
    ("asked", "copied"),
    [
        (scope(every_kind=False), {CURSOR, SCHEMA, OTHER, NAMELESS}),
        (scope(), EVERYTHING),
        (scope(tenants=("u",)), {OTHER}),
        (scope(every_kind=False, tenants=("t",)), {CURSOR, SCHEMA}),
        (scope(namespaces=("t/n",)), {DATA, PARTITION, CURSOR, SCHEMA, COMPACTED, BUCKET}),
        (scope(namespaces=("t/use/n",)), {OLD}),
        (scope(topics=("persistent://t/n/orders",)), {DATA, PARTITION, CURSOR, SCHEMA, COMPACTED, BUCKET}),
        (scope(topics=("t/n/orders-partition-2",)), {PARTITION, CURSOR, SCHEMA}),
        (scope(topics=("persistent://t/n/orders-partition-3",)), {SCHEMA}),
        (scope(tenants=("u",), topics=("persistent://t/use/n/orders",)), {OTHER, OLD, SCHEMA}),
    ],
)
def test_a_scope_names_kinds_and_where(asked: Scope, copied: set[Holder]) -> None:
    assert {holder for holder in EVERYTHING if asked.wanted(holder)} == copied
    assert record_of(Scope, record_fields(asked)) == asked


def test_a_scope_is_told_in_words() -> None:
    assert str(scope(every_kind=False)) == "cursor, schema"
    assert str(scope(tenants=("t",), topics=("t/n/x",))) == "all kinds of t, persistent://t/n/x"


@pytest.mark.parametrize("asked", [{"namespaces": ("t",)}, {"namespaces": ("t/",)}, {"topics": ("a/b",)}])
def test_a_name_that_is_none_is_refused(asked: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(FormatError):
        scope(**asked)  # type: ignore[arg-type] # None of them is the flag.


SWITCHED = registry_of("a").switched("b", "test", 1)
THREE = registry_of("a", names="abc")


@pytest.mark.parametrize(
    ("registry", "source", "target", "route"),
    [
        (SWITCHED, None, None, Route("a", "b")),
        (SWITCHED, None, "a", Route("b", "a")),
        (registry_of("a"), None, "b", Route("a", "b")),
        # Never switched, and there is one other.
        (registry_of("a"), None, None, Route("b", "a")),
        (THREE.switched("c", "test", 1), None, None, Route("a", "c")),
        (THREE.switched("c", "test", 1), "b", None, Route("b", "c")),
        (THREE.switched("c", "test", 1), None, "b", Route("c", "b")),
    ],
)
def test_what_is_not_named_is_chosen(registry: Registry, source: str | None, target: str | None, route: Route) -> None:
    assert route_of(registry, source, target) == route


@pytest.mark.parametrize(
    ("registry", "source", "target", "reason"),
    [
        (SWITCHED, "b", None, "cannot be both"),
        (SWITCHED, "c", None, "no bookie cluster 'c'"),
        (SWITCHED, None, "c", "no bookie cluster 'c'"),
        (registry_of("a", names="a"), None, None, "no other bookie cluster"),
        (THREE, None, None, "say which of b, c"),
        (replace(SWITCHED.with_deprecated("a", True)), None, "a", "DEPRECATED"),
    ],
)
def test_what_cannot_be_copied_is_refused(
    registry: Registry, source: str | None, target: str | None, reason: str
) -> None:
    with pytest.raises(RefusedError, match=reason):
        route_of(registry, source, target)
