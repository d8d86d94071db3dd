"""What holds for every kind of holder in the table, and that nothing but the table knows them all."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bookwarden
from bookwarden.errors import FormatError
from bookwarden.ledgers.custom_metadata import custom_metadata_mismatch, expected_custom_metadata, identify_holder
from bookwarden.ledgers.kinds import (
    KIND_BY_COMPONENT,
    KINDS,
    KINDS_OF_CURSORS,
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    LedgerComponent,
    ManagedLedgerHolder,
    PlaceKind,
    SchemaHolder,
    holders_of_cursor,
)
from bookwarden.ledgers.managed_ledger import COMPACTION_CURSOR, CursorInfo
from bookwarden.ledgers.names import TopicName, encode_local_name
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.ledgers.references import doubt_about_cursor, named_by_cursor
from bookwarden.orphans.owners import owner_of
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.pb import managed_ledger_pb2 as pb

SOURCES = Path(bookwarden.__file__).parent
# Why an orphan came about is said of each kind by itself; a record of the trash has a field for each, and each is put
# into a node of its own when a topic is rebuilt.
KNOWS_THEM_ALL = {"orphans/causes.py", "ledgers/trash.py", "trash/from_ledgers.py"}
ML = "t/n/persistent/a/"
OF_LOGS = {PlaceKind.LOG_SEGMENT, PlaceKind.LOG_ALLOCATION}

entities = st.text("ab09-=:._", min_size=1, max_size=5).filter(lambda name: name not in (".", ".."))
# What the full name of a topic has behind the namespace; with a slash it may mean a topic of another namespace.
locals_ = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..")
)
topics = st.builds(TopicName, entities, entities, locals_, cluster=st.none() | entities)
managed_ledgers = topics.map(lambda topic: topic.managed_ledger)
cursors = (locals_ | st.just("a/b")).map(encode_local_name)
HOLDERS: dict[type[Holder], st.SearchStrategy[Holder]] = {
    ManagedLedgerHolder: st.builds(ManagedLedgerHolder, managed_ledgers),
    CursorHolder: st.builds(CursorHolder, managed_ledgers, cursors),
    SchemaHolder: topics.map(lambda topic: SchemaHolder(topic.schema_id)),
    CompactedHolder: st.builds(CompactedHolder, managed_ledgers),
    BucketHolder: st.builds(BucketHolder, managed_ledgers, cursors),
}
holders = st.one_of(*HOLDERS.values())


def custom_metadata(holder: Holder) -> dict[str, bytes]:
    return {name: value.encode() for name, value in expected_custom_metadata(holder).items()}


def subclasses(kind: type[Holder]) -> Iterator[type[Holder]]:
    # dataclasses with slots leave behind the class that they were made of.
    for below in kind.__subclasses__():
        yield from subclasses(below)
        yield below


def test_the_table_is_complete() -> None:
    assert set(HOLDERS) == set(KINDS)
    assert set(KIND_BY_COMPONENT) == set(LedgerComponent)
    assert len(KIND_BY_COMPONENT) == len(KINDS)
    named = {below.__qualname__ for below in subclasses(Holder) if "component" in vars(below)}
    assert named == {kind.__qualname__ for kind in KINDS}
    places = [place for kind in KINDS for place in kind.places]
    assert sorted(places, key=str) == sorted(set(PlaceKind) - OF_LOGS, key=str)
    for words in ([kind.label for kind in KINDS], [kind.ledgers_label for kind in KINDS]):
        assert len(set(words)) == len(KINDS)
    assert len({kind.prefix for kind in KINDS if kind.prefix}) == sum(bool(kind.prefix) for kind in KINDS)
    modules = {path.stem for path in (SOURCES / "ledgers" / "kinds").glob("[a-z]*.py")} - {"holder"}
    assert modules == {kind.__module__.rpartition(".")[2] for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.component.name)
def test_a_kind_is_told_to_readers(kind: type[Holder]) -> None:
    documented = (SOURCES.parents[1] / "docs" / "ledgers.md").read_text(encoding="utf-8")
    assert f"`{kind.component.value}`" in documented
    assert f"`component={kind.tag}`" in documented


@given(holders)
def test_a_holder_is_a_small_value(holder: Holder) -> None:
    assert not hasattr(holder, "__dict__")
    assert pickle.loads(pickle.dumps(holder)) == holder
    again = type(holder)(*(getattr(holder, field.name) for field in fields(holder)))
    assert (again, hash(again)) == (holder, hash(holder))


@given(holders)
def test_a_text_is_read_back(holder: Holder) -> None:
    text, kind = str(holder), type(holder)
    assert kind.of_text(text) == holder
    assert text.startswith(kind.prefix)
    for other in KINDS:
        assert other is kind or other.of_text(text) != holder
        assert not kind.prefix or not other.prefix or other is kind or other.of_text(text) is None


@given(holders)
def test_the_owner_of_a_listed_ledger_is_the_holder(holder: Holder) -> None:
    owner = owner_of(holder.component.name, str(holder))
    assert owner is not None
    assert owner.holder == holder
    assert owner.topic == holder.topic
    above = str(holder)[len(holder.prefix) :].rsplit("/", holder.names_below)[0]
    assert owner.namespace == above
    assert owner.tenant == above.partition("/")[0]


@given(holders)
def test_a_mark_names_its_holder(holder: Holder) -> None:
    mark = mark_of_holder(7, holder, "why")
    mark.validate()
    assert mark.component is holder.component
    assert mark.holder() == holder
    assert holder.is_markable()


@given(st.sampled_from(KINDS), st.sampled_from(["", "t/n/", "t/n/persistent/", ML]), st.text("abt/+%:.~ ", max_size=9))
def test_what_no_mark_could_name_is_not_markable(kind: type[Holder], above: str, text: str) -> None:
    holder = kind.of_text(f"{kind.prefix}{above}{text}")
    assert holder is not None
    try:
        names_itself = mark_of_holder(0, holder, "").holder() == holder
    except FormatError:
        names_itself = False
    assert holder.is_markable() == names_itself


@given(holders, holders)
def test_custom_metadata_fits_its_holder_and_no_other(holder: Holder, other: Holder) -> None:
    custom = custom_metadata(holder)
    assert identify_holder(custom) == holder
    assert set(holder.tags()) == set(holder.tag_names)
    assert custom_metadata_mismatch(holder, custom) is None
    assert (custom_metadata_mismatch(other, custom) is None) == (other == holder)


@given(holders)
def test_custom_metadata_that_lacks_a_value_names_another_holder_or_none(holder: Holder) -> None:
    for name in custom_metadata(holder):
        less = {key: value for key, value in custom_metadata(holder).items() if key != name}
        assert identify_holder(less) != holder
        assert custom_metadata_mismatch(holder, less) is not None


@given(holders)
def test_the_nodes_that_name_the_ledgers_are_those_of_the_holders_topic(holder: Holder) -> None:
    nodes = holder.named_by()
    assert all(node.topic == holder.topic for node in nodes)
    assert all(node.named_by()[0] == node for node in nodes)
    assert nodes[0] == holder or not isinstance(holder, ManagedLedgerHolder | CursorHolder | SchemaHolder)


@given(managed_ledgers, cursors | st.just(COMPACTION_CURSOR), st.lists(st.integers(0, 2**62), min_size=4, unique=True))
def test_each_ledger_in_a_cursors_node_is_of_one_kind(managed_ledger: str, cursor: str, ids: list[int]) -> None:
    own, compacted, *buckets = ids
    names = {f"#pulsar.internal.delayed.bucket_{number}_{number}": str(number) for number in buckets}
    info = CursorInfo(own, properties={"CompactedTopicLedger": compacted}, cursor_properties={**names, "mine": "no"})
    found = {kind: kind.ledgers_in(info) for kind in KINDS_OF_CURSORS}
    assert all(found.values()), "the node above names ledgers of all kinds, also of a new one"
    assert sorted(number for some in found.values() for number in some) == sorted(info.ledger_ids)
    named = {place.holder: (place.kind, some) for place, some in named_by_cursor(managed_ledger, cursor, info, "", "")}
    assert named == {
        str(kind.of_cursor(managed_ledger, cursor)): (kind.places[0], some) for kind, some in found.items() if some
    }
    about = holders_of_cursor(managed_ledger, cursor)
    assert doubt_about_cursor(managed_ledger, cursor, "/x", "zk:a", "broken").about == tuple(about)
    assert (CompactedHolder(managed_ledger) in about) == (cursor == COMPACTION_CURSOR)
    assert CursorHolder(managed_ledger, cursor) in about
    for name in names:
        damaged = pb.ManagedCursorInfo(cursorsLedgerId=own, cursorProperties=[pb.StringProperty(name=name, value="no")])
        with pytest.raises(FormatError):
            decode_cursor(damaged.SerializeToString())


def kinds_named_in(module: Path) -> set[LedgerComponent]:
    """The kinds that a module names, by their classes, components, places or the beginnings of their texts."""
    words = {word: kind.component for kind in KINDS for word in (kind.__name__, kind.prefix) if word}
    members = {f"LedgerComponent.{kind.component.name}": kind.component for kind in KINDS}
    members |= {f"PlaceKind.{place.name}": kind.component for kind in KINDS for place in kind.places}
    found = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name):
            found.add(words.get(node.id))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(words.get(node.value))
        elif isinstance(node, ast.Attribute):
            found.add(members.get(ast.unparse(node)))
    return {component for component in found if component is not None}


def test_no_module_but_the_table_enumerates_the_kinds() -> None:
    modules = {path.relative_to(SOURCES).as_posix(): path for path in SOURCES.rglob("*.py")}
    outside = {name: path for name, path in modules.items() if not name.startswith("ledgers/kinds/")}
    assert len(outside) > 300
    named = {name: len(kinds_named_in(path)) for name, path in outside.items()}
    # Three are what has a node of its own, or what is special about two beside a topic.
    assert {name for name, count in named.items() if count > 3} == KNOWS_THEM_ALL
    assert len(kinds_named_in(modules["ledgers/kinds/__init__.py"])) == len(KINDS)
