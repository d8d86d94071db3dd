"""Figures of the source, to compare one tree with another: `python tests/figures.py [TREE]`.

They say where to look, and are no limits. Generated code (wire/pb) is left out.
"""

from __future__ import annotations

import ast
import os
import re
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_LIST = """
from click.testing import CliRunner
from bookwarden.cli.main import cli
import sys
options = ["--set", 'metadata_store.urls=["memory:figures"]', "bookie-clusters", "list"]
assert CliRunner().invoke(cli, options).exit_code == 0
print(sum(name.split(".")[0] == "bookwarden" and "pb" not in name.split(".") for name in sys.modules))
"""


class Tree:
    """The modules of a checkout, by their dotted names."""

    def __init__(self, checkout: Path) -> None:
        self.sources = checkout / "src"
        files = [path for path in self.sources.rglob("*.py") if "pb" not in path.parts]
        self.files = {_dotted(path.relative_to(self.sources)): path for path in files}
        self.texts = {name: path.read_text(encoding="utf-8") for name, path in self.files.items()}
        self.parsed = {name: ast.parse(text) for name, text in self.texts.items()}

    def lines(self, name: str) -> int:
        """Return the lines of a module."""
        return self.texts[name].count("\n")

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
        """Yield each node of these kinds with its module."""
        for name, module in self.parsed.items():
            for node in ast.walk(module):
                if isinstance(node, kinds):
                    yield name, node

    @cached_property
    def users(self) -> Mapping[str, set[str]]:
        """The modules that import each."""
        found: dict[str, set[str]] = defaultdict(set)
        for name, node in self.nodes(ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found[inner if inner in self.files else str(node.module)].add(name)
        return found

    @cached_property
    def protocols(self) -> list[str]:
        """The names of protocols."""
        return [node.name for _, node in self.nodes(ast.ClassDef) if "Protocol" in map(_base, node.bases)]

    @cached_property
    def small_with_one_user(self) -> list[str]:
        """The modules below 60 lines that one other imports."""
        modules = [name for name, path in self.files.items() if path.name != "__init__.py" and self.lines(name) < 60]
        return [name for name in modules if len(self.users[name]) == 1]


def figures(tree: Tree) -> Iterator[tuple[str, object]]:
    """Yield each figure with what it counts."""
    lines = sorted(tree.lines(name) for name in tree.files)
    functions = [node for _, node in tree.nodes(*FUNCTION)]
    lengths = sorted(node.end_lineno - node.lineno + 1 for node in functions)
    classes = [node for _, node in tree.nodes(ast.ClassDef)]
    words = Counter(node.name for node in classes)
    files = Counter(path.name for path in tree.files.values() if path.name != "__init__.py")
    text = "\n".join(tree.texts.values())
    public = [node for node in functions if not node.name.startswith("_")]
    handlers = [node for _, node in tree.nodes(ast.ExceptHandler)]
    broad = [node for node in handlers if node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")]
    most = max(functions, key=_parameters)
    yield "modules, lines", f"{len(lines)}, {sum(lines):,}"
    yield "module median, p90, largest", _spread(lines)
    yield "function median, p90, largest", _spread(lengths)
    yield "functions above 30, 40 lines", f"{sum(n > 30 for n in lengths)}, {sum(n > 40 for n in lengths)}"
    yield "classes", len(classes)
    yield "protocols", len(tree.protocols)
    yield "Callable[ in annotations", text.count("Callable[")
    yield "class names used twice or more", sum(count > 1 for count in words.values())
    yield "file names used twice or more", sum(count > 1 for count in files.values())
    yield (
        "public functions with docstring, %",
        100 * sum(ast.get_docstring(n) is not None for n in public) // len(public),
    )
    yield "handlers that catch everything, of all", f"{len(broad)} of {len(handlers)}"
    yield (
        "Any, type: ignore, noqa",
        ", ".join(str(len(re.findall(p, text))) for p in (r"\bAny\b", "type: ignore", "# noqa")),
    )
    yield "most parameters of one function", f"{_parameters(most)} ({most.name})"
    yield "packages", sum(path.name == "__init__.py" for path in tree.files.values())
    yield "modules below 60 lines with one user", len(tree.small_with_one_user)
    yield "modules that `bookie-clusters list` loads", modules_of_list(tree.sources)
    yield "README, bytes", (tree.sources.parent / "README.md").stat().st_size


def modules_of_list(sources: Path) -> int:
    """Return how many modules of the product one command loads that reads one node."""
    paths = os.pathsep.join([str(sources), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", _LIST]
    return int(subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, check=True).stdout)


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _base(node: ast.expr) -> str:
    return ast.unparse(node).split("[")[0].rpartition(".")[2]


def _spread(sizes: list[int]) -> str:
    return f"{statistics.median(sizes):.0f}, {sizes[len(sizes) * 9 // 10]}, {sizes[-1]}"


def _parameters(node: ast.AST) -> int:
    arguments = node.args
    return len([one for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if one.arg != "self"])


if __name__ == "__main__":
    for what, figure in figures(Tree(Path(sys.argv[1] if len(sys.argv) > 1 else "."))):
        sys.stdout.write(f"{what:45} {figure}\n")
