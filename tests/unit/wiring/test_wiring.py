"""The wiring constructs, keeps and closes: it reads nothing, decides nothing, and calls nothing of what it made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

WIRING = Path(__file__).parents[3] / "src" / "bookwarden" / "wiring"

# Of its own base, of settings and texts, how a store or a client is opened, and how it is entered where all migrations
# are known.
CONSTRUCTING = {"keep", "closed_on_error", "_open", "_cluster_of", "open", "at", "__init__", "follow"}
# What opens something closes it; else it has what others opened. Who moves ledgers may switch too.
BASES = {"Resources", "SwitchOperations"}
OF_VALUES = {"values", "items", "fromkeys", "join", "rstrip", "startswith"}
OF_SETTINGS = {"model_copy", "model_dump", "get_secret_value"}

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("module", sorted(WIRING.glob("*.py")), ids=lambda path: path.stem)
def test_the_wiring_only_constructs_and_closes(module: Path) -> None:
    assert list(deeds_in(ast.parse(module.read_text(encoding="utf-8")))) == []


def test_admin_clients_are_opened_by_the_wiring_alone() -> None:
    """The source has options of its own, and registered brokers are asked one by one."""
    others = {
        "pipelines/pulsar_source/planner.py",
        "pipelines/pulsar_source/reading.py",
    }
    others |= {"clusters/pulsar/rest/registered_brokers.py"}
    modules = {
        path.relative_to(WIRING.parent): path.read_text(encoding="utf-8") for path in WIRING.parent.rglob("*.py")
    }
    opening = {name for name, text in modules.items() if "PulsarAdmin(" in text}
    assert {str(name) for name in opening if name.parent.name != "wiring"} == others


def deeds_in(module: ast.Module) -> Iterator[str]:
    """Yield what a module does beside constructing, by line."""
    for statement in module.body:
        if isinstance(statement, ast.ClassDef):
            yield from deeds_of(statement)
    for node in ast.walk(module):
        deed = deed_of(node)
        if deed:
            yield f"line {getattr(node, 'lineno', 0)}: {deed}"


def deeds_of(context: ast.ClassDef) -> Iterator[str]:
    if any(ast.unparse(base) not in BASES for base in context.bases):
        yield f"{context.name} is no Resources"
    for method in context.body:
        if not isinstance(method, Function):
            continue
        kinds = {ast.unparse(decorator) for decorator in method.decorator_list}
        opens = method.name in ("__init__", "_open", "_cluster_of", "open")
        if not opens and not kinds & {"property", "cached_property"}:
            yield f"{context.name}.{method.name} does something"


def deed_of(node: ast.AST) -> str:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        allowed = CONSTRUCTING | OF_VALUES | OF_SETTINGS
        return "" if node.func.attr in allowed else f"calls {ast.unparse(node.func)}"
    if isinstance(node, ast.With):
        opened = [ast.unparse(item.context_expr) for item in node.items]
        return "" if opened == ["self.closed_on_error()"] else f"opens {opened}"
    if isinstance(node, ast.ExceptHandler):
        caught = ast.unparse(node.type) if node.type else "everything"
        return "" if caught == "ImportError" else f"catches {caught}"
    if isinstance(node, (ast.For, ast.While, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith, ast.Await)):
        return type(node).__name__
    return ""


def test_what_the_wiring_may_not_do_is_seen() -> None:
    """Each line of this class is one that the wiring must not have."""
    text = """
class Context(Base):
    def read(self):
        for path in self.store.list_many(["/"]):
            yield path
    @property
    def flag(self):
        with closing(self.store):
            try:
                return self.store.get("/flag")
            except StoreError:
                return None
"""
    assert list(deeds_in(ast.parse(text))) == [
        "Context is no Resources",
        "Context.read does something",
        "line 4: For",
        "line 8: opens ['closing(self.store)']",
        "line 4: calls self.store.list_many",
        "line 5: Yield",
        "line 11: catches StoreError",
        "line 10: calls self.store.get",
    ]
