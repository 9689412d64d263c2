"""The mutants: every position of the source that can be changed, and the fixed random sample of them."""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.mutation.executed_lines import SOURCE

SEED = 13
SAMPLE = {
    "checks": 36,
    "readings": 36,
    "readings/symmetry": 24,
    "fixes": 24,
    "monitor": 24,
    "tracer": 24,
}
"""Folders of the source, each with the number of mutants drawn from it; an inner folder counts for itself."""
EXAMPLES = re.compile(r"example|rehearsed|stack_with_step_size")
"""Functions and files that make the test data of a check."""
DISPLAY = re.compile(r"WIDTH|DIGITS|LETTERS|COLUMNS|CHARACTERS")
"""Names of constants that only lay out text."""
LAYOUT_CALLS = {"round", "ljust", "rjust", "center", "shorten", "indent", "enumerate"}
"""Calls whose numbers only lay out text, or count from one for a reader."""
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
SIGNS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in a file that a mutant changes."""

    label: str  # its scope, its code, and its index among equal ones
    first_line: int  # of the statement, or of the function's body if the change is in a default
    last_line: int
    constant: str | None  # the name that a statement of the module assigns


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One position of the sample."""

    folder: str
    path: Path
    number: int  # of its position in the file
    position: Position

    @property
    def key(self) -> str:
        return f"{self.path.relative_to(SOURCE)} {mutate(self.path.read_text(), self.number)[0]}"


def positions(text: str) -> list[Position]:
    """Return all positions of a file, in order."""
    lines = text.splitlines()
    seen: Counter[str] = Counter()
    found = []
    for place in _places(ast.parse(text), _Within(), lines):
        label = f"{place.within.scope}: {_code(place.node)}"
        seen[label] += 1
        found.append(
            Position(
                label=f"{label} ({seen[label]})" if seen[label] > 1 else label,
                first_line=place.within.first_line,
                last_line=place.within.last_line,
                constant=place.within.constant,
            )
        )
    return found


def mutate(text: str, number: int) -> tuple[str, ast.Module]:
    """Return a description of the change at this position, and the changed program with its line numbers."""
    tree = ast.parse(text)
    place = list(_places(tree, _Within(), text.splitlines()))[number]
    label = positions(text)[number].label
    _change(place.node)
    return f"{label} -> {_code(place.node)}", ast.fix_missing_locations(tree)


def sample() -> list[Mutant]:
    """Return the sample, alternating between folders.

    Positions are drawn by a hash of their names, so a change of the source replaces only the mutants of that part.
    """
    chosen: list[tuple[float, Mutant]] = []
    for folder, count in SAMPLE.items():
        every = [
            (_hash(f"{path.relative_to(SOURCE)} {position.label}"), path, number, position)
            for path in _files(folder)
            for number, position in enumerate(positions(path.read_text()))
        ]
        drawn = sorted(every, key=lambda each: each[0])[:count]
        chosen += [
            (turn / count, Mutant(folder=folder, path=path, number=number, position=position))
            for turn, (_, path, number, position) in enumerate(drawn)
        ]
    return [mutant for _, mutant in sorted(chosen, key=lambda each: each[0])]


def uses(path: Path, constant: str) -> Iterator[tuple[Path, int]]:
    """Return the lines that read a constant of this module, in it and in modules that import it by name."""
    name = re.compile(rf"\b{constant}\b")
    for each in sorted(SOURCE.rglob("*.py")):
        text = each.read_text()
        if each == path or (constant in text and path.stem in text):
            yield from (
                (each, number) for number, line in enumerate(text.splitlines(), 1) if name.search(line)
            )


def _files(folder: str) -> list[Path]:
    inner = [SOURCE / each for each in SAMPLE if each.startswith(f"{folder}/")]
    return [
        path
        for path in sorted((SOURCE / folder).rglob("*.py"))
        if not EXAMPLES.search(path.stem) and not any(path.is_relative_to(each) for each in inner)
    ]


def _hash(name: str) -> bytes:
    return hashlib.sha256(f"{SEED} {name}".encode()).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Within:
    """What encloses a node: its function or class, and the lines that are executed if the node is."""

    scope: str = "file"
    first_line: int = 0
    last_line: int = 0
    constant: str | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    within: _Within
    node: Any


def _places(node: ast.AST, within: _Within, lines: list[str]) -> Iterator[_Place]:
    for child in ast.iter_child_nodes(node):
        if _is_left_out(child, node, lines):
            continue
        inside = _enclosing(child, within)
        if _can_change(child):
            yield _Place(inside, child)
        yield from _places(child, inside, lines)


def _enclosing(node: ast.AST, within: _Within) -> _Within:
    if isinstance(node, Function):
        return _Within(scope=node.name, first_line=node.body[0].lineno, last_line=node.end_lineno or 0)
    if isinstance(node, ast.ClassDef):
        return _Within(scope=node.name, first_line=node.lineno, last_line=node.end_lineno or 0)
    if not isinstance(node, ast.stmt):
        return within
    if within.scope == "file":
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [node.id for each in targets if each for node in ast.walk(each) if isinstance(node, ast.Name)]
        return _Within(first_line=node.lineno, last_line=node.lineno, constant=names[0] if names else None)
    body = getattr(node, "body", None)
    last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
    return _Within(scope=within.scope, first_line=node.lineno, last_line=last or node.lineno)


def _is_left_out(child: ast.AST, parent: ast.AST, lines: list[str]) -> bool:
    """Return whether a node is test data, a default, layout of text, an annotation, or code for another machine."""
    if isinstance(parent, Function) and child in parent.decorator_list:
        return True
    if isinstance(parent, ast.arguments) or (
        isinstance(parent, ast.ClassDef) and not isinstance(child, Function)
    ):
        return True
    if isinstance(child, Function) and EXAMPLES.search(child.name):
        return True
    if isinstance(child, ast.stmt) and "pragma: no cover" in lines[child.lineno - 1]:
        return True
    if isinstance(child, ast.Assert) or (
        isinstance(child, ast.expr) and child is getattr(parent, "annotation", None)
    ):
        return True
    return _lays_out_text(child)


def _lays_out_text(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(each, ast.Name) and DISPLAY.search(each.id) for each in targets)
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", getattr(node.func, "attr", "")) in LAYOUT_CALLS
    if isinstance(node, ast.IfExp):  # a choice between two words, as the plural
        return all(
            isinstance(each, ast.Constant) and isinstance(each.value, str)
            for each in (node.body, node.orelse)
        )
    return False


def _can_change(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return type(node.ops[0]) in COMPARISONS
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return type(node.op) in SIGNS and not _is_text(node)
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    return isinstance(node, ast.BoolOp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    if isinstance(node, ast.AugAssign):
        return _is_text(node.value)
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) or _is_text(node.orelse)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _change(node: Any) -> None:
    if isinstance(node, ast.Compare):
        node.ops[0] = COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        node.op = SIGNS[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd()  # `+condition` has the same truth value as the condition
    else:
        node.value = node.value + 1 if isinstance(node.value, int) else node.value * 1.5 or 0.5


def _code(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())
